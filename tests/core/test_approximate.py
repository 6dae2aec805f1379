"""Tessera's transcendental functions: same bits in NumPy and LLVM, and within their stated bounds."""

import importlib
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest

from tessera.core.approximate import FUNCTIONS, evaluate
from tessera.core.approximate.coefficients import COEFFICIENTS, ERRORS, NUMBERS
from tessera.core.scalar import SCALARS
from tests.support.cases.approximations import run

KINDS = [np.float32, np.float64]
# Thresholds where a result overflows, vanishes or changes its formula, and numbers that are special.
EDGES = [
    0.0, 0.3, 0.4142, 0.5, 0.55, 0.8, 1.0, 1.25, 1.5, 2.0, 2.4142, 3.0, 3.9375, 4.0, 10.0, 20.0, 34.5,
    88.72, 88.73, 89.4, 103.9, 104.0, 127.5, 128.0, 149.0, 150.0, 171.6, 709.7, 709.8, 710.4, 745.1,
    745.2, 1023.9, 1024.0, 1074.0, 1075.0, 8388608.0, 2.0**52, 1e10, 1e22, 1e30, 1e38, 1e300,
    1e-5, 1e-10, 1e-20, 1.2e-38, 1e-40, 1e-45, 2.3e-308, 1e-310, 5e-324, np.pi, np.pi / 2, np.e,
]  # fmt: skip
ORACLES = {
    "asin": mpmath.asin, "acos": mpmath.acos, "atan": mpmath.atan, "pow": mpmath.power,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x), "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2),
    "cbrt": lambda x: mpmath.cbrt(abs(x)) * mpmath.sign(x),
    "erfcinv": lambda y: _inverse_erfc(y),
    "lgamma": lambda x: mpmath.loggamma(x).real,
}  # fmt: skip
every_function = pytest.mark.parametrize("name", FUNCTIONS)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)


def _inverse_erfc(y):
    """x with erfc x = y: by Newton's method for the logarithms where y is small."""
    if y > 0.5:
        return mpmath.erfinv(1 - y)
    x = mpmath.mpf(float(SCALARS["erfcinv"].numpy(max(float(y), 1e-300))))
    for _ in range(6):
        f = mpmath.erfc(x)
        x += mpmath.log(f / y) * f * mpmath.exp(x * x) * mpmath.sqrt(mpmath.pi) / 2
    return x


def edges(kind):
    with np.errstate(over="ignore", under="ignore"):
        some = np.array(EDGES).astype(kind)
    near = [some, np.nextafter(some, kind(np.inf)), np.nextafter(some, kind(0))]
    special = np.array(
        [np.inf, np.nan, np.finfo(kind).max, np.finfo(kind).smallest_subnormal], kind
    )
    positive = np.unique(np.concatenate([*near, special]))
    return np.concatenate([positive, -positive])


def points(kind, n, seed):
    """Random bit patterns, and numbers of everyday size."""
    g = np.random.default_rng(seed)
    unsigned = np.uint32 if kind is np.float32 else np.uint64
    patterns = g.integers(0, np.iinfo(unsigned).max, n // 2, unsigned).view(kind)
    usual = [g.normal(size=n // 8), g.uniform(0, 2, n // 8), g.uniform(-90, 90, n // 8)]
    usual.append(g.uniform(-800, 800, n // 8))
    return np.concatenate([patterns, *(u.astype(kind) for u in usual)])


def operands(name, kind, n, seed=3):
    """Operands of a function: edges (all pairs of them for two) and n random points."""
    if FUNCTIONS[name].arity == 1:
        return [np.concatenate([edges(kind), points(kind, n, seed)])]
    pairs = [p.ravel() for p in np.meshgrid(edges(kind), edges(kind))]
    g = np.random.default_rng(seed)
    extra = [g.permutation(points(kind, n, seed + i)) for i in range(2)]
    return [np.concatenate([p, e]) for p, e in zip(pairs, extra, strict=True)]


def error(got, exact, least=0.0):
    """Distance in units in the last place of the exact result, or of the least one; in a wider format."""
    info = np.finfo(got.dtype)
    size = np.abs(exact)
    counted = np.maximum(size, least)
    unit = np.ldexp(1.0, np.maximum(np.frexp(counted)[1] - 1, info.minexp) - info.nmant)
    limit = 2.0 ** (info.maxexp - 1) * (2 - 2.0 ** (-info.nmant - 1))
    with np.errstate(all="ignore"):
        overflows = np.where(size >= limit, np.sign(exact) * np.inf, exact)
        distance = np.abs(got.astype(exact.dtype) - exact) / unit
    same = (got == overflows) | (np.isnan(got) & np.isnan(exact))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


@every_kind
@every_function
def test_llvm_has_the_bits_of_numpy(name, kind):
    xs = operands(name, kind, 100_000)
    a, b = run(name, *xs), evaluate(name, *xs)
    bits = f"u{a.itemsize}"
    differ = (a.view(bits) != b.view(bits)) & ~(np.isnan(a) & np.isnan(b))
    assert not differ.any(), [(*(x[differ][0] for x in xs), a[differ][0], b[differ][0])]


@every_function
def test_f32_is_within_its_bound(name):
    """Against NumPy and SciPy in f64."""
    xs = operands(name, np.float32, 100_000, seed=4)
    with np.errstate(all="ignore"):  # f32 NaNs may be signalling
        wide = [x.astype(np.float64) for x in xs]
        exact, least = SCALARS[name].numpy(*wide), 0.0
        if FUNCTIONS[name].reflected:
            other = np.abs(SCALARS[name].numpy(1 - wide[0]))
            least = np.where(wide[0] < 0, np.maximum(np.nan_to_num(other), 1), 0)
    wrong = error(run(name, *xs), exact, least)
    i = wrong.argmax()
    assert wrong[i] <= FUNCTIONS[name].f32, [x[i] for x in xs]


@every_function
def test_f64_is_within_its_bound(name):
    """Against mpmath with 120 bits, where the result is finite and not 0."""
    n = 400
    xs = [x[-n:] for x in operands(name, np.float64, 4 * n, seed=5)]
    xs[0] = np.concatenate([np.random.default_rng(6).uniform(0.01, 3, n), xs[0]])
    xs[1:] = [np.concatenate([np.random.default_rng(7).uniform(-3, 3, n), x]) for x in xs[1:]]
    got, bound = run(name, *xs), FUNCTIONS[name].f64
    oracle = ORACLES.get(name) or getattr(mpmath, name)
    checked = 0
    with mpmath.workprec(120):
        for *operand, y in zip(*xs, got, strict=True):
            if not np.isfinite(y) or y == 0:
                continue
            exact = oracle(*map(mpmath.mpf, map(float, operand)))
            size = abs(exact)
            if FUNCTIONS[name].reflected and operand[0] < 0:
                size = max(size, abs(oracle(1 - mpmath.mpf(float(operand[0])))), 1)
            unit = mpmath.mpf(2) ** (max(int(mpmath.floor(mpmath.log(size, 2))), -1022) - 52)
            assert abs(mpmath.mpf(float(y)) - exact) <= bound * unit, (operand, y)
            checked += 1
    assert checked > n / 4


@every_kind
@every_function
def test_special_values_are_those_of_numpy(name, kind):
    """Infinities, NaN, zeros with their signs, and where the domain ends."""
    some = np.array([0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, 2.5, -2.5, np.inf, -np.inf, np.nan])
    some = some.astype(kind)
    arity = FUNCTIONS[name].arity
    xs = [x.ravel() for x in np.meshgrid(*[some] * arity)] if arity > 1 else [some]
    with np.errstate(all="ignore"):
        expected = np.asarray(SCALARS[name].numpy(*xs))
    got = run(name, *xs)
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    exact = np.isinf(expected) | (expected == 0) | (np.abs(expected) == 1)
    assert np.array_equal(got[exact], expected[exact])
    known = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got[known]), np.signbit(expected[known]))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_next_to_multiples_of_a_right_angle(name):
    """6381956970095103 2^797 is the double closest to one; 16367173 2^72 is near one in f32."""
    hard = [float(mpmath.ldexp(6381956970095103, 797)), float(mpmath.ldexp(16367173, 72))]
    k = np.arange(1, 200_000, 997)
    xs = np.concatenate([hard, k * (np.pi / 2), k * 1e5 * np.pi, np.float32(k * np.pi / 2)])
    got = run(name, xs)
    with mpmath.workprec(200):
        for x, y in zip(xs, got, strict=True):
            exact = getattr(mpmath, name)(mpmath.mpf(float(x)))
            assert abs(float(y) / exact - 1) < 3 * 2.0**-52, x


def test_a_bound_is_stated_for_functions_of_the_scalar_table():
    for name, f in FUNCTIONS.items():
        assert SCALARS[name].arity == f.arity
        assert 0.5 <= min(f.f32, f.f64) <= max(f.f32, f.f64) <= 3.5


def test_the_page_states_the_bounds_that_are_tested() -> None:
    page = Path(__file__).parents[2] / "docs" / "approximations.md"
    rows = [
        [c.strip() for c in x.split("|")[1:-1]]
        for x in page.read_text().splitlines()
        if x.startswith("|")
    ]
    stated = {r[0]: (float(r[1]), float(r[4])) for r in rows if r[0] in FUNCTIONS}
    assert stated == {n: (f.f32, f.f64) for n, f in FUNCTIONS.items()}


def tool():
    """The script that wrote the numbers: it says of which functions, on which intervals."""
    with mpmath.workdps(80):
        return importlib.import_module("tools.coefficients")


@pytest.mark.parametrize("form", ["f32", "f64"])
def test_polynomials_are_as_near_to_their_functions_as_is_written(form):
    """At the ends, near them and between: a wrong digit of a coefficient shows at the ends."""
    jobs = tool().JOBS
    fits = {n: j.get(form) if isinstance(j, dict) else j for n, j in jobs.items()}
    fits = {n: j for n, j in fits.items() if j is not None and form in j.terms}
    assert fits.keys() == COEFFICIENTS[form].keys() == ERRORS[form].keys()
    with mpmath.workdps(40):
        for name, job in fits.items():
            numbers = COEFFICIENTS[form][name]
            assert len(numbers) == job.terms[form]
            assert all(float(np.float32(c)) == c for c in numbers) or form == "f64"
            low, high = mpmath.mpf(job.low), mpmath.mpf(job.high)
            worst = 0
            for at in ("0.000001", "0.1", "0.37", "0.71", "0.999999"):
                x = low + (high - low) * mpmath.mpf(at)
                off = mpmath.fsum(c * x**i for i, c in enumerate(numbers)) - job.f(x)
                worst = max(worst, abs(off * job.weight(x)))
            assert worst <= mpmath.mpf(2) ** (ERRORS[form][name] + 0.1), name


@pytest.mark.parametrize(("form", "digits", "step"), [("f32", 24, 8), ("f64", 53, 16)])
def test_numbers_of_many_digits_are_sums_of_their_parts(form, digits, step):
    """Each part is what the ones before it leave, rounded to the format."""
    known, numbers = tool(), dict(NUMBERS[form])
    kind = np.float32 if form == "f32" else np.float64
    assert all(float(kind(p)) == p for parts in numbers.values() for p in parts)
    with mpmath.workdps(500):
        table = numbers.pop("angles")
        assert len(table) % 4 == 0
        # Up to the largest number of the format: its last bit is 2 to the power of the last entry.
        assert len(table) // 4 == (np.finfo(kind).maxexp - digits) // step + 1
        for i in range(0, len(table), 4):
            turned = mpmath.ldexp(2 / mpmath.pi, step * i // 4)
            check_parts(turned - 4 * mpmath.nint(turned / 4), table[i : i + 4], digits)
    with mpmath.workdps(80):
        names = {**known.NUMBERS, **known.POSITIVE} | {k: v for k, (v, _) in known.SHORT.items()}
        exact = {
            "ln2": mpmath.log(2), "log2e": 1 / mpmath.log(2), "log10e": 1 / mpmath.log(10),
            "log10_2": mpmath.log(2) / mpmath.log(10), "third": mpmath.mpf(1) / 3,
            "less_euler": 1 - mpmath.euler, "stirling": (mpmath.log(2 * mpmath.pi) - 1) / 2,
            "digamma_zero": mpmath.findroot(mpmath.digamma, 1.4616), "half_pi": mpmath.pi / 2,
            "ln2_short": mpmath.log(2),
        }  # fmt: skip
        assert exact.keys() == names.keys() == numbers.keys()
        for name, value in exact.items():
            if name == "ln2_short":  # the exponents of a format times its first part are exact
                first, rest = numbers[name]
                few = 16 if form == "f32" else 42
                assert math.ldexp(math.frexp(first)[0], few).is_integer()
                check_parts(value, [first], few)
                check_parts(value - first, [rest], digits)
            else:
                check_parts(value, numbers[name], digits)
        assert all(p >= 0 for p in numbers["half_pi"])


def check_parts(value, parts, digits):
    """The rest after each part is below a unit in the last place of the part."""
    for part in parts:
        unit = math.ldexp(1.0, math.frexp(part)[1] - digits)
        value -= part
        assert abs(value) < unit, (parts, part)
