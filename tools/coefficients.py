"""Computes the polynomials of tessera/core/approximate: writes coefficients.py beside its users.

    python tools/coefficients.py             all of them
    python tools/coefficients.py exp log     only these, and prints their errors

A polynomial minimises the largest weighted error on its interval (the exchange algorithm of Remez in
80 digits).  Its first coefficients are rounded to the format one after the other, the rest fitted anew
each time, so that rounding costs next to nothing.
"""

import pathlib
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
from mpmath import mp, mpf

mp.dps = 80
OUT = pathlib.Path(__file__).parent.parent / "tessera/core/approximate/coefficients.py"
DIGITS = {"f32": 24, "f64": 53}
GRID = 400


@dataclass(frozen=True)
class Fit:
    """A polynomial to find: f on an interval, error weighed by weight, so many terms per format."""

    f: Callable[[Any], Any]
    low: Any
    high: Any
    terms: dict[str, int]
    weight: Callable[[Any], Any] = lambda x: mpf(1)
    anew: int = 4  # coefficients rounded one by one; 0 where the interval has a 0 that weighs


def rounded(value: Any, digits: int, to: Callable[[Any], Any] = mpmath.nint) -> Any:
    """The nearest number with so many binary digits."""
    if value == 0:
        return mpf(0)
    m, e = mpmath.frexp(value)
    return mpmath.ldexp(to(mpmath.ldexp(m, digits)), e - digits)


def remez(values: list[Any], weights: list[Any], xs: list[Any], powers: list[int]) -> list[Any]:
    """Coefficients of these powers with the least largest error on the points xs."""
    n = len(powers)
    last = len(xs) - 1
    chosen = [round(last * (1 - mpmath.cos(mpmath.pi * i / n)) / 2) for i in range(n + 1)]
    coefficients: list[Any] = []
    for _ in range(30):
        rows = [
            [*(xs[k] ** p for p in powers), (-1) ** i / weights[k]] for i, k in enumerate(chosen)
        ]
        solution = mpmath.lu_solve(mpmath.matrix(rows), mpmath.matrix([values[k] for k in chosen]))
        coefficients, level = list(solution)[:n], abs(solution[n])
        errors = [
            w * (sum(c * x**p for c, p in zip(coefficients, powers, strict=True)) - v)
            for x, v, w in zip(xs, values, weights, strict=True)
        ]
        peaks = alternation(errors, n + 1)
        if max(map(abs, errors)) <= level * mpf("1.0001") or peaks == chosen:
            break
        chosen = peaks
    return coefficients


def alternation(errors: list[Any], count: int) -> list[int]:
    """Points of largest error with alternating signs."""
    runs: list[list[int]] = [[0]]
    for i in range(1, len(errors)):
        if errors[i] * errors[runs[-1][-1]] < 0:
            runs.append([])
        runs[-1].append(i)
    peaks = [max(run, key=lambda i: abs(errors[i])) for run in runs]
    while len(peaks) > count:
        if (len(peaks) - count) % 2 == 1:
            peaks.pop(0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1)
        else:
            i = min(
                range(len(peaks) - 1), key=lambda i: max(abs(errors[k]) for k in peaks[i : i + 2])
            )
            del peaks[i : i + 2]
    assert len(peaks) == count, "the error has too few alternations: refine the grid"
    return peaks


def fit(job: Fit, format: str) -> tuple[list[Any], float]:
    """Rounded coefficients, lowest power first, and log2 of the largest weighted error."""
    low, high, digits = mpf(job.low), mpf(job.high), DIGITS[format]
    xs = [
        (low + high) / 2 - (high - low) / 2 * mpmath.cos(mpmath.pi * (i + mpf(1) / 2) / GRID)
        for i in range(GRID)
    ]
    target, weights = [mpf(job.f(x)) for x in xs], [mpf(job.weight(x)) for x in xs]
    rest, out, n = list(target), [], job.terms[format]
    for first in range(min(job.anew, n - 1)):
        c = rounded(remez(rest, weights, xs, list(range(first, n)))[0], digits)
        out.append(c)
        rest = [r - c * x**first for r, x in zip(rest, xs, strict=True)]
    tail = remez(rest, weights, xs, list(range(len(out), n)))
    out += [rounded(c, digits) for c in tail]
    worst = max(
        abs(w * (mpmath.fsum(c * x**i for i, c in enumerate(out)) - v))
        for x, v, w in zip(xs, target, weights, strict=True)
    )
    return out, float(mpmath.log(worst, 2))


def series(
    f: Callable[[Any], Any], skip: int, taylor: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """(f(x) - taylor(x)) / x^skip."""
    return lambda x: (f(x) - taylor(x)) / x**skip


def odd(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """g(t) with f(x) = x + x^3 g(x^2)."""
    return lambda t: (f(mpmath.sqrt(t)) / mpmath.sqrt(t) - 1) / t


def odd_weight(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Makes the error of x + x^3 g(x^2) relative to f(x)."""
    return lambda t: mpmath.sqrt(t) ** 3 / f(mpmath.sqrt(t))


HALF_LN2 = mpmath.log(2) / 2 * mpf("1.003")
ROOT = mpmath.sqrt(2)
QUARTER = mpmath.pi / 4 * mpf("1.003")


def _log_parts(scale: Any) -> Fit:
    return Fit(
        lambda f: (mpmath.log1p(f) - f + f * f / 2) / f**3 * scale,
        1 / ROOT - 1, ROOT - 1, {"f32": 8, "f64": 20},
        lambda f: f**3 / mpmath.log1p(f) / scale,
    )  # fmt: skip


def _erfcx(k: int, first: str, last: str, terms: int) -> Fit:
    """(x + k) e^(x^2) erfc(x) as a polynomial of w = 1 / (x + k)."""

    def f(w: Any) -> Any:
        x = 1 / w - k
        return mpmath.erfc(x) * mpmath.exp(x * x) / w

    low, high = 1 / (mpf(last) + k), 1 / (mpf(first) + k)
    return Fit(f, low, high, {"f32": terms, "f64": terms}, lambda w: 1 / f(w))


def _stirling(w: Any) -> Any:
    """x (lgamma x - (x - 1/2) (log x - 1) - (log 2 pi - 1) / 2) for w = 1 / x^2."""
    x = 1 / mpmath.sqrt(w)
    main = (x - mpf(1) / 2) * (mpmath.log(x) - 1) + (mpmath.log(2 * mpmath.pi) - 1) / 2
    return x * (mpmath.loggamma(x) - main)


def _above_two(t: Any) -> Any:
    """lgamma(2 + t) / t."""
    return mpmath.loggamma(2 + t) / t


def _harmonic(w: Any) -> Any:
    """x^2 (log x - 1 / (2 x) - digamma x) for w = 1 / x^2."""
    x = 1 / mpmath.sqrt(w)
    return x * x * (mpmath.log(x) - 1 / (2 * x) - mpmath.digamma(x))


def _digamma_root(t: Any) -> Any:
    """digamma(3/2 + t) / (3/2 + t - its zero)."""
    return mpmath.digamma(mpf("1.5") + t) / (mpf("1.5") + t - DIGAMMA_ZERO)


def _inverse_erfc(y: Any) -> Any:
    """x with erfc x = y, by Newton's method for the logarithms."""
    if y > mpf("0.5"):
        return mpmath.erfinv(1 - y)
    goal = mpmath.log(y)
    x = mpmath.sqrt(max(-goal - mpmath.log(mpmath.pi * max(-goal, mpf(1))) / 2, mpf("0.1")))
    step = x
    while abs(step) > mpf(10) ** (10 - mp.dps):
        f = mpmath.erfc(x)
        step = (mpmath.log(f) - goal) * f * mpmath.exp(x * x) * mpmath.sqrt(mpmath.pi) / 2
        x += step
    return x


def _erfinv(w: Any) -> Any:
    """erfinv(x) / x for w = -log(1 - x^2)."""
    if w == 0:
        return mpmath.sqrt(mpmath.pi) / 2
    x = mpmath.sqrt(-mpmath.expm1(-w))
    return _inverse_erfc(mpmath.exp(-w) / (1 + x)) / x


def _erfinv_far(v: Any) -> Any:
    """x / s for s = 1 / v - 1 and erfc x = e^(-s^2)."""
    s = 1 / v - 1
    return _inverse_erfc(mpmath.exp(-s * s)) / s


def _erfinv_start(last: str, terms: int) -> Fit:
    low, high = 1 / (mpf(last) + 1), mpf("0.4")
    format = "f64" if last == "27.4" else "f32"
    return Fit(_erfinv_far, low, high, {format: terms}, lambda v: 1 / _erfinv_far(v), anew=0)


DIGAMMA_ZERO = mpmath.findroot(mpmath.digamma, mpf("1.4616"))
JOBS: dict[str, Fit | dict[str, Fit]] = {
    # e^r = 1 + r + r^2 g(r)
    "exp": Fit(
        lambda r: (mpmath.expm1(r) - r) / r**2, -HALF_LN2, HALF_LN2, {"f32": 5, "f64": 10},
        lambda r: r**2 / mpmath.exp(r),
    ),
    # 2^r = 1 + r g(r)
    "exp2": Fit(
        lambda r: (mpf(2) ** r - 1) / r, -mpf("0.502"), mpf("0.502"), {"f32": 6, "f64": 12},
        lambda r: r / mpf(2) ** r,
    ),
    # log(1 + f) = f - f^2/2 + f^3 g(f)
    "log": _log_parts(mpf(1)),
    "sin": Fit(odd(mpmath.sin), mpf(0), QUARTER**2, {"f32": 4, "f64": 7}, odd_weight(mpmath.sin)),
    # cos r = 1 - r^2/2 + r^4 g(r^2)
    "cos": Fit(
        lambda t: (mpmath.cos(mpmath.sqrt(t)) - 1 + t / 2) / t**2, mpf(0), QUARTER**2,
        {"f32": 3, "f64": 6}, lambda t: t**2,
    ),
    # erf x = x + x g(x^2) for |x| < 1.25
    "erf": Fit(
        lambda t: mpmath.erf(mpmath.sqrt(t)) / mpmath.sqrt(t) - 1, mpf(0), mpf("1.25") ** 2,
        {"f32": 8, "f64": 16}, lambda t: mpmath.sqrt(t) / mpmath.erf(mpmath.sqrt(t)),
    ),
    # erfc from 1.25 to 4, about the middle, where the erf of f32 rounds to 1
    "erfc_far": Fit(
        lambda t: mpmath.erfc(mpf("2.625") + t), mpf("-1.375"), mpf("1.375"), {"f32": 14},
        anew=0,
    ),
    "erfcx": {
        "f32": _erfcx(2, "0", "10.1", 11),
        "f64": _erfcx(3, "0.79", "27.3", 22),
    },
    "tanh": Fit(
        odd(mpmath.tanh), mpf(0), mpf("0.55") ** 2, {"f32": 5, "f64": 11}, odd_weight(mpmath.tanh)
    ),
    "asin": Fit(odd(mpmath.asin), mpf(0), mpf("0.2505"), {"f32": 5, "f64": 13}, odd_weight(mpmath.asin)),
    # from 0 to tan(pi / 8)
    "atan": Fit(odd(mpmath.atan), mpf(0), mpf("0.1717"), {"f32": 5, "f64": 11}, odd_weight(mpmath.atan)),
    # atanh(s) = s (1 + t / 3 + t^2 g(t)) with t = s^2
    "atanh": Fit(
        lambda t: (mpmath.atanh(mpmath.sqrt(t)) / mpmath.sqrt(t) - 1 - t / 3) / t**2, mpf(0),
        mpf("0.02945"), {"f32": 4, "f64": 9}, lambda t: t**2,
    ),
    # x^(-1/3) from 1 / (2 root 2) to 2 root 2, where two or three refinements follow
    "cbrt": Fit(
        lambda x: x ** (-mpf(1) / 3), 1 / mpf("2.83"), mpf("2.83"), {"f32": 5, "f64": 6},
        lambda x: x ** (mpf(1) / 3),
    ),
    # lgamma(2 + t) = t (1 - gamma + t g(t))
    "lgamma": Fit(
        lambda t: (_above_two(t) - 1 + mpmath.euler) / t, mpf("-0.5"), mpf("0.5"),
        {"f32": 8, "f64": 19}, lambda t: t / _above_two(t), anew=0,
    ),
    "stirling": Fit(
        _stirling, mpf("1e-12"), mpf("0.16"), {"f32": 4, "f64": 13},
        lambda w: mpmath.sqrt(w) / mpmath.loggamma(1 / mpmath.sqrt(w)),
    ),
    # digamma x = (x - its zero) g(x - 3/2) from 1 to 2
    "digamma": Fit(
        _digamma_root, mpf("-0.5"), mpf("0.5"), {"f32": 11, "f64": 22},
        lambda t: 1 / _digamma_root(t), anew=0,
    ),
    "harmonic": Fit(
        _harmonic, mpf("1e-12"), mpf("0.25"), {"f32": 4, "f64": 15},
        lambda w: w / mpmath.digamma(1 / mpmath.sqrt(w)),
    ),
    # pi / tan(pi r) = 1 / r + r g(r^2)
    "cotangent": Fit(
        lambda t: (mpmath.pi * mpmath.cot(mpmath.pi * mpmath.sqrt(t)) - 1 / mpmath.sqrt(t)) / mpmath.sqrt(t),
        mpf("1e-12"), mpf("0.25"), {"f32": 7, "f64": 15},
    ),
    # Gamma(2 + t) = 1 + t g(t)
    "gamma": Fit(
        lambda t: (mpmath.gamma(2 + t) - 1) / t, mpf("-0.5"), mpf("0.5"), {"f32": 9, "f64": 20},
        lambda t: t / mpmath.gamma(2 + t), anew=0,
    ),
    "erfinv": Fit(
        _erfinv, mpf(0), mpf("1.8"), {"f32": 8, "f64": 15}, lambda w: 1 / _erfinv(w)
    ),
    # where a step of Newton's method follows
    "erfinv_far": {"f32": _erfinv_start("10.2", 5), "f64": _erfinv_start("27.4", 13)},
    # sin(pi r) / (pi r) with t = r^2
    "sinc": Fit(
        lambda t: mpmath.sincpi(mpmath.sqrt(t)), mpf(0), mpf("0.25"), {"f32": 5, "f64": 9},
        lambda t: 1 / mpmath.sincpi(mpmath.sqrt(t)),
    ),
    "sinh": Fit(odd(mpmath.sinh), mpf(0), mpf(1), {"f32": 4, "f64": 8}, odd_weight(mpmath.sinh)),
}  # fmt: skip


# Numbers that are needed to more digits than a format has: each part is the rest, rounded.
NUMBERS = {
    "ln2": mpmath.log(2),
    "log2e": 1 / mpmath.log(2),
    "log10e": 1 / mpmath.log(10),
    "log10_2": mpmath.log(2) / mpmath.log(10),
    "third": mpf(1) / 3,
    "less_euler": 1 - mpmath.euler,
    "stirling": (mpmath.log(2 * mpmath.pi) - 1) / 2,
    "digamma_zero": DIGAMMA_ZERO,
}
# Of this one the first part has few digits: multiples of it by the exponents of a format are exact.
SHORT = {"ln2_short": (mpmath.log(2), {"f32": 16, "f64": 42})}
# This one with parts of one sign, so that subtracting multiples by 0 keeps the sign of a 0.
POSITIVE = {"half_pi": mpmath.pi / 2}


def parts(value: Any, digits: int, count: int, to: Callable[[Any], Any] = mpmath.nint) -> list[Any]:
    """Numbers of a format whose sum is the value, each far below the one before."""
    out = []
    for _ in range(count):
        out.append(rounded(value, digits, to))
        value = value - out[-1]
    return out


# Beyond the reach of subtraction, an angle x is X 2^(s i) with an integer X, and x (2/pi) mod 4 is
# X times entry i mod 4: (2/pi) 2^(s i) mod 4, in four parts.  s = 8 for f32, 16 for f64.
def angles(format: str) -> list[Any]:
    """The table of 2/pi for large angles."""
    step, largest = {"f32": (8, 104), "f64": (16, 971)}[format]
    out = []
    with mp.workdps(500):
        for i in range(largest // step + 1):
            x = mpmath.ldexp(2 / mpmath.pi, step * i)
            out += parts(x - 4 * mpmath.nint(x / 4), DIGITS[format], 4)
    return out


def wrapped(text: str) -> list[str]:
    """Lines of an entry."""
    return textwrap.wrap(text, 98, initial_indent=" " * 12, subsequent_indent=" " * 12)


def listed(name: str, numbers: list[Any]) -> list[str]:
    """One entry of a table."""
    text = ", ".join(repr(float(c)) for c in numbers) + ","
    return [f'        "{name}": (', *wrapped(text), "        ),"]


def written(results: dict[str, dict[str, tuple[list[Any], float]]]) -> str:
    """The module with the tables."""
    lines = [
        '"""Numbers of the approximations, lowest power first.  Written by tools/coefficients.py."""',
        "",
        "# fmt: off",
        "COEFFICIENTS: dict[str, dict[str, tuple[float, ...]]] = {",
    ]
    for format in DIGITS:
        lines.append(f'    "{format}": {{')
        for name, by_format in sorted(results.items()):
            if format not in by_format:
                continue
            lines += listed(name, by_format[format][0])
        lines.append("    },")
    lines += ["}", "", "# log2 of the largest weighted error of each", "ERRORS = {"]
    for format in DIGITS:
        errors = (
            f'"{n}": {by[format][1]:.1f}' for n, by in sorted(results.items()) if format in by
        )
        lines += [f'    "{format}": {{', *wrapped(", ".join(errors) + ","), "    },"]
    lines += ["}", "", "NUMBERS: dict[str, dict[str, tuple[float, ...]]] = {"]
    for format, digits in DIGITS.items():
        lines.append(f'    "{format}": {{')
        for name, value in NUMBERS.items():
            lines += listed(name, parts(value, digits, 4))
        for name, (value, few) in SHORT.items():
            first = rounded(value, few[format])
            lines += listed(name, [first, *parts(value - first, digits, 1)])
        for name, value in POSITIVE.items():
            lines += listed(name, parts(value, digits, 4, mpmath.floor))
        lines += [*listed("angles", angles(format)), "    },"]
    return "\n".join([*lines, "}", ""])


def main() -> None:
    wanted = sys.argv[1:] or list(JOBS)
    old = {}
    if OUT.exists() and sys.argv[1:]:
        space: dict[str, Any] = {}
        exec(OUT.read_text(), space)
        for format, table in space["COEFFICIENTS"].items():
            for name, numbers in table.items():
                error = space["ERRORS"][format][name]
                old.setdefault(name, {})[format] = (list(numbers), error)
    results = {name: by for name, by in old.items() if name in JOBS}
    for name in wanted:
        job = JOBS[name]
        jobs = job if isinstance(job, dict) else dict.fromkeys(job.terms, job)
        results[name] = {format: fit(j, format) for format, j in jobs.items()}
        print(name, {f: round(e, 1) for f, (_, e) in results[name].items()}, flush=True)
    OUT.write_text(written(results))


if __name__ == "__main__":
    main()
