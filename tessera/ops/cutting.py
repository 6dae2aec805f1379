"""Factors of ops whose meaning does not say how a mesh cuts them: what an op's `factors` field is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.factors import Axis, Factors, single
from tessera.core.types import TensorType
from tessera.ir.graph.op import Params, Types


def heads(types: Types, outs: Types, p: Params) -> Factors:
    """Attention: axes before the last two are stacks of problems; several heads of q share one of k."""
    q, k = types[0], types[1]
    sizes: dict[str, Any] = {"h": k.shape[-3], "g": q.shape[-3] // k.shape[-3]}
    whole: set[str] = set()

    def own(which: str, a: int, n: Any) -> Axis:
        sizes[f"{which}.{a}"] = n
        whole.add(f"{which}.{a}")
        return (f"{which}.{a}",)

    def axis(which: str, a: int, t: TensorType) -> Axis:
        back = a - t.rank
        if back >= -2 or t.shape[a] == 1:
            return own(which, a, t.shape[a])
        if back == -3:
            return ("h", "g") if t.shape[a] == q.shape[-3] else ("h",)
        sizes[f"b{-back}"] = t.shape[a]
        return (f"b{-back}",)

    ins = [tuple(axis(f"x{i}", a, t) for a in range(t.rank)) for i, t in enumerate(types)]
    made = [tuple(axis(f"y{i}", a, t) for a in range(t.rank)) for i, t in enumerate(outs)]
    return Factors(tuple(ins), tuple(made), sizes, frozenset(whole))


def padded(types: Types, outs: Types, p: Params) -> Factors:
    """Axes that are not padded are alike in operand and result."""
    ends = zip(p["low"], p["high"], p["inner"], strict=True)
    same = [all(n == 0 for n in end) for end in ends]
    x = [f"f{k}" if s else f"x{k}" for k, s in enumerate(same)]
    y = [f"f{k}" if s else f"y{k}" for k, s in enumerate(same)]
    sizes = dict(zip(x, types[0].shape, strict=True)) | dict(zip(y, outs[0].shape, strict=True))
    whole = frozenset(a for a in sizes if not a.startswith("f"))
    return single([x, []], [y], sizes, whole)


def window(types: Types, outs: Types, p: Params) -> Factors:
    """A part that starts where data says, read or written: axes that it takes whole are alike."""
    x, *rest = types
    written = bool(rest and rest[0].rank)
    part = rest[0] if written else outs[0]
    same = [n == m for n, m in zip(x.shape, part.shape, strict=True)]
    whole = [f"f{a}" if s else f"x{a}" for a, s in enumerate(same)]
    own = [f"f{a}" if s else f"y{a}" for a, s in enumerate(same)]
    sizes = dict(zip(whole, x.shape, strict=True)) | dict(zip(own, part.shape, strict=True))
    ins = [whole, *([own] if written else []), *([] for _ in rest[written:])]
    fixed = frozenset(a for a in sizes if not a.startswith("f"))
    return single(ins, [whole if written else own], sizes, fixed)


def convolved(ins: Sequence[str], out: str) -> Callable[[Types, Types, Params], Factors]:
    """Convolutions: "n c", "o c" -> "n o", each with spatial axes behind; of several groups only n can be
    cut.
    """

    def factors(types: Types, outs: Types, p: Params) -> Factors:
        sizes: dict[str, Any] = {}
        whole = {"c", "o"} if p["groups"] != 1 else set[str]()

        def axes(which: str, first: str, t: TensorType) -> list[str]:
            own = [f"{which}.{k}" for k in range(2, t.rank)]
            names = [*first.split(), *own]
            sizes.update(zip(names, t.shape, strict=True))
            whole.update(own)
            return names

        made = axes("y", out, outs[0])
        pairs = zip(ins, types, strict=True)
        given = [axes(f"x{i}", first, t) for i, (first, t) in enumerate(pairs)]
        return single(given, [made], sizes, frozenset(whole))

    return factors


def first_axis(types: Types, outs: Types, p: Params) -> Factors:
    """Ops of a batch: the first axis of operand 0 and of the result; the other operands are whole."""
    names = [[f"x{i}.{k}" for k in range(t.rank)] for i, t in enumerate(types)]
    made = [f"y.{k}" for k in range(outs[0].rank)]
    names[0][0] = made[0] = "b"
    sizes = {
        a: n for x, t in zip(names, types, strict=True) for a, n in zip(x, t.shape, strict=True)
    }
    sizes |= dict(zip(made, outs[0].shape, strict=True))
    return single(names, [made], sizes, frozenset(a for a in sizes if a != "b"))


def looked_up(types: Types, outs: Types, p: Params) -> Factors:
    """Each element of operand 1 is looked up in the whole of operand 0."""
    table, out = [f"x{k}" for k in range(types[0].rank)], [f"o{k}" for k in range(outs[0].rank)]
    sizes = dict(zip((*table, *out), (*types[0].shape, *outs[0].shape), strict=True))
    return single([table, out], [out], sizes, frozenset(table))


def vectors(types: Types, outs: Types, p: Params) -> Factors:
    """Problems that are vectors: axes of operand 0 before its last are a stack of them, in results too."""
    (x,) = types
    stack = [f"b{k}" for k in range(x.rank - 1)]
    made = [[*stack, *(f"y{i}.{k}" for k in range(len(stack), t.rank))] for i, t in enumerate(outs)]
    sizes = dict(zip((*stack, "x"), x.shape, strict=True))
    for names, t in zip(made, outs, strict=True):
        sizes |= dict(zip(names, t.shape, strict=True))
    own = frozenset(sizes).difference(stack)
    return Factors(
        (tuple((a,) for a in (*stack, "x")),),
        tuple(tuple((a,) for a in y) for y in made),
        sizes,
        own,
    )


def classes(types: Types, outs: Types, p: Params) -> Factors:
    """Losses of rows: logits have one axis of classes more than labels and losses."""
    x, a = types[0], p["axis"]
    names = [f"r{k}" for k in range(x.rank - 1)]
    sizes = dict(zip(names, outs[0].shape, strict=True)) | {"c": x.shape[a]}
    return single([[*names[:a], "c", *names[a:]], names], [names], sizes, frozenset("c"))


def scattered(is_sum: bool) -> Callable[[Types, Types, Params], Factors]:
    """Writes at places: axes of x that no index names are alike everywhere; sums can be
    cut by indices too.
    """

    def factors(types: Types, outs: Types, p: Params) -> Factors:
        x, _, *indices = types
        places = [f"i{k}" for k in range(indices[0].rank)]
        target = [f"x{a}" for a in range(x.rank)]
        rest = [f"x{a}" for a in range(x.rank) if a not in p["axes"]]
        sizes = dict(zip(target, x.shape, strict=True))
        sizes |= dict(zip(places, indices[0].shape, strict=True))
        whole: set[str] = set() if is_sum else set(places)
        where = {f"x{a}": 2 + k for k, a in enumerate(p["axes"])}
        ins: Sequence[Sequence[str]] = [target, [*places, *rest], *(places for _ in indices)]
        added = frozenset((0,)) if is_sum else frozenset()
        return single(ins, [target], sizes, frozenset(whole), added=added, places=where)

    return factors
