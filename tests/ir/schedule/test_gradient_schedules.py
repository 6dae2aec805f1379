"""The bits of a gradient under any schedule: other nests for kernels, other numbers for what has no nest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.tile.cpu import group, scatter
from tessera.ir.tile.cpu.conv import channels, conv_weights
from tests.support.runners.levels import Runtime, expanded, prepared
from tests.support.runners.schedules import SCHEDULES, schedules

Arrays = dict[str, Any]
RNG = np.random.default_rng(3)


def draw(*shape: int) -> Any:
    return (RNG.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


def transformer(p: Arrays, tokens: Any, targets: Any) -> Any:
    """A layer of causal attention on an embedding, and the loss of the next token."""
    x = op.embedding(p["table"], tokens)
    b, s, d = x.shape
    h = op.layernorm(x, p["gain"])
    q, k, v = (op.swapaxes((h @ p[n]).reshape((b, s, 2, d // 2)), 1, 2) for n in "qkv")
    a = op.swapaxes(op.attention(q, k, v, causal=True), 1, 2)
    x = x + op.gelu(a.reshape((b, s, d)) @ p["up"] + p["bias"]) @ p["down"]
    return op.cross_entropy(x @ p["table"].T, targets)


def perceptron(p: Arrays, x: Any) -> Any:
    """Sums over more rows than a leaf has, in weights, biases and the loss."""
    h = op.tanh(x @ p["first"] + p["bias"])
    return op.mean(op.logsumexp(h @ p["second"], axis=-1))


def convolution(p: Arrays, x: Any) -> Any:
    """Derivatives of a convolution in both operands, and of a running sum."""
    h = op.relu(op.conv2d(op.tanh(op.conv2d(x, p["first"])), p["second"], stride=2))
    return op.mean(op.square(op.cumsum(h, axis=1)))


@dataclass(frozen=True)
class Case:
    """A loss of parameters and data."""

    loss: Callable[..., Any]
    params: Arrays
    data: tuple[Any, ...]

    def program(self) -> Program:
        return lower(prepared(ts.trace(ts.value_and_grad(self.loss), self.params, *self.data)))

    def inputs(self) -> list[Any]:
        return [np.asarray(x) for x in ts.tree.leaves((self.params, *self.data))]


def _case(loss: Callable[..., Any], params: Arrays, *data: Any) -> Case:
    return Case(loss, {k: ts.tensor(x) for k, x in params.items()}, tuple(map(ts.tensor, data)))


D = 32
TOKENS = RNG.integers(0, 40, size=(2, 25))
CASES = {
    "transformer": _case(
        transformer,
        {**{n: draw(D, D) for n in "qkv"}, "table": draw(40, D), "gain": draw(D),
         "up": draw(D, 2 * D), "bias": draw(2 * D), "down": draw(2 * D, D)},
        TOKENS[:, :-1], TOKENS[:, 1:],
    ),
    "perceptron": _case(
        perceptron, {"first": draw(33, 70), "bias": draw(70), "second": draw(70, 20)}, draw(1100, 33)
    ),
    "convolution": _case(
        convolution, {"first": draw(20, 3, 3, 3), "second": draw(18, 20, 2, 2)}, draw(5, 3, 14, 14)
    ),
}  # fmt: skip

# Numbers of the lowerings of what has no nest; the first are the defaults.
NUMBERS: list[dict[tuple[Any, str], Any]] = [
    {},
    {(group, "_TALL"): 7, (group, "_LOW"): 5, (group, "block"): lambda dtype: (2, 32),
     (scatter, "_COLUMNS"): 16, (conv_weights, "_LEAVES"): 1, (channels, "_PIXELS"): 32},
    {(group, "_TALL"): 18, (group, "_LOW"): 12, (group, "block"): lambda dtype: (3, 48),
     (scatter, "_COLUMNS"): 32, (conv_weights, "_SUMS"): 1 << 11, (channels, "_PIXELS"): 96},
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_every_schedule_gives_the_same_gradient(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    p, inputs, runtime = case.program(), case.inputs(), Runtime()
    want = [x.tobytes() for x in runtime.run(p, inputs)]
    forms: dict[int, str] = {}
    nested = list(schedules(p, SCHEDULES // 2))
    for i, q in enumerate(
        [q for q in nested for _ in range(2)]
    ):  # with two choices of numbers each
        runtime.variant = i % len(NUMBERS)
        with monkeypatch.context() as patch:
            for (module, constant), value in NUMBERS[runtime.variant].items():
                patch.setattr(module, constant, value)
            got = [x.tobytes() for x in runtime.run(q, inputs)]
            if runtime.variant not in forms:
                forms[runtime.variant] = _without_nests(q)
        assert got == want, (i, [s.nest for s in q.steps if isinstance(s, Kernel)])
    assert len(set(forms.values())) == len(NUMBERS)


def _without_nests(p: Program) -> str:
    """The Tile programs of the steps that have no nest."""
    steps = tuple(s for s in p.steps if not isinstance(s, Kernel))
    return "\n".join(str(x.kernel) for e in expanded(replace(p, steps=steps)) for x in e.launches)
