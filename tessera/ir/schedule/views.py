"""Views of tensors in memory: in which order they show it, and whether a contraction can read them there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tessera.core.dims import Size, Symbol, symbol, symbols
from tessera.ir.graph.ir import Node, Value
from tessera.ir.schedule.index import narrow, wrap_of
from tessera.ir.schedule.ir import Axis, Read


def view_index(n: Node) -> tuple[list[Size], Mapping[str, Size]]:
    """The index of the operand in terms of the axes of the result."""
    axes = {f"_v{i}": s for i, s in enumerate(n.results[0].shape)}
    assert n.op.view is not None
    place = n.op.view(tuple(symbol(a) for a in axes), n.types, n.params)
    return [narrow(i, axes) for i in place], axes


def keeps_order(n: Node) -> bool:
    """Whether the elements of a view come in the order of the tensor, each once."""
    index, axes = view_index(n)
    used = [a for i in index for a in symbols(i) if a in axes]
    return used == [a for a, size in axes.items() if size != 1]


def batch_axes(n: Node, v: Value) -> Iterator[set[int]]:
    """Which axes of an operand number the products of a contraction, for each place where it stands."""
    sig = n.op.sig(n.types, n.params)
    assert sig is not None, n
    sig = sig.spell(n.op.name, n.types)
    shared = set(sig.ins[0]) & set(sig.ins[1]) & set(sig.out)
    for x, names in zip(n.operands, sig.ins, strict=True):
        if x is v:
            yield {i for i, a in enumerate(names) if a in shared}


def reduced_axes(n: Node, v: Value) -> set[int]:
    """Which axes of an operand a contraction sums over."""
    sig = n.op.sig(n.types, n.params)
    assert sig is not None, n
    sig = sig.spell(n.op.name, n.types)
    operands = zip(n.operands, sig.ins, strict=True)
    return {i for x, names in operands if x is v for i, a in enumerate(names) if a not in sig.out}


def reads_lines(r: Read, axes: Sequence[Axis]) -> bool:
    """Whether steps along each of these axes are steps along an axis of the source, all different."""
    places = []
    for a in axes:
        found = [i for i, x in enumerate(r.index) if a.name in symbols(x)]
        if not found and a.size == 1:
            continue
        if len(found) != 1 or a.name in symbols(r.index[found[0]] - a.variable):
            return False
        places += found
    return len(set(places)) == len(places)


def is_nest_view(n: Node) -> bool:
    """Whether loops can read a view where they stand: its indices are linear, or wrap around once."""
    if 0 in n.operands[0].shape or 0 in n.results[0].shape:
        return False
    index, axes = view_index(n)
    return all(_is_linear(i, axes) or wrap_of(i, axes) is not None for i in index)


def is_simple_view(n: Node) -> bool:
    """Whether each index of the operand is an axis of the result, moved by a constant, or none."""
    return is_simple(*view_index(n))


def _is_linear(x: Size, axes: Mapping[str, Size]) -> bool:
    if isinstance(x, int):
        return True
    return all(
        sum(p for a, p in monomial if isinstance(a, Symbol) and a.name in axes) <= 1
        and not any(
            symbols(side) & axes.keys()
            for a, _ in monomial if not isinstance(a, Symbol) for side in (a.left, a.right)
        )
        for monomial, _ in x.terms
    )  # fmt: skip


def is_simple(index: Sequence[Size], axes: Mapping[str, Size]) -> bool:
    used = [a for i in index for a in symbols(i) if a in axes]
    return all(_is_moved_axis(i, axes) for i in index) and len(set(used)) == len(used)


def _is_moved_axis(x: Size, axes: Mapping[str, Size]) -> bool:
    found = symbols(x) & axes.keys()
    if len(found) > 1:
        return False
    return all(not symbols(x - symbol(a)) & axes.keys() for a in found)


def is_layout_view(n: Node) -> bool:
    """Whether strides may say where a view of a tensor in memory lies: no index wraps around."""
    index, axes = view_index(n)
    return all(wrap_of(i, axes) is None for i in index)
