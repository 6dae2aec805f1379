"""Messages of a chat, as templates of models expect them."""

from __future__ import annotations

import json
from typing import Any

from tessera.serve.engine import Refused

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def messages_of(given: Any) -> list[dict[str, Any]]:
    """Messages with texts as contents, and calls of tools with objects as arguments."""
    if not isinstance(given, list) or not given:
        raise Refused(400, "messages is expected to be a list of at least one message")
    return [_message(i, m) for i, m in enumerate(given)]


def _message(i: int, m: Any) -> dict[str, Any]:
    role = m.get("role") if isinstance(m, dict) else None
    if not isinstance(role, str) or role not in ROLES:
        raise Refused(400, f"messages[{i}] has no role among {', '.join(ROLES)}")
    out: dict[str, Any] = {"role": ROLES[role], "content": _content(i, m)}
    for name in ("name", "tool_call_id"):
        if isinstance(m.get(name), str):
            out[name] = m[name]
    if m.get("tool_calls"):
        out["tool_calls"] = _calls(i, m["tool_calls"])
    return out


def _content(i: int, m: dict[str, Any]) -> str:
    v = m.get("content")
    if v is None and m.get("tool_calls"):
        return ""
    if isinstance(v, str):
        return v
    texts = (
        [p.get("text") for p in v if isinstance(p, dict) and p.get("type") == "text"]
        if isinstance(v, list)
        else []
    )
    if (
        not isinstance(v, list)
        or len(texts) != len(v)
        or not all(isinstance(t, str) for t in texts)
    ):
        raise Refused(400, f"messages[{i}].content is expected to be a text or parts of type text")
    return "".join(texts)  # type: ignore[arg-type]


def _calls(i: int, given: Any) -> list[dict[str, Any]]:
    out = []
    for call in given if isinstance(given, list) else [given]:
        f = call.get("function") if isinstance(call, dict) else None
        if not isinstance(f, dict) or not isinstance(f.get("name"), str):
            raise Refused(400, f"messages[{i}].tool_calls has a call without a function's name")
        arguments = f.get("arguments", "{}")
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            raise Refused(
                400, f"messages[{i}].tool_calls has arguments that are not JSON"
            ) from None
        out.append(
            {
                "id": call.get("id"),
                "type": "function",
                "function": {"name": f["name"], "arguments": parsed},
            }
        )
    return out
