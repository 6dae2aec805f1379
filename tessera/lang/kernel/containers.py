"""Lists and dictionaries that a kernel makes, and may change where it made them.

A branch that data decide is computed beside the other one, and a loop that runs is parsed more than once.  So
what was made outside of a branch, a loop or a function of elements is not changed inside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.lang.kernel.values import KernelError

CONTAINERS = (list, tuple, dict, str)
_CHANGING = (
    "append", "extend", "insert", "pop", "remove", "clear", "reverse", "sort", "update",
    "setdefault", "popitem",
)  # fmt: skip


class OwnList(list[Any]):
    """A list that a kernel made, and the region of the kernel that made it."""

    region: object = None


class OwnDict(dict[Any, Any]):
    """A dictionary that a kernel made, and the region of the kernel that made it."""

    region: object = None


def own(value: Any, region: object) -> Any:
    """A list or a dictionary of Python as one that the region may change."""
    if type(value) not in (list, dict):
        return value
    made = OwnList(value) if isinstance(value, list) else OwnDict(value)
    made.region = region
    return made


def demand_own(value: Any, region: object) -> None:
    """Raise KernelError unless the region may change a container."""
    if not isinstance(value, OwnList | OwnDict):
        raise KernelError(
            f"{value!r:.60} is an argument or a name around the kernel, which changes only what it makes; "
            "copy it: list(x), dict(x)"
        )
    if value.region is not region:
        raise KernelError(
            "a list or dictionary that was made outside of a branch or a loop that data decide is not "
            "changed inside of it; carry tiles, or make a new one: xs = [*xs, x]"
        )


def is_method(f: Any) -> bool:
    """Whether f is a method of a list, a tuple, a dictionary or a text."""
    return isinstance(getattr(f, "__self__", None), CONTAINERS)


def run_method(
    f: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], region: object
) -> Any:
    """What a method of a container gives."""
    owner: Any = f.__self__  # type: ignore[attr-defined]
    if f.__name__ in _CHANGING:
        demand_own(owner, region)
    return f(*args, **kwargs)


def put(owner: Any, key: Any, value: Any, region: object) -> None:
    """owner[key] = value."""
    demand_own(owner, region)
    owner[key] = value
