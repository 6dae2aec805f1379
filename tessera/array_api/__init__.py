"""The Python array API standard, version 2024.12, with its linalg and fft extensions.

    import tessera.array_api as xp

The functions are the ops of `tessera.op` under the standard's names and signatures; the arrays are
tensors.  docs/array-api.md tells how far the public conformance suite agrees.
"""

from math import e, inf, nan, pi

from tessera.array_api import fft, linalg
from tessera.array_api._creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from tessera.array_api._dtypes import (
    astype,
    bool,
    can_cast,
    complex64,
    complex128,
    finfo,
    float32,
    float64,
    iinfo,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from tessera.array_api._functions import (
    concat,
    prod,
    reshape,
    sum,
)
from tessera.array_api._info import __array_namespace_info__
from tessera.lang import op
from tessera.lang.op import (
    abs,
    acos,
    acosh,
    add,
    all,
    any,
    argmax,
    argmin,
    argsort,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bitwise_and,
    bitwise_invert,
    bitwise_left_shift,
    bitwise_or,
    bitwise_right_shift,
    bitwise_xor,
    broadcast_arrays,
    broadcast_to,
    ceil,
    clip,
    conj,
    copysign,
    cos,
    cosh,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    exp,
    expand_dims,
    expm1,
    flip,
    floor,
    floor_divide,
    hypot,
    imag,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    logaddexp,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    matmul,
    matrix_transpose,
    max,
    maximum,
    mean,
    meshgrid,
    min,
    minimum,
    moveaxis,
    nextafter,
    nonzero,
    positive,
    pow,
    real,
    reciprocal,
    remainder,
    repeat,
    roll,
    round,
    searchsorted,
    sign,
    signbit,
    sin,
    sinh,
    sort,
    sqrt,
    square,
    squeeze,
    stack,
    std,
    take,
    take_along_axis,
    tan,
    tanh,
    tensordot,
    tile,
    tril,
    triu,
    trunc,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    unstack,
    var,
    vecdot,
    where,
)

__array_api_version__ = "2024.12"
newaxis = None

divide = op.div
equal = op.eq
greater = op.gt
greater_equal = op.ge
less = op.lt
less_equal = op.le
multiply = op.mul
negative = op.neg
not_equal = op.ne
permute_dims = op.transpose
subtract = op.sub

__all__ = [  # noqa: RUF022  the order of the standard
    "__array_api_version__", "__array_namespace_info__", "abs", "acos", "acosh", "add", "all",
    "any", "arange", "argmax", "argmin", "argsort", "asarray", "asin", "asinh", "astype",
    "atan", "atan2", "atanh", "bitwise_and", "bitwise_invert", "bitwise_left_shift",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bool", "broadcast_arrays",
    "broadcast_to", "can_cast", "ceil", "clip", "complex128", "complex64", "concat", "conj",
    "copysign", "cos", "cosh", "count_nonzero", "cumulative_prod", "cumulative_sum", "diff",
    "divide", "e", "empty", "empty_like", "equal", "exp", "expand_dims", "expm1", "eye", "fft",
    "finfo", "flip", "float32", "float64", "floor", "floor_divide", "from_dlpack", "full",
    "full_like", "greater", "greater_equal", "hypot", "iinfo", "imag", "inf", "int16", "int32",
    "int64", "int8", "isdtype", "isfinite", "isinf", "isnan", "less", "less_equal", "linalg",
    "linspace", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logical_xor", "matmul", "matrix_transpose", "max", "maximum", "mean",
    "meshgrid", "min", "minimum", "moveaxis", "multiply", "nan", "negative", "newaxis",
    "nextafter", "nonzero", "not_equal", "ones", "ones_like", "permute_dims", "pi", "positive",
    "pow", "prod", "real", "reciprocal", "remainder", "repeat", "reshape", "result_type",
    "roll", "round", "searchsorted", "sign", "signbit", "sin", "sinh", "sort", "sqrt", "square",
    "squeeze", "stack", "std", "subtract", "sum", "take", "take_along_axis", "tan", "tanh",
    "tensordot", "tile", "tril", "triu", "trunc", "uint16", "uint32", "uint64", "uint8",
    "unique_all", "unique_counts", "unique_inverse", "unique_values", "unstack", "var",
    "vecdot", "where", "zeros", "zeros_like",
]  # fmt: skip

API_VERSIONS = ("2021.12", "2022.12", "2023.12", __array_api_version__)


def __dir__() -> list[str]:
    return sorted(__all__)
