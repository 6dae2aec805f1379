"""How many operations a scalar op counts for, where it is not 1; the order of core/approximate's
polynomials.
"""

from __future__ import annotations

COSTS = {
    "fma": 2, "exp": 20, "exp2": 18, "expm1": 24, "log": 22, "log2": 22, "log10": 22, "log1p": 26,
    "tanh": 24, "sigmoid": 24, "erf": 26, "erfc": 34, "sin": 26, "cos": 26, "tan": 40, "pow": 60,
    "div": 4, "sqrt": 4, "rsqrt": 6, "cbrt": 24, "mod": 8, "floor_div": 6, "logaddexp": 44,
    "lgamma": 110, "digamma": 90, "gamma": 130, "erfinv": 110, "erfcinv": 110,
}  # fmt: skip
