"""Every field of every request at every kind of value, calls of tools, and the text of metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.serve import requests
from tessera.serve.engine import Refused
from tessera.serve.fields import DEEPEST, Fields, parsed
from tessera.serve.messages import messages_of
from tessera.serve.metrics import BOUNDS, Metrics
from tessera.serve.tools import Tools, tools_of
from tests.support.cases.model_files import SMALL, llama_gguf
from tests.support.pinned import pinned, short

RUNS_ON = "numpy"
Body = dict[str, Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL))
    return ts.models.load(path)


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
OTHER = {"type": "function", "function": {"name": "g"}}
SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}
VALUES: dict[str, list[Any]] = {
    "model": ["tiny", "other", 3], "n": [1, 16, 17, 0, 1.0, True], "max_tokens": [1, 0, "x", 1 << 40],
    "seed": [5, -1, 2**63, 1.5],
    "max_completion_tokens": [7, 0], "stream": [True, False, 1],
    "stream_options": [{"include_usage": True}, 3],
    "stop": ["x", ["a", "b"], "", ["a"] * 9, [3], 3], "temperature": [0, 100, 100.5, -1, "x", True],
    "top_p": [0, 1, 1.5],
    "top_k": [0, 5, -1, 2.0], "min_p": [0.5, 2], "frequency_penalty": [-100, 101],
    "presence_penalty": [100, -101],
    "repetition_penalty": [1e-3, 0], "logit_bias": [{"1": 5}, {"x": 1}, {"1": 101}, {"1": True},
    {"-1": 1}, {"9999999999": 1}, 3, {}],
    "user": ["x"], "metadata": [{}], "logprobs": [True, False, 3, 0, 21, "x"], "top_logprobs": [2, 0,
    21], "echo": [True, False, 1],
    "best_of": [1, 2], "prompt": ["ab", [1, 2], ["a", [1]], [], [[]], "", 3, [1.5], ["a"] * 257, [[1],
    2]], "input": ["ab", [1, 2], [""]],
    "messages": [[], 3, [{"role": "x", "content": "a"}], [{"role": "user"}]], "tools": [[TOOL], [],
    [TOOL] * 129, [{"type": "x"}], 3],
    "tool_choice": ["none", "auto", "required", "x"], "parallel_tool_calls": [False, 3],
    "response_format": [{"type": "text"}, {"type": "json_object"}, SCHEMA, {"type": "json_schema"},
    {"type": "x"}, {}, 3],
    "nothing": [1], "dimensions": [3], "encoding_format": ["float", "x"],
}  # fmt: skip
SOME: list[Body] = [
    {"stream": True, "stream_options": {"include_usage": True}}, {"stream": True,
    "stream_options": {"x": 1}},
    {"logprobs": True, "top_logprobs": 3}, {"max_tokens": 3, "max_completion_tokens": 4},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL, OTHER], "tool_choice": "required"}, {"tools": [TOOL],
    "tool_choice": {"function": {"name": "f"}}},
    {"tools": [TOOL], "tool_choice": {"function": {"name": "h"}}}, {"tools": [TOOL],
    "response_format": SCHEMA}, {"n": 3, "best_of": 3},
    {"tools": [TOOL], "response_format": SCHEMA, "tool_choice": "none"}, {"tools": [],
    "tool_choice": "required"},
    {"tools": [TOOL], "parallel_tool_calls": False}, {"n": None, "seed": 3},
    {"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": "a"}]},
]  # fmt: skip
KINDS: dict[str, tuple[Any, Body]] = {
    "chat": (requests.chat, {"messages": [{"role": "user", "content": "ab"}], "seed": 1}),
    "completion": (requests.completion, {"prompt": "ab", "seed": 1}),
}


def told(make: Any, body: Body, model: Any) -> Any:
    try:
        ask = make(body, model, "tiny")
    except Refused as e:
        return f"{e.status} {str(e)[:200]}"
    out = {
        k: getattr(ask, k)
        for k in ("chat", "choices", "limit", "stop", "stream", "usage", "logprobs", "schema")
    }
    rules = [short(f(np.zeros(4), [], 0).tolist()) for f in ask.rules]
    return {
        **out,
        **asdict(ask.sampling),
        "prompts": ask.prompts,
        "rules": rules,
        "tools": ask.tools and asdict(ask.tools),
    }


def asked(model: Any) -> Iterator[str]:
    for kind, (make, base) in KINDS.items():
        first = told(make, base, model)
        yield f"{kind}: {short(first)}"
        bodies: list[Body] = [{k: v} for k, values in VALUES.items() for v in values]
        for more in (*bodies, *SOME):
            got = told(make, {**base, **more}, model)
            if isinstance(got, dict):
                got = {k: v for k, v in got.items() if v != first[k]}
            yield f"  {json.dumps(more):.70}: {short(got):.400}"
    for name in ("prompt", "input"):
        for v in VALUES["prompt"]:
            try:
                found = requests.inputs_of(Fields({name: v}, {name}), name)
            except Refused as e:
                found = [str(e)]
            yield f"{name} {v!s:.40}: {short(found):.100}"


def test_requests(model: Any) -> None:
    pinned("serve_requests", asked(model))


RAW = [b"{}", b"[]", b"3", b'"x"', b"null", b"true", b"{", b'{"a": NaN}', b"\xff", b'{"a": [[1]]}']
RAW += [b'{"a":' + b"[" * n + b"]" * n + b"}" for n in (DEEPEST - 2, DEEPEST - 1, DEEPEST)]

CALL = {"id": "c", "function": {"name": "f", "arguments": '{"x": 1}'}}
MESSAGES: list[Any] = [
    {"role": "user", "content": "a"}, {"role": "system", "content": [{"type": "text", "text": "a"},
    {"type": "text", "text": "b"}]},
    {"role": "user", "content": [{"type": "image"}]}, {"role": "user", "content": [{"type": "text"}]},
    {"role": "user", "content": 3},
    {"role": "assistant", "tool_calls": [CALL]}, {"role": "assistant", "content": "x",
    "tool_calls": CALL}, {"role": "assistant", "tool_calls": [{}]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]},
    {"role": "assistant", "tool_calls": [{"function": {"name": 3}}]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"y": 2}}}]},
    {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
    {"role": "tool", "content": "r", "tool_call_id": "c", "name": "f"}, {"role": "tool", "content": "r",
    "tool_call_id": 3}, 3, {"content": "a"},
]  # fmt: skip
REPLIES = [
    "", "text", '{"name": "f", "arguments": {"x": 1}}', '  {"name": "f"}', '{"name": "h"}',
    '{"name": "f", "parameters": {"é": 2}}', '{"name": "f", "arguments": "t"}',
    '<tool_call>{"name": "f"}</tool_call><tool_call> {"name": "g"} </tool_call>',
    '<tool_call>{"name": "f"}', "<tool_call>x</tool_call>",
    'before <tool_call>{"name": "g"}</tool_call>', '[TOOL_CALLS][{"name": "f"}, {"name": "g"}]',
    '[TOOL_CALLS]{"name": "f"}', "[TOOL_CALLS]x", "{", '["f"]',
]  # fmt: skip


def read() -> Iterator[str]:
    for raw in RAW:
        try:
            text = short(parsed(raw))
        except Refused as e:
            text = f"{e.status} {e}".partition(" (")[0]
        yield f"{raw[:20]!r} {len(raw)}: {text:.80}"
    for m in MESSAGES:
        try:
            text = short(messages_of([{"role": "user", "content": "first"}, m])[1])
        except Refused as e:
            text = f"{e.status} {e}"
        yield f"{json.dumps(m):.90}: {text}"
    for parallel in (True, False):
        tools = Tools([TOOL, OTHER], [], parallel)
        for reply in REPLIES:
            calls = tools.calls(reply)
            made = [(c["index"], c["type"], len(c["id"]), c["function"]) for c in calls or ()]
            yield f"{reply}: {calls is None} {short(made)}"
    yield short(Tools([TOOL, OTHER], ["g"], True).schema())
    for choice in (
        None,
        "auto",
        "none",
        "required",
        {"function": {"name": "g"}},
        {"function": 3},
        3,
    ):
        try:
            t = tools_of(
                Fields({"tools": [TOOL, OTHER], "tool_choice": choice}, {"tools", "tool_choice"})
            )
            yield f"{choice}: {t and short([t.required, t.parallel])}"
        except Refused as e:
            yield f"{choice}: {e.status} {e}"


def test_bodies_messages_and_calls() -> None:
    pinned("serve_messages", read())


def test_the_text_of_metrics() -> None:
    m = Metrics()
    for path, status, n in (("/a", "200", 1), ("/a", "200", 2), ("/b", "400", 1)):
        m.add("requests_total", n, path=path, status=status)
    m.add("generated_tokens_total", 123_456_789)
    assert m.value("requests_total", status="200", path="/a") == 3
    assert m.value("requests_total", status="500", path="/a") == 0
    for seconds in (0.0, BOUNDS[0], BOUNDS[0] * 1.01, 0.3, 60.0, 61.0):
        m.time("step_seconds", seconds)
    pinned("serve_metrics", m.text({"pages": 1_234_567, "running": 0.5}).split("\n"))
