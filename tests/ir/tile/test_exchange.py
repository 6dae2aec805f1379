"""Tiles that exchange elements: the interpreter, machine code and the text agree with NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import tessera as ts
from tessera.core.dtype import f32, i64
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.verify import verify
from tests.support.cases.exchanges import exchanges
from tests.support.runners.tile_machine import Machine


def test_the_levels_agree_with_numpy() -> None:
    made = list(exchanges(24, seed=4))
    assert len(made) > 15
    machine = Machine([kernel for kernel, _, _ in made])
    for i, (kernel, arrays, want) in enumerate(made):
        verify(kernel)
        read = ts.ir.parse(kernel.text)
        assert isinstance(read, Kernel)
        assert read.text == kernel.text
        for run in (lambda a, k=read: interpret(k, a, {}), lambda a, i=i: machine.run(i, a)):
            here = [a.copy() for a in arrays]
            run(here)
            assert here[1].tobytes() == want.tobytes(), kernel


def test_elements_are_taken_at_places_that_are_data() -> None:
    r = np.random.default_rng(1)
    cases = []
    for n, count in ((1, 4), (8, 8), (32, 4), (4, 64)):
        b = Builder(f"take{n}_{count}")
        x = b.parameter("x", TensorType(f32, (n,)))
        at = b.parameter("at", TensorType(i64, (count,)))
        y = b.parameter("y", TensorType(f32, (count,)), True)
        b.store(y, b.take(b.load(x, (0,), (n,)), b.load(at, (0,), (count,))), (0,), (count,))
        places = r.integers(0, n, count)
        numbers = r.normal(size=n).astype(np.float32)
        cases.append((b.finish(), [numbers, places, np.zeros(count, np.float32)]))
    machine = Machine([kernel for kernel, _ in cases])
    for i, (kernel, arrays) in enumerate(cases):
        verify(kernel)
        assert ts.ir.parse(kernel.text).text == kernel.text
        for run in (lambda a, k=kernel: interpret(k, a, {}), lambda a, i=i: machine.run(i, a)):
            here = [a.copy() for a in arrays]
            run(here)
            assert here[2].tobytes() == arrays[0][arrays[1]].tobytes()


def test_a_place_outside_of_a_tile_is_an_error_of_the_interpreter() -> None:
    b = Builder("k")
    y = b.parameter("y", TensorType(f32, (2,)), True)
    b.store(y, b.take(b.full(f32, (4,), 1.0), b.index(3, (2,), 0)), (0,), (2,))
    with pytest.raises(VerifyError, match="take: places 3 to 4 of 4 elements"):
        interpret(b.finish(), [np.zeros(2, np.float32)], {})


def test_on_a_gpu_tiles_are_joined_and_split_without_memory() -> None:
    for kernel, _, _ in exchanges(20, seed=5):
        text = emit(kernel)
        given, made = (kernel.parameters[i].type.shape[0] for i in (0, 1))
        assert isinstance(given, int)
        assert isinstance(made, int)
        assert text.count("tl.join(") == given - 1
        assert text.count("tl.split(") == made - 1
        assert "scratch" not in text


@pytest.mark.parametrize(
    ("shape", "order", "count", "message"),
    [
        ((2, 4), (0, 1), 2, "exchange: (2, 4) does not hold 2 tiles of f32[8]"),
        ((2, 8), (0, 0), 2, "exchange: (0, 0) is no order of the axes of (2, 8)"),
        ((16,), (0,), 2, "exchange: no first axes of (16,) number 2 tiles"),
        ((2, 8), (1, 0), 4, "exchange: no first axes of (8, 2) number 4 tiles"),
        ((2, 3, 8), (0, 1, 2), 2, "exchange: (2, 3, 8) and 2 are to be powers of two"),
    ],
)
def test_the_builder_refuses(
    shape: Sequence[int], order: Sequence[int], count: int, message: str
) -> None:
    b = Builder("k")
    with pytest.raises(VerifyError) as e:
        b.exchange([b.full(f32, (8,), 1.0), b.full(f32, (8,), 2.0)], shape, order, count)
    assert e.value.message == message


def test_places_are_whole_numbers() -> None:
    b = Builder("k")
    with pytest.raises(VerifyError) as e:
        b.take(b.full(f32, (8,), 1.0), b.full(f32, (4,), 2.0))
    wanted = "take: f32[8] at f32[4], expected tiles of one axis and places of i64"
    assert e.value.message == wanted


def test_tiles_of_one_type_are_exchanged() -> None:
    b = Builder("k")
    with pytest.raises(VerifyError) as e:
        b.exchange([b.full(f32, (8,), 1.0), b.full(f32, (4,), 2.0)], (2, 8), (1, 0), 8)
    wanted = "exchange: got ['f32[8]', 'f32[4]'], expected tiles of one axis and size"
    assert e.value.message == wanted
