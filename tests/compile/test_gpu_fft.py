"""Fourier transforms on a GPU: the bits of the CPU for any length, axis and kind, whatever a thread holds."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import DType, c64, c128, f32
from tessera.core.fourier import FourierPlan
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu import fft, fft_lines
from tests.support.fakes.gpu_fake import fake_gpu

RUNS_ON = "numpy"
LENGTHS = [1, 2, 3, 4, 6, 7, 11, 15, 22, 33, 64, 100, 256]


@contextmanager
def no_faults() -> Iterator[None]:
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("error")  # a kernel that fails leaves its program to the host
        yield


def numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    rng = np.random.default_rng(list(shape))
    x = rng.standard_normal((2, *shape))
    return (x[0] + 1j * x[1]).astype(dtype) if np.dtype(dtype).kind == "c" else x[0].astype(dtype)


def check(name: str, n: int, axis: int, wide: bool, place: Any = no_faults, **options: Any) -> None:
    shape = [3, 2] if n % 3 else [4, 32]  # some of which fill whole blocks
    shape.insert(axis, n // 2 + 1 if name == "irfft" else n)
    kinds = ("f4", "f8") if name == "rfft" else ("c8", "c16")
    x = numbers(tuple(shape), kinds[wide])
    options |= {"n": n} if name == "irfft" else {}

    def f(x: Any) -> Any:
        return getattr(op, name)(x, axis=axis, **options)

    with place():
        got = ts.jit(f)(ts.tensor(x).to("cuda")).numpy()
    want = ts.jit(f, target="cpu")(ts.tensor(x)).numpy()
    assert got.tobytes() == want.tobytes(), (name, n, axis, options)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_bits_of_the_cpu(name: str) -> None:
    for i, n in enumerate(LENGTHS):
        check(name, n, axis=(2, 0, 1)[i % 3], wide=bool(i % 2))
        check(name, n, axis=(0, 2, 1)[i % 3], wide=not i % 2, norm="ortho")


@pytest.mark.parametrize("most", [8, 16, 64])
def test_what_a_thread_holds_changes_no_bit(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft, "_RADIX", {32: most, 64: most})
    for name, n in [("fft", 256), ("rfft", 210), ("irfft", 120), ("ifft", 55)]:
        check(name, n, axis=2, wide=False)


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_blocks_of_whole_lines_have_the_bits_of_the_cpu(name: str) -> None:
    for axis, n in enumerate((67, 512, 50)):
        check(name, n, axis, wide=axis == 1)
    check(name, 1024, axis=2, wide=False)


@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_where_a_block_holds_a_part_of_a_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of several launches, with lines and columns that do not fill the last block."""
    monkeypatch.setattr(fft_lines, "_MOST", {32: 256, 64: 128})
    for n, axis in ((256, 1), (1024, 0), (2048, 2)):
        check(name, n, axis, wide=False, norm="ortho")
        check(name, n, axis, wide=True, norm="forward")


@pytest.mark.parametrize(
    ("name", "shape", "axis", "dtype", "count"),
    [
        ("rfft", (4, 1024), 1, f32, 1),
        ("fft", (4, 1000), 1, c64, 1),
        ("fft", (1000, 12), 0, c64, 1),
        ("rfft", (4, 1000), 1, f32, 1),
        ("irfft", (4, 513), 1, c64, 1),
        ("rfft", (1024, 4), 0, f32, 2),
        ("fft", (4, 1024), 1, c64, 1),
        ("fft", (4, 8192), 1, c64, 1),
        ("fft", (4, 4096), 1, c128, 1),
        ("fft", (512, 512), 0, c64, 1),
        ("fft", (2, 65536), 1, c64, 2),
        ("fft", (2, 1 << 20), 1, c64, 2),
        ("fft", (3, 1 << 16), 1, c128, 2),
    ],
)
def test_few_launches_of_lines(
    name: str, shape: tuple[int, ...], axis: int, dtype: DType, count: int
) -> None:
    """One where a block of threads holds a line, and of others as many as lines are cut."""
    t = TensorType(dtype, shape)
    params: dict[str, object] = {"axis": axis, "norm": "backward"} | (
        {"n": 1024} if name == "irfft" else {}
    )
    step = Primitive("s", name, params, ("x",), ("y",))
    made = fft.lower_transform(step, {"x": t, "y": t})
    assert made is not None
    assert len(made.launches) == count


def test_several_axes_and_a_batch() -> None:
    x = numbers((2, 6, 10), "c8")
    with no_faults():
        whole = ts.jit(lambda x: op.fftn(x, axes=(1, 2)))(ts.tensor(x).to("cuda")).numpy()
        alone = ts.jit(lambda x: op.fftn(x, axes=(0, 1)))(ts.tensor(x[1]).to("cuda")).numpy()
    assert whole[1].tobytes() == alone.tobytes()
    np.testing.assert_allclose(whole, np.fft.fftn(x, axes=(1, 2)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1024, 120, 144])
def test_few_launches(n: int) -> None:
    t = TensorType(c64, (4, n))
    step = Primitive("s", "fft", {"axis": 1, "norm": "backward"}, ("x",), ("y",))
    made = fft.lower_transform(step, {"x": t, "y": t})
    assert made is not None
    assert len(made.launches) < len(FourierPlan(n).passes)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_on_the_device(name: str) -> None:
    for i, n in enumerate([*LENGTHS, 1000, 1021, 4096, 8192, 65536]):
        check(name, n, axis=(2, 0, 1)[i % 3], wide=bool(i % 2), place=nullcontext)
