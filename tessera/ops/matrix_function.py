"""Square root, logarithm and sign of square matrices that need not be symmetric.

The derivative at x in the direction e is the upper right block of f([[x, e], [0, x]]), which holds for
matrices without a basis of eigenvectors too.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tessera.core.errors import OperandError
from tessera.core.host import scipy
from tessera.ir.graph.ir import Node, Value
from tessera.ir.graph.op import Sample
from tessera.ops.define import FLOATS, ArrayLike, define, full_of, meet, public
from tessera.ops.elementwise import add
from tessera.ops.factor import positive_definite
from tessera.ops.matrix import Tangents, hosted, square_matrix
from tessera.ops.shape import concat, matrix_transpose, slice_

NAMES = ("sqrt", "log", "sign")
_NEWTON = 100  # steps for the sign; one for each doubling of the distance from the imaginary axis
_TROUBLE = (
    "has no such real function: an eigenvalue is zero or negative; cast it to a complex dtype, or use "
    "op.funm for symmetric matrices"
)


def _sign(x: Any) -> Any:
    """Newton's iteration S -> (S + S^-1) / 2, with the determinant scaled to one while S is far from its end.

    SciPy's signm divides by differences of eigenvalues, so that it is wrong where they are equal.
    """
    n, near = len(x), False
    for _ in range(_NEWTON):
        inverse = np.linalg.inv(x)
        scale = 1.0 if near else np.exp(-np.linalg.slogdet(x)[1] / n)
        new = (scale * x + inverse / scale) / 2
        moved = np.linalg.norm(new - x) / np.linalg.norm(new)
        if near and moved <= 4 * n * np.finfo(x.dtype).eps * np.linalg.norm(new):
            return new
        near = near or bool(moved < 1e-2)
        x = new
    raise np.linalg.LinAlgError("an eigenvalue is on the imaginary axis")


def _one(x: Any, name: str) -> Any:
    """The function of one matrix, by SciPy but for the sign."""
    if not x.size or not np.all(np.isfinite(x)):
        return x
    wide = x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what goes wrong is seen in the result
        y = _sign(wide) if name == "sign" else getattr(scipy("linalg"), f"{name}m")(wide)
    if not np.all(np.isfinite(y)):
        raise np.linalg.LinAlgError("singular")
    if np.iscomplexobj(y) and not np.iscomplexobj(x):
        size = np.max(np.abs(y))
        if np.max(np.abs(y.imag)) > 1e3 * np.finfo(x.dtype).eps * size:
            raise np.linalg.LinAlgError("complex")
        y = y.real
    return y.astype(x.dtype)


def _reference(x: Any, name: str) -> Any:
    out = np.empty_like(x)
    for i in np.ndindex(x.shape[:-2]):
        out[i] = _one(x[i], name)
    return out


def _frechet(x: Any, e: Any, name: str) -> Any:
    n = x.shape[-1]
    below = np.concatenate([np.zeros_like(x), x], -1)
    whole = np.concatenate([np.concatenate([x, e], -1), below], -2)
    return _reference(whole, name)[..., :n, n:]


def _block(a: Value, b: Value, c: Value, d: Value) -> Value:
    return concat([concat([a, b], -1), concat([c, d], -1)], -2)


def _frechet_jvp(n: Node, ts: Tangents) -> Value | None:
    (x, e), (dx, de), name = n.operands, ts, n.params["name"]
    along = None if de is None else matrix_function_frechet(x, de, name)
    if dx is None:
        return along
    zero = full_of(x.shape, 0, x.dtype)
    size, last = x.shape[-1], x.ndim - 2
    whole = matrix_function_frechet(_block(x, e, zero, x), _block(dx, zero, zero, dx), name)
    turned = slice_(whole, (*(0,) * last, 0, size), (*x.shape[:-2], size, 2 * size))
    return turned if along is None else add(along, turned)


def _checked(user: str, name: str) -> str:
    if name not in NAMES:
        raise OperandError(f"{user}: no function {name!r}; there are {', '.join(NAMES)}")
    return name


@define(
    signature="... n! n!, ... n! n! -> ... n! n!", call="matrix_function_frechet", kinds=FLOATS,
    linear=(1,), numpy=hosted("matrix_function_frechet", _TROUBLE, _frechet), jvp=_frechet_jvp,
    transpose=lambda n, ct, k: matrix_function_frechet.bind(
        matrix_transpose(n.operands[0]), ct, name=n.params["name"]
    ),
    samples=(
        Sample(positive_definite(3, 3), (3, 3), name="sqrt"),
        Sample(positive_definite(2, 2, 2), (2, 2), name="log"), Sample((0, 0), (0, 0), name="sqrt"),
    ),
)  # fmt: skip
def matrix_function_frechet(x: ArrayLike, e: ArrayLike, name: str) -> Value:
    """The derivative of matrix_function at x in the direction e."""
    user = "matrix_function_frechet"
    a, b = square_matrix(user, x), square_matrix(user, e)
    return matrix_function_frechet.bind(*meet(user, (a, b)), name=_checked(user, name))


def _jvp(n: Node, ts: Tangents) -> Value | None:
    (t,) = ts
    if t is None:
        return None
    return matrix_function_frechet.bind(n.operands[0], t, name=n.params["name"])


@define(
    signature="... n! n! -> ... n! n!", call="matrix_function", kinds=FLOATS, jvp=_jvp,
    numpy=hosted("matrix_function", _TROUBLE, _reference),
    samples=(
        Sample(positive_definite(3, 3), name="sqrt"), Sample(positive_definite(2, 2, 2), name="log"),
        Sample(np.full((1, 1), 4.0), name="sign"), Sample(np.zeros((0, 0)), name="log"),
    ),
)  # fmt: skip
def matrix_function(x: ArrayLike, name: str) -> Value:
    """The principal `sqrt` or `log`, or the `sign`, of square matrices."""
    return matrix_function.bind(
        square_matrix("matrix_function", x), name=_checked("matrix_function", name)
    )


@public
def sqrtm(x: ArrayLike) -> Value:
    """The square root of square matrices whose eigenvalues have a positive real part."""
    return matrix_function(x, "sqrt")


@public
def logm(x: ArrayLike) -> Value:
    """The logarithm of square matrices: expm(logm(x)) is x."""
    return matrix_function(x, "log")


@public
def signm(x: ArrayLike) -> Value:
    """The matrix sign: x times the inverse of the square root of x @ x."""
    return matrix_function(x, "sign")
