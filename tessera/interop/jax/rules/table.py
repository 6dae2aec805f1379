"""The table of rules: what a primitive of JAX is in ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Params = Mapping[str, Any]
RULES: dict[str, Callable[..., Any]] = {}  # (params, *values) -> value or list of values


def rule(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: what primitives of these names are."""

    def enter(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            RULES[name] = f
        return f

    return enter
