"""Linear state: in a traced function an annotated state has one successor, and is stale once that is made."""

from __future__ import annotations

from typing import Any, NoReturn

from tessera.core.errors import TraceError, located


class Linear:
    """An object that may be linear: what is made of it replaces it."""

    def _next(self, made: Any) -> Any:
        """The state that was made of this one; a linear one is stale from now on."""
        if getattr(self, "_linear", False):
            begin(made)
            object.__setattr__(self, "__class__", _stale(type(self)))
        return made


def begin(x: Any) -> Any:
    """The state as a linear one."""
    object.__setattr__(x, "_linear", True)
    return x


_STALE: dict[type, type] = {}


def _stale(cls: type) -> type:
    """The class of states of this class that have a successor: every use is an error."""
    if cls not in _STALE:

        def refuse(self: Any, name: str) -> NoReturn:
            raise located(
                TraceError(
                    f"{cls.__name__}.{name}: this state is stale: a newer one was made of it; use that one, "
                    "as in "
                    "cache = cache.append(k, v), or leave the annotation out to keep old ones as values"
                )
            )

        _STALE[cls] = type(f"Stale{cls.__name__}", (cls,), {"__getattribute__": refuse})
    return _STALE[cls]
