"""The text that each level prints is the text that `ts.ir.parse` reads, and what is read can be run."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import ParseError
from tessera.core.kernels import Kernels
from tests.support.cases.random_chains import chain
from tests.support.runners.levels import run_llvm

PROGRAMS = {
    "one kernel": (lambda x: x * 2.0 + 1.0, (5, 3)),
    "several kernels": (
        lambda x: op.softmax(op.cumsum(x @ op.transpose(x, (1, 0)), 0), -1),
        (4, 6),
    ),
    "a transform": (lambda x: op.abs(op.fft(x)), (17, 4)),
    "a call of the host": (lambda x: op.reshape(op.sort(x, axis=0), (15,)) * 2.0, (5, 3)),
    "no kernel": (lambda x: x, (2, 2)),
    "folds of several axes": (
        lambda x: op.sum(x * x, (0, 2)) + op.max(x, (1, 3)).sum(),
        (2, 3, 4, 5),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_lowered_prints_is_read_again(name: str) -> None:
    f, shape = PROGRAMS[name]
    low = ts.jit(f).lower(ts.tensor(np.ones(shape, np.float32)))
    for level in (low.graph, low.schedule):
        assert str(ts.ir.parse(str(level))) == str(level)
    for kernels in (low.tile, low.target):
        if kernels:
            again = ts.ir.parse(str(kernels))
            assert isinstance(again, Kernels)
            assert list(again) == list(kernels)
            assert str(again) == str(kernels)
            assert {n: str(k) for n, k in again.items()} == {n: str(k) for n, k in kernels.items()}


@pytest.mark.parametrize("kind", ["views", "epilogues", "sharing"])
def test_random_programs_are_read_again(kind: str) -> None:
    for seed in range(5):
        c = chain(kind, seed)
        low = ts.jit(c.traced).lower(*map(ts.tensor, c.inputs))
        assert str(ts.ir.parse(str(low.schedule))) == str(low.schedule)
        assert not low.tile or str(ts.ir.parse(str(low.tile))) == str(low.tile)


def test_kernels_that_are_read_can_be_run() -> None:
    low = ts.jit(lambda x: op.cumsum(x * 2.0, 0)).lower(ts.tensor(np.ones((4, 3), np.float32)))
    kernels = list(ts.ir.parse(str(low.tile)).values())
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    parts = [np.zeros_like(x) for _ in kernels]
    for k, source, out in zip(kernels, [x, *parts], parts, strict=False):
        arrays = [
            source.reshape(k.parameters[0].type.shape),
            out.reshape(k.parameters[-1].type.shape),
        ]
        run_llvm(k, arrays, {})
    np.testing.assert_allclose(parts[-1], np.cumsum(x * 2, 0))


def test_an_error_says_the_line_of_the_whole_text() -> None:
    low = ts.jit(lambda x: op.cumsum(x * 2.0, 0)).lower(ts.tensor(np.ones((4, 3), np.float32)))
    text = str(low.tile)
    assert text.count('"builtin.module"') == 2
    at = text.index('"builtin.module"', 5)
    line = text[:at].count("\n") + 1
    with pytest.raises(ParseError, match=f"line {line}, "):
        ts.ir.parse(text[:at] + text[at:].replace("builtin.module", "builtin.modul", 1))
