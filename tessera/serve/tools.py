"""Tools: how they are described to a model, and how its calls are found in a reply.

Formats that are read: `<tool_call>{...}</tool_call>` (Qwen, SmolLM, Hermes), `[TOOL_CALLS] [...]`
(Mistral), and a reply that is one JSON object with a name and arguments or parameters (Llama 3).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tessera.models.generation import chat_prompt
from tessera.models.writer import Writer
from tessera.serve.engine import Refused
from tessera.serve.fields import Fields

MARKS = (
    "<tool_call>",
    "[TOOL_CALLS]",
    "{",
)  # a reply that begins with one is held back until its end
MOST = 128  # tools of a request, as many as OpenAI takes
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOLD = """You may call functions. These are their signatures as JSON:
<tools>
{tools}
</tools>
To call one, reply with its name and arguments as JSON inside these tags:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


@dataclass(frozen=True)
class Tools:
    """Functions that a model may call, and which of them it must."""

    given: Sequence[dict[str, Any]]
    required: Sequence[str]  # names of which one must be called; empty: the model decides
    parallel: bool

    def prompt(self, model: Writer, messages: list[dict[str, Any]]) -> list[int]:
        """The tokens of a chat with tools, told by the template, or by a system message where it has no
        place for them.
        """
        given = list(self.given)
        with_tools = chat_prompt(model, messages, tools=given)
        if with_tools != chat_prompt(model, messages):
            return with_tools
        told = _TOLD.format(tools="\n".join(json.dumps(t) for t in given))
        first = messages[0] if messages[0]["role"] == "system" else None
        system = told if first is None else f"{first['content']}\n\n{told}"
        rest = messages if first is None else messages[1:]
        return chat_prompt(model, [{"role": "system", "content": system}, *rest])

    def schema(self) -> Any:
        """The schema of a reply that must be a call, else None."""
        if not self.required:
            return None
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": t["function"]["name"]},
                    "arguments": t["function"].get("parameters") or {"type": "object"},
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for t in self.given
            if t["function"]["name"] in self.required
        ]
        return calls[0] if len(calls) == 1 else {"anyOf": calls}

    def calls(self, text: str) -> list[dict[str, Any]] | None:
        """The calls that a reply makes, or None where it is a text."""
        names = [t["function"]["name"] for t in self.given]
        found = _found(text)
        good = [c for c in found if isinstance(c, dict) and c.get("name") in names]
        if not found or len(good) != len(found):
            return None
        return [_call(i, c) for i, c in enumerate(good if self.parallel else good[:1])]


def _found(text: str) -> list[Any]:
    stripped = text.strip()
    if "<tool_call>" in text:
        return [_json(m) for m in _TAGGED.findall(text)]
    if stripped.startswith("[TOOL_CALLS]"):
        many = _json(stripped.removeprefix("[TOOL_CALLS]"))
        return many if isinstance(many, list) else [many]
    return [_json(stripped)] if stripped.startswith("{") else []


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(i: int, c: dict[str, Any]) -> dict[str, Any]:
    arguments = c.get("arguments", c.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"index": i, "id": f"call_{secrets.token_hex(12)}", "type": "function",
            "function": {"name": c["name"], "arguments": text}}  # fmt: skip


def tools_of(fields: Fields) -> Tools | None:
    """The tools of a request, None where it has none or wants none."""
    given = fields.raw("tools")
    choice = fields.raw("tool_choice")
    parallel = "parallel_tool_calls" not in fields or fields.flag("parallel_tool_calls")
    if given is None or given == []:
        if choice not in (None, "none", "auto"):
            raise Refused(400, "tool_choice asks for a call, but there are no tools")
        return None
    if not isinstance(given, list) or len(given) > MOST or not all(_is_tool(t) for t in given):
        raise Refused(400, f"tools is expected to be a list of up to {MOST} functions with names")
    names = [t["function"]["name"] for t in given]
    if choice == "none":
        return None
    return Tools(given, _required(choice, names), parallel)


def _is_tool(t: Any) -> bool:
    f = t.get("function") if isinstance(t, dict) and t.get("type") == "function" else None
    return (
        isinstance(f, dict) and isinstance(f.get("name"), str) and bool(_NAME.fullmatch(f["name"]))
    )


def _required(choice: Any, names: list[str]) -> list[str]:
    if choice in (None, "auto"):
        return []
    if choice == "required":
        return names
    named = choice.get("function") if isinstance(choice, dict) else None
    name = named.get("name") if isinstance(named, dict) else None
    if name not in names:
        raise Refused(
            400,
            "tool_choice is expected to be none, auto, required or a function among "
            f"{', '.join(names)}",
        )
    return [str(name)]
