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
    "gammaln": "lgamma", "expit": "sigmoid", "psi": "digamma",
}  # fmt: skip
