"""explain: the collectives that a program on a mesh needs, with their bytes and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tessera.core.errors import OperandError
from tessera.lang.jit import Jitted, jit
from tessera.lang.transforms import guarded
from tessera.compile.mesh.executable import MeshExecutable
from tessera.transform.reshard import Inserted


@dataclass(frozen=True)
class Report:
    """The collectives of a program, in order; str() is a table."""

    name: str
    mesh: str
    collectives: tuple[Inserted, ...]
    results: tuple[str, ...]  # types with layouts

    @property
    def bytes(self) -> int:
        """The bytes that each logical shard sends."""
        return sum(c.bytes for c in self.collectives)

    @property
    def counts(self) -> dict[str, int]:
        """How many collectives there are of each kind."""
        return dict(Counter(c.kind for c in self.collectives))

    def __iter__(self) -> Iterator[Inserted]:
        return iter(self.collectives)

    def __len__(self) -> int:
        return len(self.collectives)

    def __str__(self) -> str:
        many = ", ".join(f"{n} {kind}" for kind, n in self.counts.items()) or "no collectives"
        lines = [f"{self.name} on mesh {self.mesh}: {many}, {self.bytes} bytes a shard"]
        lines += [f"  {c}" for c in self.collectives]
        lines += [f"  -> {r}" for r in self.results]
        return "\n".join(lines)


@guarded
def explain(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
    """The collectives that f needs for tensors in these layouts; nothing is run.

    A tensor of zeros, dist.tensor(shape, layout, mesh), stands for one that takes no memory.
    """
    jitted = f if isinstance(f, Jitted) else jit(f)
    executable, tensors = jitted.program(*args, **kwargs)
    if not isinstance(executable, MeshExecutable):
        raise OperandError(
            "dist.explain: no argument is on a mesh; lay one out with dist.tensor(x, layout, mesh)"
        )
    found = executable.partitioned(executable.key([v.storage for v in tensors]))
    shown = [layout.show(t) for t, layout in zip(found.types, found.layouts, strict=True)]
    name = getattr(f, "__name__", "function")
    return Report(name, str(executable.mesh), found.inserted, tuple(shown))
