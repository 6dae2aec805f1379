"""The server: replies have the bits that they have alone; wrong requests, lost clients and full caches do
no harm.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import cli
from tessera.core.errors import TesseraError
from tessera.models.generation import log_probabilities
from tessera.models.guide import guide
from tessera.models.paged import PAGE, PagedSteps
from tessera.serve import engine as engine_of_replies
from tessera.serve import requests
from tessera.serve.engine import Refused
from tessera.serve.fields import parsed
from tessera.serve.job import ReplyDone, ReplyToken
from tessera.serve.pages import ROOT, PageTable, key_of
from tessera.serve.replies import Replies
from tessera.serve.service import Options
from tessera.serve.tools import Tools
from tests.support.cases.model_files import SMALL, llama_gguf
from tests.support.runners.serving import Client, serving

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    return ts.models.load(path)


@pytest.fixture(scope="module")
def client(model):
    with serving(model, Options(body=20_000, hosts=("127.0.0.1", "localhost"))) as made:
        yield made


def requests_for(count, seed):
    """Random requests, many with one beginning."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(1, 256, 40).tolist()
    out = []
    for _ in range(count):
        own = rng.integers(1, 256, int(rng.integers(1, 30))).tolist()
        out.append({
            "prompt": (shared if rng.random() < 0.5 else []) + own, "max_tokens": int(rng.integers(1, 50)),
            "temperature": float(rng.choice([0.0, 0.7, 1.5])), "seed": int(rng.integers(1000)), "logprobs": 2,
            "frequency_penalty": float(rng.choice([0.0, 0.5])),
        })  # fmt: skip
    return out


def alone(model, r):
    """Tokens and log-probabilities by generate and logits, which know nothing of pages."""
    new = model.generate(
        r["prompt"], r["max_tokens"], r["temperature"], seed=r["seed"],
        frequency_penalty=r["frequency_penalty"]
    )  # fmt: skip
    rows = log_probabilities(model.logits([*r["prompt"], *new]).numpy()[len(r["prompt"]) - 1 :])
    names = [model.tokenizer.name(t) for t in new]
    return names, [float(rows[i][t]) for i, t in enumerate(new)]


def compare_with_replies_alone(model, count, seed):
    """Ask for all at once from a server whose cache is too small for all, and whose batches are of any
    size.
    """
    asked = requests_for(count, seed)
    want = [alone(model, r) for r in asked]
    with serving(model, waiting=count) as client, ThreadPoolExecutor(count) as pool:
        held, engine = threading.Event(), client.service.engine
        engine.call(lambda: held.wait(60))
        replies = []
        for i, r in enumerate(
            asked
        ):  # one after another: which replies lose their pages depends on the order
            replies.append(pool.submit(client.post, "/v1/completions", r))
            client.until(lambda want=i + 1: len(engine._waiting) == want)
        held.set()
        got = [reply.result() for reply in replies]
        for (status, reply), (names, logprobs) in zip(got, want, strict=True):
            assert status == 200, reply
            found = reply["choices"][0]["logprobs"]
            assert found["tokens"] == names
            assert found["token_logprobs"] == logprobs  # every bit
        assert engine.pages.used == 0
        metrics = client.service.metrics
        return metrics.value("preemptions_total"), metrics.value("shared_tokens_total")


@pytest.mark.parametrize("count", [1, 8, 44])
def test_a_reply_has_the_bits_of_the_reply_alone(model, count):
    preempted, shared = compare_with_replies_alone(model, count, seed=6)
    assert count == 1 or shared > 0
    assert count < 44 or preempted > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(5))
def test_two_hundred_replies_have_the_bits_of_replies_alone(model, seed):
    compare_with_replies_alone(model, 200, seed)


def test_chat_is_that_of_the_model(model, client):
    status, reply = client.post(CHAT, HI)
    want = "".join(model.chat(HI["messages"], max_new_tokens=4))
    assert status == 200
    assert reply["object"] == "chat.completion"
    assert reply["choices"][0]["message"]["content"] == want
    assert reply["choices"][0]["finish_reason"] == "length"
    events = client.stream(CHAT, HI | {"stream_options": {"include_usage": True}})
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == want
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 4


def test_usual_steps_are_compiled_while_no_request_waits(model, monkeypatch):
    ran, run = [], PagedSteps.run

    def noted(steps, parts):
        ran.append((len(parts), len(parts[0].tokens)))
        return run(steps, parts)

    monkeypatch.setattr(PagedSteps, "run", noted)
    # The last but one is longer than the context, the last wider than a batch: neither is compiled.
    monkeypatch.setattr(engine_of_replies, "USUAL", ((1, 32), (1, 1), (1, 208), (999, 1)))
    with serving(model, Options(warm=True)) as client:
        engine = client.service.engine
        client.until(lambda: not engine._cold and len(ran) == 2, 60)
        assert ran == [(1, 32), (1, 1)]
        assert engine.pages.used == 0
        status, reply = client.post(CHAT, HI)  # over pages that the steps have written to
        assert status == 200
        want = "".join(model.chat(HI["messages"], max_new_tokens=4))
        assert reply["choices"][0]["message"]["content"] == want
        assert engine.alive


def test_choices_stops_and_seeds(model, client):
    ask = {"prompt": "Hello", "max_tokens": 20, "temperature": 1.5, "seed": 3, "n": 3}
    _, reply = client.post("/v1/completions", ask)
    texts = [c["text"] for c in reply["choices"]]
    assert texts == [model.generate("Hello", 20, 1.5, seed=s) for s in (3, 4, 5)]
    stop = texts[0][4:6]
    _, reply = client.post("/v1/completions", ask | {"n": 1, "stop": [stop]})
    assert reply["choices"][0]["text"] == texts[0].split(stop)[0]
    assert reply["choices"][0]["finish_reason"] == "stop"
    _, reply = client.post("/v1/completions", ask | {"prompt": ["Hello", [72, 105]], "n": 1})
    assert reply["choices"][1]["text"] == model.generate("Hi", 20, 1.5, seed=3)
    biased = {"prompt": "Hello", "max_tokens": 3, "temperature": 0, "logit_bias": {"65": 100}}
    assert client.post("/v1/completions", biased)[1]["choices"][0]["text"] == "AAA"


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"enum": ["x", "y"]}},
    "required": ["n", "s"]}  # fmt: skip


def test_a_reply_by_a_schema_is_that_of_generate(model, client):
    form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": SCHEMA}}
    ask = {"prompt": "ab", "max_tokens": 40, "temperature": 1, "seed": 2, "response_format": form}
    _, reply = client.post("/v1/completions", ask)
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["choices"][0]["text"] == model.generate("ab", 40, 1.0, seed=2, schema=SCHEMA)
    _, reply = client.post("/v1/completions", ask | {"response_format": {"type": "json_object"}})
    assert isinstance(json.loads(reply["choices"][0]["text"]), dict)
    status, reply = client.post("/v1/completions", ask | {"max_tokens": 9})
    assert (status, reply["error"]["message"]) == (400,
        "schema: it needs up to 15 tokens, but max_tokens is 9")  # fmt: skip
    status, reply = client.post(CHAT, HI | {"response_format": {"type": "xml"}})
    assert status == 400


TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


def test_calls_are_found_in_replies():
    tools = Tools([TOOL], [], True)
    call = '{"name": "look", "arguments": {"n": 1}}'
    for text in (call, f"<tool_call>\n{call}\n</tool_call>", f"Well. <tool_call>{call}",
        f"[TOOL_CALLS] [{call}]",
                 '{"name": "look", "parameters": {"n": 1}}'):  # fmt: skip
        (found,) = tools.calls(text)
        assert found["function"] == {"name": "look", "arguments": '{"n": 1}'}
    two = tools.calls(f"<tool_call>{call}</tool_call><tool_call>{call}</tool_call>")
    assert [c["index"] for c in two] == [0, 1]
    for text in ("no call", '{"name": "other", "arguments": {}}', "<tool_call>{oops</tool_call>", '{"a": 1}',
                 '{"name": ["look"]}', '{"name": {}}'):  # fmt: skip
        assert tools.calls(text) is None


LOOK = '{"name": "look", "arguments": {"n": 1}}'
# The text, what a stream tells of it, and how many calls it has.
REPLIES = {
    "a text": ("Well, no call.", "Well, no call.", 0),
    "a call": (LOOK, "", 1),
    "a call after a space": (f" \n{LOOK}", "", 1),
    "a call after a text": (f"Well. <tool_call>{LOOK}</tool_call>", "Well. ", 1),
    "two calls": (f"<tool_call>{LOOK}</tool_call><tool_call>{LOOK}</tool_call>", "", 2),
    "the beginning of a mark": ("Well. <tool_c", "Well. <tool_c", 0),
    "another object": ('{"a": 1}', '{"a": 1}', 0),
}


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("name", REPLIES)
def test_a_stream_put_together_is_the_whole_reply(model, name, parallel):
    text, told, calls = REPLIES[name]
    calls = calls if parallel else min(calls, 1)
    for tools, cuts, scored in [
        (True, 1, False),
        (True, 3, True),
        (True, 100, False),
        (False, 3, True),
    ]:
        body = HI | {"parallel_tool_calls": parallel} | ({"tools": [TOOL]} if tools else {})
        body |= {"logprobs": True, "top_logprobs": 1} if scored else {}
        whole = Replies(requests.chat(body, model, "tiny"), model.tokenizer, "tiny")
        scores = {"logprob": -0.5, "top": [(66, -0.25)]} if scored else {}
        pieces = [text[i : i + cuts] for i in range(0, len(text), cuts)]
        events = [ReplyToken(65, x, **scores) for x in pieces[:-1]]
        lines = list(whole.first())
        for e in (*events, ReplyDone("stop", pieces[-1])):
            whole.hear(0, e)
            lines += whole.told(0, e)
        deltas = [json.loads(x.removeprefix(b"data: "))["choices"][0] for x in lines]
        streamed = "".join(d["delta"].get("content", "") for d in deltas)
        sent = [c for d in deltas for c in d["delta"].get("tool_calls", [])]
        (choice,) = whole.whole()["choices"]
        message = choice["message"]
        assert (message["role"], message["refusal"]) == ("assistant", None)
        assert choice["finish_reason"] == deltas[-1]["finish_reason"]
        assert [d["finish_reason"] for d in deltas[:-1]] == [None] * (len(deltas) - 1)
        rows = [x for d in deltas for x in (d["logprobs"] or {"content": []})["content"]]
        assert choice["logprobs"] == ({"content": rows, "refusal": None} if scored else None)
        assert [r["logprob"] for r in rows] == [-0.5] * (len(events) if scored else 0)
        if not calls or not tools:
            assert (message["content"], streamed, sent) == (text, text, [])
            assert (choice["finish_reason"], "tool_calls" in message) == ("stop", False)
            continue
        assert (choice["finish_reason"], message["content"], streamed) == ("tool_calls", None, told)
        assert [c["index"] for c in sent] == list(range(calls))  # a stream numbers its calls
        for c, one in zip(message["tool_calls"], sent, strict=True):
            assert c.keys() == {"id", "type", "function"}
            assert one == c | {"index": one["index"], "id": one["id"]}  # ids are drawn
            assert c["function"] == {"name": "look", "arguments": '{"n": 1}'}


RANGES = {
    "temperature": (0, 100), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (1e-3, 1e3),
    "presence_penalty": (-100, 100), "frequency_penalty": (-100, 100), "top_k": (0, 2**31),
    "seed": (-(2**63), 2**63 - 1), "max_tokens": (1, 2**31), "n": (1, 16),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_numbers_are_read_up_to_their_ends_and_refused_past_them(model, name):
    low, high = RANGES[name]
    whole = isinstance(low, int) and name not in {"temperature", "top_p", "min_p"}
    whole = whole and not name.endswith("_penalty")
    for v in (low, high, (low + high) // 2 if whole else (low + high) / 2):
        ask = requests.chat(HI | {"max_tokens": 4} | {name: v}, model, "tiny")
        where = {"max_tokens": "limit", "n": "choices"}.get(name)
        got = getattr(ask.sampling, name) if where is None else getattr(ask, where)
        assert got == (v % 2**64 if name == "seed" else v)
    for v in (low - 1, high + 1) if whole else (low - 0.001, high + 0.001):
        with pytest.raises(Refused, match=f"{name} is .*, expected an? (number|integer) from"):
            requests.chat(HI | {name: v}, model, "tiny")


def test_what_is_not_asked_for_changes_nothing(model):
    s = requests.chat(HI | {"temperature": None}, model, "tiny").sampling
    assert (s.temperature, s.top_p, s.top_k, s.min_p) == (1, 1, 0, 0)
    assert (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) == (1, 0, 0)
    assert 0 <= s.seed < 2**63
    assert s.seed != requests.chat(HI, model, "tiny").sampling.seed


def test_a_prefix_is_computed_once(client):
    ask = {"prompt": list(range(1, 60)), "max_tokens": 3, "temperature": 0, "logprobs": 1}
    (_, first), (_, second) = (client.post("/v1/completions", ask) for _ in range(2))
    assert first["choices"] == second["choices"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 59 // PAGE * PAGE


def test_embeddings_are_those_of_the_model(model, client):
    _, reply = client.post("/v1/embeddings", {"input": ["abc", "Hello"]})
    got = np.array([d["embedding"] for d in reply["data"]], np.float32)
    assert (got == model.embed(["abc", "Hello"]).numpy()).all()
    assert reply["usage"]["prompt_tokens"] == 8


def test_models_health_metrics_and_page(client):
    assert json.loads(client.request("GET", "/v1/models")[1])["data"][0]["id"] == "tiny"
    assert json.loads(client.request("GET", "/v1/models/tiny")[1])["object"] == "model"
    assert client.request("GET", "/health") == (200, b'{"status":"ok"}')
    text = client.request("GET", "/metrics")[1].decode()
    assert "tessera_pages_used 0\n" in text
    assert 'tessera_requests_total{path="/health",status="200"}' in text
    assert b'const model = "tiny";' in client.request("GET", "/")[1]


WRONG = {
    "no JSON": (CHAT, b"{", 400, "the body is not JSON"),
    "NaN": (CHAT, b'{"temperature": NaN}', 400, "NaN is not JSON"),
    "deep": (CHAT, b"[" * 9000, 400, "the body is not JSON"),
    "a list": (CHAT, [], 400, "the body is a list, expected an object"),
    "no messages": (CHAT, {}, 400, "messages is expected to be a list of at least one message"),
    "role": (CHAT, {"messages": [{"role": "cat", "content": ""}]}, 400, "messages[0] has no role among"),
    "content": (CHAT, {"messages": [{"role": "user", "content": 3}]}, 400, "messages[0].content is expected"),
    "field": (CHAT, HI | {"topp": 1}, 400, "'topp' is not a field of this request"),
    "temperature": (CHAT, HI | {"temperature": "hot"}, 400,
    "temperature is 'hot', expected a number from 0 to 100"),
    "n": (CHAT, HI | {"n": 0}, 400, "n is 0, expected an integer from 1 to 16"),
    "limit": (CHAT, HI | {"max_tokens": True}, 400, "max_tokens is True, expected an integer"),
    "stop": (CHAT, HI | {"stop": [""]}, 400, "stop is a list, expected a text or up to 8 texts, none empty"),
    "model": (CHAT, HI | {"model": "gpt"}, 404, "the model 'gpt' is not served here, but 'tiny'"),
    "top": (CHAT, HI | {"top_logprobs": 3}, 400, "top_logprobs needs logprobs to be true"),
    "bias": (CHAT, HI | {"logit_bias": {"999": 1}}, 400, "logit_bias has '999': 1, expected tokens"),
    "bias digits": (CHAT, HI | {"logit_bias": {"9" * 5000: 1}}, 400, "logit_bias has '9999"),
    "levels": (CHAT, HI | {"metadata": json.loads("[" * 300 + "]" * 300)}, 400, "more than 200 levels"),
    "replies": ("/v1/completions", {"prompt": [[1]] * 200, "n": 16}, 400,
    "asks for 3200 replies, expected at most 256"),
    "tool": (CHAT, HI | {"tool_choice": "required"}, 400,
    "tool_choice asks for a call, but there are no tools"),
    "prompt": ("/v1/completions", {"prompt": []}, 400, "prompt is a list, expected a text, tokens"),
    "token": ("/v1/completions", {"prompt": [999]}, 400,
    "a token of the prompt is out of range; the model has 256"),
    "long": ("/v1/completions", {"prompt": "a" * 400}, 400,
    "the prompt has 400 tokens; context and cache have room for 200"),
    "echo": ("/v1/completions", {"prompt": "a", "echo": True}, 400,
    "echo is true, which this server does not do"),
    "large": (CHAT, {"messages": "a" * 30_000}, 413, "the body has more than 20000 bytes"),
    "input": ("/v1/embeddings", {"input": ""}, 400, "input is '', expected a text, tokens"),
    "width": ("/v1/embeddings", {"input": "a", "dimensions": 7}, 400, "dimensions is 7, expected"),
    "path": ("/v1/chat", HI, 404, "POST /v1/chat: there is no such path"),
    "method": ("/health", HI, 405, "POST /health: the path has another method"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_request_is_refused(client, name):
    path, body, status, text = WRONG[name]
    got, reply = client.post(path, body)
    assert (got, text in reply["error"]["message"]) == (status, True), reply
    assert client.service.healthy


FULL = HI | {
    "n": 2, "stop": ["a"], "seed": 1, "top_p": 0.5, "logprobs": True, "top_logprobs": 2,
    "logit_bias": {"7": 1.5},
    "tools": [TOOL], "tool_choice": "auto", "stream": True, "stream_options": {"include_usage": True},
    "model": "tiny",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]},
                 {"role": "assistant", "content": None,
                 "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]},
                 {"role": "tool", "tool_call_id": "1", "content": "x"}],
}  # fmt: skip
STRANGE = (
    None,
    True,
    0,
    -1,
    2**70,
    1e300,
    "",
    "x",
    "\ud800",
    [],
    [[]],
    {},
    {"type": 3},
    [None],
    {"function": None},
)


def mutated(rng, x):
    """A value with one part somewhere inside it changed."""
    if isinstance(x, dict | list) and x and rng.random() < 0.8:
        out = x.copy()
        key = rng.choice(list(out)) if isinstance(x, dict) else int(rng.integers(len(x)))
        out[key] = mutated(rng, out[key])
        return out
    return STRANGE[rng.integers(len(STRANGE))]


def check_mutated(model, seeds):
    refused = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        body = mutated(rng, FULL | {"response_format": {"type": "json_schema",
            "json_schema": {"schema": SCHEMA}}} if seed % 2 else FULL)  # fmt: skip
        try:
            found = parsed(json.dumps(body).encode())
            ask = requests.chat(found, model, "tiny")
            guide(model, ask.schema or {}, 10**6)
        except (Refused, TesseraError):  # what the server answers with 400
            refused += 1
    return refused


def test_strange_requests_are_read_or_refused(model):
    assert check_mutated(model, range(300)) > 100


@pytest.mark.deep
def test_many_strange_requests_are_read_or_refused(model):
    check_mutated(model, range(300, 8000))


def test_forms_and_hosts_of_strangers_are_refused(client):
    """A page of another site can send neither JSON nor the name of this machine."""
    assert client.post(CHAT, HI, {"Content-Type": "text/plain"}.items())[0] == 415
    assert client.post(CHAT, HI, {"Host": "evil.example"}.items())[0] == 403


def test_keys(model):
    with serving(model, Options(keys=("secret", "other"))) as client:
        status, reply = client.post(CHAT, HI)
        assert (status, reply["error"]["type"]) == (401, "authentication_error")
        assert client.post(CHAT, HI, {"Authorization": "Bearer wrong"}.items())[0] == 401
        assert client.post(CHAT, HI, {"Authorization": "Bearer sécret"}.items())[0] == 401
        for key in ("secret", "other"):
            assert client.post(CHAT, HI, {"Authorization": f"Bearer {key}"}.items())[0] == 200
        assert client.request("GET", "/metrics")[0] == 401
        assert client.request("GET", "/health")[0] == 200


LONG = {"prompt": "Hello", "max_tokens": 190, "temperature": 0}


def test_a_client_that_vanishes_frees_its_pages(client):
    engine = client.service.engine
    for body in (LONG | {"stream": True}, LONG):
        gone = client.opened(body)
        client.until(lambda: engine.pages.used > 0)
        gone.sock.close()
        client.until(lambda: engine.pages.used == 0 and not engine._running)
    assert client.service.metrics.value("cancelled_total") >= 1
    assert client.post(CHAT, HI)[0] == 200


def test_a_reader_that_does_not_read_holds_no_pages(client):
    slow = client.opened(LONG | {"stream": True})
    client.until(lambda: client.service.engine.pages.used > 0)
    client.until(lambda: client.service.engine.pages.used == 0)
    assert slow.getresponse().read().endswith(b"data: [DONE]\n\n")
    slow.close()


def test_a_request_that_does_not_arrive_ends(model):
    """A body of which only a part comes, and one that has no length and no end."""
    with serving(model, Options(reading=0.3, body=1000)) as client:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        )
        for rest, status in (("Content-Length: 50\r\n\r\n{", b"408"),
                             ("Transfer-Encoding: chunked\r\n\r\n" + ("64\r\n" + "a" * 100 + "\r\n") * 11,
                             b"413")):  # fmt: skip
            with socket.create_connection(("127.0.0.1", client.port), timeout=20) as c:
                c.sendall((head + rest).encode())
                assert c.recv(1000).split()[1] == status
        assert client.post(CHAT, HI)[0] == 200


def test_connections_that_send_or_read_nothing_end(model):
    """Half a head, nothing at all, the head of a second request, and a reply that nobody takes."""
    with serving(model, Options(reading=0.3)) as client:
        begun = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
        health = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for sent in (b"", begun, health + begun):
            with socket.create_connection(("127.0.0.1", client.port), timeout=20) as c:
                c.sendall(sent)
                got = b""
                with contextlib.suppress(ConnectionResetError):
                    while part := c.recv(1000):
                        got += part
                assert (b"200 OK" in got) == sent.startswith(health)
        many = {
            "prompt": [[7] * 9] * 16,
            "n": 16,
            "max_tokens": 8,
            "logprobs": 20,
            "temperature": 0,
        }
        raw = json.dumps(many).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"  # noqa: E501
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", client.port))
            c.sendall(head.encode() + raw)
            state = client.server.server_state
            client.until(
                lambda: client.service.metrics.value(
                    "requests_total", path="/v1/completions", status="200"
                )
            )
            client.until(lambda: not state.connections)
        assert client.post(CHAT, HI)[0] == 200


def test_a_request_that_fails_in_the_server_harms_no_other(model, monkeypatch, capsys):
    """Faults of ours: in an embedding, in the rules of a reply, in reading a request."""

    def broken(*args, **named):
        raise ZeroDivisionError

    with serving(model) as client:
        with monkeypatch.context() as m:
            m.setattr(model, "embed_tokens", broken)
            status, reply = client.post("/v1/embeddings", {"input": "a"})
            assert (status, reply["error"]["type"]) == (500, "server_error")
        with monkeypatch.context() as m:
            m.setattr("tessera.models.guide.Guide.masked", broken)
            form = {"type": "json_schema", "json_schema": {"schema": SCHEMA}}
            status, reply = client.post(CHAT, HI | {"max_tokens": 40, "response_format": form})
            assert (status, reply["error"]["message"]) == (500, "the reply failed in the server")
        with monkeypatch.context() as m:
            m.setattr(requests, "messages_of", broken)
            assert client.post(CHAT, HI)[0] == 500
        assert client.post(CHAT, HI)[0] == 200
        assert client.post("/v1/embeddings", {"input": "\ud800"})[0] == 200
    assert capsys.readouterr().err.count("ZeroDivisionError") >= 1


def test_embeddings_end_with_the_engine_and_the_timeout(model):
    with serving(model, Options(timeout=0.3)) as client:
        held, engine = threading.Event(), client.service.engine
        engine.call(lambda: held.wait(20))
        assert client.post("/v1/embeddings", {"input": "a"})[0] == 504
        held.set()
    with serving(model) as client, ThreadPoolExecutor(2) as pool:
        held, engine = threading.Event(), client.service.engine
        engine.call(lambda: held.wait(20))
        waiting = [pool.submit(client.post, "/v1/embeddings", {"input": "a"}) for _ in range(2)]
        client.until(lambda: len(engine._calls) == 2)
        engine._stopping = True
        held.set()
        assert [w.result()[0] for w in waiting] == [503, 503]


def test_too_many_are_refused_and_late_ones_end(model):
    with serving(model, Options(timeout=0.5), waiting=2) as client:
        held = threading.Event()
        client.service.engine.call(lambda: held.wait(20))
        waiting = [client.opened(HI, CHAT) for _ in range(2)]
        client.until(lambda: len(client.service.engine._waiting) == 2)
        status, reply = client.post(CHAT, HI)
        assert (status, reply["error"]["type"]) == (429, "rate_limit_error")
        late = threading.Timer(0.6, held.set)
        late.start()
        for c in waiting:
            r = c.getresponse()
            assert (r.status, "longer than the timeout" in r.read().decode()) == (504, True)
            c.close()
        assert client.post(CHAT, HI)[0] == 200


def test_an_engine_that_fails_says_so(model, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    with serving(model) as client:
        monkeypatch.setattr(client.service.engine._steps, "run", lambda parts: 1 / 0)
        assert client.post(CHAT, HI)[0] == 503
        assert client.request("GET", "/health") == (503, b'{"status":"failed"}')
        assert client.post(CHAT, HI)[0] == 503
    assert told == [ZeroDivisionError]


def test_the_command_serves_and_drains(model, tmp_path):
    """SIGTERM lets a reply end, then the process, with status 0."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    command = [sys.executable, "-m", "tessera", "serve", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith("serving tiny at http://127.0.0.1:")
            port = int(line.split("/ and")[0].rsplit(":", 1)[1])
            c = Client(port, None).opened(LONG | {"stream": True})
            reply = c.getresponse()
            first = reply.readline()
            process.send_signal(signal.SIGTERM)
            rest = reply.read()
            c.close()
            assert rest.endswith(b"data: [DONE]\n\n")
            assert (first + rest).count(b"data: ") > 20
            assert process.wait(20) == 0
        finally:
            process.kill()


def test_pages_are_counted_and_found_again():
    pages = PageTable(3)
    a, b = pages.take(), pages.take()
    key = key_of(ROOT, [1, 2])
    pages.name(a, key)
    assert pages.share(key) == a
    pages.give(a)
    pages.give(b)
    assert (pages.used, pages.available) == (1, 2)
    pages.give(a)
    assert pages.idle(a)
    assert pages.share(key) == a  # idle pages still hold what they held
    pages.give(a)
    taken = [pages.take() for _ in range(3)]
    assert sorted(taken) == [0, 1, 2]
    assert taken[-1] == a  # the idle page is forgotten last
    assert pages.share(key) is None
    assert pages.take() is None


def test_a_command_that_opens_a_server_to_all_needs_a_key(capsys):
    assert cli.main(["serve", "none", "--host", "0.0.0.0", "--port", "0"]) == 2
    assert "0.0.0.0 is open to other machines; give --api-key-file" in capsys.readouterr().err
    assert cli.main(["serve", os.devnull, "--port", "0", "--memory", "many"]) == 2
    assert "--memory is 'many', expected a size such as 500MB or 2GiB" in capsys.readouterr().err


@pytest.mark.deep
def test_a_minute_of_two_hundred_clients(tmp_path):
    """No error, no reply that differs from the first of its request, no growth of memory."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    tool = Path(__file__).parents[2] / "benchmarks" / "serve_load.py"
    command = [sys.executable, tool, path, "--clients", "200", "--seconds", "60", "--tokens", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=400)
    found = json.loads(done.stdout)
    assert (found["errors"], found["replies_that_differ"], found["status"]) == ({}, 0, 0)
    assert found["replies"] >= 200
    assert found["memory_after_mib"] - found["memory_before_mib"] < 64
