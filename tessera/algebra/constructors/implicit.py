"""Operators that are given by what they do: functions, derivatives and second derivatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tessera.algebra.apply import dense_cost
from tessera.algebra.constructors.basic import float_dtype, size_of
from tessera.algebra.kind import Kind, register
from tessera.algebra.linear_graph import apply_transposed, closed, linearized, over_columns, zeros
from tessera.algebra.operator import Operator, checked_flags, function
from tessera.core import tree
from tessera.core.dtype import f32
from tessera.core.errors import DTypeError, OperandError, ShapeError
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Value, current_builder, host_data
from tessera.ops.define import as_value, cast_to, full_of
from tessera.ops.elementwise import add, conj, imag, mul, real
from tessera.ops.shape import concat, expand_dims, reshape, slice_, squeeze
from tessera.transform.differentiate import Linearized

Function = Callable[..., Any]


# Functions --------------------------------------------------------------------------------------


@function
def from_matvec(
    f: Function,
    shape: Any,
    adjoint: Function | None = None,
    dtype: Any = f32,
    flags: Iterable[str] = (),
    params: Any = (),
) -> Operator:
    """The operator that f applies to vectors of shape[1] elements: f(x), or f(x, *params).

    Tensors in params are part of the operator, so that derivatives can be taken by them.  The adjoint is
    derived from f unless it is given.
    """
    for name, g in (("f", f), ("adjoint", adjoint)):
        if not callable(g) and not (name == "adjoint" and g is None):
            raise OperandError(f"from_matvec: {name} is {type(g).__name__}, expected a function")
    if not isinstance(shape, tuple | list) or len(shape) != 2:
        raise OperandError(f"from_matvec: shape is {shape!r}, expected (rows, columns)")
    m, n = (size_of("from_matvec", s) for s in shape)
    found = float_dtype("from_matvec", dtype)
    given = tuple(params) if isinstance(params, tuple | list) else (params,)
    given = tree.map(lambda x: as_value(x, "from_matvec"), given)
    f, adjoint, given = _closed_pair(f, adjoint, (m, n), found, given)
    data, structure = tree.flatten(given)
    static = (f, adjoint, m, n, found, structure)
    a = Operator("matvec", data=data, static=static, assumed=checked_flags("from_matvec", flags))
    if current_builder() is None and all(isinstance(s, int) for s in (m, n)):
        _check_linear(a)
    return a


def _closed_pair(
    f: Function,
    adjoint: Function | None,
    sizes: tuple[Any, Any],
    dtype: Any,
    given: tuple[Any, ...],
) -> tuple[Function, Function | None, tuple[Any, ...]]:
    """Both functions with the traced values that they take from around them among the parameters."""
    x, y = (zeros(TensorType(dtype, (n,))) for n in reversed(sizes))
    run, held = closed(f, (x, *given), "from_matvec")
    turned, more = (None, ()) if adjoint is None else closed(adjoint, (y, *given), "from_matvec")
    if not held and not more:
        return f, adjoint, given
    own, k = len(given), len(held)

    def forward(x: Value, *ps: Any) -> Any:
        return run(x, *ps[: own + k])

    def back(y: Value, *ps: Any) -> Any:
        assert turned is not None
        return turned(y, *ps[:own], *ps[own + k :])

    return forward, None if adjoint is None else back, (*given, *held, *more)


def _check_linear(a: Operator) -> None:
    """f must give vectors of the right size, and f(2 x + y) = 2 f(x) + f(y) for two vectors."""
    n, dtype = a.static[3], a.static[4]
    x, y = (np.cos(np.arange(n) * w + w).astype(dtype.real.np) for w in (1.3, 2.1))
    fx, fy, both = (
        host_data(_column(a.static[0], cast_to(as_value(v), dtype), a)) for v in (x, y, 2 * x + y)
    )
    size = float(np.max(np.abs(both), initial=0.0)) + float(np.max(np.abs(fx), initial=0.0))
    limit = 1e3 * max(n, 1) ** 0.5 * float(np.finfo(dtype.real.np).eps) * size
    if np.all(np.isfinite(both)) and np.any(np.abs(2 * fx + fy - both) > limit):
        raise OperandError(
            "from_matvec: f is not linear: f(2 x + y) differs from 2 f(x) + f(y); for the derivative of "
            "a function use op.jacobian(f, x)"
        )


def _params(a: Operator) -> tuple[Any, ...]:
    given: tuple[Any, ...] = tree.unflatten(a.static[5], a.data)
    return given


def _column(f: Function, x: Value, a: Operator, rows: int = 2) -> Value:
    """f of one vector, checked."""
    y = f(x, *_params(a))
    if not isinstance(y, Value):
        y = as_value(y, "from_matvec")
    want = a.static[rows]
    if y.shape != (want,):
        what = "f" if rows == 2 else "adjoint"
        raise ShapeError(
            f"from_matvec: {what} gives {y.type} for {x.type}, expected a vector of {want} as in "
            f"{a.type}"
        )
    return y


def _matvec(a: Operator, x: Value, f: Function, rows: int) -> Value:
    if x.shape[1] == 1:
        return expand_dims(_column(f, squeeze(x, 1), a, rows), 1)
    whole = _params(a)
    leaves, structure = tree.flatten(whole)

    def one(v: Value, *rest: Value) -> Value:
        moved = Operator("matvec", data=rest, static=(*a.static[:5], structure))
        return _column(f, v, moved, rows)

    return over_columns(one, x, leaves, "from_matvec")


def by_parts(a: Operator, x: Value, run: Callable[[Value], Value]) -> Value:
    """A real operator on complex columns: on their real and imaginary parts."""
    if a.dtype.kind == "c" or x.dtype.kind != "c":
        return run(x)
    return add(cast_to(run(real(x)), x.dtype), mul(cast_to(run(imag(x)), x.dtype), 1j))


def _apply(a: Operator, x: Value) -> Value:
    return by_parts(a, x, lambda v: _matvec(a, v, a.static[0], 2))


def _apply_transpose(a: Operator, x: Value) -> Value:
    """By the given adjoint, else by transposing the graph of f."""
    if a.static[1] is None:
        turned = lambda v: apply_transposed(lambda u: _matvec(a, u, a.static[0], 2), v, a.static[3])  # noqa: E731
        return by_parts(a, x, turned)
    if x.dtype.kind != "c":
        return _matvec(a, x, a.static[1], 3)
    inner = by_parts(a, conj(x), lambda v: _matvec(a, v, a.static[1], 3))
    return conj(inner)


register(Kind(
    name="matvec", doc="A linear function of vectors.",
    shape=lambda parts, data, static: (static[2], static[3]),
    dtype=lambda parts, data, static: static[4], apply=_apply, apply_transpose=_apply_transpose,
    cost=dense_cost,
))  # fmt: skip


# Derivatives ------------------------------------------------------------------------------------


@function
def jacobian(f: Function, x: Any) -> Operator:
    """The derivative of f at x, on flattened tensors: one application is one jvp, of the adjoint a vjp."""
    return _derivative("jacobian", f, x, ())


@function
def hessian(f: Function, x: Any) -> Operator:
    """The second derivative of a scalar function f at x, on flattened tensors."""
    return _derivative("hessian", _gradient(f), x, ("self_adjoint",))


def _gradient(f: Function) -> Function:
    """The gradient of a scalar function as a function."""

    def run(x: Any) -> Any:
        leaves, structure = tree.flatten(x)
        _, lin = linearized(f, (x,), "hessian")
        loss = lin.outputs
        if len(loss) != 1 or loss[0].ndim or loss[0].dtype.kind != "f":
            shown = ", ".join(str(v.type) for v in loss)
            raise ShapeError(f"hessian: f gives {shown}, expected one real scalar")
        found = lin.pull_back([full_of((), 1, loss[0].dtype)])
        filled = [zeros(v.type) if g is None else g for v, g in zip(leaves, found, strict=True)]
        return tree.unflatten(structure, filled)

    return run


def _derivative(user: str, f: Function, x: Any, flags: Sequence[str]) -> Operator:
    if not callable(f):
        raise OperandError(f"{user}: f is {type(f).__name__}, expected a function")
    leaves, structure = tree.flatten(x)
    data = tuple(as_value(v, user) for v in leaves)
    for v in data:
        if v.dtype.kind not in "fc":
            raise DTypeError(
                f"{user}: x holds {v.type}, expected floating-point tensors; cast it with astype"
            )
    if len({v.dtype for v in data}) != 1:
        raise DTypeError(f"{user}: x holds tensors of several dtypes, expected one; cast them")
    point = tree.unflatten(structure, data)
    f, held = closed(f, (point,), user)
    lin = _linearized(f, point, held, user)
    outs = tuple(v.type for v in lin.outputs)
    if any(t.dtype is not data[0].dtype for t in outs):
        raise DTypeError(
            f"{user}: f gives {', '.join(map(str, outs))} for {data[0].dtype}, expected that dtype"
        )
    static = (f, structure, outs, len(data))
    a = Operator("jacobian", data=(*data, *held), static=static, assumed=flags)
    a.memo[current_builder()] = lin
    return a


def _linearized(f: Function, point: Any, held: Sequence[Value], user: str) -> Linearized:
    return linearized(lambda x: f(x, *held), (point,), user)[1]


def _point(a: Operator) -> Sequence[Value]:
    """The tensors that the derivative is taken by."""
    return a.data[: a.static[3]]


def _lin(a: Operator) -> Linearized:
    """The derivative at the data of A, taken once for each trace."""
    key = current_builder()
    found: Linearized | None = a.memo.get(None) or a.memo.get(key)
    if found is None:
        f, structure, _, count = a.static
        point = tree.unflatten(structure, _point(a))
        found = _linearized(f, point, a.data[count:], "jacobian")
        a.memo[key] = found
    return found


def _cut(x: Value, types: Sequence[TensorType]) -> list[Value]:
    """A vector as tensors of these types, one after another."""
    out, start = [], 0
    for t in types:
        out.append(reshape(slice_(x, (start,), (start + t.size,)), t.shape))
        start = start + t.size
    return out


def _joined(xs: Sequence[Value]) -> Value:
    flat = [reshape(x, (x.type.size,)) for x in xs]
    return flat[0] if len(flat) == 1 else concat(flat, 0)


def _push(a: Operator, lin: Linearized, x: Value) -> Value:
    return _joined(lin.apply(_cut(cast_to(x, a.dtype), [v.type for v in _point(a)])))


def _pull(a: Operator, lin: Linearized, x: Value) -> Value:
    found = lin.pull_back(_cut(cast_to(x, a.dtype), a.static[2]))
    pairs = zip(_point(a), found, strict=True)
    return _joined([zeros(v.type) if g is None else g for v, g in pairs])


def _each(a: Operator, x: Value, f: Callable[[Operator, Linearized, Value], Value]) -> Value:
    lin = _lin(a)
    if x.shape[1] == 1:
        run = lambda v: expand_dims(f(a, lin, squeeze(v, 1)), 1)  # noqa: E731
    else:
        run = lambda v: over_columns(lambda u: f(a, lin, u), v, (), "jacobian")  # noqa: E731
    return by_parts(a, x, run)


def _sizes(parts: Any, data: Any, static: Any) -> tuple[Any, Any]:
    return sum(t.size for t in static[2]), sum(v.type.size for v in data[: static[3]])


register(Kind(
    name="jacobian", doc="The derivative of a function at a point.", shape=_sizes,
    dtype=lambda parts, data, static: data[0].dtype,
    apply=lambda a, x: _each(a, x, _push), apply_transpose=lambda a, x: _each(a, x, _pull),
    cost=dense_cost,
))  # fmt: skip
