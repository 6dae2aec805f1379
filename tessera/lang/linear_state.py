"""Linear state: in a traced function an annotated state has one successor, and is stale once that is made."""

from __future__ import annotations

from typing import Any, NoReturn

from tessera.core import tree
from tessera.core.errors import TesseraError, TraceError, located

_CACHE = "cache = cache.append(k, v)"
_OPTIMISER = "params, state = opt.update(grads, state, params)"


class Linear:
    """An object that may be linear: what is made of it replaces it."""

    def _next(self, made: Any) -> Any:
        """The state that was made of this one; a linear one is stale from now on."""
        if getattr(self, "_linear", False):
            begin(made)
            object.__setattr__(self, "__class__", _stale(type(self)))
        return made


class LinearDict(dict[str, Any]):
    """The state of an optimiser that is linear; in trees it is a dict."""

    def __repr__(self) -> str:
        return dict.__repr__(self)


def begin(x: Any) -> Any:
    """The state as a linear one."""
    if isinstance(x, dict):
        return LinearDict(x)
    object.__setattr__(x, "_linear", True)
    return x


def successor(old: Any, made: Any) -> Any:
    """The state that an optimiser made of an old one, which is stale from now on if it is linear."""
    if type(old) is not LinearDict:
        return made
    new = begin(made)
    object.__setattr__(old, "__class__", StaleDict)
    return new


def _refusal(what: str, instead: str) -> TesseraError:
    return located(
        TraceError(
            f"{what}: this state is stale: a newer one was made of it; use that one, as in {instead}, or "
            "leave the "
            "annotation out to keep old ones as values"
        )
    )


_STALE: dict[type, type] = {}


def _stale(cls: type) -> type:
    """The class of states of this class that have a successor: every use is an error."""
    if cls not in _STALE:

        def refuse(self: Any, name: str) -> NoReturn:
            raise _refusal(f"{cls.__name__}.{name}", _CACHE)

        _STALE[cls] = type(f"Stale{cls.__name__}", (cls,), {"__getattribute__": refuse})
    return _STALE[cls]


def _refuse(self: Any, *args: Any) -> NoReturn:
    raise _refusal("OptimizerState", _OPTIMISER)


class StaleDict(LinearDict):
    """The state of an optimiser that has a successor: every use is an error."""

    __getitem__ = __setitem__ = __iter__ = __len__ = __contains__ = _refuse
    __eq__ = __or__ = __ror__ = __bool__ = __getattribute__ = _refuse
    __hash__ = None  # type: ignore[assignment]


for _cls in (LinearDict, StaleDict):
    tree.see_as(_cls, dict)
