"""The table of intrinsics: what `tile.<name>` is, one record each.

A record says how a call in a kernel is written in Tile IR, and what it means on NumPy arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tessera.core.errors import located
from tessera.core.source import Location
from tessera.lang.kernel.places import TilePlaces
from tessera.lang.kernel.values import LIVE, KernelError, TileValue
from tessera.lang.kernel.writer import KernelWriter


class IntrinsicContext(Protocol):
    """What an intrinsic sees of the kernel being written."""

    w: KernelWriter
    places: TilePlaces
    condition: TileValue | None  # what must hold for a store to happen
    hints: list[tuple[str, Any]]
    location: Location | None
    depth: int  # how many loops are around

    def invoke(self, f: Any, args: Sequence[Any]) -> Any:
        """What a function of the user's gives for tiles."""


@dataclass(frozen=True, eq=False)
class Intrinsic:
    """One function of `tile`."""

    name: str
    emit: Callable[..., Any]  # (program, *arguments) -> value
    reference: Callable[..., Any] | None = None  # (*arrays, **parameters) -> array(s)
    updates: bool = False  # as a statement, it assigns to its first argument
    doc: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", self.doc)
        object.__setattr__(self, "__name__", self.name)

    @property
    def __signature__(self) -> inspect.Signature:
        """The arguments of a call in a kernel."""
        _, *given = inspect.signature(self.emit).parameters.values()
        return inspect.Signature(given)

    def run(self, p: IntrinsicContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a call in a kernel writes; an error that has the signature where the arguments are wrong."""
        try:
            return self.emit(p, *args, **kwargs)
        except TypeError:
            given = self.__signature__
            try:
                given.bind(*args, **kwargs)
            except TypeError as e:
                names = ", ".join(
                    str(x.replace(annotation=x.empty)) for x in given.parameters.values()
                )
                raise KernelError(f"tile.{self.name}({names}): {e}") from None
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if LIVE.session is not None:
            return LIVE.session.call(self, args, kwargs)
        raise located(
            KernelError(f"tile.{self.name} is for kernels; call it in a function with @kernel")
        )

    def __repr__(self) -> str:
        return f"tile.{self.name}"


INTRINSICS: dict[str, Intrinsic] = {}


def intrinsic(
    reference: Callable[..., Any] | None = None, name: str | None = None, updates: bool = False
) -> Callable[[Callable[..., Any]], Intrinsic]:
    """Decorator: the way to write an intrinsic becomes its record in the table."""

    def record(emit: Callable[..., Any]) -> Intrinsic:
        called = name or emit.__name__.rstrip("_")
        made = Intrinsic(called, emit, reference, updates, (emit.__doc__ or "").strip())
        assert called not in INTRINSICS, called
        INTRINSICS[called] = made
        return made

    return record
