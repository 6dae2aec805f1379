"""Public objects: methods name the argument that does not fit, and attributes and uses that an object lacks
say what to write.

    @public("a loader", {"dataset": "loader.batch(step)", "__getitem__": "loader.batch(step)"})
    class Loader: ...
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tessera.core.blame import methods_blame_arguments
from tessera.core.counterparts import wanted
from tessera.core.errors import NoAttributeError, OperandError, located

C = TypeVar("C")

# Python's methods of uses: how such a use looks.
_LOOKS = {"__call__": "{}(...)", "__getitem__": "{}[...]", "__iter__": "iteration over {}",
          "__next__": "next({})"}  # fmt: skip


def public(what: str, instead: Mapping[str, str]) -> Callable[[type[C]], type[C]]:
    """Class decorator for objects that users hold; `instead` has the names and uses of other libraries."""

    def decorated(cls: type[C]) -> type[C]:
        methods_blame_arguments(cls)
        for name, looks in _LOOKS.items():
            if name in instead and name not in vars(cls):
                setattr(cls, name, _refusal(looks.format(what.partition(" ")[2]), instead[name]))
        if "__getattr__" not in vars(cls):
            cls.__getattr__ = _lookup(what, instead)  # type: ignore[attr-defined]
        frozen = getattr(cls, "__dataclass_params__", None)
        if frozen is not None and frozen.frozen:
            cls.__setattr__ = _fixed(what, instead)  # type: ignore[method-assign]
        return cls

    return decorated


def _fixed(what: str, instead: Mapping[str, str]) -> Callable[[Any, str, Any], None]:
    advice = f"; {wanted(instead['__setattr__'])}" if "__setattr__" in instead else ""

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        raise located(
            NoAttributeError(f"{what} is a value, and its '{name}' cannot be set{advice}")
        )

    return __setattr__


def _refusal(looks: str, write: str) -> Callable[..., Any]:
    def refuse(self: Any, *_args: Any, **_kwargs: Any) -> Any:
        raise located(OperandError(f"{looks}: {wanted(write)}"))

    refuse.refuses = True  # type: ignore[attr-defined]
    return refuse


def _lookup(what: str, instead: Mapping[str, str]) -> Callable[[Any, str], Any]:
    def __getattr__(self: Any, name: str) -> Any:  # noqa: N807
        if name.startswith("_"):  # protocols ask for such names, and for a plain answer
            raise AttributeError(f"{what} has no attribute '{name}'")
        advice = wanted(instead[name]) if name in instead else _nearest(self, name)
        raise located(
            NoAttributeError(
                f"{what} has no attribute '{name}'" + (f"; {advice}" if advice else "")
            )
        )

    return __getattr__


def _nearest(x: Any, name: str) -> str:
    near = difflib.get_close_matches(name, [n for n in dir(x) if not n.startswith("_")], 1)
    return f"did you mean '{near[0]}'?" if near else ""
