"""What ts.onnx.save writes, as onnxruntime runs it: every op of the catalogue that ONNX can say, and
models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.dtype import as_dtype
from tessera.core.flags import override
from tessera.interop.onnx.export import model_bytes
from tests.support.cases import op_cases

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.oracle

# Ops that ONNX has no node for: linear algebra, random bits, complex inputs and results, bits of floats,
# special functions, kernels and functions of one's own.
NO_FORM = {
    "adjugate", "adjugate_slope", "cholesky", "cluster_turn", "clusters", "complex", "complex_contract",
    "conj", "dct", "eig", "eigh", "eigvals", "eigvalsh",
    "expm", "expm_frechet", "fft", "float_bits", "from_bits", "gauged", "host_call", "ifft",
    "imag", "inv",
    "irfft", "kernel", "linear_recurrence", "loggamma_sample",
    "loggamma_slope", "lu", "matrix_function", "matrix_function_frechet", "nextafter", "overlap_add",
    "pinv", "polygamma", "qr", "real", "rfft", "same_in_every_gauge",
    "singular_follow", "slogdet", "solve", "svd", "svdvals", "toeplitz_slogdet", "toeplitz_solve",
    "triangular_solve", "tridiagonal_solve",
}  # fmt: skip
# Valid models that onnxruntime does not run: Det in f64, bf16 at the edge of a model.
NOT_RUN = {"det", "cast"}


def run(data: bytes, *arrays: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return session.run(None, dict(zip(names, arrays, strict=True)))


def first_cases() -> list[op_cases.Case]:
    """A case of each op whose operands have elements."""
    found: dict[str, op_cases.Case] = {}
    for c in op_cases.all_cases():
        filled = c.slots and all(0 not in s.shape for s in c.slots)
        if c.op is not None and filled:
            found.setdefault(c.op.name, c)
    return list(found.values())


def call(c: op_cases.Case) -> Any:
    return lambda *xs: c.call(xs)


def test_every_op_that_onnx_can_say() -> None:
    wrong, lacking = {}, set()
    for c in first_cases():
        assert c.op is not None
        arrays = c.draw(f32)
        try:
            data = model_bytes(call(c), *arrays)
        except ts.onnx.OnnxError:
            lacking.add(c.op.name)
            continue
        if c.op.name in NOT_RUN:
            continue
        with override(target="numpy"):
            wanted = [np.asarray(x) for x in ts.tree.leaves(call(c)(*arrays))]
        for got, want in zip(run(data, *arrays), wanted, strict=True):
            if got.dtype != want.dtype or not np.allclose(got, want, 2e-4, 1e-5, equal_nan=True):
                wrong[str(c)] = (got, want)
    assert wrong == {}
    assert lacking <= NO_FORM


def mlp(rng: np.random.Generator) -> Any:
    w, v = (ts.tensor(rng.standard_normal(s).astype(np.float32)) for s in ((8, 16), (16, 4)))
    return lambda x: op.softmax(op.gelu(op.layernorm(x) @ w) @ v)


def cnn(rng: np.random.Generator) -> Any:
    w = ts.tensor(rng.standard_normal((6, 3, 3, 3)).astype(np.float32))
    return lambda x: op.mean(op.max_pool(op.relu(op.conv(x, w, padding=1)), 2), (2, 3))


def lstm(rng: np.random.Generator) -> Any:
    w = ts.tensor(rng.standard_normal((16, 32)).astype(np.float32))

    def step(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = op.split(op.concat([x, h], -1) @ w, 4, -1)
        c = op.sigmoid(f) * c + op.sigmoid(i) * op.tanh(g)
        h = op.sigmoid(o) * op.tanh(c)
        return (h, c), h

    def model(x: Any) -> Any:
        zero = op.zeros((x.shape[1], 8), f32)
        return ts.scan(step, (zero, zero), x)[1]

    return model


def gpt(rng: np.random.Generator) -> Any:
    table = ts.tensor(rng.standard_normal((11, 8)).astype(np.float32))
    w = [ts.tensor(rng.standard_normal((8, 8)).astype(np.float32)) for _ in range(4)]

    def model(ids: Any) -> Any:
        x = op.embedding(table, ids)
        q, k, v = (op.layernorm(x) @ m for m in w[:3])
        x = x + op.attention(q, k, v, causal=True) @ w[3]
        return x @ op.transpose(table)

    return model


@pytest.mark.parametrize(
    ("make", "spec", "shape"),
    [
        (mlp, Tensor["B", 8, f32], (3, 8)),
        (cnn, Tensor["B", 3, 8, 8, f32], (2, 3, 8, 8)),
        (lstm, Tensor["T", "B", 8, f32], (5, 2, 8)),
        (gpt, Tensor["B", 6, ts.i64], (2, 6)),
    ],
    ids=["mlp", "cnn", "lstm", "gpt"],
)
def test_models_with_symbolic_sizes(make: Any, spec: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    f = make(rng)
    x = rng.integers(0, 11, shape) if spec.dtype is ts.i64 else rng.standard_normal(shape)
    x = x.astype(spec.dtype.np)
    (got,) = run(model_bytes(f, spec), x)
    with override(target="numpy"):
        np.testing.assert_allclose(got, f(ts.tensor(x)), rtol=2e-4, atol=1e-5)


def test_a_choice_between_booleans_runs() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    (got,) = run(model_bytes(lambda x: op.where(x > 0, x > 1, x < -1), x), x)
    np.testing.assert_array_equal(got, np.where(x > 0, x > 1, x < -1))


def test_loops_without_rows_or_results_of_steps() -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    functions: list[Any] = [
        lambda x: ts.fori_loop(0, 5, lambda i, c: c * 0.5 + i, x),
        lambda x: op.scan(lambda c, r: (c * 0.5 + r, None), op.zeros((5,)), x, reverse=True)[0],
    ]
    for f in functions:
        with override(target="numpy"):
            np.testing.assert_allclose(run(model_bytes(f, x), x)[0], f(ts.tensor(x)), rtol=1e-6)


def cast(x: Any) -> Any:
    return op.cast(x, ts.c128 if x.dtype is ts.f64 else ts.c64)


FILTERS = (
    np.random.default_rng(3).normal(size=(4, 6, 9, 2)).astype(np.float32).view(np.complex64)[..., 0]
)
FOURIER: dict[str, tuple[Any, tuple[int, ...]]] = {
    "fft": (lambda x: op.real(op.ifft(op.fft(cast(x)) * 2.0)), (3, 16)),
    "several axes": (lambda x: op.real((2 - 1j) * op.ifftn(cast(x) + 1j)), (4, 6, 5)),
    "norms": (lambda x: op.abs(op.fft2(x, norm="forward")) + op.abs(op.ifft2(x, norm="ortho")),
              (2, 8, 6)),
    "rfft of another axis": (lambda x: (op.real(op.rfft(x, axis=0)), op.imag(op.rfft(x, axis=0))),
                             (7, 3)),
    "irfft": (lambda x: op.irfft(op.rfft(x) * 2.0), (3, 16)),
    "irfft of odd length": (
        lambda x: op.irfft(op.rfft(x, norm="ortho") * (1 + 2j), n=15, norm="ortho"), (3, 15)),
    "irfft of 1": (lambda x: op.irfft(op.rfft(x, n=1), n=1), (3, 5)),
    "irfft of 2": (lambda x: op.irfft(op.rfft(x, n=2), n=2), (3, 5)),
    "spectral convolution": (
        lambda x: op.irfft(op.einsum("bcm,com->bom", op.rfft(x), ts.tensor(FILTERS)), n=16),
        (2, 4, 16)),
    "complex functions": (lambda x: op.abs(op.exp(1j * x) / (2 + cast(x))) + op.real(op.sqrt(cast(x))),
                          (5, 6)),
    "products of matrices": (lambda x: op.abs((cast(x) + 1j * cast(x)) @ cast(x).T), (3, 4)),
    "views and choices": (
        lambda x: op.real(op.where(x > 0, cast(x) * 1j, op.flip(op.fft(cast(x)), -1))[..., ::2]),
        (4, 8)),
    "loop": (lambda x: op.real(ts.fori_loop(0, 5, lambda i, c: c * (0.5 + 0.5j) + 1, cast(x))), (5,)),
    "transforms in a loop": (
        lambda x: op.real(ts.fori_loop(0, 3, lambda i, c: op.ifft(op.fft(c) * 0.9), cast(x))), (8,)),
    "gradient": (lambda x: ts.grad(lambda y: op.sum(op.abs(op.rfft(y)) ** 2))(x), (3, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOURIER)
@pytest.mark.parametrize("opset", [18, 20])
def test_transforms_and_complex_numbers_inside_of_a_model(name: str, opset: int) -> None:
    f, shape = FOURIER[name]
    for dtype, bound in ((np.float32, 2e-5), (np.float64, 1e-12)):
        x = np.random.default_rng(1).normal(size=shape).astype(dtype)
        with override(target="numpy"):
            wanted = [np.asarray(v) for v in ts.tree.leaves(f(ts.tensor(x)))]
        for got, want in zip(run(model_bytes(f, x, opset=opset), x), wanted, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=bound, atol=bound * np.abs(want).max())


def test_transforms_of_symbolic_sizes() -> None:
    def f(x: Any, k: Any) -> Any:
        return op.irfft(op.rfft(x, n=32) * op.rfft(k, n=32), n=32)

    def g(x: Any) -> Any:
        return op.irfft(op.rfft(x, norm="forward"), n=x.shape[-1], norm="forward")

    rng = np.random.default_rng(2)
    x, k = (rng.normal(size=s).astype(np.float32) for s in ((3, 20), (5,)))
    (got,) = run(model_bytes(f, Tensor["B", 20, f32], Tensor[5, f32]), x, k)
    np.testing.assert_allclose(got[0, :24], np.convolve(x[0], k), atol=1e-5)
    for n in (10, 11):
        (got,) = run(model_bytes(g, Tensor["B", "S", f32]), x[:, :n])
        np.testing.assert_allclose(got, x[:, :n], atol=1e-5)


RUNNING = {
    "cumprod": lambda x: op.cumprod(x, 1), "cummax": lambda x: op.cummax(x, axis=0),
    "cummin": lambda x: op.cummin(x, axis=1), "logcumsumexp": lambda x: op.logcumsumexp(x, 1),
    "of a vector": lambda x: op.cummax(op.reshape(x, -1), axis=0),
    "turned": lambda x: op.flip(op.cummax(op.flip(x, 0), axis=0), 0),
    "covariance": lambda x: op.cov(x),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("name", RUNNING)
def test_running_folds(name: str, dtype: str) -> None:
    f, x = RUNNING[name], np.random.default_rng(0).standard_normal((4, 5)) * 3
    if dtype == "float32":
        x[1, 2], x[2, 0] = np.nan, -np.inf
    if dtype.startswith("int") and name in ("logcumsumexp", "covariance"):
        x = np.abs(x)
    x = x.astype(dtype)
    want = np.asarray(f(ts.tensor(x)))
    for given in (x, Tensor["N", "M", ts.tensor(x).dtype]):
        if name == "covariance" and given is not x:
            continue
        (got,) = run(model_bytes(f, given), x)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_places_in_a_sorted_list(side: str, dtype: str) -> None:
    known = np.array([-2.0, 0.0, 0.0, 1.0, 3.0])
    values = np.array([[-3.0, 0.0, 3.0], [9.0, 1.0, 2.0]])
    if dtype.startswith("float"):
        known, values = (
            np.append(known, [np.inf, np.nan]),
            np.append(values, [[0.5, np.nan, np.inf]], 0),
        )
    known, values = known.astype(dtype), values.astype(dtype)
    f = lambda a, v: op.searchsorted(a, v, side=side)  # noqa: E731
    kind = ts.tensor(known).dtype
    for given in ((known, values), (Tensor["N", kind], Tensor["M", 3, kind])):
        (got,) = run(model_bytes(f, *given), known, values)
        np.testing.assert_array_equal(got, np.searchsorted(known, values, side))


SPECIAL = {
    "erfinv": (op.erfinv, -1, 1), "erfcinv": (op.erfcinv, 0, 2), "lgamma": (op.lgamma, 0.2, 40),
    "gamma": (op.gamma, -4, 30), "digamma": (op.digamma, -4, 40), "ndtri": (op.ndtri, 0, 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_functions(name: str, dtype: str) -> None:
    f, low, high = SPECIAL[name]
    x = np.random.default_rng(0).uniform(low, high, 500)
    x = np.append(x, [0, -0.0, 1, 2, 2.5, 0.5, -1, np.inf, -np.inf, np.nan, 1e-30]).astype(dtype)
    (got,) = run(model_bytes(f, x), x)
    with override(target="numpy"):
        want = np.asarray(f(ts.tensor(x)))
    rtol = 1e-5 if dtype == "float32" else 1e-13
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


DRAWN: dict[str, Any] = {
    "bits": lambda k: op.random.bits(k, (5, 3)), "wide bits": lambda k: op.random.bits(k, (5,), ts.u64),
    "split": lambda k: op.random.split(k, 3), "fold_in": lambda k: op.random.fold_in(k, 5),
    "uniform": lambda k: op.random.uniform(k, (4, 5)), "loggamma": lambda k: op.random.loggamma(k, 0.5, (9,)),
    "bernoulli": lambda k: op.random.bernoulli(k, 0.3, (9,)),
    "normal": lambda k: op.random.normal(k, (4, 5)), "gumbel": lambda k: op.random.gumbel(k, (9,)),
    "exponential": lambda k: op.random.exponential(k, (9,)), "gamma": lambda k: op.random.gamma(k, 2.5, (9,)),
    "randint": lambda k: op.random.randint(k, (9,), -3, 10),
    "poisson": lambda k: op.random.poisson(k, 3.0, (9,)),
    "permutation": lambda k: op.random.permutation(k, 9), "choice": lambda k: op.random.choice(k, 9, (4,)),
    "categorical": lambda k: op.random.categorical(k, ts.tensor([0.1, 0.7, 0.3]), shape=(9,)),
    "dropout": lambda k: op.random.dropout(k, op.full((4, 5), 1.0, f32), 0.4),
    "doubles": lambda k: op.random.normal(k, (9,), dtype=ts.f64),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_random_numbers_are_those_of_the_key(name: str) -> None:
    """Bits and what is counted are equal; a logarithm of another library may differ in its last digits."""
    key, f = ts.key(7), DRAWN[name]
    with override(target="numpy"):
        want = np.asarray(f(key))
    (got,) = run(model_bytes(f, key), np.asarray(key))
    assert got.dtype == want.dtype
    if want.dtype.kind == "f":
        np.testing.assert_allclose(
            got, want, rtol=1e-5 if want.dtype == np.float32 else 1e-13, atol=1e-6
        )
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["u8", "u16", "u32", "u64", "i8", "i16", "f16", "bool"])
def test_order_and_choice_in_every_dtype(dtype: str) -> None:
    """Runtimes put four dtypes in order, and choose among seven; the others are carried by a wider one."""
    wide = np.random.default_rng(0).integers(0, 2**64, (3, 6), np.uint64, endpoint=False)
    most = {"bool": 2, "f16": 1000}.get(dtype, 2**64 - 1)
    x = (wide % np.uint64(most)).astype(as_dtype(dtype).np)

    def f(x: Any, where: Any) -> Any:
        return op.sort(x), op.sort(x, 0, descending=True), op.where(where, x, x[:, 1:2])

    where = np.random.default_rng(1).integers(0, 2, (3, 6)).astype(bool)
    with override(target="numpy"):
        wanted = [np.asarray(v) for v in f(ts.tensor(x), ts.tensor(where))]
    for got, want in zip(run(model_bytes(f, x, where), x, where), wanted, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
