"""Libraries of a device, by CuPy where it is installed: factorisations and transforms without kernels.

Most references of ops are written for NumPy and mean the same for arrays of CuPy (NEP 18), errors included;
the others have a function here.  runtime/gpu/cupy_library.py runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.core.types import TensorType
from tessera.ir.graph.op import Op, Params
from tessera.ops.gauge import NULL, clusters, generic_eigenvectors, generic_singular_vectors
from tessera.runtime.gpu.cupy_library import CuPy, Library, cupy

_FLOATS = {"f16", "f32", "f64", "c64", "c128"}


def serves(op: Op) -> bool:
    """Whether a library of the device has a function for an op, for some types."""
    return op.name in _FUNCTIONS


def library(
    op: Op, types: Sequence[TensorType], outs: Sequence[TensorType], params: Params
) -> Library | None:
    """What computes an op on arrays of these types; None where no library does."""
    f = _FUNCTIONS.get(op.name)
    plain = all(t.dtype.base.name in _FLOATS and 0 not in t.shape for t in types)
    if f is None or not plain or cupy() is None:
        return None
    served = _SERVED.get(op.name)
    if served is not None and not served(params):
        return None
    return Library(partial(f, op, params), tuple(t.dtype.np for t in outs))


# Functions of CuPy, an op, its params and arrays


def _reference(op: Op, params: Params, lib: CuPy, *xs: Any) -> Any:
    """What the op means, written for NumPy: CuPy takes its functions over."""
    assert op.numpy is not None, op
    made = op.numpy(*xs, **params)
    return tuple(made) if op.multiple else made


def _eigh(op: Op, params: Params, lib: CuPy, x: Any) -> Any:
    w, v = _reference(op, {**params, "generic": False}, lib, x)
    if params["generic"] and _several(w.get(), False):
        v = lib.arrays.asarray(generic_eigenvectors(w.get(), v.get()))
    return w, v


def _svd(op: Op, params: Params, lib: CuPy, x: Any) -> Any:
    u, s, vh = _reference(op, {**params, "generic": False}, lib, x)
    if params["generic"] and _several(s.get(), True):
        u, s, vh = map(lib.arrays.asarray, generic_singular_vectors(u.get(), s.get(), vh.get()))
    return u, s, vh


def _several(w: Any, null: bool) -> bool:
    """Whether some of these values are equal but for rounding, or zero."""
    assert clusters.op.numpy is not None
    ids = clusters.op.numpy(w, 4 * np.finfo(w.dtype).eps, null)
    return bool((np.diff(ids, axis=-1) == 0).any() or (ids == NULL).any())


def _each(f: Callable[..., Any], lib: CuPy, *xs: Any) -> Any:
    """A function of single matrices on all matrices of a batch."""
    batch = xs[0].shape[:-2]
    if not batch:
        return f(*xs)
    made = [f(*(x[i] for x in xs)) for i in np.ndindex(batch)]
    if not isinstance(made[0], tuple):
        return lib.arrays.stack(made).reshape(*batch, *made[0].shape)
    return tuple(
        lib.arrays.stack(part).reshape(*batch, *part[0].shape) for part in zip(*made, strict=True)
    )


def _lu(op: Op, params: Params, lib: CuPy, x: Any) -> Any:

    def one(x: Any) -> Any:
        place, lower, upper = lib.linalg.lu(x, check_finite=False)
        return place.argmax(0), lower, upper

    return _each(one, lib, x)


def _triangular(op: Op, params: Params, lib: CuPy, a: Any, b: Any) -> Any:
    p = params
    if not p["unit_diagonal"] and bool((lib.arrays.diagonal(a, 0, -2, -1) == 0).any()):
        raise np.linalg.LinAlgError("zero on the diagonal")
    return lib.linalg.solve_triangular(
        a, b, trans=int(p["transpose"]), lower=p["lower"], unit_diagonal=p["unit_diagonal"]
    )


def _expm(op: Op, params: Params, lib: CuPy, x: Any) -> Any:
    return _each(lib.linalg.expm, lib, x)


def _expm_frechet(op: Op, params: Params, lib: CuPy, x: Any, e: Any) -> Any:
    """The upper right block of expm([[x, e], [0, x]])."""
    n = x.shape[-1]
    below = lib.arrays.concatenate([lib.arrays.zeros_like(x), x], -1)
    block = lib.arrays.concatenate([lib.arrays.concatenate([x, e], -1), below], -2)
    return _expm(op, params, lib, block)[..., :n, n:]


def _fft(op: Op, params: Params, lib: CuPy, x: Any) -> Any:
    return getattr(lib.arrays.fft, op.name if "axis" in params else f"{op.name}n")(x, **params)


def _dct(op: Op, params: Params, lib: CuPy, x: Any) -> Any:
    return lib.fft.dct(x, **params)


def _has_eig(params: Params) -> bool:
    lib = cupy()
    return lib is not None and hasattr(lib.arrays.linalg, "eig")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(
        ("cholesky", "qr", "eigvalsh", "eig", "eigvals", "svdvals", "solve", "inv", "det", "slogdet",
         "adjugate", "adjugate_slope", "matmul", "contract"),
        _reference,
    ),
    "eigh": _eigh, "svd": _svd, "lu": _lu, "triangular_solve": _triangular,
    "expm": _expm, "expm_frechet": _expm_frechet,
    **dict.fromkeys(("fft", "ifft", "rfft", "irfft"), _fft), "dct": _dct,
}  # fmt: skip
# Ops of which CuPy has only a part, by their params.
_SERVED: dict[str, Callable[[Params], bool]] = {
    "dct": lambda p: p["type"] in (2, 3), "eig": _has_eig, "eigvals": _has_eig,
}  # fmt: skip
