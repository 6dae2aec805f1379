"""Chat templates, which model files bring along, rendered in a sandbox with bounds on what they make."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.errors import ModelError

try:
    from tessera.models import sandbox
except ModuleNotFoundError as e:
    if e.name != "jinja2":
        raise
    sandbox = None  # type: ignore[assignment]

LONGEST_FORM = 100  # characters of a form of a date


def render(template: str, messages: Sequence[Mapping[str, Any]], **names: Any) -> str:
    """The text of a chat, which ends where the reply begins."""
    if sandbox is None:
        raise ModelError("chat templates need the jinja2 package: pip install tessera[models]")
    environment = sandbox.Environment()
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    out, size = [], 0
    try:
        made = environment.from_string(template)
        for part in made.generate(messages=list(messages), **names):
            size += len(part)
            if size > sandbox.LONGEST:
                raise ModelError(
                    f"chat template: the text is longer than {sandbox.LONGEST} characters"
                )
            out.append(part)
    except ModelError:
        raise
    except Exception as e:  # a template is a program of a stranger: all that it raises is its fault
        kind = "" if type(e).__module__.startswith("jinja2") else f"{type(e).__name__}: "
        raise ModelError(f"chat template: {kind}{e}") from None
    return "".join(out)


def _now(form: str) -> str:
    if len(form) > LONGEST_FORM:
        raise ModelError("chat template: the form of the date is too long")
    return datetime.datetime.now().strftime(form)


def _raise(message: Any) -> None:
    assert sandbox is not None
    raise ModelError(f"chat template: {sandbox.weighed(message)}")
