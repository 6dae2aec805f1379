"""Random whole programs on a GPU mean what the references of their ops mean.

Without a GPU the Tile interpreter runs the kernels, with one Triton's machine code does.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tessera.compile import compile_graph
from tessera.runtime.cuda import driver
from tests.support.cases.random_programs import program
from tests.support.fakes.gpu_fake import fake_gpu
from tests.support.runners.laws import check_near

RUNS_ON = "numpy"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some ops run on the host
        yield


def check(seed: int) -> None:
    """One program on the device that is there, at all of its inputs."""
    c = program(seed)
    made = compile_graph(c.graph, "cuda")
    for inputs in c.inputs:
        plain = [np.array(x, order="C") for x in inputs]
        check_near(c, plain, [y.numpy() for y in made.run(plain)])


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_programs_by_the_interpreter(start: int) -> None:
    with fake_gpu():
        for seed in range(start, start + 20):
            check(seed)


@pytest.mark.parametrize("seed", [1009, 1010, 1011])
def test_what_is_printed_reshapes_tiles_and_no_numbers(seed: int) -> None:
    """Triton refuses a number there; the interpreter of tiles does not see what is printed."""
    c = program(seed)
    made: Any = compile_graph(c.graph, "cuda:sm_90")
    calls = made.planned_at([x.shape for x in c.inputs[0]]).image.calls
    texts = [call.source.text for call in calls]
    assert texts
    for text in texts:
        assert not re.search(r"tl\.(reshape|trans|permute|reduce|gather)\((\d|True|False)", text), (
            text
        )


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
@pytest.mark.parametrize("start", range(1000, 1160, 20))
def test_random_programs_on_a_gpu(start: int) -> None:
    for seed in range(start, start + 20):
        check(seed)
