"""Requests of the OpenAI interface as values: chat, completion, embeddings."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.core.errors import TesseraError
from tessera.models.blocks import Array
from tessera.models.generation import chat_prompt
from tessera.models.sampling import Sampling
from tessera.models.writer import Writer
from tessera.serve.engine import Refused
from tessera.serve.fields import MOST, Fields
from tessera.serve.job import Rule
from tessera.serve.messages import messages_of
from tessera.serve.tools import Tools, tools_of

SHARED = frozenset(
    [
        "model",
        "n",
        "max_tokens",
        "stream",
        "stream_options",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
        "user",
    ]
)
# Fields whose every value gives the same reply here: labels of the caller, and hints for billing and storage.
LABELS = frozenset(["metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"])
CHAT = (
    SHARED
    | LABELS
    | frozenset(
        [
            "messages",
            "max_completion_tokens",
            "logprobs",
            "top_logprobs",
            "tools",
            "tool_choice",
            "parallel_tool_calls",
            "response_format",
        ]
    )
)
COMPLETION = SHARED | frozenset(["prompt", "logprobs", "echo", "best_of", "response_format"])
EMBEDDING = frozenset(["model", "input", "encoding_format", "dimensions", "user"])
MOST_CHOICES, MOST_STOPS, MOST_TOP, MOST_INPUTS = 16, 8, 20, 256


@dataclass(frozen=True)
class GenerationAsk:
    """What is to be generated, and how the reply is told."""

    chat: bool
    prompts: Sequence[list[int]]
    choices: int
    limit: int | None
    sampling: Sampling
    stop: Sequence[str]
    stream: bool
    usage: bool
    logprobs: int | None = None
    rules: Sequence[Rule] = ()
    tools: Tools | None = None
    schema: Any = None  # of the reply; None: any text


def check_model(fields: Fields, served: str) -> None:
    """Refuse a request for another model."""
    name = fields.text("model", served)
    if name != served:
        raise Refused(404, f"the model {name!r:.80} is not served here, but {served!r}")


def chat(body: dict[str, Any], model: Writer, served: str) -> GenerationAsk:
    """The request of /v1/chat/completions."""
    fields = Fields(body, CHAT)
    check_model(fields, served)
    tools = tools_of(fields)
    messages = messages_of(fields.raw("messages"))
    prompt = _guarded(
        lambda: tools.prompt(model, messages) if tools else chat_prompt(model, messages)
    )
    if "max_tokens" in fields and "max_completion_tokens" in fields:
        raise Refused(400, "max_tokens and max_completion_tokens are both given, expected one")
    limit = fields.integer(
        "max_completion_tokens", fields.integer("max_tokens", None, 1, MOST), 1, MOST
    )
    told = fields.integer("top_logprobs", 0, 0, MOST_TOP)
    wanted = fields.flag("logprobs")
    if told and not wanted:
        raise Refused(400, "top_logprobs needs logprobs to be true")
    ask = _shared(fields, True, [prompt], limit, model)
    schema = schema_of(fields)
    if schema is not None and tools is not None:
        raise Refused(400, "response_format goes without tools; set tool_choice to none")
    forced = None if tools is None else tools.schema()
    return replace(
        ask,
        logprobs=told if wanted else None,
        tools=tools,
        schema=schema if forced is None else forced,
    )


def completion(body: dict[str, Any], model: Writer, served: str) -> GenerationAsk:
    """The request of /v1/completions."""
    fields = Fields(body, COMPLETION)
    check_model(fields, served)
    if fields.flag("echo"):
        raise Refused(
            400,
            "echo is true, which this server does not do; put the prompt before the reply yourself",
        )
    n = fields.integer("n", 1, 1, MOST_CHOICES)
    if fields.integer("best_of", n, 1, MOST_CHOICES) != n:
        raise Refused(
            400, f"best_of is {fields.raw('best_of')}, expected {n}, the number of choices"
        )
    prompts = _prompts(fields, model)
    limit = fields.integer("max_tokens", 16, 1, MOST)
    ask = _shared(fields, False, prompts, limit, model)
    told = fields.integer("logprobs", None, 0, MOST_TOP)
    return replace(ask, logprobs=told, schema=schema_of(fields))


def _shared(
    fields: Fields, chat: bool, prompts: Sequence[list[int]], limit: Any, model: Writer
) -> GenerationAsk:
    stream = fields.flag("stream")
    if "stream_options" in fields and not stream:
        raise Refused(400, "stream_options needs stream to be true")
    options = Fields(fields.object("stream_options"), {"include_usage", "include_obfuscation"})
    return GenerationAsk(
        chat=chat,
        prompts=prompts,
        choices=fields.integer("n", 1, 1, MOST_CHOICES),
        limit=limit,
        sampling=_sampling(fields),
        stop=fields.texts("stop", MOST_STOPS),
        stream=stream,
        usage=options.flag("include_usage"),
        rules=_bias(fields, model),
    )


def _sampling(fields: Fields) -> Sampling:
    """OpenAI's defaults: temperature 1, and a seed that is drawn."""
    return Sampling(
        temperature=fields.number("temperature", 1.0, 0, 100),
        top_p=fields.number("top_p", 1.0, 0, 1),
        top_k=fields.integer("top_k", 0, 0, MOST),
        min_p=fields.number("min_p", 0.0, 0, 1),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 1e-3, 1e3),
        presence_penalty=fields.number("presence_penalty", 0.0, -100, 100),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -100, 100),
        seed=fields.integer("seed", secrets.randbits(63), -(2**63), 2**63 - 1) % 2**64,
    )


def _bias(fields: Fields, model: Writer) -> list[Rule]:
    """A rule that adds to the logits of some tokens."""
    given = fields.object("logit_bias")
    if not given:
        return []
    at, by = [], []
    for name, v in given.items():
        token = int(name) if name.isdecimal() and len(name) < 10 else -1
        number = isinstance(v, int | float) and not isinstance(v, bool)
        if not 0 <= token < model.shape.vocabulary or not number or abs(v) > 100:
            raise Refused(
                400,
                f"logit_bias has {name!r:.40}: {v!r:.40}, expected tokens and numbers from -100 "
                "to 100",
            )
        at.append(token)
        by.append(v)

    def add(logits: Array, new: Sequence[int], left: int) -> Array:
        out = np.array(logits, np.float64)
        out[at] += by
        return out

    return [add]


def schema_of(fields: Fields) -> Any:
    """The JSON schema of a reply: None for text, {} for any object."""
    form = fields.object("response_format")
    kind = form.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    given = form.get("json_schema")
    if kind != "json_schema" or not isinstance(given, dict) or "schema" not in given:
        raise Refused(
            400,
            "response_format is expected to be of type text, json_object, or json_schema with a "
            "schema",
        )
    return given["schema"]


def _prompts(fields: Fields, model: Writer) -> list[list[int]]:
    """The prompts of a completion: a text, tokens, or a list of either."""
    return [_guarded(lambda t=t: model.tokens_of(t)) for t in inputs_of(fields, "prompt")]


def inputs_of(fields: Fields, name: str) -> list[Any]:
    """Texts or lists of tokens."""
    v = fields.raw(name)
    many = [v] if isinstance(v, str) or (isinstance(v, list) and v and type(v[0]) is int) else v
    if (
        not isinstance(many, list)
        or not 0 < len(many) <= MOST_INPUTS
        or not all(_is_input(x) for x in many)
    ):
        raise fields.wrong(name, f"a text, tokens, or up to {MOST_INPUTS} of either, none empty")
    return many


def _is_input(x: Any) -> bool:
    return bool(x) and (
        isinstance(x, str) or (isinstance(x, list) and all(type(t) is int for t in x))
    )


def _guarded(make: Any) -> list[int]:
    """Tokens of a prompt; what the template or the tokenizer refuses is the request's fault."""
    try:
        out: list[int] = make()
    except TesseraError as e:
        raise Refused(400, e.message) from None
    if not out:
        raise Refused(400, "the prompt has no tokens")
    return out
