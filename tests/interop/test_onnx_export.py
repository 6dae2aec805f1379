"""ts.onnx.save: what is written is valid ONNX and, read again, the same function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from examples.kernels.fused import quantize_rows
from tessera import Tensor, f32, op
from tessera.core.flags import override
from tessera.interop.onnx.export import model_bytes
from tests.support.cases import op_cases

pytest.importorskip("onnx")

W = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)


def dense(x: Any) -> Any:
    return op.softmax(op.tanh(x @ ts.tensor(W)) + op.sum(x, -1, True))


def branches(x: Any) -> Any:
    return ts.cond(op.sum(x) > 0, lambda: x * 2, lambda: x - 1)


def running(x: Any) -> Any:
    return ts.scan(lambda c, r: (c + r, c * r), op.zeros(4, f32), x)


def halved(x: Any) -> Any:
    return ts.while_loop(lambda y: op.max(op.abs(y)) > 0.25, lambda y: y / 2, x)


def placed(x: Any) -> Any:
    return x.at[0].set(x[-1]), op.take(x, np.array([2, 0]), 1), op.roll(x, 1, 0)


@pytest.mark.parametrize("f", [dense, branches, running, halved, placed], ids=lambda f: f.__name__)
def test_a_saved_function_read_again_is_the_same(f: Any, tmp_path: Path) -> None:
    path = tmp_path / "f.onnx"
    x = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
    ts.onnx.save(f, path, x)
    m = ts.onnx.load(path)
    with override(target="numpy"):
        wanted = ts.tree.leaves(f(ts.tensor(x)))
        found = m.run({"x": x})
    for got, want in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_symbolic_sizes_are_named_axes_and_weights_initialisers(tmp_path: Path) -> None:
    path = tmp_path / "f.onnx"
    ts.onnx.save(dense, path, Tensor["B", 4, f32])
    m = ts.onnx.load(path)
    assert m.signature == "(x: float32[B, 4]) -> (output_0: float32[B, 5])"
    assert any(np.array_equal(p, W) for p in m.parameters.values())
    x = np.ones((7, 4), np.float32)
    with override(target="numpy"):
        np.testing.assert_allclose(m.run({"x": x})["output_0"], dense(ts.tensor(x)), rtol=1e-5)


def test_a_kernel_is_a_function_of_its_own_domain(tmp_path: Path) -> None:
    path = tmp_path / "f.onnx"
    x = np.random.default_rng(2).standard_normal((6, 9)).astype(np.float32)
    ts.onnx.save(lambda x: quantize_rows(x * 2), path, x)
    m = ts.onnx.load(path)
    assert [domain for domain, _ in m.model.functions] == ["tessera"]
    with override(target="numpy"):
        codes, scale = quantize_rows(ts.tensor(x * 2))
        found = m.run({"x": x})
    np.testing.assert_array_equal(found["output_0"], codes)
    np.testing.assert_array_equal(found["output_1"], scale)
    with pytest.raises(ts.onnx.OnnxError, match="the kernel quantize_rows has symbolic sizes"):
        ts.onnx.save(quantize_rows, path, Tensor["M", 9, f32])


def test_what_onnx_cannot_say_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ts.onnx.OnnxError) as e:
        ts.onnx.save(lambda x: op.cholesky(x), tmp_path / "f.onnx", np.eye(2))
    assert e.value.message == "onnx: cholesky has no ONNX form"
    for x, what in ((np.eye(2) + 0j, "input 'x'"), (np.eye(2), "a result")):
        with pytest.raises(ts.onnx.OnnxError) as c:
            ts.onnx.save(op.fft, tmp_path / "f.onnx", x)
        assert c.value.message == (
            f"onnx: {what} is c128[2,2], but runtimes of ONNX have no complex tensors; pass or return "
            "op.real(z) and op.imag(z)"
        )
    with pytest.raises(ts.TesseraError) as o:
        ts.onnx.save(lambda x: x, tmp_path / "f.onnx", np.eye(2), opset=7)
    assert o.value.message == "onnx: save writes operator sets 18 to 23, got 7"
    assert not (tmp_path / "f.onnx").exists()


def cases() -> list[op_cases.Case]:
    """Of each op the first cases whose operands have elements."""
    found: dict[str, list[op_cases.Case]] = {}
    for c in op_cases.all_cases():
        if c.op is not None and c.slots and all(0 not in s.shape for s in c.slots):
            found.setdefault(c.op.name, []).append(c)
    return [c for of in found.values() for c in of[:4]]


def called(c: op_cases.Case) -> Any:
    return lambda *xs: c.call(xs)


def test_every_op_that_is_written_is_read_as_it_was() -> None:
    wrong, ops = {}, set()
    with override(target="numpy"):
        for c in cases():
            arrays = c.draw(f32)
            try:
                m = ts.onnx.load(model_bytes(called(c), *arrays))
            except ts.onnx.OnnxError:
                continue
            ops.add(c.op.name if c.op else "")
            wanted = [np.asarray(x) for x in ts.tree.leaves(called(c)(*arrays))]
            names = [i.name for i in m.model.graph.inputs]
            found = m.run(dict(zip(names, arrays, strict=True)))
            for got, want in zip(map(np.asarray, found.values()), wanted, strict=True):
                if got.dtype != want.dtype or not np.allclose(
                    got, want, 2e-4, 1e-5, equal_nan=True
                ):
                    wrong[str(c)] = (got, want)
    assert wrong == {}
    assert len(ops) > 120


WINDOWS: dict[str, dict[str, Any]] = {
    "plain": {}, "stride": {"stride": 2}, "strides": {"stride": (2, 3)}, "dilation": {"dilation": 2},
    "padding": {"padding": ((1, 0), (0, 1))}, "groups": {"groups": 2},
    "all": {"stride": (3, 2), "dilation": (1, 2), "padding": ((1, 2), (0, 1)), "groups": 2},
}  # fmt: skip


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions_and_their_derivatives_are_one_node_each(name: str, more: int) -> None:
    """With elements beyond the last window too, which are padding of the output of the derivative."""
    p, rng = WINDOWS[name], np.random.default_rng(4)
    stride, gap = (op_pair(p.get(k, 1)) for k in ("stride", "dilation"))
    padding = p.get("padding", ((0, 0), (0, 0)))
    beyond = [more if more < s else 0 for s in stride]
    size = [
        (n - 1) * s + (k - 1) * d + 1 - sum(pad) + e
        for n, s, k, d, pad, e in zip((4, 3), stride, (3, 2), gap, padding, beyond, strict=True)
    ]
    x = rng.normal(size=(2, 4, *size)).astype(np.float32)
    w = rng.normal(size=(6, 4 // p.get("groups", 1), 3, 2)).astype(np.float32)
    ct = rng.normal(size=(2, 6, 4, 3)).astype(np.float32)
    forward = lambda x, w: op.conv(x, w, **p)  # noqa: E731
    back = lambda ct, w: op.conv_input(ct, w, tuple(size), **p)  # noqa: E731
    for f, given, node in ((forward, (x, w), "Conv"), (back, (ct, w), "ConvTranspose")):
        m = ts.onnx.load(model_bytes(f, *given))
        assert [n.op for n in m.model.graph.nodes if n.op != "Identity"] == [node]
        names = [i.name for i in m.model.graph.inputs]
        with override(target="numpy"):
            (got,) = m.run(dict(zip(names, given, strict=True))).values()
            want = np.asarray(f(*given))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def op_pair(n: Any) -> tuple[int, ...]:
    return n if isinstance(n, tuple) else (n, n)


def test_a_spectral_filter_comes_back(tmp_path: Path) -> None:
    path, w = tmp_path / "f.onnx", ts.tensor(np.array([1, 2j, 0.5, 0, 1 - 1j], np.complex64))

    def f(x: Any) -> Any:
        return op.irfft(op.rfft(x) * w, n=8) + op.abs(op.fft(x))

    x = np.random.default_rng(4).standard_normal((3, 8)).astype(np.float32)
    for spec in (x, Tensor["B", 8, f32]):
        ts.onnx.save(f, path, spec)
        m = ts.onnx.load(path)
        assert {n.op for n in m.model.graph.nodes} >= {"DFT"}
        with override(target="numpy"):
            np.testing.assert_allclose(m.run({"x": x})["output_0"], f(ts.tensor(x)), atol=1e-5)
