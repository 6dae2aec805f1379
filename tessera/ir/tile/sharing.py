"""sharing: which parameters of a kernel may be one memory, so that a result takes an operand's place.

A kernel writes each element of a result once.  So a result may share the memory of an operand when every
load of the operand comes before the store of the same element:

    y[p, i:i+64] = exp(load x[p, i:i+64])                      the box that is loaded is stored next
    m = max over i of x[p, i]; y[p, i:i+64] = x[p, i:i+64] - m     row p is loaded before it is stored

Other instances must not come near: a last block that is moved back over its neighbour, at
min(16*p, n - 16), is loaded again after the neighbour may have stored it.  ir/tile/clashes.py proves
in the verifier what is claimed here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tessera.core.dims import Dim, Size, SizeFunction, symbol, symbols
from tessera.ir.tile.clashes import clashes
from tessera.ir.tile.ir import Block, Kernel, Memory, Operation
from tessera.ir.tile.scope import AccessWalk


@dataclass(frozen=True)
class _Access:
    """A load or a store: where in the text of the kernel, and of which elements."""

    op: Operation
    path: tuple[int, ...]  # its number in its block, after those of the loops around it

    @property
    def box(self) -> tuple[tuple[Size, ...], tuple[int, ...]]:
        return self.op.attributes["at"], self.op.attributes["extent"]


def shareable(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """The parameters (operand, result), by their numbers, that may be one memory."""
    known = vars(kernel)  # where its cached properties are
    if "_shareable" not in known:
        known["_shareable"] = _shareable(kernel)
    found: tuple[tuple[int, int], ...] = known["_shareable"]
    return found


def _shareable(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    accesses: dict[Memory, list[_Access]] = {m: [] for m in kernel.parameters}
    for a in _accesses(kernel.body, ()):
        if a.op.memory in accesses:
            accesses[a.op.memory].append(a)
    found = [
        (i, j)
        for i, x in enumerate(kernel.parameters)
        for j, y in enumerate(kernel.parameters)
        if not x.writable and y.writable and x.type == y.type
        if _in_order(kernel, accesses[x], accesses[y])
    ]
    if not kernel.sizes:
        return tuple(found)
    # Ends of loops may be quotients of sizes, of which not every order is proved.
    memory, walked = kernel.parameters, list(AccessWalk(kernel).accesses()) if found else []
    return tuple((i, j) for i, j in found if not any(clashes(kernel, memory[i], memory[j], walked)))


def is_copy(kernel: Kernel) -> bool:
    """Whether a kernel does nothing but to store what it loads, in the same place of another memory."""
    if len(kernel.parameters) != 2 or kernel.parameters[0].type != kernel.parameters[1].type:
        return False
    found = [a.op for a in _accesses(kernel.body, ())]
    loaded = {op.results[0]: _where(op) for op in found if op.name == "load"}
    stores = [op for op in found if op.name == "store"]
    return len(loaded) + len(stores) == len(found) > 0 and all(
        loaded.get(op.operands[0]) == _where(op) for op in stores
    )


def _where(op: Operation) -> tuple[object, ...]:
    return tuple(op.attributes[n] for n in ("at", "extent", "axes", "masked"))


def _accesses(block: Block, path: tuple[int, ...]) -> Iterator[_Access]:
    for i, op in enumerate(block.operations):
        if op.memory is not None and op.name != "prefetch":  # a hint reads nothing
            yield _Access(op, (*path, i))
        if op.block is not None:
            yield from _accesses(op.block, (*path, i))


def _in_order(kernel: Kernel, loads: list[_Access], stores: list[_Access]) -> bool:
    """Whether every element is loaded for the last time before it is stored."""
    traits = [a.op.traits for a in (*loads, *stores)]
    if any(t.by_data or t.flies for t in traits):
        return False
    if not stores:
        return False
    first = min(s.path[0] for s in stores)
    rows = all(_owns_row(kernel, a) for a in (*loads, *stores))
    return all(
        (rows and a.path[0] < first) or (_is_apart(kernel, a) and _stored_next(a, stores))
        for a in loads
    )


def _stored_next(load: _Access, stores: list[_Access]) -> bool:
    """Whether a store of the same elements follows in the same block."""
    return any(
        s.path[:-1] == load.path[:-1] and s.path[-1] > load.path[-1] and s.box == load.box
        for s in stores
    )


def _owns_row(kernel: Kernel, a: _Access) -> bool:
    """Whether the first axes are the numbers of the instance, so that no other one comes near."""
    at, extent = a.box
    n = len(kernel.grid)
    numbers = tuple(symbol(name) for name, _ in kernel.grid)
    return at[:n] == numbers and extent[:n] == (1,) * n


def _is_apart(kernel: Kernel, a: _Access) -> bool:
    """Whether the box moves with every number of the instance; min, max and remainders may bring it back."""
    at, _ = a.box
    atoms = {
        atom for x in at if isinstance(x, Dim) for monomial, _ in x.terms for atom, _ in monomial
    }
    hidden = {
        s
        for x in atoms
        if isinstance(x, SizeFunction)
        for side in (x.left, x.right)
        for s in symbols(side)
    }
    return not any(name in hidden for name, n in kernel.grid if n != 1)
