"""Kernels in graphs: a node holds the text of the Tile IR, which runs when the program does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tessera.core.constraints import solve, unify
from tessera.core.dims import Dim, Shape, Size, substitute
from tessera.core.errors import ShapeError
from tessera.core.types import TensorType
from tessera.ir.tile.autodiff import Reversed, reverse
from tessera.ir.tile.autodiff.forward import push
from tessera.ir.tile.ir import Kernel, Memory, walk
from tessera.ir.tile.text import parse_kernel
from tessera.lang.kernel.launch import run_kernel
from tessera.lang.kernel.scalar_grad import pushes, slopes
from tessera.lang.kernel.signature import BoundArguments
from tessera.lang.kernel.translate import Translated
from tessera.ops.tiles import Backward, TangentKernel


def sizes_in(bound: BoundArguments, operands: Sequence[TensorType], name: str) -> dict[str, Size]:
    """What a kernel's names of sizes are, numbers or symbols of the program around it."""
    pairs = zip(bound.parameters, operands, strict=True)
    return _known(name, [(p.name, p.type.shape, t.shape) for p, t in pairs])


def _known(name: str, shapes: Sequence[tuple[str, Shape, Shape]]) -> dict[str, Size]:
    known: dict[str, Size] = {}
    pairs = [(n, w, g) for n, want, got in shapes for w, g in zip(want, got, strict=True)]
    for _, want, got in pairs:
        if isinstance(want, Dim) and str(want).isidentifier():
            known.setdefault(str(want), got)
    for operand, want, got in pairs:
        expected = substitute(want, known)
        if not unify(expected, got, f"{name}: {want} of {operand}"):
            raise ShapeError(
                f"{name}: {want} is {expected}, but {operand} has {got} elements there"
            )
    return known


def require_equal(t: Translated, known: Mapping[str, Size], name: str) -> None:
    """Sizes that the kernel takes to be one must be; where that is open a guard says so."""
    for left, right, reason in t.equations():
        a, b = substitute(left, known), substitute(right, known)
        if not unify(a, b, f"{name}: {reason}"):
            raise ShapeError(f"{name}: {reason} is {a} here and {b} there")


_MOST = 512  # kernels that are remembered: bounds memory
_LINED: dict[str, Kernel] = {}  # kernels that know the lines they come from, which a text does not


def text_of(k: Kernel) -> str:
    """The text of a kernel, which stays known with its lines."""
    if len(_LINED) >= _MOST:
        _LINED.clear()
    _LINED[k.text] = k
    return k.text


@lru_cache(maxsize=_MOST)
def _parsed(program: str) -> Kernel:
    return parse_kernel(program)


def kernel_of(program: str) -> Kernel:
    """The kernel of a text, with the lines it comes from where they are known."""
    return _LINED.get(program) or _parsed(program)


def _made(k: Kernel, count: int) -> list[Memory]:
    """What a kernel makes: the operands that it stores to, and the results after them."""
    return [m for i, m in enumerate(k.parameters) if m.writable or i >= count]


def types(program: str, operands: Sequence[TensorType]) -> list[TensorType]:
    """The types of what a kernel makes of operands of these types."""
    k = _parsed(program)
    pairs = zip(k.parameters, operands, strict=False)
    known = _known(k.name, [(m.name, m.type.shape, t.shape) for m, t in pairs])
    return [_at(m.type, known) for m in _made(k, len(operands))]


def _at(t: TensorType, known: Mapping[str, Size]) -> TensorType:
    return TensorType(t.dtype, tuple(substitute(n, known) for n in t.shape))


def run(program: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """What a kernel makes of arrays."""
    k = _parsed(program)
    pairs = zip(k.parameters, arrays, strict=False)
    sizes = solve([(m.name, m.type.shape, a.shape) for m, a in pairs], ())
    return tuple(run_kernel(k, arrays, sizes))


def updated(program: str, count: int) -> list[int]:
    """Which of the first parameters a kernel stores to."""
    return [i for i, m in enumerate(_parsed(program).parameters[:count]) if m.writable]


def loaded(program: str, count: int) -> list[int]:
    """Which results a kernel loads too, by their numbers."""
    k = _parsed(program)
    read = {op.memory for op in walk(k.body) if op.traits.reads}
    return [i for i, m in enumerate(_made(k, count)) if m in read]


def backward(
    program: str, operands: Sequence[TensorType], wanted: Sequence[bool], given: Sequence[bool]
) -> Backward:
    """The kernel of the gradients of the wanted operands, for operands of these types."""
    made = _reversed(program, len(operands), tuple(wanted), tuple(given))
    pairs = zip(made.kernel.parameters, operands, strict=False)
    known = _known(made.kernel.name, [(m.name, m.type.shape, t.shape) for m, t in pairs])
    gradients = tuple((g.operand, g.result, g.parts) for g in made.gradients)
    zeros = tuple(_at(t, known) for t in made.zeros)
    return Backward(text_of(made.kernel), zeros, gradients)


@lru_cache(maxsize=_MOST)
def _reversed(
    program: str, count: int, wanted: tuple[bool, ...], given: tuple[bool, ...]
) -> Reversed:
    return reverse(kernel_of(program), count, wanted, given, slopes)


def forward(program: str, count: int, moved: Sequence[bool]) -> TangentKernel:
    """The kernel that pushes the tangents of the moved ones of `count` operands forward."""
    return _forward(program, count, tuple(moved))


@lru_cache(maxsize=_MOST)
def _forward(program: str, count: int, moved: tuple[bool, ...]) -> TangentKernel:
    made = push(kernel_of(program), count, moved, pushes)
    return TangentKernel(text_of(made.kernel), made.tangents, made.results)
