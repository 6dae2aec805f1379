"""What a lower layer uses and a higher layer provides.

Layers look down only. Where a lower one needs something that is built on top of it (the text of a graph,
the class of a traced value, the solvers of the algebra), it declares a `Provided` slot with a type and a
default, and the module that has the thing fills it when it is imported. `Provided.slots` lists them all;
docs/compiler.md shows the list.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")


class Provided(Generic[T]):
    """One value that a higher layer provides; `value` is None or the default until then."""

    __slots__ = ("doc", "name", "value")

    slots: ClassVar[dict[str, Provided[Any]]] = {}

    def __init__(self, name: str, doc: str, default: T | None = None):
        self.name, self.doc = name, doc
        self.value: T | None = default
        self.slots[name] = self

    def provide(self, value: T) -> T:
        """Fill the slot; the value, so that this is a decorator, too."""
        self.value = value
        return value

    def get(self) -> T:
        """The value, which must have been provided."""
        assert self.value is not None, f"{self.name}: what provides {self.doc} is not imported"
        return self.value
