"""filters: transforms with what is between them as one step, with the bits of the steps alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.fft

import tessera as ts
from tessera import Tensor, op
from tessera.core.filters import FilterPart, parts_of
from tessera.core.flags import override
from tessera.ir.schedule.ir import Primitive, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.passes.fuse_fft import fuse_fft
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.cpu import filter as filter_tiles
from tessera.ir.tile.cpu.fft import FftSchedule, Transform
from tessera.ir.tile.cpu.lower import expand
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels


def draw(*shape: int, dtype: Any = np.complex64) -> Any:
    rng = np.random.default_rng(shape)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def along(axis: int, norm: str = "backward") -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The transform along an axis, and its inverse."""
    return (lambda x: op.fft(x, None, axis, norm)), (lambda x: op.ifft(x, None, axis, norm))


def program(f: Callable[..., Any], *xs: Any) -> tuple[Program, Program]:
    """The program of f with every step alone, and with filters."""
    p = lower(levels.prepared(ts.trace(f, *map(ts.tensor, xs))))
    return p, fuse_fft(p)


def names(p: Program) -> list[str]:
    return [s.primitive for s in p.steps if isinstance(s, Primitive)]


F, B = along(0)
FORTH, BACK = along(1, "ortho")
# What is fused, the steps that are left, and the operands: 17 and 21 columns overlap, 40 do not.
CASES: dict[str, tuple[Callable[..., Any], list[str], tuple[Any, ...]]] = {
    "convolution": (lambda x, k: B(F(x) * F(k)), ["filter"], (draw(24, 17), draw(24, 17))),
    "given spectrum": (lambda x, h: B(F(x) * h), ["filter"], (draw(36, 21), draw(36, 21))),
    "product and back": (lambda x, h: B(x * h), ["filter"], (draw(64, 16), draw(64, 16))),
    "there and back": (lambda x: B(F(x)), ["filter"], (draw(128, 40),)),
    "three in a row": (lambda x: F(B(F(x))), ["filter", "fft"], (draw(12, 21),)),
    "norms and a batch": (
        lambda x, h: BACK(op.conj(h) * FORTH(x) - h), ["filter"], (draw(3, 100, 17), draw(3, 100, 17)),
    ),
    "double precision": (
        lambda x, h: B(-F(x) + h), ["filter"], (draw(60, 18, dtype="c16"), draw(60, 18, dtype="c16")),
    ),
    # What is no filter: few columns, one pass, a length by a chirp, another axis, a spectrum that
    # is used twice.
    "few columns": (lambda x, k: B(F(x) * F(k)), ["fft", "fft", "mul", "ifft"], (draw(24, 7),) * 2),
    "one pass": (lambda x, h: B(F(x) * h), ["fft", "mul", "ifft"], (draw(8, 20),) * 2),
    "a chirp": (lambda x, h: B(F(x) * h), ["fft", "mul", "ifft"], (draw(22, 20),) * 2),
    "another axis": (lambda x: B(FORTH(x)), ["fft", "ifft"], (draw(24, 20),)),
    "used twice": (lambda x: (B(F(x)), F(x)), ["fft", "ifft"], (draw(24, 20),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_level_has_the_bits_of_the_steps_alone(name: str) -> None:
    f, left, xs = CASES[name]
    alone, joined = program(f, *xs)
    assert names(joined) == left
    verify(joined)
    assert parse_program(joined.text).text == joined.text
    want = levels.by_schedule(alone, xs)
    for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        assert same_bits(run(joined, xs), want), run.__name__


def test_parts_say_what_is_computed() -> None:
    _, joined = program(lambda x, h: BACK(op.conj(h) * FORTH(x)), draw(2, 24, 16), draw(2, 24, 16))
    (s,) = joined.steps
    assert isinstance(s, Primitive)
    parts = parts_of(s.params)
    assert parts == [
        FilterPart("conj", (0,)), FilterPart("fft", (1,), "ortho"), FilterPart("mul", (2, 3)),
        FilterPart("ifft", (4,), "ortho"),
    ]  # fmt: skip
    assert tuple(map(str, parts)) == s.params["parts"]


def test_a_convolution_in_the_plane() -> None:
    """Near SciPy's, on any number of threads, and the same bits as eager ops."""
    x, k = draw(40, 36, dtype="f4"), draw(40, 36, dtype="f4")

    def f(x: Any, k: Any) -> Any:
        return op.irfftn(op.rfftn(x) * op.rfftn(k))

    jitted = ts.jit(f, target="cpu")
    assert [s.primitive for s in jitted.lower(x, k).schedule.steps] == [
        "rfft",
        "rfft",
        "filter",
        "irfft",
    ]
    eager = f(ts.tensor(x), ts.tensor(k)).numpy()
    want = scipy.fft.irfft2(scipy.fft.rfft2(x.astype(float)) * scipy.fft.rfft2(k.astype(float)))
    assert np.linalg.norm(eager - want) < 1e-6 * np.linalg.norm(want)
    for threads in (1, 2, 3, 8):
        with override(threads=threads):
            assert same_bits([jitted(x, k).numpy()], [eager])


@pytest.mark.parametrize("count", [20, pytest.param(50, marks=pytest.mark.deep)])
def test_schedules_do_not_change_a_filter(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """2 to 32 lanes, whole or short vectors."""
    x, k = draw(12, 33), draw(12, 33)
    alone, joined = program(CASES["convolution"][0], x, k)
    want = levels.by_schedule(alone, (x, k))
    types = {n: b.type for n, b in joined.buffers.items()}
    texts = set()
    some = (2, 3, 4, 5, 6, 7, 8, 11, 12, 15, 16, 23, 31, 32)
    for lanes, register in product(some if count == 20 else range(2, 33), (16, 64)):
        made = partial(Transform, schedule=FftSchedule(lanes=lanes, register=register))
        monkeypatch.setattr(filter_tiles, "Transform", made)
        text = str(expand(joined.steps[0], types).launches[0].kernel)
        if text not in texts and len(texts) < count:
            texts.add(text)
            assert same_bits(levels.by_llvm(joined, (x, k)), want), (lanes, register)
    assert len(texts) == count


def test_columns_may_be_of_any_number() -> None:
    @ts.jit(target="cpu")
    def f(x: Tensor["B", 24, "C", ts.c64], h: Tensor["B", 24, "C", ts.c64]) -> Any:
        return op.ifft(op.fft(x, axis=1) * h, axis=1)

    for batch, columns in ((1, 1), (3, 17), (2, 5), (2, 40)):
        x, h = draw(batch, 24, columns), draw(batch, 24, columns)
        eager = op.ifft(op.fft(ts.tensor(x), axis=1) * ts.tensor(h), axis=1)
        assert same_bits([f(x, h).numpy()], [eager.numpy()])
    assert f.compiled == 1
    assert "filter" in str(f.lower(x, h).schedule)
