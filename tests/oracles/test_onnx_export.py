"""What ts.onnx.save writes, as onnxruntime runs it: every op of the catalogue that ONNX can say, and
models.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.flags import override
from tessera.interop.onnx.export import model_bytes
from tests.support.cases import op_cases

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.oracle

# Ops that ONNX has no node for: linear algebra, random bits, complex numbers, bits of floats, running
# folds other than sums, special functions, kernels and functions of one's own.
NO_FORM = {
    "adjugate", "adjugate_slope", "cholesky", "cluster_turn", "clusters", "complex", "complex_contract",
    "conj", "cummax",
    "cummin", "cumprod", "dct", "digamma", "eig", "eigh", "eigvals", "eigvalsh", "erfcinv", "erfinv",
    "expm", "expm_frechet", "fft", "float_bits", "from_bits", "gamma", "gauged", "host_call", "ifft",
    "imag", "inv",
    "irfft", "kernel", "lgamma", "linear_recurrence", "logcumsumexp", "loggamma_sample",
    "loggamma_slope", "lu", "matrix_function", "matrix_function_frechet", "nextafter", "overlap_add",
    "pinv", "polygamma", "qr", "random_bits", "real", "rfft", "same_in_every_gauge", "searchsorted",
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
