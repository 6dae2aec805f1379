"""Measures the errors and the speed of our transcendental functions; writes docs/approximations.md.

    python benchmarks/ulp.py                       every 1021st f32, 20,000 f64: a minute
    python benchmarks/ulp.py --full --jobs 2       every 61st f32, 1,000,000 f64; writes the table
    python benchmarks/ulp.py --full exp            one function only, nothing is written

The errors of f32 are against NumPy and SciPy in f64, those of f64 against long double (80 or 128 bits) and
mpmath.  All functions run as LLVM code; tests/core/test_approximate.py shows that NumPy gives the same
bits.
"""

import argparse
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tessera.core.approximate import FUNCTIONS  # noqa: E402
from tessera.core.scalar import SCALARS  # noqa: E402
from tests.support.cases.approximations import call, compiled, run  # noqa: E402

Array = np.ndarray[Any, Any]
BLOCK = 1 << 20
N_SPEED = 1 << 16  # in the second cache
NOT_LONG = ("erf", "erfc", "erfinv", "erfcinv", "lgamma", "gamma", "digamma")  # only in mpmath
WIDE: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
}
PRECISE: dict[str, Callable[..., Any]] = {"lgamma": lambda x: mpmath.loggamma(x).real}


def error(got: Array, exact: Array, least: Array | float) -> Array:
    """Distance in units in the last place of the exact result, or of the least one; in a wider format."""
    info = np.finfo(got.dtype)
    size = np.abs(exact)
    one = size.dtype.type(1)
    counted = np.maximum(size, least)
    unit = np.ldexp(one, np.maximum(np.frexp(counted)[1] - 1, info.minexp) - info.nmant)
    limit = np.ldexp(one * 2 - np.ldexp(one, -info.nmant - 1), info.maxexp - 1)
    overflows = np.where(size >= limit, np.sign(exact) * np.inf, exact)
    distance = np.abs(got.astype(exact.dtype) - exact) / unit
    same = (got == overflows) | (np.isnan(got) & np.isnan(exact))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


def singles(name: str, stride: int) -> Iterator[list[Array]]:
    """Every stride-th f32, or as many random pairs."""
    if FUNCTIONS[name].arity == 1:
        for start in range(0, 2**32, BLOCK * stride):
            patterns = np.arange(start, min(start + BLOCK * stride, 2**32), stride, np.uint64)
            yield [patterns.astype(np.uint32).view(np.float32)]
        return
    g = np.random.default_rng(1)
    for i in range(max(2**32 // BLOCK // stride // 4, 1)):
        yield [mixed(g, np.float32, BLOCK, i) for _ in range(2)]


def mixed(g: np.random.Generator, kind: Any, n: int, turn: int) -> Array:
    """Random bit patterns in one block, numbers of everyday size in the next."""
    if turn % 2:
        unsigned = np.uint32 if kind is np.float32 else np.uint64
        out: Array = g.integers(0, np.iinfo(unsigned).max, n, unsigned).view(kind)
        return out
    return (g.normal(size=n) * np.exp2(g.integers(-10, 6, n))).astype(kind)


def doubles(name: str, count: int) -> Iterator[list[Array]]:
    """Blocks of f64: a fifth random bit patterns, the rest of everyday size."""
    g = np.random.default_rng(2)
    n = max(count // 10, 1)
    arity = FUNCTIONS[name].arity
    for turn in range(4):
        yield [mixed(g, np.float64, n, turn) for _ in range(arity)]
    for low, high in ((-2, 2), (0, 3), (-1, 1), (-30, 30), (-100, 100), (-750, 750)):
        yield [g.uniform(low, high, n) for _ in range(arity)]


def reference(name: str, xs: list[Array]) -> Array:
    """The function in a wider format."""
    if xs[0].dtype == np.float32:
        return np.asarray(SCALARS[name].numpy(*(x.astype(np.float64) for x in xs)))
    if name not in NOT_LONG:
        f = WIDE.get(name, SCALARS[name].numpy)
        return np.asarray(f(*(x.astype(np.longdouble) for x in xs)))
    f = PRECISE.get(name) or getattr(mpmath, name)
    return np.array([precise(f, *(float(v) for v in row)) for row in zip(*xs, strict=True)])


def least(name: str, xs: list[Array]) -> Array | float:
    """What smaller results count as: for reflected functions below 0 the larger of |f(1 - x)| and 1."""
    if not FUNCTIONS[name].reflected:
        return 0.0
    with np.errstate(all="ignore"):
        other = np.nan_to_num(np.abs(SCALARS[name].numpy(1 - xs[0].astype(np.float64))))
    return np.where(xs[0] < 0, np.maximum(other, 1), 0)


def precise(f: Callable[..., Any], *operands: float) -> Any:
    """A result of mpmath as a long double, NaN where it has none."""
    try:
        value = f(*operands)
        high = float(value)
        return np.longdouble(high) + np.longdouble(float(value - high))
    except (ValueError, ZeroDivisionError, TypeError, OverflowError):
        return np.longdouble("nan")


def worst(name: str, blocks: Iterator[list[Array]]) -> tuple[float, list[Any]]:
    """The largest error on blocks of operands, and where."""
    most, place = 0.0, [np.float32(0)]
    for xs in blocks:
        with np.errstate(all="ignore"):
            exact = reference(name, xs)
            wrong = error(run(name, *xs), exact, least(name, xs))
        if name in NOT_LONG and xs[0].dtype == np.float64:
            wrong[np.isnan(exact)] = 0  # mpmath gives up, as at infinity; the tests check those
        i = int(wrong.argmax())
        if wrong[i] > most:
            most, place = float(wrong[i]), [x[i] for x in xs]
    return most, place


def speed(name: str, kind: Any) -> tuple[float, float]:
    """Nanoseconds an element, ours and NumPy's or SciPy's: medians of interleaved runs."""
    g = np.random.default_rng(3)
    low = 1.0 if name == "acosh" else 0.1
    high = 0.95 if name in ("asin", "acos", "atanh", "erfinv") else 5.0
    xs = [g.uniform(low, high, N_SPEED).astype(kind) for _ in range(FUNCTIONS[name].arity)]
    y = np.empty_like(xs[0])
    code = compiled(name, "f32" if kind is np.float32 else "f64")
    ours, theirs = [], []
    for _ in range(41):
        start = time.perf_counter()
        call(code, [*xs, y])
        middle = time.perf_counter()
        SCALARS[name].numpy(*xs)
        ours.append(middle - start)
        theirs.append(time.perf_counter() - middle)
    scale = 1e9 / N_SPEED
    return float(np.median(ours)) * scale, float(np.median(theirs)) * scale


def table(rows: list[list[str]], stride: int, count: int) -> str:
    """The page."""
    head = ["function", "f32 bound", "f32 measured", "at", "f64 bound", "f64 measured", "at",
            "f32 ns", "NumPy f32 ns", "f64 ns", "NumPy f64 ns"]  # fmt: skip
    lines = [f"| {' | '.join(r)} |" for r in (head, ["---"] * len(head), *rows)]
    return "\n".join([
        "# Our transcendental functions",
        "",
        "`tessera/core/approximate` defines each function once over operations that are exact or "
        "correctly rounded, so every target gives the same bits. This page is written by "
        "`python benchmarks/ulp.py --full`. Errors are in units in the last place of the exact result.",
        "",
        f"- f32: every {stride}st of the 2^32 numbers (functions of two: a quarter as many random "
        "pairs), against NumPy and SciPy in f64.",
        f"- f64: {count:,} points, a fifth of them random bit patterns, against long double, or mpmath "
        "(a fiftieth of the points) for the functions of statistics.",
        "- The bound is what the tests hold the function to; results below the normal numbers count in "
        "units of the smallest one, and those of `lgamma` and `digamma` below 0, where there are zeros "
        "between "
        "poles, in units of the largest of |f(x)|, |f(1 - x)| and 1.",
        f"- Times are nanoseconds an element on one thread, 2^16 elements, medians of 41 interleaved "
        f"runs; NumPy {np.__version__} with SciPy for the functions of statistics; "
        f"{platform.machine()}, {processor()}, load average {os.getloadavg()[0]:.0f} on "
            f"{os.cpu_count()} cores.",
        "",
        *lines,
        "",
    ])  # fmt: skip


def processor() -> str:
    """The name of this CPU."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor() or "unknown"


def errors(job: tuple[str, int, int]) -> list[str]:
    """The first columns of a function's row."""
    name, stride, count = job
    mpmath.mp.prec = 120
    f = FUNCTIONS[name]
    cells = [name]
    for bound, blocks in (
        (f.f32, singles(name, stride)),
        (f.f64, doubles(name, count // 50 if name in NOT_LONG else count)),
    ):
        most, at = worst(name, blocks)
        cells += [f"{bound:g}", f"{most:.3f}", ", ".join(f"{float(x):.6g}" for x in at)]
    print("  ".join(cells), flush=True)
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=[], help="functions; all when none is given")
    parser.add_argument("--full", action="store_true", help="many points, and write the table")
    parser.add_argument("--jobs", type=int, default=1, help="processes that measure errors")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "approximations.md")
    options = parser.parse_args()
    stride, count = (61, 1_000_000) if options.full else (1021, 20_000)
    names = options.names or list(FUNCTIONS)
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        rows = list(pool.map(errors, [(name, stride, count) for name in names]))
    for row in rows:
        row += [f"{t:.2f}" for kind in (np.float32, np.float64) for t in speed(row[0], kind)]
        print(
            f"{row[0]:8} ns an element: f32 {row[-4]}, NumPy {row[-3]}; f64 {row[-2]}, NumPy {row[-1]}"
        )
    if options.full and not options.names:
        options.out.write_text(table(rows, stride, count))


if __name__ == "__main__":
    main()
