"""Steps of constants run once; memory that may be written is read at each call."""

from __future__ import annotations

import mmap
import tempfile
from typing import Any

import numpy as np

import tessera as ts
from tessera import op
from tessera.compile.cpu.constants import is_constant
from tessera.compile.cpu.executable import MachineExecutable


def frozen(x: Any) -> Any:
    x.flags.writeable = False
    return x


def draw(*shape: int) -> Any:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def test_constants_are_arrays_that_nobody_can_write_to() -> None:
    owner = draw(4)
    view = owner[:2]
    view.flags.writeable = False
    assert not is_constant(owner)
    assert not is_constant(view)  # through its owner
    assert is_constant(np.frombuffer(bytes(16), np.float32).reshape(2, 2))
    assert not is_constant(np.frombuffer(bytearray(16), np.float32))
    assert not is_constant(np.frombuffer(mmap.mmap(-1, 16), np.float32))
    assert is_constant(frozen(owner))
    # The weights of a bundle are views of a map of its file.
    assert is_constant(np.frombuffer(memoryview(bytes(16))[8:], np.float32))
    assert not is_constant(np.frombuffer(memoryview(bytearray(16)).toreadonly(), np.float32))
    assert not is_constant(np.frombuffer(memoryview(mmap.mmap(-1, 16)).toreadonly(), np.float32))
    with tempfile.TemporaryFile() as f:
        f.write(bytes(16))
        f.flush()
        mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        assert is_constant(np.frombuffer(memoryview(mapped), np.float32))


def executable(f: Any, *xs: Any) -> MachineExecutable:
    made, _ = f.program(*xs)
    assert isinstance(made, MachineExecutable)
    return made


def test_weights_are_packed_once() -> None:
    w = frozen(draw(64, 8, 3, 3))
    f = ts.jit(lambda x: op.conv(x, ts.asarray(w), padding=1))
    x = ts.tensor(draw(1, 8, 12, 12))
    want = ts.jit(lambda x, w: op.conv(x, w, padding=1))(x, ts.tensor(w))
    np.testing.assert_array_equal(f(x), want)
    np.testing.assert_array_equal(f(x), want)
    made = executable(f, x)
    whole, each = made.image.steps, made.prepared([x.numpy(), w]).image.steps
    assert len(each) == len(whole) - 1


def test_borrowed_memory_is_read_at_each_call() -> None:
    w = draw(64, 8, 3, 3)
    held = ts.asarray(w)
    f = ts.jit(lambda x: op.conv(x, held, padding=1))
    x = ts.tensor(draw(1, 8, 12, 12))
    first = f(x).numpy()
    w *= 2
    np.testing.assert_allclose(f(x).numpy(), 2 * first, rtol=1e-6)


def test_results_that_are_constants_stay_results() -> None:
    w = frozen(draw(3, 4))
    f = ts.jit(lambda x: (x + 1, op.exp(ts.asarray(w)), ts.asarray(w)))
    for _ in range(2):
        _, y, z = f(ts.tensor(draw(2)))
        np.testing.assert_allclose(y, np.exp(w), rtol=1e-6)
        np.testing.assert_array_equal(z, w)


def test_what_grows_is_not_kept() -> None:
    w = frozen(draw(300))
    f = ts.jit(lambda x: op.conv(op.broadcast_to(ts.asarray(w), (300, 300))[None, None], x))
    x = ts.tensor(draw(1, 1, 3, 3))
    want = ts.jit(lambda x, w: op.conv(op.broadcast_to(w, (300, 300))[None, None], x))(
        x, ts.tensor(w)
    )
    np.testing.assert_array_equal(f(x), want)
    made = executable(f, x)
    assert len(made.prepared([x.numpy(), w]).image.steps) == len(made.image.steps)


def test_open_sizes_and_loops() -> None:
    w = frozen(draw(32, 8, 3))

    def f(x: Any) -> Any:
        y = op.conv(x, ts.asarray(w))
        return op.scan(
            lambda c, row: (c + row, c), op.zeros((x.shape[0], 32)), op.moveaxis(y, 2, 0)
        )

    for n in (9, 17):
        x = ts.tensor(draw(2, 8, n))
        got, want = ts.jit(f)(x), ts.jit(f, target="numpy")(x)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-4)


def test_steps_of_constants_that_read_open_sizes_run_at_each_call() -> None:
    w = frozen(draw(5, 7))

    def f(x: ts.Tensor["N", 5, ts.f32]) -> Any:  # type: ignore[valid-type]
        y = ts.asarray(w) * x.shape[0]  # a kernel of constants and a size
        return op.sum(x, axis=0) @ op.softmax(y, axis=-1), op.cholesky(
            y.T @ y + op.eye(7) * x.shape[0]
        )

    g = ts.jit(f)
    for n in (3, 4):
        x = ts.tensor(draw(n, 5))
        for got, want in zip(g(x), f(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4)


def test_a_mean_of_a_transform_counts_an_open_size() -> None:
    def f(x: ts.Tensor["N", 1, ts.f64]) -> Any:  # type: ignore[valid-type]
        return op.mean(op.fft(op.cast(x, ts.c128), n=1), axis=0)

    g = ts.jit(f)
    for n in (2, 5):
        x = ts.tensor(np.arange(n, dtype=np.float64)[:, None])
        np.testing.assert_array_equal(g(x), [(n - 1) / 2])
