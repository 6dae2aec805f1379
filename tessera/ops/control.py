"""Ops with regions: calls of graphs, and control flow with JAX's meaning and pytrees.

The functions that a user gives are traced into regions.  What they use from outside becomes extra
operands, so a region sees only its inputs, and all regions of a node have the same ones:

    cond        (pred, *operands)         regions (true, false)   operands -> results
    while_loop  (*carry, *outer)          regions (test, body)    operands -> bool[], operands -> carry
    scan        (*carry, *xs, *outer)     region  (body,)         carry, slices, outer -> carry, ys
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import applied
from tessera.core.constraints import unify
from tessera.core.dims import Dim, Size, larger
from tessera.core.dtype import DType, bool_
from tessera.core.errors import DTypeError, OperandError, ShapeError, TreeError
from tessera.core.flags import flags
from tessera.core.promotion import holds, meet_scalar
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Graph, Value, current_builder
from tessera.ir.graph.op import Params, Types
from tessera.ops.callbacks import ensure
from tessera.ops.creation import iota
from tessera.ops.define import ArrayLike, as_value, cast_to, define, kept_value, public
from tessera.ops.elementwise import add, logical_and, logical_not, lt
from tessera.ops.indexing import index
from tessera.ops.region import Traced, is_tensor, over_same_inputs, trace
from tessera.ops.shape import concat, reshape, stack

Tree = Any  # nested tuples, lists, dicts of tensors

_AS_TENSOR = ", or carry its matrix: op.todense(A) makes a tensor of an operator, as op.eye is one"


def call_types(types: Types, p: Params) -> list[TensorType]:
    """The types of the outputs of the one region, on operands of these types."""
    (region,) = p["regions"]
    _check_inputs("call", region, types)
    return [v.type for v in region.outputs]


def _check_inputs(op: str, region: Graph, types: Types) -> None:
    wanted = [v.type for v in region.inputs]
    if len(wanted) != len(types) or not all(map(agree, wanted, types)):
        raise ShapeError(
            f"{op}: got ({', '.join(map(str, types))}), expected ({', '.join(map(str, wanted))})"
        )


def agree(a: TensorType, b: TensorType) -> bool:
    """Whether two types are the same, symbolic sizes under guards."""
    if a is b:
        return True
    return (
        a.dtype is b.dtype
        and a.rank == b.rank
        and all(unify(m, n, "control flow") for m, n in zip(a.shape, b.shape, strict=True))
    )


@define(
    infer=call_types, multiple=True, call="call", moves=True,
    numpy=lambda *xs, regions, name: regions[0](*xs),
)  # fmt: skip
def call(region: Graph, *operands: Value, name: str) -> tuple[Value, ...]:
    """The outputs of a named graph."""
    return call.bind_many(*operands, regions=(region,), name=name)


# Regions ----------------------------------------------------------------------------------------


def _function(op: str, what: str, f: Any) -> None:
    if not callable(f):
        raise OperandError(f"{op}: {what} is {type(f).__name__}, expected a function")


def _leaves(op: str, what: str, x: Tree) -> tuple[list[Value], tree.Structure]:
    """The tensors of a tree."""
    leaves, s = tree.flatten(x)
    for leaf, path in zip(leaves, tree.structure_paths(s, what), strict=True):
        if not is_tensor(leaf):
            raise OperandError(f"{op}: {path} is {type(leaf).__name__}, expected a tensor")
    return [kept_value(v, op) for v in leaves], s


def _region(
    op: str, f: Callable[..., Any], what: str, types: Types, *arguments: tree.Structure
) -> Traced:
    """f traced on arguments of these structures, whose leaves have these types in order."""
    blank = tuple(tree.unflatten(s, [0] * s.count) for s in arguments)
    if current_builder() is None:  # a loop of other tensors is the same program
        t = trace(f, blank, {}, types, f"{op}: {what}", bakes=False)
        if all(v.device.kind == "cpu" for v in t.outer):
            return t
    return trace(f, blank, {}, types, f"{op}: {what}")


# cond -------------------------------------------------------------------------------------------


def _cond_types(types: Types, p: Params) -> list[TensorType]:
    yes, no = p["regions"]
    _check_predicate("cond", types[0])
    for g in (yes, no):
        _check_inputs("cond", g, types[1:])
    return [v.type for v in yes.outputs]


def _check_predicate(op: str, t: TensorType) -> None:
    if t.dtype is not bool_ or t.rank:
        raise DTypeError(
            f"{op}: the condition is {t}, expected bool[]; compare, as in x > 0, or reduce with "
            "op.any or op.all"
        )


def _same_results(op: str, a: Traced, a_name: str, b: Traced, b_name: str) -> None:
    if a.structure != b.structure:
        raise TreeError(
            f"{op}: {a_name} returns {a.structure} but {b_name} returns {b.structure}; make both "
            "return the same structure"
        )
    for path, v, w in zip(
        tree.structure_paths(a.structure, "result"), a.graph.outputs, b.graph.outputs, strict=True
    ):
        if not agree(v.type, w.type):
            text = f"{path} is {v.type} from {a_name} but {w.type} from {b_name}"
            raise _mismatch(op, text, v.type, w.type)


def _mismatch(op: str, text: str, wanted: TensorType, got: TensorType) -> DTypeError | ShapeError:
    if wanted.dtype is not got.dtype:
        return DTypeError(f"{op}: {text}; cast one with astype({str(wanted.dtype)!r})")
    return ShapeError(f"{op}: {text}; make the shapes equal, for example with op.broadcast_to")


@define(
    infer=_cond_types, multiple=True, call="cond", control="branch", moves=True,
    numpy=lambda pred, *xs, regions: regions[0 if pred else 1](*xs),
)  # fmt: skip
def cond(
    pred: ArrayLike, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Tree
) -> Tree:
    """true_fn(*operands) if pred holds, else false_fn(*operands); only one of them runs."""
    _function("cond", "true_fn", true_fn)
    _function("cond", "false_fn", false_fn)
    p = as_value(pred, "cond")
    _check_predicate("cond", p.type)
    values, s = _leaves("cond", "operands", operands)
    types = [v.type for v in values]
    yes = _region("cond", true_fn, "true_fn", types, *s.children)
    no = _region("cond", false_fn, "false_fn", types, *s.children)
    _same_results("cond", yes, "true_fn", no, "false_fn")
    regions, outer = over_same_inputs((yes.graph, no.graph), (yes.outer, no.outer))
    results = cond.bind_many(p, *values, *outer, regions=regions)
    return tree.unflatten(yes.structure, results)


def agreeing(op: str, branches: Sequence[Callable[..., Any]], operands: Sequence[Tree]) -> None:
    """Raise unless all branches return the structure and the types of the first."""
    values, s = _leaves(op, "operands", tuple(operands))
    types = [v.type for v in values]
    traced = [_region(op, f, f"branch {i}", types, *s.children) for i, f in enumerate(branches)]
    for i, t in enumerate(traced[1:], 1):
        _same_results(op, traced[0], "branch 0", t, f"branch {i}")


# Loops: what goes round must keep its type ------------------------------------------------------


class _InitialCarry:
    """The initial carry; a Python number in it takes the dtype that the body gives."""

    def __init__(self, op: str, init: Tree):
        self.values, self.structure = _leaves(op, "init", init)
        self.given = tree.leaves(init)
        self.op = op

    @property
    def types(self) -> list[TensorType]:
        return [v.type for v in self.values]

    def settle(self, body: Callable[[], tuple[Traced, tree.Structure]], what: str) -> Traced:
        """Trace the body until the dtypes of Python numbers settle; check that the carry is kept."""
        for _ in range(3):
            t, s = body()
            self._check_structure(s, what)
            outs = t.graph.outputs[: len(self.values)]
            if not self._adopt(outs):
                break
        for path, v, out in zip(
            tree.structure_paths(self.structure, "carry"), self.values, outs, strict=True
        ):
            if not agree(v.type, out.type):
                text = f"{path} enters {what} as {v.type} but leaves it as {out.type}"
                raise _mismatch(self.op, text, v.type, out.type)
        return t

    def _check_structure(self, s: tree.Structure, what: str) -> None:
        if s != self.structure:
            raise TreeError(
                f"{self.op}: {what} returns the carry {s} but init is {self.structure}; make both "
                f"the same structure{_AS_TENSOR if 'Operator(' in f'{s}{self.structure}' else ''}"
            )

    def _adopt(self, outs: Sequence[Value]) -> bool:
        changed = False
        for i, (x, out) in enumerate(zip(self.given, outs, strict=True)):
            free = isinstance(x, bool | int | float | complex) and not out.ndim
            if free and out.dtype is not self.values[i].dtype:
                if _takes(out.dtype, x):
                    self.values[i], changed = cast_to(self.values[i], out.dtype), True
        return changed


def _takes(dtype: DType, x: Any) -> bool:
    """Whether a Python number may be of this dtype."""
    if isinstance(x, bool) or dtype.kind == "b":
        return isinstance(x, bool)
    return meet_scalar(dtype, x) is dtype and (not isinstance(x, int) or holds(dtype, x))


def _while_types(types: Types, p: Params) -> list[TensorType]:
    test, body = p["regions"]
    for g in (test, body):
        _check_inputs("while_loop", g, types)
    return list(types[: len(body.outputs)])


def _while(*xs: Any, regions: Any, bound: Size | None = None) -> Any:
    test, body = regions
    n = len(body.types)
    carry, outer = list(xs[:n]), xs[n:]
    step: Any = None
    while test(*carry, *outer)[0]:
        carry = list((step or body)(*carry, *outer))
        step = step or _again(body, n)
    return carry


@define(
    infer=_while_types, multiple=True, call="while_loop", control="while", moves=True, numpy=_while
)
def while_loop(
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
    init: Tree,
    bound: Size | None = None,
) -> Tree:
    """Apply body_fn to the carry while cond_fn of it holds, at most `bound` times if it is given.

    With a bound the loop has a derivative in reverse mode.  That keeps about twice the square root of
    bound carries, runs the body again, and passes by the steps that the loop did not take.
    """
    _function("while_loop", "cond_fn", cond_fn)
    _function("while_loop", "body_fn", body_fn)
    if bound is None:
        return _loop(cond_fn, body_fn, init)
    most = _steps(bound)

    def goes_on(c: tuple[Value, Tree]) -> Value:
        on = cond_fn(c[1])
        _check_test(tree.structure(on), [as_value(x, "while_loop").type for x in tree.leaves(on)])
        return logical_and(lt(c[0], most), on)

    out = _loop(goes_on, lambda c: (add(c[0], 1), body_fn(c[1])), (0, init), bound=most)[1]
    return _all_done(cond_fn, out, most) if flags().checked else out


def _all_done(cond_fn: Callable[[Any], Any], out: Tree, most: Size) -> Tree:
    """The carry of a loop that stopped by itself, as ts.checked() demands."""
    leaves, s = tree.flatten(out)
    message = f"while_loop: cond_fn still holds after {most} steps, its bound; use a larger one"
    done = logical_not(as_value(cond_fn(out), "while_loop"))
    return tree.unflatten(s, [ensure(x, done, message=message) for x in leaves])


def _loop(
    cond_fn: Callable[[Any], Any],
    body_fn: Callable[[Any], Any],
    init: Tree,
    op: str = "while_loop",
    **p: Any,
) -> Tree:
    carry = _InitialCarry(op, init)
    s = carry.structure

    def traced() -> tuple[Traced, tree.Structure]:
        t = _region(op, body_fn, "body_fn", carry.types, s)
        return t, t.structure

    body = carry.settle(traced, "body_fn")
    test = _region("while_loop", cond_fn, "cond_fn", carry.types, s)
    _check_test(test.structure, [v.type for v in test.graph.outputs])
    regions, outer = over_same_inputs((test.graph, body.graph), (test.outer, body.outer))
    results = while_loop.bind_many(*carry.values, *outer, regions=regions, **p)
    return tree.unflatten(s, results)


def _check_test(s: tree.Structure, types: Types) -> None:
    if s.kind is not None:
        raise TreeError(f"while_loop: cond_fn returns {s}, expected one bool[]")
    _check_predicate("while_loop", types[0])


def _steps(bound: Any) -> Size:
    if isinstance(bound, Dim):
        return bound
    if isinstance(bound, bool | Value) or not hasattr(bound, "__index__") or int(bound) < 0:
        raise OperandError(
            f"while_loop: bound is {bound!r:.40}, expected a number of steps that is known while tracing"
        )
    return int(bound)


# scan -------------------------------------------------------------------------------------------


def _scan_types(types: Types, p: Params) -> list[TensorType]:
    (body,), n = p["regions"], p["carry"]
    stop = n + p["xs"]
    slices = [t.with_shape(t.shape[1:]) for t in types[n:stop]]
    _check_inputs("scan", body, [*types[:n], *slices, *types[stop:]])
    ys = [v.type.with_shape((p["length"], *v.shape)) for v in body.outputs[n:]]
    return [*types[:n], *ys]


def _scan(*operands: Any, regions: Any, carry: int, xs: int, length: int, reverse: bool) -> Any:
    (body,) = regions
    state, outer = list(operands[:carry]), operands[carry + xs :]
    rows = operands[carry : carry + xs]
    ys = [np.empty((length, *t.shape), t.dtype.np) for t in body.types[carry:]]
    step: Any = None
    for i in reversed(range(length)) if reverse else range(length):
        out = (step or body)(*state, *(r[i, ...] for r in rows), *outer)
        state = list(out[:carry])
        for y, part in zip(ys, out[carry:], strict=True):
            y[i] = part
        del out  # what is carried is the loop's alone
        step = step or _again(body, carry)
    return [*state, *ys]


def _again(body: Any, carry: int) -> Any:
    """What runs the steps of a loop after the first one, on what the loop made itself."""
    return body.again(carry) if hasattr(body, "again") else body


@define(infer=_scan_types, multiple=True, call="scan", control="scan", moves=True, numpy=_scan)
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Tree,
    xs: Tree = None,
    length: Size | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Tree, Tree]:
    """Carry a state along the first axis of xs: f(carry, x) -> (carry, y); the last carry and all y.

    unroll is how many steps one turn of the loop computes; True unrolls all of them.
    """
    _function("scan", "f", f)
    if unroll is not True and (not hasattr(unroll, "__index__") or int(unroll) < 1):
        raise OperandError(f"scan: unroll is {unroll!r}, expected a number of at least 1, or True")
    if unroll is False or (unroll is not True and int(unroll) == 1):
        return _scanned(("scan", "f"), f, init, xs, length, reverse)
    return _unrolled(f, init, xs, length, reverse, unroll)


def _unrolled(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Tree,
    xs: Tree,
    length: Size | None,
    reverse: bool,
    unroll: int | bool,
) -> tuple[Tree, Tree]:
    """A scan of several steps at a time, and one of the steps that are left over."""
    names = ("scan", "f")
    rows, s = _leaves("scan", "xs", xs)
    n = _length(rows, s, length)
    if not isinstance(n, int):
        raise ShapeError(f"scan: unroll takes a number of steps, but there are {n}; leave it out")
    each = max(n, 1) if unroll is True else int(unroll)
    whole = n // each * each

    def several(carry: Tree, x: Tree) -> tuple[Tree, Tree]:
        parts, made, entered = tree.leaves(x), {}, tree.structure(carry)
        for i in sorted(range(each), reverse=bool(reverse)):
            given = (carry, tree.unflatten(s, [p[i] for p in parts]))
            carry, made[i] = applied("scan: f", f, given, {})
            if tree.structure(carry) == entered:  # if not, the loop around says so
                carry = tree.in_order_of(entered, carry)
        return carry, tree.map(lambda *ys: stack(ys), *(made[i] for i in range(each)))

    def head(carry: Tree) -> tuple[Tree, Tree]:
        blocks = [reshape(index(v, slice(0, whole)), (n // each, each, *v.shape[1:])) for v in rows]
        last, ys = _scanned(names, several, carry, tree.unflatten(s, blocks), n // each, reverse)
        return last, tree.map(lambda y: reshape(y, (whole, *y.shape[2:])), ys)

    def tail(carry: Tree) -> tuple[Tree, Tree]:
        left = tree.unflatten(s, [index(v, slice(whole, n)) for v in rows])
        return _scanned(names, f, carry, left, n - whole, reverse)

    if whole == n and n:
        return head(init)
    if not whole:
        return tail(init)
    first, second = (tail, head) if reverse else (head, tail)
    carry, a = first(init)
    carry, b = second(carry)
    early, late = (b, a) if reverse else (a, b)
    return carry, tree.map(lambda x, y: concat((x, y)), early, late)


def _scanned(
    names: tuple[str, str],
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Tree,
    xs: Tree,
    length: Size | None = None,
    reverse: bool = False,
) -> tuple[Tree, Tree]:
    """A scan whose errors name this op and this function of the user."""
    op, name = names
    rows, s = _leaves(op, "xs", xs)
    n = _length(rows, s, length)
    slices = [v.type.with_shape(v.shape[1:]) for v in rows]
    carry = _InitialCarry(op, init)

    def traced() -> tuple[Traced, tree.Structure]:
        t = _region(op, f, name, [*carry.types, *slices], carry.structure, s)
        if t.structure.kind is not tuple or len(t.structure.children) != 2:
            raise TreeError(f"{op}: {name} returns {t.structure}, expected (carry, y)")
        return t, t.structure.children[0]

    body = carry.settle(traced, name)
    (region,), outer = over_same_inputs((body.graph,), (body.outer,))
    results = scan.bind_many(
        *carry.values, *rows, *outer, regions=(region,),
        carry=len(carry.values), xs=len(rows), length=n, reverse=bool(reverse),
    )  # fmt: skip
    last, ys = results[: len(carry.values)], results[len(carry.values) :]
    return tree.unflatten(carry.structure, last), tree.unflatten(body.structure.children[1], ys)


def _length(rows: Sequence[Value], s: tree.Structure, length: Size | None) -> Size:
    """How many steps: the first size of every leaf of xs."""
    n, where = length, "length is"
    if n is not None and not isinstance(n, Dim):
        if isinstance(n, bool) or not hasattr(n, "__index__") or int(n) < 0:
            raise OperandError(f"scan: length {n!r} is not a size")
        n = int(n)
    for path, v in zip(tree.structure_paths(s, "xs"), rows, strict=True):
        if v.ndim == 0:
            raise ShapeError(f"scan: {path} is {v.type}, a scalar; scan runs along the first axis")
        if n is None:
            n, where = v.shape[0], f"{path} {v.type} has"
        elif not unify(v.shape[0], n, f"scan: the first axis of {path}"):
            raise ShapeError(f"scan: {path} {v.type} has {v.shape[0]} along axis 0 but {where} {n}")
    if n is None:
        raise OperandError("scan: xs has no tensors, so that length must be given")
    return n


# fori_loop --------------------------------------------------------------------------------------


def _bound(what: str, x: ArrayLike) -> Value | Size:
    """A bound of fori_loop: a size where it is known while tracing."""
    if isinstance(x, Dim):
        return x
    v = as_value(x, "fori_loop")
    if v.dtype.kind not in "iu" or v.ndim:
        raise DTypeError(f"fori_loop: {what} is {v.type}, expected an integer scalar")
    return v if v.storage is None else int(v.storage)


@public
def fori_loop(
    lower: ArrayLike, upper: ArrayLike, body_fn: Callable[[Any, Any], Any], init: Tree
) -> Tree:
    """x = body_fn(i, x) for i from lower up to upper, starting from init.

    With bounds that are known while tracing this is a scan, which has reverse-mode derivatives.
    """
    _function("fori_loop", "body_fn", body_fn)
    lo, hi = _bound("lower", lower), _bound("upper", upper)
    if isinstance(lo, Value) or isinstance(hi, Value):
        start, stop = as_value(lo), as_value(hi)
        _, last = _loop(
            lambda c: lt(c[0], stop),
            lambda c: (add(c[0], 1), applied("fori_loop: body_fn", body_fn, c, {})),
            (cast_to(start, stop.dtype), init),
            op="fori_loop",
        )
        return last
    steps = add(iota((larger(hi - lo, 0),)), lo)
    body = partial(applied, "fori_loop: body_fn", body_fn)
    names = ("fori_loop", "body_fn")
    return _scanned(names, lambda c, i: (body((i, c), {}), None), init, steps)[0]
