"""Derivatives against differences, and adjoints against the inner products that define them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tessera.algebra.operator import Operator
from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, located
from tessera.ir.graph.ir import Value
from tessera.lang.create import tensor
from tessera.lang.transforms import jvp, vjp
from tessera.testing.close import Array, CheckFailed, array_of

_FEW = (
    24  # elements of an argument that are moved one by one; larger ones move in random directions
)
# Of each format: the step of a difference of order 4, about epsilon ** (1/5), and the error that is left.
_STEPS = {"float64": (1e-3, 1e-7), "float32": (4e-2, 5e-3)}


@blames_arguments
def gradcheck(
    f: Callable[..., Any], *args: Any, order: int = 1, directions: int = 8, rtol: float | None = None,
    step: float | None = None, seed: int = 0,
) -> None:  # fmt: skip
    """Raise unless the derivatives of f at these arguments agree with differences of its values.

    Forward mode is compared with differences of order 4, element by element for small arguments and in random
    directions for large ones; reverse mode with forward mode by inner products.  `order=2` also checks the
    gradient of the gradient.  f64 arguments are checked sharply (1e-7), f32 ones roughly (5e-3).
    """
    if order not in (1, 2):
        raise located(OperandError(f"gradcheck: order is {order!r}, expected 1 or 2"))
    rng = np.random.default_rng(seed)
    _check(f, args, rng, directions, rtol, step, "")
    if order == 2:
        inner = _pullback(f, args, rng)
        _check(inner, args, rng, directions, rtol, step, "gradient of ")


def _check(
    f: Callable[..., Any], args: Sequence[Any], rng: Any, directions: int, rtol: float | None,
    step: float | None, what: str,
) -> None:  # fmt: skip
    leaves, structure = tree.flatten(tuple(args))
    names = [p.lstrip(".") or "x" for p in tree.paths(tuple(args))]
    moving = [i for i, x in enumerate(leaves) if array_of(x).dtype.kind in "fc" or _is_narrow(x)]
    if not moving:
        raise located(
            OperandError("gradcheck: no argument has floating-point numbers to differentiate in")
        )
    own = [leaves[i] if isinstance(leaves[i], Value) else tensor(leaves[i]) for i in moving]

    def of_floats(*xs: Any) -> list[Any]:
        given = list(leaves)
        for i, x in zip(moving, xs, strict=True):
            given[i] = x
        outs = tree.leaves(f(*tree.unflatten(structure, given)))
        return [y for y in outs if getattr(y, "dtype", None) is not None and y.dtype.kind in "fc"]

    point = [_wide(x) for x in own]
    h, error = _limits(own, rtol, step)
    for k, where, way in _ways(point, rng, directions):
        ways = [tensor(w, dtype=x.dtype) for w, x in zip(way, own, strict=True)]
        ys, slopes = jvp(of_floats, own, ways)
        exact = _difference(of_floats, own, [_wide(t) for t in ways], h)
        name = f"{what}{getattr(f, '__name__', 'f')}"
        _near_slopes(name, f"argument {names[moving[k]]}{where}", slopes, exact, error)
        _adjoint(name, names[moving[k]], of_floats, own, ways, (ys, slopes), rng, error)


def _is_narrow(x: Any) -> bool:
    return isinstance(x, Value) and x.dtype.kind == "f"


def _limits(own: Sequence[Value], rtol: float | None, step: float | None) -> tuple[float, float]:
    exact = all(x.dtype.real.name == "f64" for x in own)
    h, error = _STEPS["float64" if exact else "float32"]
    return step or h, rtol or error


def _ways(
    point: Sequence[Array], rng: Any, directions: int
) -> Iterator[tuple[int, str, list[Array]]]:
    """Directions to move in, one argument at a time: unit vectors where it is small, random ones else."""
    for k, x in enumerate(point):
        still = [np.zeros_like(y) for y in point]
        if x.size <= _FEW:
            for i in np.ndindex(*x.shape):
                way = np.zeros_like(x)
                way[i] = 1.0 if x.dtype.kind != "c" else 1.0 + 0.5j
                yield (
                    k,
                    f"[{', '.join(map(str, i))}]" if i else "",
                    [*still[:k], way, *still[k + 1 :]],
                )
        else:
            for n in range(directions):
                way = _random(x, rng)
                yield (
                    k,
                    f" in random direction {n}",
                    [*still[:k], way / np.linalg.norm(way), *still[k + 1 :]],
                )


def _random(x: Array, rng: Any) -> Array:
    made = rng.normal(size=x.shape)
    out: Array = made + 1j * rng.normal(size=x.shape) if x.dtype.kind == "c" else made
    return out


def _wide(x: Any) -> Array:
    a = array_of(x)
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def _difference(f: Any, own: Sequence[Value], ways: Sequence[Array], h: float) -> list[Array]:
    """(f(x-2h) - 8 f(x-h) + 8 f(x+h) - f(x+2h)) / 12h, with the steps that the dtype really has."""

    def at(k: float) -> list[Array]:
        moved = [
            tensor(_wide(x) + k * h * t, dtype=x.dtype) for x, t in zip(own, ways, strict=True)
        ]
        return [_wide(y) for y in f(*moved)]

    parts = [(at(k), w) for k, w in ((-2, 1.0), (-1, -8.0), (1, 8.0), (2, -1.0))]
    return [np.asarray(sum(w * p[i] for p, w in parts)) / (12 * h) for i in range(len(parts[0][0]))]


def _near_slopes(
    name: str, where: str, slopes: Sequence[Any], exact: Sequence[Array], error: float
) -> None:
    for i, (s, e) in enumerate(zip(slopes, exact, strict=True)):
        got = _wide(s)
        scale = float(np.max(np.abs(e), initial=0.0)) + 1.0
        off = np.abs(got - e)
        if not np.all(off <= error * scale):
            at = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape)
            place = f"[{', '.join(str(int(j)) for j in at)}]" if off.ndim else ""
            raise CheckFailed(
                f"{name}: the derivative of result {i}{place} by {where} is {got[at]:.8g}, but differences "
                "give "
                f"{e[at]:.8g} (rtol={error:.3g})"
            )


def _adjoint(
    name: str, argument: str, f: Any, own: Sequence[Value], ways: Sequence[Any],
    values: tuple[Sequence[Any], Sequence[Any]], rng: Any, error: float,
) -> None:  # fmt: skip
    """<ct, J t> = <J' ct, t>, real parts without conjugation, as derivatives of complex numbers are
    defined.
    """
    ys, slopes = values
    cts = [tensor(_random(_wide(y), rng), dtype=y.dtype) for y in ys]
    _, back = vjp(f, *own)
    pulled = back(cts)
    forth, size = _inner(cts, slopes)
    again, other = _inner(pulled, ways)
    if not abs(forth - again) <= error * (size + other + 1.0):
        raise CheckFailed(
            f"{name}: reverse mode is not the adjoint of forward mode in argument {argument}: <ct, J t> is "
            f"{forth:.8g}, but <vjp(ct), t> is {again:.8g}"
        )


def _inner(xs: Sequence[Any], ys: Sequence[Any]) -> tuple[float, float]:
    """The inner product of two lists of tensors, and the sum of the sizes of its terms."""
    terms = [np.real(_wide(x) * _wide(y)) for x, y in zip(xs, ys, strict=True)]
    return sum(float(np.sum(t)) for t in terms), sum(float(np.sum(np.abs(t))) for t in terms)


def _pullback(f: Callable[..., Any], args: Sequence[Any], rng: Any) -> Callable[..., Any]:
    """The gradient of a fixed random combination of f's results, as a function of the arguments."""
    outs = [y for y in tree.leaves(f(*args)) if y.dtype.kind in "fc"]
    cts = [tensor(_random(_wide(y), rng), dtype=y.dtype) for y in outs]

    def gradient(*xs: Any) -> Any:
        leaves, structure = tree.flatten(xs)
        floats = [
            i for i, x in enumerate(leaves) if getattr(x, "dtype", np.dtype("O")).kind in "fc"
        ]

        def loss(*ys: Any) -> Any:
            given = list(leaves)
            for i, y in zip(floats, ys, strict=True):
                given[i] = y
            return [
                y for y in tree.leaves(f(*tree.unflatten(structure, given))) if y.dtype.kind in "fc"
            ]

        return vjp(loss, *[leaves[i] for i in floats])[1](cts)

    gradient.__name__ = getattr(f, "__name__", "f")
    return gradient


@blames_arguments
def adjoint_check(
    operator: Any, adjoint: Callable[[Any], Any] | None = None, x: Any = None, *, trials: int = 5,
    rtol: float | None = None, seed: int = 0,
) -> None:  # fmt: skip
    """Raise unless <y, A x> = <A.H y, x> on random vectors, and the operator is linear.

    It is an Operator, or a linear function with its adjoint and an example of its argument.
    """
    forth, back, sample = _as_functions(operator, adjoint, x)
    rng = np.random.default_rng(seed)
    out = forth(sample)
    name = str(getattr(operator, "__name__", "") or getattr(operator, "kind", "A"))
    error = rtol or (1e-9 if out.dtype.real.name == "f64" else 2e-4)
    for _ in range(trials):
        u, v, y = (tensor(_random(_wide(t), rng), dtype=t.dtype) for t in (sample, sample, out))
        _linear(name, forth, u, v, error)
        left = complex(np.vdot(_wide(y), _wide(forth(u))))
        right = complex(np.vdot(_wide(back(y)), _wide(u)))
        scale = np.linalg.norm(_wide(y)) * np.linalg.norm(_wide(forth(u))) + 1.0
        if not abs(left - right) <= error * scale:
            raise CheckFailed(
                f"{name}: the adjoint is not one: <y, A x> is {left:.8g}, but <A.H y, x> is {right:.8g}"
            )


def _linear(name: str, f: Any, u: Value, v: Value, error: float) -> None:
    both = _wide(f(tensor(2.0 * _wide(u) - 3.0 * _wide(v), dtype=u.dtype)))
    apart = 2.0 * _wide(f(u)) - 3.0 * _wide(f(v))
    off = float(np.max(np.abs(both - apart), initial=0.0))
    if not off <= error * (float(np.max(np.abs(apart), initial=0.0)) + 1.0):
        raise CheckFailed(
            f"{name}: is not linear: A (2 u - 3 v) differs from 2 A u - 3 A v by {off:.3g}"
        )


def _as_functions(operator: Any, adjoint: Any, x: Any) -> tuple[Any, Any, Value]:
    if isinstance(operator, Operator):
        return (
            (lambda v: operator @ v),
            (lambda v: operator.H @ v),
            tensor(np.zeros(int(operator.shape[1])), dtype=operator.dtype),
        )
    if adjoint is None or x is None:
        raise located(
            OperandError(
                "adjoint_check: a function needs its adjoint and an example of its argument: "
                "adjoint_check(f, adjoint, x)"
            )
        )
    return operator, adjoint, x if isinstance(x, Value) else tensor(x)
