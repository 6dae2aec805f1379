"""Complex numbers by formulas of their parts: near NumPy, at infinity and zeros too, with one set of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.ir.schedule.ir import HostCall
from tessera.ir.schedule.lower import lower
from tessera.transform.split_complex import split_complex
from tests.support.runners import levels

NAMES = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "asinh": "arcsinh", "acosh": "arccosh",
         "atanh": "arctanh"}  # fmt: skip
FUNCTIONS = (
    "reciprocal", "square", "abs", "sign", "exp", "expm1", "log", "log2", "log10", "log1p", "sqrt", "sin",
    "cos", "tan", "sinh", "cosh", "tanh", "round", *NAMES,
)  # fmt: skip
DTYPES = (np.complex64, np.complex128)
ULPS = 4  # of the length of a result
# Both dtypes have the same formulas: `make test` asks each function in one of them.
every_function = pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.deep] if (i + j) % 2 else [])
        for i, name in enumerate(FUNCTIONS)
        for j, dtype in enumerate(DTYPES)
    ],
)

# Where NumPy's own result is no model: its log1p loses digits beside -1 and 0, its sign divides by an
# infinite length, its square adds before it multiplies, and expm1 multiplies by infinity.
WEAK = ("log1p", "sign", "square", "expm1")


def ends(dtype: type) -> Any:
    """Complex numbers of zeros, infinities, NaN and extremes of a format."""
    fi = np.finfo(dtype)
    far = 710.0 if dtype is np.complex128 else 89.0
    parts = [
        0.0,
        1.0,
        0.5,
        3.0,
        np.inf,
        1e-10,
        float(fi.max) * 0.9,
        float(fi.tiny),
        float(fi.tiny) / 8,
        far,
        50.0,
    ]
    parts = [*parts, *(-x for x in parts), np.nan]
    z = np.empty((len(parts), len(parts)), dtype)
    z.real, z.imag = np.array(parts)[:, None], np.array(parts)
    return z.ravel()


def scattered(dtype: type, shape: Any = 2000, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return (z * 10.0 ** rng.uniform(-3, 1, shape)).astype(dtype)


def numpy_of(name: str, *xs: Any) -> Any:
    with np.errstate(all="ignore"):
        return getattr(np, NAMES.get(name, name))(*xs)


def parts(x: Any) -> list[Any]:
    return [x.real, x.imag] if x.dtype.kind == "c" else [x]


def same(x: Any, y: Any) -> bool:
    """Equal bits, but for those of NaN."""
    return all(
        np.array_equal(a, b, equal_nan=True)
        and np.array_equal(np.signbit(a)[a == 0], np.signbit(b)[b == 0])
        for a, b in zip(parts(np.asarray(x)), parts(np.asarray(y)), strict=True)
    )


@every_function
def test_functions_are_near_those_of_numpy(name: str, dtype: type) -> None:
    x = scattered(dtype)
    y = np.asarray(getattr(op, name)(x))
    want = numpy_of(name, x.astype(np.clongdouble if name == "log1p" else np.complex128))
    eps = np.finfo(dtype).eps
    assert np.all(abs(y - want) <= ULPS * eps * abs(want) + np.finfo(dtype).tiny)


@every_function
def test_functions_at_the_ends_of_the_format(name: str, dtype: type) -> None:
    """The limits are those of C99, which NumPy has; signs of infinities that have no direction may differ."""
    x = ends(dtype)
    y, want = np.asarray(getattr(op, name)(x)), numpy_of(name, x)
    if name in WEAK:
        usual = np.isfinite(x) & (abs(x.real) < 80) & (abs(x.imag) < 1e3)
        x, y, want = x[usual], y[usual], want[usual]
    eps, tiny = np.finfo(dtype).eps, np.finfo(dtype).tiny
    length = np.nan_to_num(abs(want), nan=0, posinf=np.finfo(dtype).max)
    for a, b in zip(parts(y), parts(want), strict=True):
        lost = np.isnan(x) | np.isnan(want)  # one part is NaN: nobody says what the other is
        np.testing.assert_array_equal(np.isnan(a)[~lost], np.isnan(b)[~lost])
        np.testing.assert_array_equal(np.isinf(a)[~lost], np.isinf(b)[~lost])
        far = np.isinf(b) & ~lost
        np.testing.assert_array_equal(a[far], b[far])
        if name != "log1p":
            near = np.isfinite(a) & np.isfinite(b)
            assert np.all(abs(a[near] - b[near]) / 64 <= eps * length[near] + tiny)


@every_function
def test_zeros_keep_their_signs(name: str, dtype: type) -> None:
    if name in ("reciprocal", "log", "log2", "log10", "sign", "abs", "square"):
        pytest.skip("0 is a pole, or its result a square")
    x = np.array([0.0, -0.0]).astype(dtype)
    z = np.empty((2, 2), dtype)
    z.real, z.imag = x.real[:, None], x.real
    y, want = np.asarray(getattr(op, name)(z)), numpy_of(name, z)
    np.testing.assert_array_equal(np.signbit(y.imag), np.signbit(want.imag))
    np.testing.assert_allclose(y, want, atol=1e-6 if dtype is np.complex64 else 1e-14)


@every_function
def test_eager_code_has_the_bits_of_jit(name: str, dtype: type) -> None:
    x = np.concatenate([scattered(dtype, 60), ends(dtype)])
    f = getattr(op, name)
    assert same(f(x), ts.jit(f)(x))
    assert same(ts.jit(lambda x: f(x) * x + 1)(x), f(x) * ts.tensor(x) + 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quotients(dtype: type) -> None:
    x, y = scattered(dtype), scattered(dtype, seed=1)
    wide = x.astype(np.complex128) / y.astype(np.complex128)
    assert np.all(abs(np.asarray(op.div(x, y)) - wide) <= ULPS * np.finfo(dtype).eps * abs(wide))
    ends_of = ends(dtype)
    p, q = (v.ravel() for v in np.meshgrid(ends_of[::7], ends_of[::5]))
    got, want = np.asarray(op.div(p, q)), numpy_of("divide", p, q)
    known = np.isfinite(want)
    # The larger part of a divisor may have a reciprocal beyond the format, which NumPy multiplies by.
    inside = known & (abs(q) > 4 / np.finfo(dtype).max)
    got, want, fi = got[inside], want[inside], np.finfo(dtype)
    assert np.all(abs(got - want) <= 16 * fi.eps * abs(want) + fi.tiny)
    assert same(ts.jit(op.div)(p, q), op.div(p, q))


def test_small_divisors_do_not_overflow_on_the_way() -> None:
    x = np.array([1e-310 + 2e-310j, 3e-309])
    np.testing.assert_allclose(op.div(x, x), np.ones(2))


@pytest.mark.parametrize("dtype", DTYPES)
def test_powers(dtype: type) -> None:
    x, y = scattered(dtype, 500), scattered(dtype, 500, 1)
    x, y = x[abs(x) > 1e-2], y[abs(x) > 1e-2]
    want = np.power(x.astype(np.complex128), y.astype(np.complex128))
    usual = (abs(want) < 1e20) & (abs(want) > 1e-20)
    rtol = 1e-6 if dtype is np.complex64 else 2e-13
    np.testing.assert_allclose(np.asarray(op.pow(x, y))[usual], want[usual], rtol=rtol * 10)
    zero = np.zeros(3, dtype)
    got = np.asarray(op.pow(zero, np.array([0, 2, 1 + 1j], dtype)))
    np.testing.assert_array_equal(got, [1, 0, 0])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_folds(n: int, axis: int | None) -> None:
    x = scattered(np.complex128, (n, 5))
    np.testing.assert_allclose(op.prod(x, axis), np.prod(x, axis), rtol=1e-13)
    np.testing.assert_allclose(op.sum(x, axis), np.sum(x, axis), rtol=1e-12)
    np.testing.assert_allclose(op.mean(x, axis), np.mean(x, axis), rtol=1e-12)
    np.testing.assert_allclose(op.cumsum(x, axis), np.cumsum(x, axis), rtol=1e-11)
    for f in (op.prod, op.sum, op.mean, op.cumsum):
        assert same(ts.jit(lambda x, f=f: f(x, axis))(x), f(x, axis))


def _mixed(x: Any, y: Any, r: Any, i: Any) -> Any:
    """Moves, choices, comparisons, casts and folds of complex tensors."""
    z = op.where(op.abs(x) > 1, x, op.conj(y)) + op.pad(x[:, 1:], ((0, 0), (1, 0)), 2j)
    z = op.concat([z, op.flip(y, 1)], 1).T + op.take(r, i)[:, None]
    z = z.at[1:2].add(1j) * op.cast(op.eq(z, z), ts.c128)
    w = op.scatter_add(z, op.ones((2, z.shape[1]), dtype=ts.c128), i[:2])
    return op.sum(w @ op.conj(w.T), 0) / op.mean(z), op.angle(z), op.isnan(z), op.cast(z, "bool")


def test_moves_and_choices_match_numpy() -> None:
    x, y = scattered(np.complex128, (3, 4)), scattered(np.complex128, (3, 4), 1)
    r, i = np.arange(5.0), np.array([1, 3, 0, 2, 4, 1, 1, 0])
    got = ts.jit(_mixed)(*map(ts.tensor, (x, y, r, i)))
    z = np.where(abs(x) > 1, x, y.conj()) + np.concatenate([np.full((3, 1), 2j), x[:, 1:]], 1)
    z = np.concatenate([z, y[:, ::-1]], 1).T + r[i][:, None]
    z = z.copy()
    z[1] += 1j
    w = z.copy()
    np.add.at(w, i[:2], np.ones((2, 3)))
    want = ((w @ w.conj().T).sum(0) / z.mean(), np.angle(z), np.isnan(z), z.astype(bool))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    for a, b in zip(got, _mixed(*map(ts.tensor, (x, y, r, i))), strict=True):
        assert same(a, b)


# Loops -------------------------------------------------------------------------------------------


def _scanned(z: Any, cs: Any) -> Any:
    def step(carry: Any, c: Any) -> Any:
        z, count = carry
        new = z * z + c
        return (new, count + op.cast(op.abs(new) < 2, "i32")), op.conj(new)

    return op.scan(step, (z, op.zeros((), dtype="i32")), cs)


def test_a_scan_carries_pairs() -> None:
    cs = scattered(np.complex64, 20) * np.complex64(0.02)
    z = np.complex64(0.1 + 0.2j)
    (last, count), ys = ts.jit(_scanned)(z, cs)
    want, seen, n = z, [], 0
    for c in cs:
        want = want * want + c
        n += abs(want) < 2
        seen.append(np.conj(want))
    np.testing.assert_allclose(last, want, rtol=1e-5)
    np.testing.assert_allclose(ys, seen, rtol=1e-5)
    assert int(count) == n
    lowered = ts.jit(_scanned).lower(ts.tensor(z), ts.tensor(cs))
    assert not lowered.host_steps  # the loop is one kernel


def test_while_loops_and_branches_carry_pairs() -> None:
    @ts.jit
    def f(z: Any) -> Any:
        z = op.while_loop(lambda z: op.abs(z) < 10, lambda z: z * (1 + 0.5j), z)
        return op.cond(op.real(z) > 0, lambda z: op.exp(z / 10), lambda z: op.sqrt(z), z)

    for start in (1 + 0j, 0.5 - 0.25j, -3 + 0j):
        z = start
        while abs(z) < 10:
            z *= 1 + 0.5j
        want = np.exp(z / 10) if z.real > 0 else np.sqrt(z)
        np.testing.assert_allclose(f(np.complex128(start)), want, rtol=1e-13)


def test_a_loop_with_a_transform_carries_whole_tensors() -> None:
    g = levels.prepared(
        ts.trace(
            lambda z: op.fori_loop(0, 3, lambda i, z: op.ifft(op.fft(z) * z), z), Tensor[8, ts.c64]
        )
    )
    p = lower(g)
    (loop,) = [s for s in p.steps if isinstance(s, HostCall) and s.node.regions]
    (body,) = loop.node.regions
    assert body.inputs[0].type.dtype is ts.c64


# Sizes, batches, derivatives -------------------------------------------------------------------------


def test_sizes_may_be_symbols() -> None:
    @ts.jit
    def f(x: Tensor["N", "M", ts.c64]) -> Any:
        return op.exp(x) * op.sum(x, 0) / (1 + op.abs(x))

    for shape in ((1, 1), (3, 5), (40, 17)):
        x = scattered(np.complex64, shape)
        np.testing.assert_allclose(f(x), np.exp(x) * x.sum(0) / (1 + abs(x)), rtol=1e-4)


def test_a_batch_has_the_bits_of_its_members() -> None:
    x = scattered(np.complex64, (5, 33))

    def f(x: Any) -> Any:
        return op.sum(op.exp(x) / (x * x + 2)) * op.prod(x[:4]) + op.sqrt(op.fft(x)[3])

    alone = np.stack([np.asarray(ts.jit(f)(row)) for row in x])
    assert same(ts.jit(ts.vmap(f))(x), alone)
    assert same(np.stack([np.asarray(f(ts.tensor(row))) for row in x]), alone)


def test_empty_tensors_and_numbers() -> None:
    assert np.asarray(ts.jit(lambda x: op.exp(x) + 1)(np.zeros((0, 3), np.complex64))).shape == (
        0,
        3,
    )
    np.testing.assert_allclose(
        ts.jit(lambda x: op.log(x))(np.complex128(1j)), np.pi / 2 * 1j, atol=1e-16
    )
    assert complex(ts.jit(lambda x: op.prod(x))(np.zeros(0, np.complex64))) == 1


@pytest.mark.parametrize("last", [op.fft, op.abs], ids=["whole", "pairs"])
def test_the_choice_of_pairs_takes_a_long_chain(last: Any) -> None:
    """Every value of the chain has two readers, so that it has 2^400 ways through it."""

    def f(z: Any) -> Any:
        for _ in range(400):
            z = z * z + z
        return last(z)

    g = split_complex(ts.trace(f, Tensor[16, ts.c64]))
    assert any(n.op.name == "complex" for n in g.nodes) is False
    assert len(g.nodes) == 801 or last is op.abs
