"""Replies of the OpenAI interface: whole, or as server-sent events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tessera.models.tokenizer import Tokenizer
from tessera.serve.job import Event, ReplyDone, ReplyToken
from tessera.serve.requests import GenerationAsk
from tessera.serve.tools import MARKS

END = b"data: [DONE]\n\n"


@dataclass
class ReplyChoice:
    """One of a request's replies as it grows."""

    index: int
    tokens: list[ReplyToken] = field(default_factory=list)
    text: str = ""
    done: ReplyDone | None = None
    sent: int = 0  # characters that a stream has told


class Replies:
    """The choices of a request, and their form."""

    def __init__(self, ask: GenerationAsk, tokenizer: Tokenizer, model: str):
        self.ask, self._tokenizer = ask, tokenizer
        kind = "chat.completion" if ask.chat else "text_completion"
        prefix = "chatcmpl" if ask.chat else "cmpl"
        self._head = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self.choices = [ReplyChoice(i) for i in range(len(ask.prompts) * ask.choices)]

    @property
    def done(self) -> bool:
        """Whether all choices have ended."""
        return all(c.done is not None for c in self.choices)

    def hear(self, index: int, event: Event) -> None:
        """One event of a choice."""
        choice = self.choices[index]
        choice.text += event.text
        if isinstance(event, ReplyToken):
            choice.tokens.append(event)
        else:
            choice.done = event

    def whole(self) -> dict[str, Any]:
        """The reply as one object."""
        return self._head | {
            "choices": [self._choice(c) for c in self.choices],
            "usage": self._usage(),
        }

    def _choice(self, c: ReplyChoice) -> dict[str, Any]:
        assert c.done is not None, c
        out: dict[str, Any] = {"index": c.index, "finish_reason": c.done.reason}
        if not self.ask.chat:
            return out | {"text": c.text, "logprobs": self._completion_logprobs(c.tokens, 0)}
        message: dict[str, Any] = {"role": "assistant", "content": c.text, "refusal": None}
        calls = self._calls(c)
        if calls is not None:
            out["finish_reason"] = "tool_calls"
            message |= {
                "content": None,
                "tool_calls": [{k: v for k, v in x.items() if k != "index"} for x in calls],
            }
        return out | {"message": message, "logprobs": self._chat_logprobs(c.tokens)}

    def _calls(self, c: ReplyChoice) -> list[dict[str, Any]] | None:
        return None if self.ask.tools is None else self.ask.tools.calls(c.text)

    def _usage(self) -> dict[str, Any]:
        prompt = sum(len(p) for p in self.ask.prompts)
        new = sum(len(c.tokens) for c in self.choices)
        shared = sum(c.done.shared for c in self.choices[:: self.ask.choices] if c.done is not None)
        return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new,
                "prompt_tokens_details": {"cached_tokens": shared}}  # fmt: skip

    # Streams ------------------------------------------------------------------------------------

    def first(self) -> Iterator[bytes]:
        """What a stream begins with."""
        if self.ask.chat:
            for c in self.choices:
                yield self._chunk(c, {"role": "assistant", "content": ""}, None)

    def told(self, index: int, event: Event) -> Iterator[bytes]:
        """What a stream says of an event that has been heard."""
        c = self.choices[index]
        if isinstance(event, ReplyDone) and event.reason == "error":
            yield _event({"error": error_body(event.status, event.message)})
            return
        calls = self._calls(c) if isinstance(event, ReplyDone) else None
        end = (
            self._certain(c) if isinstance(event, ReplyToken) or calls is not None else len(c.text)
        )
        text, at, c.sent = c.text[c.sent : end], c.sent, max(c.sent, end)
        if text or (isinstance(event, ReplyToken) and event.logprob is not None):
            yield self._chunk(
                c, {"content": text}, event if isinstance(event, ReplyToken) else None, at
            )
        if calls is not None:
            yield self._chunk(c, {"tool_calls": calls}, None)
        if isinstance(event, ReplyDone):
            yield self._chunk(
                c, {}, None, reason="tool_calls" if calls is not None else event.reason
            )

    def _certain(self, c: ReplyChoice) -> int:
        """Characters that are no part of a call of a tool, whatever follows; a call is told as a whole."""
        if self.ask.tools is None:
            return len(c.text)
        if not c.text.strip() or c.text.lstrip().startswith("{"):
            return 0
        found = [at for m in MARKS if (at := c.text.find(m)) >= 0]
        starts = (n for m in MARKS for n in range(1, len(m)) if c.text.endswith(m[:n]))
        return min(found) if found else len(c.text) - max(starts, default=0)

    def last(self) -> Iterator[bytes]:
        """What a stream ends with."""
        if self.ask.usage:
            yield _event(self._chunk_head() | {"choices": [], "usage": self._usage()})
        yield END

    def _chunk_head(self) -> dict[str, Any]:
        return self._head | ({"object": "chat.completion.chunk"} if self.ask.chat else {})

    def _chunk(
        self, c: ReplyChoice, delta: dict[str, Any], token: ReplyToken | None, at: int = 0,
        reason: str | None = None
    ) -> bytes:  # fmt: skip
        out: dict[str, Any] = {"index": c.index, "finish_reason": reason}
        tokens = [token] if token is not None else []
        if self.ask.chat:
            out |= {"delta": delta, "logprobs": self._chat_logprobs(tokens) if tokens else None}
        else:
            logprobs = self._completion_logprobs(tokens, at) if tokens else None
            out |= {"text": delta.get("content", ""), "logprobs": logprobs}
        return _event(self._chunk_head() | {"choices": [out]})

    # Log-probabilities --------------------------------------------------------------------------

    def _chat_logprobs(self, tokens: Sequence[ReplyToken]) -> Any:
        if self.ask.logprobs is None:
            return None
        entries = [
            self._entry(t.token, t.logprob) | {"top_logprobs": [self._entry(*x) for x in t.top]}
            for t in tokens
        ]
        return {"content": entries, "refusal": None}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        name = self._tokenizer.name(token)
        piece = self._tokenizer.piece(token)
        return {
            "token": name,
            "logprob": logprob,
            "bytes": list(name.encode() if piece is None else piece),
        }

    def _completion_logprobs(self, tokens: Sequence[ReplyToken], at: int) -> Any:
        if self.ask.logprobs is None:
            return None
        offsets = []
        for t in tokens:
            offsets.append(at)
            at += len(t.text)
        return {
            "tokens": [self._tokenizer.name(t.token) for t in tokens],
            "token_logprobs": [t.logprob for t in tokens],
            "top_logprobs": [{self._tokenizer.name(i): x for i, x in t.top} for t in tokens],
            "text_offset": offsets,
        }


def _event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(status: int, message: str) -> dict[str, Any]:
    """An error as clients of the interface expect it."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": message, "type": kind, "param": None, "code": status}
