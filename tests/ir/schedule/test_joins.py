"""What may join a kernel, and which views are reads: programs that one missing question would break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import f32, i64
from tests.support.cases.random_programs import Case
from tests.support.runners.laws import check_all


def flat(x: Any) -> Any:
    return op.reshape(x, (-1,))


def exp(x: Any) -> Any:
    """What is dear enough to be computed once for two users."""
    return op.exp(x * 0.25)


# Functions of a square matrix.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "some rows of a fold": lambda x: op.sum(x, 1)[:5] * 2.0,
    "some rows of a fold, with all": lambda x: (op.sum(x, 1)[:5] * 2.0, op.sum(x, 1)),
    "some rows of a norm": lambda x: op.exp(op.softmax(x)[:3]) + 1.0,
    "some columns of a norm": lambda x: op.exp(op.softmax(x)[:, :3]) + 1.0,
    "columns of a norm from the second on": lambda x: op.tanh(op.softmax(x)[:, 1:]),
    "rows in reverse": lambda x: exp(x) + op.flip(exp(x), 0),
    "columns in reverse": lambda x: exp(x) + op.flip(exp(x), 1),
    "the row before": lambda x: exp(x)[1:] - exp(x)[:-1],
    "the transpose": lambda x: exp(x) + exp(x).T,
    "a fold of other rows": lambda x: op.sum(exp(x), 1, keepdims=True) + op.flip(exp(x), 0),
    "a fold as a column": lambda x: x * op.sum(exp(x), 1),
    "a fold twice": lambda x: op.max(x - op.sum(exp(x), 1, keepdims=True), 1),
    "a product and its transpose": lambda x: x @ exp(x) + (x @ exp(x)).T,
    "a product in reverse": lambda x: op.tanh(x @ exp(x)) * op.flip(x @ exp(x), 0),
    "a product and its first row": lambda x: (x @ exp(x)) - (x @ exp(x))[:1],
    "a product and its first column": lambda x: (x @ exp(x)) - (x @ exp(x))[:, :1],
    "cut and folded anew": lambda x: op.reshape(flat(exp(x))[1:41], (5, 8)) + 1.0,
    "cut at its width": lambda x: op.reshape(flat(exp(x))[9:45], (4, 9)) + 1.0,
    "cut, in reverse": lambda x: op.reshape(op.flip(flat(exp(x)))[2:38], (4, 9)) * 2.0,
    "in reverse and folded anew": lambda x: op.reshape(op.flip(flat(x)), (9, 9)) * 2.0,
    "two rows with gaps": lambda x: flat(x[:2, :3]),
    "two rows with gaps, computed": lambda x: flat(exp(x)[:2, :3]) + flat(x[:2, 4:7]),
    "columns with gaps": lambda x: flat(x[:, :2]),
    "every second": lambda x: op.reshape(x[::2, ::3], (-1,)) + 1.0,
    "a slice of slices": lambda x: x[1::2, 1:][1:, ::3] * 2.0,
    "turned twice": lambda x: op.transpose(op.transpose(op.reshape(x, (3, 3, 9)), (1, 2, 0)), (2, 0, 1))
    + 1.0,
    "taken in order, past the end": lambda x: op.take(x[:3], op.iota((5,), 0, i64), axis=0) + 1.0,
    "taken in reverse, past the end": lambda x: op.take(x[:3], op.flip(op.iota((5,), 0, i64)), axis=0) + 1.0,
    "taken in reverse": lambda x: op.take(x, op.flip(op.iota((9,), 0, i64))[2:], axis=1) + 1.0,
    "a value and its view": lambda x: op.sum(exp(x), 0) + flat(exp(x))[:9],
    "one value in two places": lambda x: (exp(x), op.sum(exp(x).T @ x, 0), exp(x).T @ exp(x)),
}  # fmt: skip


def case(name: str, *shape: Any) -> Case:
    x = np.random.default_rng(0).normal(size=(9, 9)).astype(np.float32)
    return Case(1, name, ts.trace(PROGRAMS[name], Tensor[(*shape, f32)]), ([x],))


def test_programs_agree_at_every_level() -> None:
    check_all([case(name, 9, 9) for name in PROGRAMS])


SYMBOLIC = [
    n
    for n in PROGRAMS
    if not any(w in n for w in ("cut", "turned", "folded anew", "gaps", "taken"))
]


@pytest.mark.parametrize("shape", [("N", "N"), ("N", 9)], ids=str)
def test_programs_of_symbolic_sizes_agree_at_every_level(shape: tuple[Any, ...]) -> None:
    skipped = {"a slice of slices", "every second", "some rows of a fold", "some rows of a norm",
               "some columns of a norm", "some rows of a fold, with all"}  # fmt: skip
    names = [n for n in SYMBOLIC if n not in skipped]
    if shape == ("N", 9):
        names = [
            n for n in names if n.startswith(("rows", "columns in", "the row", "a fold twice"))
        ]
    check_all([case(n, *shape) for n in names])
