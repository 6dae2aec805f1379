"""Random whole programs on a GPU mean what the references of their ops mean.

Without a GPU the Tile interpreter runs the kernels, with one Triton's machine code does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

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


@pytest.mark.gpu
@pytest.mark.skipif(not driver.available(), reason="there is no GPU")
@pytest.mark.parametrize("start", range(1000, 1160, 20))
def test_random_programs_on_a_gpu(start: int) -> None:
    for seed in range(start, start + 20):
        check(seed)
