"""Complex ops point by point: every level has the bits of the formula, which is NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import as_dtype
from tessera.core.flags import override
from tessera.core.pairs import FORMULAS
from tessera.ir.schedule.ir import HostCall, Kernel, Primitive
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.verify import verify
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels

UNARY = ("square", "neg", "conj", "real", "imag")
BINARY = ("add", "sub", "mul")


def draw(shape, dtype, seed=0):
    rng, d = np.random.default_rng([seed, *shape]), as_dtype(dtype)
    x = rng.normal(size=shape)
    x = (x + 1j * rng.normal(size=shape) if d.kind == "c" else x).astype(d.np)
    if x.size > 3:
        x.flat[1], x.flat[3] = -0.0, 1e15
    return x


def check(f, *xs):
    """All levels agree on f, which is one primitive; the output."""
    p = lower(levels.prepared(ts.trace(f, *map(ts.tensor, xs))))
    assert [type(s) for s in p.steps] == [Primitive], str(p)
    verify(p)
    want = levels.by_schedule(p, xs)
    for run in (levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, xs), want), run.__name__
    return want[0]


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize("shape", [(), (5,), (7, 9), (4099,)])
def test_ops_of_one_operand(name, dtype, shape):
    x = draw(shape, dtype)
    y = check(getattr(op, name), x)
    want = {"neg": np.negative, "conj": np.conj}.get(name) or getattr(np, name)
    assert y.dtype == want(x).dtype
    if name == "square":
        np.testing.assert_allclose(y, want(x), rtol=1e-6)
    else:
        assert same_bits([y], [np.array(want(x), order="C")])


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", ["c64", "c128"])
@pytest.mark.parametrize("shape", [(3,), (33,), (2, 0), (6, 700)])
def test_ops_of_two_operands(name, dtype, shape):
    x, y = draw(shape, dtype), draw(shape, dtype, 1)
    z = check(getattr(op, name), x, y)
    want = {"add": x + y, "sub": x - y, "mul": x * y}[name]
    assert z.dtype == want.dtype
    np.testing.assert_allclose(z, want, rtol=1e-5 if dtype == "c64" else 1e-13)


@pytest.mark.parametrize(("real", "made"), [("f32", "c64"), ("f64", "c128")])
def test_complex_numbers_from_real_ones(real, made):
    x, y = draw((5, 13), real), draw((5, 13), real, 1)
    x[0, 0], y[0, 1] = np.inf, np.nan
    z = check(op.complex, x, y)
    assert same_bits([np.ascontiguousarray(p) for p in (z.real, z.imag)], [x, y])
    w = check(lambda v: op.cast(v, as_dtype(made)), x)
    assert same_bits(
        [np.ascontiguousarray(w.real), np.ascontiguousarray(w.imag)], [x, np.zeros_like(x)]
    )


def test_every_formula_is_tested():
    assert set(FORMULAS) == {*UNARY, *BINARY, "complex", "cast"}


def test_other_complex_ops_are_kernels_of_parts():
    p = lower(levels.prepared(ts.trace(lambda x: op.exp(x), Tensor[3, ts.c64])))
    assert [type(s) for s in p.steps] == [Primitive, Primitive, Kernel, Primitive]


def test_a_factorisation_has_its_complex_matrix_whole():
    p = lower(levels.prepared(ts.trace(lambda x: op.det(x * 2j), Tensor[3, 3, ts.c64])))
    assert isinstance(p.steps[-1], HostCall)


def test_one_compile_serves_all_sizes_on_any_threads():
    @ts.jit(target="cpu")
    def f(x: Tensor["M", "N", ts.c64], y: Tensor["M", "N", ts.c64]):
        return x * y - op.conj(x)

    for shape in ((1, 1), (3, 41), (90, 200)):
        x, y = draw(shape, "c64"), draw(shape, "c64", 1)
        found = []
        for threads in (1, 2, 3):
            with override(threads=threads):
                found.append(f(x, y).numpy())
        assert same_bits(found[:1], found[1:2])
        assert same_bits(found[:1], found[2:])
        np.testing.assert_allclose(found[0], x * y - np.conj(x), rtol=1e-5, atol=1e-6)
    assert f.compiled == 1
