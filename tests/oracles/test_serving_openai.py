"""OpenAI's own client against the server: chat, streams, tools, schemas, log-probabilities, embeddings,
errors.
"""

import json

import numpy as np
import pytest

import tessera as ts
from tests.support.cases.model_files import SMALL, llama_gguf
from tests.support.runners.serving import serving

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.oracle

TEMPLATE = (
    "{% if tools %}{{ tools | length }} tools. {% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
MESSAGES = [{"role": "user", "content": "Hi"}]
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 6}},
    "required": ["city"],
             "additionalProperties": False}  # fmt: skip
TOOLS = [{"type": "function",
    "function": {"name": "weather", "description": "Look.", "parameters": ARGUMENTS}}]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(llama_gguf(config=SMALL, metadata={"tokenizer.chat_template": TEMPLATE}))
    return ts.models.load(path)


@pytest.fixture(scope="module")
def client(model):
    with serving(model) as made:
        base = f"http://127.0.0.1:{made.port}/v1"
        with openai.OpenAI(base_url=base, api_key="none", max_retries=0) as theirs:
            yield theirs


def test_chat(model, client):
    assert [m.id for m in client.models.list()] == ["tiny"]
    r = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2
    )
    assert r.choices[0].message.content == "".join(model.chat(MESSAGES, max_new_tokens=6))
    assert len(r.choices[0].logprobs.content) == r.usage.completion_tokens == 6
    first = r.choices[0].logprobs.content[0]
    assert first.logprob == first.top_logprobs[0].logprob


def test_streams(model, client):
    parts = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=8, temperature=1, seed=3, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    parts = list(parts)
    text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    assert text == "".join(model.chat(MESSAGES, max_new_tokens=8, temperature=1.0, seed=3))
    assert parts[-1].usage.completion_tokens == 8
    parts = client.completions.create(model="tiny", prompt="ab", max_tokens=5, temperature=0,
        stream=True)  # fmt: skip
    assert "".join(p.choices[0].text for p in parts) == model.generate("ab", 5)


def test_tools(client):
    ask = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 70, "seed": 1}
    r = client.chat.completions.create(**ask, tool_choice="required")
    (call,) = r.choices[0].message.tool_calls
    assert r.choices[0].finish_reason == "tool_calls"
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments).keys() == {"city"}
    parts = list(client.chat.completions.create(**ask, tool_choice="required", stream=True))
    (streamed,) = [c for p in parts for c in p.choices[0].delta.tool_calls or ()]
    assert streamed.function.arguments == call.function.arguments
    assert parts[-1].choices[0].finish_reason == "tool_calls"
    told = [
        {"role": "assistant", "tool_calls": [call.model_dump()], "content": None},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    r = client.chat.completions.create(**ask | {"messages": MESSAGES + told, "max_tokens": 4})
    assert r.choices[0].finish_reason == "length"


def test_schemas(client):
    form = {"type": "json_schema",
        "json_schema": {"name": "c", "strict": True, "schema": ARGUMENTS}}  # fmt: skip
    r = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=50,
        response_format=form)  # fmt: skip
    assert len(json.loads(r.choices[0].message.content)["city"]) <= 6


def test_embeddings(model, client):
    r = client.embeddings.create(model="tiny", input=["ab", "cd"])  # as base64, by default
    got = np.array([d.embedding for d in r.data], np.float32)
    assert (got == model.embed(["ab", "cd"]).numpy()).all()
    r = client.embeddings.create(model="tiny", input="ab", encoding_format="float")
    assert (np.array(r.data[0].embedding, np.float32) == got[0]).all()


def test_errors(client):
    with pytest.raises(openai.BadRequestError, match="temperature is 200"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=200)
    with pytest.raises(openai.NotFoundError, match="'gpt' is not served here"):
        client.chat.completions.create(model="gpt", messages=MESSAGES)
