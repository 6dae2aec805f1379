"""Faults that new users met, each by the program that met it; the classes have tests of their own where
the code is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.errors import TesseraError
from tessera.core.flags import flags, override

RNG = np.random.default_rng(25)


def normal(*shape: int, dtype: str = "float64") -> Any:
    return ts.tensor(RNG.standard_normal(shape).astype(dtype))


def test_01_the_tangent_of_an_operator_is_its_tangent_operator() -> None:
    a, da = normal(4, 4), normal(4, 4)
    m, dm = np.asarray(a), np.asarray(da)
    _, dy = ts.jvp(lambda x: op.dense(x) @ op.dense(x), (a,), (da,))
    np.testing.assert_allclose(dy.todense(), dm @ m + m @ dm, rtol=1e-12)
    _, dy = ts.jvp(lambda x: 3.0 * op.dense(x), (a,), (da,))
    np.testing.assert_allclose(dy.todense(), 3 * dm, rtol=1e-12)
    _, dy = ts.jvp(lambda x: op.dense(x).inverse(), (a,), (da,))
    inverse = np.linalg.inv(m)
    np.testing.assert_allclose(dy.todense(), -inverse @ dm @ inverse, rtol=1e-9)


def test_02_a_full_cache_and_heads_that_differ_are_refused() -> None:
    cache = ts.KVCache.empty(2, 2, 4, 3)
    k = normal(2, 2, 3, 3, dtype="float32")
    full = cache.append(k, k)
    with pytest.raises(TesseraError, match="length 3 is out of range"):
        full.append(k, k)
    for bad in (normal(1, 2, 1, 3, dtype="float32"), normal(2, 3, 1, 3, dtype="float32")):
        with pytest.raises(TesseraError):
            cache.append(bad, bad)
    with pytest.raises(TesseraError):
        cache.append(k, k[:, :, :2])


@dataclass
class Model:
    """An object with weights."""

    w: Any

    @ts.jit
    def __call__(self, x: Any) -> Any:
        return x * self.w


def test_03_weights_of_self_that_change_are_seen_and_other_objects_are_refused() -> None:
    m, x = Model(ts.tensor([2.0])), ts.tensor([1.0])
    assert m(x).tolist() == [2.0]
    m.w = ts.tensor([5.0])
    assert m(x).tolist() == [5.0]
    f = ts.jit(lambda t: t["a"] + t["b"])
    assert f(OrderedDict(a=x, b=x)).tolist() == [2.0]
    with pytest.raises(TesseraError, match="object, which is no tensor"):
        ts.jit(lambda o: x)(object())


def test_04_a_label_out_of_range_raises_eagerly_and_under_checked() -> None:
    x, bad = normal(2, 3, dtype="float32"), ts.tensor([0, 7])
    with pytest.raises(TesseraError, match="7"):
        op.cross_entropy(x, bad)
    f = ts.jit(op.cross_entropy)
    f(x, bad)
    with pytest.raises(TesseraError, match="7"), ts.checked():
        f(x, bad)


def test_05_tensors_are_values() -> None:
    x = ts.tensor([1.0, 2.0])
    with pytest.raises(TesseraError, match=r"x\.at\[0\]\.set"):
        x[0] = 5.0  # type: ignore[index]
    assert x.at[0].set(5.0).tolist() == [5.0, 2.0]
    assert x.tolist() == [1.0, 2.0]


def test_07_an_annotation_of_a_result_and_a_false_claim_are_checked() -> None:
    @ts.jit
    def f(x: Tensor["B", "S", f32]) -> Tensor["B", "S", f32]:  # type: ignore[name-defined]
        return x.T

    with pytest.raises(TesseraError):
        f(normal(2, 3, dtype="float32"))
    claimed = op.dense(normal(3, 3)).assume("symmetric")
    with pytest.raises(TesseraError, match="is not symmetric"), ts.checked():
        claimed.solve(normal(3))


def test_08_flips_between_reshapes_and_output_padding_read_inside() -> None:
    f = lambda v: op.flip(op.reshape(op.flip(op.reshape(v, (8,))), (8, 1)), 0) * 2  # noqa: E731
    v = normal(2, 4)
    assert np.array_equal(ts.jit(f)(v).reshape(-1), np.asarray(v).reshape(-1) * 2)
    x, w = normal(1, 2, 5), normal(2, 3, 3)
    g = ts.grad(
        lambda x: op.sum(op.conv_transpose1d(x, w, stride=2, dilation=3, output_padding=2) ** 2)
    )
    np.testing.assert_allclose(ts.jit(g)(x), g(x), rtol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_09_many_short_transforms_of_an_intermediate(n: int) -> None:
    x = normal(17, n)
    got = ts.jit(lambda v: op.fft(v + 1.0))(x)
    np.testing.assert_allclose(got, np.fft.fft(np.asarray(x) + 1), atol=1e-12)
    np.testing.assert_allclose(op.fft2(x), np.fft.fft2(np.asarray(x)), atol=1e-12)


def test_10_numerics_of_a_thread_are_its_own() -> None:
    inside, go, seen = threading.Event(), threading.Event(), []

    def other() -> None:
        with ts.numerics("strict"):
            inside.set()
            assert go.wait(60)
        seen.append("ended")

    before = flags().numerics
    t = threading.Thread(target=other)
    t.start()
    assert inside.wait(60)
    assert flags().numerics == before
    go.set()
    t.join(60)
    assert seen == ["ended"]
    assert flags().numerics == before


def test_11_a_scatter_out_of_range_drops_its_update_when_jitted() -> None:
    x = ts.tensor([1.0, 2.0, 3.0])
    put = ts.jit(lambda x, i: x.at[i].set(9.0))
    add = ts.jit(lambda x, i: x.at[i].add(9.0))
    for i in (3, 100, -4):
        assert put(x, ts.tensor([i])).tolist() == [1.0, 2.0, 3.0]
        assert add(x, ts.tensor([i])).tolist() == [1.0, 2.0, 3.0]


def test_12_running_extremes_of_both_zeros_and_batches_of_einsum_have_one_law() -> None:
    zeros = ts.tensor([0.0, -0.0, 0.0, -0.0])
    for f in (op.cummin, op.cummax):
        eager, jitted = f(zeros, 0), ts.jit(lambda v, f=f: f(v, 0))(zeros)
        assert np.asarray(eager).tobytes() == np.asarray(jitted).tobytes()
    a, b = normal(5, 7, 33, dtype="float32"), normal(33, 9, dtype="float32")
    whole = ts.vmap(lambda x: op.einsum("ij,jk->ik", x, b))(a)
    assert np.array_equal(whole, np.stack([np.asarray(op.einsum("ij,jk->ik", x, b)) for x in a]))


def test_13_numbers_that_do_not_fit_and_masks_are_refused_and_nan_stays() -> None:
    with pytest.raises(TesseraError, match="300 does not fit i8"):
        ts.tensor([300], dtype="i8")
    with pytest.raises(TesseraError, match="mask"):
        ts.tensor(np.ma.masked_array([1.0, 2.0], [True, False]))
    x = np.ones((1, 1, 4), np.float32)
    x[0, 0, 0] = np.nan
    f = lambda x: op.conv_transpose1d(x, op.ones((1, 1, 2)), stride=3, output_padding=2)  # noqa: E731
    want = [True] * 2 + [False] * 11
    assert np.isnan(f(ts.tensor(x)))[0, 0].tolist() == want
    assert np.isnan(ts.jit(f)(ts.tensor(x)))[0, 0].tolist() == want


@pytest.mark.parametrize("n", [1, 8, 33, 40, 64])
def test_14_a_product_whose_epilogue_reads_by_data(n: int) -> None:
    x, w, y = normal(n, 20), normal(20, 40), normal(9, 40)
    i = ts.tensor(RNG.integers(0, 9, n))
    want = np.asarray(x) @ np.asarray(w) + np.asarray(y)[np.asarray(i)]
    np.testing.assert_allclose(
        ts.jit(lambda x, w, y, i: x @ w + y[i])(x, w, y, i), want, rtol=1e-9, atol=1e-12
    )
    betas = normal(3)
    got = ts.jit(lambda x, w, t: betas[t] * (x @ w))(x, w, ts.tensor(2))
    np.testing.assert_allclose(
        got, betas[2].item() * (np.asarray(x) @ np.asarray(w)), rtol=1e-9, atol=1e-12
    )


def test_15_the_text_of_several_kernels_reads_back_and_trees_have_paths() -> None:
    f = ts.jit(lambda x: op.sort(x @ x) @ x)
    text = str(f.lower(normal(8, 8, dtype="float32")).tile)
    assert str(ts.ir.parse(text)) == text
    assert ts.tree.paths({"a": [1, 2]}) == ["['a'][0]", "['a'][1]"]
    with pytest.raises(TesseraError):
        op.undescribe({"no": "descriptor"})


def test_16_named_sizes_are_scalars() -> None:
    @ts.jit
    def f(x: Tensor["n", f32]) -> Any:  # type: ignore[name-defined]
        (n,) = x.shape
        return op.sum(x) * (n / (n - 1)) + 1.0 / n + n**0.5 + op.sqrt(n)

    x = normal(9, dtype="float32")
    want = np.sum(np.asarray(x)) * 9 / 8 + 1 / 9 + 3 + 3
    np.testing.assert_allclose(f(x), want, rtol=1e-6)


def test_17_a_gradient_of_a_function_that_decides_on_values() -> None:
    f = ts.grad(lambda x: x * x if x > 0 else -x)
    assert (f(ts.tensor(3.0)).item(), f(ts.tensor(-3.0)).item()) == (6.0, -1.0)


def test_19_nesting_and_sizes_beyond_all_bounds_are_refused_by_us() -> None:
    for annotation in ("B//0", "2**3000000"):
        with pytest.raises(TesseraError):
            Tensor[annotation, f32]  # type: ignore[misc]
    for bad in (lambda: op.zeros((2**64,)), lambda: op.zeros((1,) * 70)):
        with pytest.raises(TesseraError):
            bad()

    def nested(depth: int) -> Any:
        if depth == 0:
            return lambda x: x
        inner = nested(depth - 1)
        return lambda x: op.cond(op.sum(x) > 0, inner, lambda x: x, x)

    with pytest.raises(TesseraError):
        ts.jit(nested(150))(ts.tensor([1.0]))
    grad = ts.jit(ts.grad(lambda a: op.sum(op.pinv(a))))
    np.testing.assert_allclose(grad(ts.tensor([[[2.0]]])), [[[-0.25]]], rtol=1e-6)


def test_20_a_chain_of_hundreds_of_ops_is_few_kernels() -> None:
    def f(v: Any) -> Any:
        for _ in range(400):
            v = op.sin(v) + 0.5
        return v

    x = normal(3)
    want = np.asarray(x)
    for _ in range(400):
        want = np.sin(want) + 0.5
    with override(verify=False):  # that looks at every op after every pass
        np.testing.assert_allclose(ts.jit(f)(x), want, rtol=1e-12)


def test_23_a_projector_built_twice_is_one() -> None:
    u = normal(6, 2)
    assert ts.simplify(op.projector(u) @ op.projector(u)).kind == "projector"
