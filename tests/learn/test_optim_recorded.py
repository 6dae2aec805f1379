"""Optimisers with random options end where PyTorch's do, by a record of its steps; schedules are their
formulas.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tests.support.cases import optimizers

RUNS_ON = "numpy"
RECORD = json.loads(optimizers.RECORD.read_text())


def test_every_optimiser_is_recorded() -> None:
    assert [*RECORD] == [f"{n} {s}" for n in optimizers.OPTIMIZERS for s in optimizers.SEEDS]


@pytest.mark.parametrize("case", RECORD)
def test_an_optimiser_ends_where_pytorch_does(case: str) -> None:
    name, seed = case.split()
    found = optimizers.tessera(name, int(seed), optimizers.STEPS)[-1]
    flat = np.concatenate([p.reshape(-1) for p in found])
    np.testing.assert_allclose(flat, RECORD[case], rtol=1e-9, atol=1e-11)


def cosine(start: float, steps: int, floor: float, i: float) -> float:
    return floor + (start - floor) * (1 + math.cos(math.pi * min(i / steps, 1))) / 2


def one_cycle(i: int) -> float:
    top, low = 0.3 * 20 - 1, 0.5 / 25
    if i <= top:
        return cosine(low, 1, 0.5, i / top)
    return cosine(0.5, 1, low / 1e4, min((i - top) / (19 - top), 1))


O = ts.optim
SCHEDULES: dict[str, tuple[Any, Any]] = {
    "constant": (O.constant(0.3), lambda i: 0.3),
    "linear": (O.linear(0.1, 0.5, 8), lambda i: 0.1 + 0.4 * min(i / 8, 1)),
    "exponential": (O.exponential(0.5, 0.9), lambda i: 0.5 * 0.9**i),
    "staircase": (O.staircase(0.5, 0.3, 4), lambda i: 0.5 * 0.3 ** (i // 4)),
    "milestones": (O.milestones(0.5, {3: 0.1, 8: 0.2}),
    lambda i: 0.5 * (0.1 if i >= 3 else 1) * (0.2 if i >= 8 else 1)),
    "polynomial": (O.polynomial(0.5, 10, 2.0, 0.1), lambda i: 0.1 + 0.4 * (1 - min(i / 10, 1)) ** 2),
    "cosine": (O.cosine(0.5, 20, 0.1), lambda i: cosine(0.5, 20, 0.1, i)),
    "cosine_restarts": (O.cosine_restarts(0.5, 7, 0.1), lambda i: cosine(0.5, 7, 0.1, i % 7)),
    "inverse_sqrt": (O.inverse_sqrt(0.5, 4), lambda i: 0.5 * min((i + 1) / 4, math.sqrt(4 / (i + 1)))),
    "warmup": (O.warmup(0.5, 4, 0.2), lambda i: 0.5 * (0.2 + 0.8 * min(i / 4, 1))),
    "warmup of a schedule": (
        O.warmup(O.exponential(0.5, 0.9), 4), lambda i: 0.5 * i / 4 if i < 4 else 0.5 * 0.9 ** (i - 4),
    ),
    "one_cycle": (O.one_cycle(0.5, 20), one_cycle),
    "join": (
        O.join([O.constant(0.1), O.exponential(0.5, 0.8), O.constant(0.25)], [5, 9]),
        lambda i: 0.1 if i < 5 else 0.5 * 0.8 ** (i - 5) if i < 9 else 0.25,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_its_formula(name: str) -> None:
    ours, formula = SCHEDULES[name]
    steps = range(20 if name == "one_cycle" else 26)
    got = [ours(ts.tensor(float(i), ts.f64)).item() for i in steps]
    np.testing.assert_allclose(got, [formula(i) for i in steps], rtol=1e-9, atol=1e-12)


def test_a_negative_number_of_steps_is_refused() -> None:
    for make in (
        lambda: O.polynomial(0.5, -1),
        lambda: O.cosine(0.5, -1),
        lambda: O.warmup(0.5, -1),
    ):
        with pytest.raises(ts.TesseraError, match="steps is -1, expected 0 or more"):
            make()
