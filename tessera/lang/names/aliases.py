"""Ops under the names that NumPy, the array API standard and SciPy give them."""

from __future__ import annotations

# From the other name to ours.
ALIASES = {
    # NumPy and the array API
    "absolute": "abs", "fabs": "abs", "amax": "max", "amin": "min", "around": "round", "rint": "round",
    "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh", "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh", "bitwise_not": "bitwise_invert", "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "concatenate": "concat", "conjugate": "conj", "divide": "div",
    "true_divide": "div",
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge",
    "mod": "remainder", "multiply": "mul", "negative": "neg", "permute_dims": "transpose", "subtract": "sub",
    "fix": "trunc",
    # SciPy
    "gammaln": "lgamma", "expit": "sigmoid", "psi": "digamma", "log_expit": "log_sigmoid",
    # NumPy's long names of angles, and the names of jax.lax and jax.nn
    "degrees": "rad2deg", "radians": "deg2rad", "logistic": "sigmoid", "erf_inv": "erfinv",
    "is_finite": "isfinite", "rev": "flip", "igamma": "gammainc", "igammac": "gammaincc", "bessel_i0e": "i0e",
    "bessel_i1e": "i1e", "hard_sigmoid": "hardsigmoid", "hard_swish": "hardswish", "hard_silu": "hardswish",
    "hard_tanh": "hardtanh", "soft_sign": "softsign", "cumlogsumexp": "logcumsumexp",
    "shift_left": "bitwise_left_shift", "population_count": "bitwise_count", "rem": "fmod",
    # PyTorch
    "logsigmoid": "log_sigmoid", "matrix_exp": "expm", "hinge_embedding_loss": "hinge_embedding",
    "soft_margin_loss": "soft_margin", "multi_margin_loss": "multi_margin",
    "native_channel_shuffle": "channel_shuffle",
}  # fmt: skip
