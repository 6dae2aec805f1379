"""A case of the sweep: one call of ours and of torch's, its operands, and the bound of its time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tessera as ts
from tessera import Tensor

BYTES = 4.2e12  # a second that a copy reads and writes (gpu-h200.json)
FLOPS = {"bf16": 7.9e14, "f16": 7.9e14, "f8e4m3": 1.4e15, "f32": 5.2e13, "f64": 5.2e13}  # a second
LAUNCH = 1.5e-6  # seconds that a launch in a graph takes at least
DTYPES: dict[str, Any] = {
    n: getattr(ts, n)
    for n in ["f16", "bf16", "f32", "f64", "i8", "i32", "i64", "u8", "c64", "f8e4m3"]
} | {"bool": ts.bool_}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """A tensor to draw: `normal`, `positive`, `unit` (from -1 to 1), `index` below `below`, `spd`,
    `sorted`.
    """

    shape: tuple[int, ...]
    dtype: str = "f32"
    draw: str = "normal"
    below: int = 0

    @property
    def spec(self) -> Any:
        """The type, to trace with."""
        return Tensor[(*self.shape, DTYPES[self.dtype])]

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return prod(self.shape) * max(DTYPES[self.dtype].bits // 8, 1)


@dataclass(frozen=True)
class Case:
    """A function of ours and one of torch's, whose first argument is the module torch."""

    family: str
    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    operands: tuple[Operand, ...]
    flops: float = 0.0
    moved: float | None = None  # bytes; operands and results unless given
    compiled: bool = False  # whether torch.compile is asked too
    checked: str = (
        "f64"  # "f64": torch in f64; "same": torch in the case's dtypes; "no": random numbers
    )
    tolerance: float = 0.0  # of the norm of the error; by dtype unless given
    captured: bool = True  # whether torch's call can be captured in a graph
    eager: bool = False  # whether ours is called outside of jit: the size of its result is data
    known_host: bool = False  # whether a library or the host computes it (docs/gpu.md)
    patch: tuple[tuple[str, str, Any], ...] = ()  # modules, names and values: another schedule
    cached: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"

    @property
    def graph(self) -> Any:
        """Our function as Graph IR."""
        if "graph" not in self.cached:
            self.cached["graph"] = ts.trace(self.ours, *(o.spec for o in self.operands))
        return self.cached["graph"]

    @property
    def bytes(self) -> float:
        """The fewest bytes that pass through memory: operands once, results once."""
        if self.moved is not None:
            return self.moved
        results = (v.type for v in self.graph.outputs)
        written = sum(prod(map(int, t.shape)) * max(t.dtype.bits // 8, 1) for t in results)
        return float(sum(o.nbytes for o in self.operands) + written)

    @property
    def bound(self) -> float:
        """Seconds that its bytes and operations take at the rates of the device."""
        rate = FLOPS.get(self.operands[0].dtype if self.operands else "f32", FLOPS["f32"])
        return max(self.bytes / BYTES, self.flops / rate, LAUNCH)


def size_name(*operands: Operand) -> str:
    """Shapes and dtype as text."""
    shapes = " ".join("x".join(map(str, o.shape)) or "()" for o in operands)
    return f"{shapes} {operands[0].dtype}"


def slopes(f: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """Our derivative of f by its first `count` arguments, pulled back from the last argument."""

    def g(*xs: Any) -> Any:
        first, rest, ct = xs[:count], xs[count:-1], xs[-1]
        _, pull = ts.vjp(lambda *ys: f(*ys, *rest), *first)
        return pull(ct)

    return g


def torch_slopes(f: Callable[..., Any], count: int = 1) -> Callable[..., Any]:
    """Torch's derivative of f by its first `count` arguments, pulled back from the last argument."""

    def g(t: Any, *xs: Any) -> Any:
        first = [x.detach().requires_grad_() for x in xs[:count]]
        y = f(t, *first, *xs[count:-1])
        return t.autograd.grad(y, first, xs[-1])

    return g


def part_of(cases: Sequence[Case], text: str) -> list[Case]:
    """Part i/n of the cases: every n-th, so that parts take alike."""
    i, n = map(int, text.split("/"))
    assert 1 <= i <= n, text
    return list(cases[i - 1 :: n])
