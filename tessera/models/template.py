"""Chat templates, which model files bring along, rendered in jinja2's sandbox with bounds on what they
make.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tessera.core.errors import ModelError

try:
    import jinja2
    from jinja2 import sandbox
except ModuleNotFoundError:
    jinja2 = None  # type: ignore[assignment]

LONGEST = 1 << 20  # characters of a rendered chat, far beyond the contexts of models


def render(template: str, messages: Sequence[Mapping[str, Any]], **names: Any) -> str:
    """The text of a chat, which ends where the reply begins."""
    if jinja2 is None:
        raise ModelError("chat templates need the jinja2 package: pip install tessera[models]")
    out, size = [], 0
    try:
        made = _environment().from_string(template)
        for part in made.generate(messages=list(messages), **names):
            size += len(part)
            if size > LONGEST:
                raise ModelError(f"chat template: the text is longer than {LONGEST} characters")
            out.append(part)
    except jinja2.TemplateError as e:
        raise ModelError(f"chat template: {e}") from None
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        RecursionError,
        AttributeError,
    ) as e:
        if isinstance(e, ModelError):
            raise
        raise ModelError(f"chat template: {type(e).__name__}: {e}") from None
    return "".join(out)


def _environment() -> Any:
    class Environment(sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "+", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _bound(operator, left, right)
            return super().call_binop(context, operator, left, right)

    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    made.filters["tojson"] = lambda x, indent=None: json.dumps(x, ensure_ascii=False, indent=indent)
    return made


def _bound(operator: str, left: Any, right: Any) -> None:
    """Refuse values that a template could blow memory up with."""
    if operator == "%" and isinstance(left, str):
        raise ModelError("chat template: formatting by % is not allowed")
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    size = _size(left) * _size(right) if operator in ("*", "**") else _size(left) + _size(right)
    if size > LONGEST and not (numbers and operator != "**"):
        raise ModelError(f"chat template: the operator {operator} makes a value that is too large")


def _size(x: Any) -> int:
    """How long a sequence is, or how large a number."""
    if isinstance(x, int | float):
        return min(int(abs(x)), LONGEST + 1) if math.isfinite(x) else 1
    return len(x) if isinstance(x, str | bytes | list | tuple) else 1


def _raise(message: Any) -> None:
    raise ModelError(f"chat template: {message}")
