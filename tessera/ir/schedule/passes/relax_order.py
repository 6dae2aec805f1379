"""loosen: a program without the law of bits, for numerics `fast`.

Folds may run in any order, so that the lowering takes the one that is fastest on this machine with its
cores; and the arithmetic of a point is rounded where that is cheapest:

    add(mul(a, b), c)   ->   fma(a, b, c)
    div(x, s)           ->   mul(x, recip(s))   for an s that is one number for all columns of a row
"""

from __future__ import annotations

from dataclasses import replace

from tessera.core.dims import symbols
from tessera.ir.schedule.ir import (
    ANY,
    Apply,
    Cast,
    Group,
    HostCall,
    Kernel,
    Position,
    Program,
    Read,
    Stage,
    Step,
    Term,
)


def relax_order(p: Program) -> Program:
    """The program whose steps need not keep the law of bits."""
    return replace(p, steps=tuple(map(_step, p.steps)))


def _step(s: Step) -> Step:
    if isinstance(s, HostCall):
        return s
    if isinstance(s, Group):
        return replace(s, kernels=tuple(map(_kernel, s.kernels)))
    if isinstance(s, Kernel):
        return _kernel(s)
    epilogue = None if s.epilogue is None else _kernel(s.epilogue)
    return replace(s, order=ANY, epilogue=epilogue)


def _kernel(k: Kernel) -> Kernel:
    head = k.stages[:1] if k.contracts else ()  # a sum of products is fused anyway
    rest = (_stage(s, k.rows) for s in k.stages[len(head) :])
    return replace(k, stages=(*head, *rest), order=ANY)


def _stage(s: Stage, rows: int) -> Stage:
    columns = frozenset(a.name for a in (*s.axes[rows:], *s.reduced))
    return replace(s, term=_fused(_multiplied(s.term, columns)))


def _multiplied(t: Term, columns: frozenset[str]) -> Term:
    """Divisions by what has no column as products with its reciprocal."""
    match t:
        case Cast():
            return replace(t, operand=_multiplied(t.operand, columns))
        case Apply():
            inner = tuple(_multiplied(o, columns) for o in t.operands)
            if t.scalar != "div" or not _is_real(t):
                return replace(t, operands=inner)
            x, y = inner
            if not columns or _varies(y, columns) or not _varies(x, columns):
                return replace(t, operands=inner)
            return Apply(t.dtype, "mul", (x, Apply(t.dtype, "recip", (y,))))
    return t


def _varies(t: Term, columns: frozenset[str]) -> bool:
    """Whether a term has other values in other columns."""
    match t:
        case Position():
            return bool(columns & set(symbols(t.value)))
        case Read():
            sizes = (i for i in t.index if not isinstance(i, Term))
            if any(columns & set(symbols(i)) for i in sizes):
                return True
    return any(_varies(c, columns) for c in t.children())


def _fused(t: Term) -> Term:
    """Products that are added to something in one step with the sum."""
    match t:
        case Cast():
            return replace(t, operand=_fused(t.operand))
        case Apply():
            t = replace(t, operands=tuple(map(_fused, t.operands)))
            return _sum(t) if _is_real(t) and t.scalar in ("add", "sub") else t
    return t


def _sum(t: Apply) -> Apply:
    x, y = t.operands
    minus = t.scalar == "sub"
    if isinstance(x, Apply) and x.scalar == "mul":
        return Apply(t.dtype, "fma", (*x.operands, _negative(y) if minus else y))
    if isinstance(y, Apply) and y.scalar == "mul":
        a, b = y.operands
        return Apply(t.dtype, "fma", (_negative(a) if minus else a, b, x))
    return t


def _negative(t: Term) -> Term:
    return Apply(t.dtype, "neg", (t,))


def _is_real(t: Apply) -> bool:
    """Whether a term is of a float that machines compute on."""
    return t.dtype.kind == "f" and not t.dtype.is_narrow
