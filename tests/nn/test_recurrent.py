"""Recurrent layers beside their formulas in NumPy, a step, a layer and a direction at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import tessera as ts
from tessera import nn

RUNS_ON = "numpy"
BATCH, SEQ, WIDE, HIDDEN = 3, 5, 4, 6


def rnn(g: Any, b: Any, h: Any) -> tuple[Any, ...]:
    return (np.tanh(g + b),)


def lstm(g: Any, b: Any, h: Any, c: Any) -> tuple[Any, ...]:
    i, f, n, o = np.split(g + b, 4, -1)
    c = expit(f) * c + expit(i) * np.tanh(n)
    return expit(o) * np.tanh(c), c


def gru(g: Any, b: Any, h: Any) -> tuple[Any, ...]:
    (ri, zi, ni), (rh, zh, nh) = np.split(g, 3, -1), np.split(b, 3, -1)
    r, z = expit(ri + rh), expit(zi + zh)
    return ((1 - z) * np.tanh(ni + r * nh) + z * h,)


CELLS = {"RNN": rnn, "LSTM": lstm, "GRU": gru}


def by_steps(name: str, m: Any, x: Any, state: Any, lengths: Any = None) -> tuple[Any, list[Any]]:
    """Outputs, and the last carries of each layer and direction."""
    ends = ["", "_reverse"] if m.bidirectional else [""]
    last: list[Any] = []
    for layer in range(m.layers):
        outs = []
        for d, end in enumerate(ends):
            w = {n: v.numpy() for n, v in m.weights.items() if n.endswith(f"_l{layer}{end}")}
            w = {n.removesuffix(f"_l{layer}{end}"): v for n, v in w.items()}
            carry = tuple(s[len(ends) * layer + d] for s in state)
            y = np.zeros((*x.shape[:2], carry[0].shape[-1]))
            for t in range(SEQ)[:: -1 if d else 1]:
                g = x[:, t] @ w["weight_ih"].T + w.get("bias_ih", 0)
                new = CELLS[name](g, carry[0] @ w["weight_hh"].T + w.get("bias_hh", 0), *carry)
                if "weight_hr" in w:
                    new = (new[0] @ w["weight_hr"].T, *new[1:])
                on = np.ones((BATCH, 1), bool) if lengths is None else (t < lengths)[:, None]
                carry = tuple(np.where(on, a, b) for a, b in zip(new, carry, strict=True))
                y[:, t] = np.where(on, new[0], 0)
            outs.append(y)
            last.append(carry)
        x = np.concatenate(outs, -1)
    return x, [np.stack([c[i] for c in last]) for i in range(len(state))]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"layers": 2},
    "both ways": {"bidirectional": True},
    "both ways, three layers, no bias": {"layers": 3, "bidirectional": True, "bias": False},
    "projection": {"layers": 2, "bidirectional": True, "projection": 2},
}
CASES = [(n, o) for n in CELLS for o in OPTIONS if o != "projection" or n == "LSTM"]


@pytest.mark.parametrize(("name", "option"), CASES)
@pytest.mark.parametrize("given", ["nothing", "state", "lengths"])
def test_a_layer_is_its_formula(name: str, option: str, given: str) -> None:
    rng = np.random.default_rng(len(option))
    m: Any = getattr(nn, name)(WIDE, HIDDEN, key=ts.key(3), dtype="f64", **OPTIONS[option])
    x = rng.normal(size=(BATCH, SEQ, WIDE))
    count = m.layers * (2 if m.bidirectional else 1)
    widths = (m.projection or HIDDEN, HIDDEN)[: 2 if name == "LSTM" else 1]
    state = [np.zeros((count, BATCH, n)) for n in widths]
    called: dict[str, Any] = {}
    if given != "nothing":
        state = [rng.normal(size=s.shape) for s in state]
        parts = tuple(map(ts.tensor, state))
        called["state"] = parts if name == "LSTM" else parts[0]
    lengths = np.array([5, 2, 0]) if given == "lengths" else None
    if lengths is not None:
        called["lengths"] = ts.tensor(lengths)
    y, last = m(ts.tensor(x), **called)
    want_y, want_last = by_steps(name, m, x, state, lengths)
    np.testing.assert_allclose(y.numpy(), want_y, rtol=1e-12, atol=1e-12)
    made = last if name == "LSTM" else (last,)
    for a, b in zip(made, want_last, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-12, atol=1e-12)
