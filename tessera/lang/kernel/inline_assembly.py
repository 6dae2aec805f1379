"""kernel.assembly: instructions of a target, as a function of tiles with a stated contract."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tessera.core.assembly import Contract, contract
from tessera.core.dims import symbol
from tessera.core.dtype import DType, as_dtype
from tessera.core.errors import CompileError, OperandError
from tessera.core.processor import machine
from tessera.core.scalar import SCALARS
from tessera.core.types import TensorType
from tessera.ir.tile.ir import Builder
from tessera.lang.kernel.launch import machine_code
from tessera.lang.kernel.table import Intrinsic, IntrinsicContext
from tessera.lang.kernel.values import KernelError, TileValue
from tessera.runtime.kernel import CompiledKernel


class Assembly(Intrinsic):
    """A function of tiles whose elements a target's own instructions compute."""

    contract: Contract

    def __repr__(self) -> str:
        c = self.contract
        takes = ", ".join(map(str, c.takes))
        return f"<assembly {c.name}({takes}) -> {c.gives}, for {', '.join(c.texts) or 'no target'}>"


def assembly(
    name: str, takes: Any, gives: Any, reference: Callable[..., Any], *, like: str | None,
    within: float, clobbers: Sequence[str], pure: bool, texts: Mapping[str, str | None],
) -> Assembly:  # fmt: skip
    """A piece of assembly under a contract; `kernel.assembly` says what the arguments are."""
    if pure is not True:
        raise OperandError(
            f"assembly {name}: pure is {pure!r}, expected True: tiles are computed when and as often as "
            "the compiler sees fit, so that nothing else may depend on it"
        )
    if like is not None and (like not in SCALARS or SCALARS[like].arity != len(_dtypes(takes))):
        raise OperandError(
            f"assembly {name}: like is {like!r}, expected a function of tile with as many operands, such "
            "as 'rsqrt'"
        )
    said = {target: text for target, text in texts.items() if text is not None}
    c = contract(name, _dtypes(takes), as_dtype(gives), said, clobbers, reference, within, like)

    def emit(p: IntrinsicContext, *xs: Any) -> TileValue:
        if len(xs) != len(c.takes):
            raise KernelError(f"{name}: got {len(xs)} operands, expected {len(c.takes)}")
        p.hints.append(("assembly", c))
        tiles = p.w.spread(name, [_operand(p, c, x, d) for x, d in zip(xs, c.takes, strict=True)])
        t = p.w.b.apply(c.scalar, *(x.tile for x in tiles))
        # What the text makes of elements past an edge is not known: they are masked where they count.
        return TileValue(t, p.w.meeting(name, tiles), (None,) * len(t.shape))

    takes_text = ", ".join(map(str, c.takes))
    doc = f"Inline assembly for {', '.join(said) or 'no target'}: {c.gives} of {takes_text}."
    made = Assembly(name, emit, reference, False, doc)
    object.__setattr__(made, "contract", c)
    return made


def _dtypes(takes: Any) -> tuple[DType, ...]:
    return tuple(map(as_dtype, takes if isinstance(takes, tuple | list) else (takes,)))


def _operand(p: IntrinsicContext, c: Contract, x: Any, dtype: DType) -> TileValue:
    if isinstance(x, TileValue) and x.dtype is not dtype:
        raise KernelError(
            f"{c.name}: got a tile of {x.dtype}, expected {dtype}; write tile.cast(x, {dtype})"
        )
    return p.w.tile(x, dtype)


def assemblies(hints: Iterable[tuple[str, Any]]) -> list[Contract]:
    """The contracts that a kernel relies on."""
    return list(dict.fromkeys(c for n, c in hints if n == "assembly"))


@cache
def probe(c: Contract) -> CompiledKernel:
    """A kernel of this machine that is the text alone, on tensors of N elements."""
    b, n = Builder(c.name), symbol("N")
    given = [b.parameter(f"x{i}", TensorType(d, (n,))) for i, d in enumerate(c.takes)]
    made = b.parameter("y", TensorType(c.gives, (n,)), writable=True)
    at = b.program(n)
    b.store(made, b.apply(c.scalar, *(b.load(m, (at,), (1,)) for m in given)), (at,), (1,))
    try:
        return machine_code(b.finish())
    except CompileError as e:
        said = re.sub(r"; its LLVM IR.*", "", e.message)
        raise OperandError(
            f"assembly {c.name}: the text for {machine()}, {c.texts[machine()]!r}, is none that LLVM takes: "
            f"{said}"
        ) from None


def difference(c: Contract) -> tuple[float, tuple[Any, ...]]:
    """How far the text is from the reference on this machine, relative, and for which operands."""
    rng = np.random.default_rng(0)
    xs = [np.array(x) for x in zip(*product(*(_numbers(d, rng) for d in c.takes)), strict=True)]
    xs = [x.astype(d.np) for x, d in zip(xs, c.takes, strict=True)]
    got = np.zeros(len(xs[0]), c.gives.np)
    probe(c).run([*xs, got], {"N": len(got)})
    with np.errstate(all="ignore"):
        want = c.evaluate(xs)
        a, b = got.astype(np.float64), want.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        far = np.where(same, 0.0, np.abs(a - b) / np.maximum(np.abs(b), np.finfo(np.float32).tiny))
    far = np.where(np.isnan(far), np.inf, far)
    worst = int(np.argmax(far))
    return float(far[worst]), tuple(x[worst].item() for x in xs)


def _numbers(d: DType, rng: np.random.Generator) -> list[Any]:
    """Some elements of a dtype: small ones, large ones, none that is subnormal, infinite or NaN."""
    if d.kind == "f":
        drawn = np.exp(rng.uniform(-40, 40, 40)) * rng.choice([1, -1], 40)
        return [0.0, 1.0, -1.0, 0.5, 2.0, *drawn.tolist()]
    info = np.iinfo(d.np)
    drawn = rng.integers(info.min, info.max, 20, dtype=d.np, endpoint=True)
    return [0, 1, info.min, info.max, *drawn.tolist(), *(x >> 20 for x in drawn.tolist())]
