"""Names that are both a function of tensors and one of operators: the first argument decides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from tessera.algebra import apply, diagnostics
from tessera.algebra import solve as operator_solve
from tessera.algebra.combinators import functions, inverse, queries
from tessera.algebra.constructors import basic, convolution, fourier, stencil
from tessera.algebra.operator import Operator
from tessera.core.dims import Dim
from tessera.lang.names import differences, norms
from tessera.ops import (
    control,
    elementwise,
    linalg,
    matrix,
    matrix_function,
    shape,
    spectrum,
)
from tessera.ops import convolution as convolution_ops
from tessera.ops import fft as fft_ops
from tessera.ops import solve as solve_ops
from tessera.ops.define import OpFunction

__all__ = [
    "cond", "conj", "conv1d", "conv2d", "dct", "diagonal", "expm", "eye", "fft",
    "fft2", "fftn", "gradient", "idct", "ifft", "ifft2", "ifftn", "logm", "norm",
    "power", "sign", "slogdet", "solve", "sqrtm", "trace", "transpose",
]  # fmt: skip

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)


def _has_operator(args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], Operator)


def either(
    tensors: F,
    operators: Function,
    chosen: Callable[[Sequence[Any]], bool] = _has_operator,
    name: str = "",
) -> F:
    """The function of operators where `chosen` says so of the arguments, else that of tensors."""

    def front(*args: Any, **kwargs: Any) -> Any:
        return (operators if chosen(args) else tensors)(*args, **kwargs)

    front.__name__ = front.__qualname__ = name or tensors.__name__
    front.__module__ = __name__
    front.__doc__ = f"{tensors.__doc__}\n\nOf operators: {operators.__doc__}"
    front.__wrapped__ = tensors  # type: ignore[attr-defined]
    front.__signature__ = inspect.signature(tensors)  # type: ignore[attr-defined]
    made = OpFunction(tensors.op, front) if isinstance(tensors, OpFunction) else front
    return cast("F", made)


def _has_sizes(args: Sequence[Any]) -> bool:
    """Whether the first argument is a size or a tuple of sizes: then the operator is meant."""
    first = args[0] if args else None
    sizes = first if isinstance(first, tuple) and first else (first,)
    return all(isinstance(n, int | np.integer | Dim) and not isinstance(n, bool) for n in sizes)


def _has_grid(args: Sequence[Any]) -> bool:
    """Whether the second argument is the size of a grid: then the operator is meant."""
    return len(args) > 1 and _has_sizes(args[1:])


transpose = either(shape.transpose, apply.transpose)
conj = either(elementwise.conj, apply.conj)
sign = either(elementwise.sign, functions.sign)
norm = either(norms.norm, diagnostics.norm)
power = either(elementwise.pow, inverse.power, name="power")
cond = either(control.cond, diagnostics.cond)
trace = either(matrix.trace, queries.trace)
diagonal = either(matrix.diagonal, queries.diagonal)
slogdet = either(linalg.slogdet, queries.slogdet)
expm = either(linalg.expm, functions.expm)
logm = either(matrix_function.logm, functions.logm)
sqrtm = either(matrix_function.sqrtm, functions.sqrtm)
solve = either(solve_ops.solve, operator_solve.solve)
fft = either(fft_ops.fft, fourier.fft, _has_sizes)
ifft = either(fft_ops.ifft, fourier.ifft, _has_sizes)
fftn = either(fft_ops.fftn, fourier.fft, _has_sizes)
ifftn = either(fft_ops.ifftn, fourier.ifft, _has_sizes)
fft2 = either(fft_ops.fft2, fourier.fft, _has_sizes)
ifft2 = either(fft_ops.ifft2, fourier.ifft, _has_sizes)
conv1d = either(convolution_ops.conv1d, convolution.conv1d, _has_grid)
conv2d = either(convolution_ops.conv2d, convolution.conv2d, _has_grid)
dct = either(spectrum.dct, fourier.dct, _has_sizes)
idct = either(spectrum.idct, fourier.idct, _has_sizes)

gradient = either(differences.gradient, stencil.gradient, _has_sizes)

# A tensor is ts.eye(n).
eye = basic.eye
