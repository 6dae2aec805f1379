"""Recurrent networks: RNN, GRU and LSTM as scans over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tessera.core.dtype import i64
from tessera.interop.onnx.model import OnnxError
from tessera.interop.onnx.rule import NodeCall, at_once, rule, turned
from tessera.interop.onnx.rules.integers import rounded_matmul
from tessera.lang import op
from tessera.ops.define import as_value

Activation = Callable[[Any], Any]
# Activations by name, with their alpha and beta.
_ACTIVATIONS: dict[str, Callable[[Any, float, float], Any]] = {
    "tanh": lambda x, a, b: op.tanh(x),
    "sigmoid": lambda x, a, b: op.sigmoid(x),
    "relu": lambda x, a, b: op.relu(x),
    "affine": lambda x, a, b: op.add(op.mul(x, a), b),
    "leakyrelu": lambda x, a, b: op.leaky_relu(x, a),
    "thresholdedrelu": lambda x, a, b: op.where(op.ge(x, a), x, op.zeros_like(x)),
    "scaledtanh": lambda x, a, b: op.mul(op.tanh(op.mul(x, b)), a),
    "hardsigmoid": lambda x, a, b: op.clip(op.add(op.mul(x, a), b), 0, 1),
    "elu": lambda x, a, b: op.elu(x, a),
    "softsign": lambda x, a, b: op.softsign(x),
    "softplus": lambda x, a, b: op.softplus(x),
}
_ALPHA = {"affine": 1.0, "leakyrelu": 0.01, "thresholdedrelu": 1.0, "scaledtanh": 1.0,
          "hardsigmoid": 0.2, "elu": 1.0}  # fmt: skip
_BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


def _activations(n: NodeCall, usual: list[str], directions: int) -> list[Activation]:
    """One function for each place where a cell applies one, for all directions."""
    names = [s.lower() for s in n.get("activations", usual * directions)]
    alphas, betas = list(n.get("activation_alpha", [])), list(n.get("activation_beta", []))
    out: list[Activation] = []
    clip = n.get("clip", 0.0)
    for name in names:
        if name not in _ACTIVATIONS:
            raise OnnxError(f"there is no activation '{name}'")
        a = alphas.pop(0) if name in _ALPHA and alphas else _ALPHA.get(name, 0.0)
        b = betas.pop(0) if name in _BETA and betas else _BETA.get(name, 0.0)
        out.append(_bounded(_ACTIVATIONS[name], a, b, clip))
    return out


def _bounded(f: Callable[[Any, float, float], Any], a: float, b: float, clip: float) -> Activation:
    return lambda x: f(op.clip(x, -clip, clip) if clip else x, a, b)


class _Cell:
    """The inputs of one direction of a recurrent node."""

    def __init__(self, d: int, w: Any, r: Any, b: Any, states: list[Any]):
        self.w, self.r = (at_once(lambda v: op.index(v, d), v) for v in (w, r))
        self.turned: dict[tuple[int, int | None], Any] = {}  # recurrent weights of some gates
        self.hidden = self.r.shape[1]
        gates = self.w.shape[0]
        both = None if b is None else op.index(b, d)
        self.wb = None if both is None else op.index(both, slice(0, gates))
        self.rb = None if both is None else op.index(both, slice(gates, None))
        self.states = [op.index(s, d) for s in states]

    def inputs(self, x: Any) -> Any:
        """The products of all times with the weights of the input, in one product."""
        t, b, i = x.shape
        y = self.of_inputs(op.reshape(x, (t * b, i)))
        y = y if self.wb is None else op.add(y, self.wb)
        return op.reshape(y, (t, b, y.shape[1]))

    def of_inputs(self, x: Any) -> Any:
        """The product of rows with the weights of the input."""
        return op.matmul(x, turned(self.w))

    def recurrent(self, h: Any, first: int = 0, last: int | None = None) -> Any:
        """The product of the state with some gates of the recurrent weights."""
        n = self.hidden
        rows = slice(first * n, None if last is None else last * n)
        if (first, last) not in self.turned:
            self.turned[first, last] = turned(at_once(lambda r: op.index(r, rows), self.r))
        y = op.matmul(h, self.turned[first, last])
        return y if self.rb is None else op.add(y, op.index(self.rb, rows))


class _WholeCell(_Cell):
    """The same with weights of 8 bits, which are stored turned; what they multiply is rounded to 8 bits over
    its own range.
    """

    def __init__(self, d: int, w: QuantisedWeights, r: QuantisedWeights, b: Any, states: list[Any]):
        self.whole_w, self.whole_r = w.of(d), r.of(d)
        self.hidden = r.numbers.shape[1]
        both = None if b is None else op.index(b, d)
        gates = w.numbers.shape[2]
        self.wb = None if both is None else op.index(both, slice(0, gates))
        self.rb = None if both is None else op.index(both, slice(gates, None))
        self.states = [op.index(s, d) for s in states]

    def of_inputs(self, x: Any) -> Any:
        """The product of rows with the weights of the input."""
        return rounded_matmul(x, *self.whole_w)

    def recurrent(self, h: Any, first: int = 0, last: int | None = None) -> Any:
        """The product of the state with the recurrent weights."""
        assert (first, last) == (0, None)
        y = rounded_matmul(h, *self.whole_r)
        return y if self.rb is None else op.add(y, self.rb)


class QuantisedWeights(NamedTuple):
    """Weights (directions, inputs, gates), with a scale and a zero point for each of them or of its gates."""

    numbers: Any
    scale: Any
    zero: Any

    def of(self, d: int) -> tuple[Any, Any, Any]:
        """Those of a direction."""
        taken = [at_once(lambda v: op.index(v, d), v) for v in self[:2]]
        return *taken, None if self.zero is None else at_once(lambda v: op.index(v, d), self.zero)


Step = Callable[[_Cell, Any, list[Any], list[Activation]], list[Any]]


def _recurrent(
    n: NodeCall, x: Any, w: Any, r: Any, b: Any, lengths: Any, initial: list[Any], step: Step,
    usual: list[str],
) -> Any:  # fmt: skip
    """Run a cell over time in each direction; the outputs of all times and the last states."""
    x = as_value(x)
    whole = isinstance(w, QuantisedWeights)
    if whole:
        directions, hidden, _ = r.numbers.shape
    else:
        w, r = as_value(w), as_value(r)
        directions, hidden = w.shape[0], r.shape[2]
    batch_first = n.get("layout", 0)
    if batch_first:
        x = op.swapaxes(x, 0, 1)
        initial = [None if s is None else op.swapaxes(s, 0, 1) for s in initial]
    directions = int(directions)
    zero = op.zeros((directions, x.shape[1], hidden), x.dtype)
    states = [zero if s is None else s for s in initial]
    functions = _activations(n, usual, directions)
    per = len(functions) // directions
    ys, lasts = [], []
    for d in range(directions):
        cell = (_WholeCell if whole else _Cell)(d, w, r, b, states)
        backward = d == 1 or n.get("direction", "forward") == "reverse"
        y, last = _over_time(cell, x, lengths, functions[d * per : (d + 1) * per], step, backward)
        ys.append(y)
        lasts.append(last)
    y = op.stack(ys, 1)
    last = [op.stack([s[k] for s in lasts], 0) for k in range(len(states))]
    if batch_first:
        return (op.transpose(y, (2, 0, 1, 3)), *(op.swapaxes(s, 0, 1) for s in last))
    return (y, *last)


def _over_time(
    cell: _Cell, x: Any, lengths: Any, functions: list[Activation], step: Step, backward: bool
) -> tuple[Any, list[Any]]:
    rows, times = cell.inputs(x), op.arange(x.shape[0])
    limit = None if lengths is None else op.expand_dims(op.cast(lengths, i64), 1)

    def body(carry: list[Any], row: tuple[Any, Any]) -> tuple[list[Any], Any]:
        new = step(cell, row[0], carry, functions)
        if limit is None:
            return new, new[0]
        on = op.lt(row[1], limit)
        kept = [op.where(on, a, b) for a, b in zip(new, carry, strict=True)]
        return kept, op.where(on, new[0], op.zeros_like(new[0]))

    if rows.shape[0] == 1:  # streams give one step at a time: no loop
        last, y = body(list(cell.states), (op.index(rows, 0), op.index(times, 0)))
        return op.expand_dims(y, 0), last
    last, y = op.scan(body, list(cell.states), (rows, times), reverse=backward)
    return y, last


@rule("RNN")
def _rnn(
    n: NodeCall, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    def step(c: _Cell, row: Any, state: list[Any], f: list[Activation]) -> list[Any]:
        return [f[0](op.add(row, c.recurrent(state[0])))]

    return _recurrent(n, x, w, r, b, lengths, [h], step, ["Tanh"])


@rule("GRU")
def _gru(
    n: NodeCall, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None
) -> Any:
    before = n.get("linear_before_reset", 0)

    def step(c: _Cell, row: Any, state: list[Any], f: list[Activation]) -> list[Any]:
        (h,) = state
        xz, xr, xh = op.split(row, 3, -1)
        hz, hr = op.split(c.recurrent(h, 0, 2), 2, -1)
        z, reset = f[0](op.add(xz, hz)), f[0](op.add(xr, hr))
        after = op.mul(reset, c.recurrent(h, 2)) if before else None
        inner = c.recurrent(op.mul(reset, h), 2) if after is None else after
        made = f[1](op.add(xh, inner))
        return [op.add(op.mul(op.sub(1, z), made), op.mul(z, h))]

    return _recurrent(n, x, w, r, b, lengths, [h], step, ["Sigmoid", "Tanh"])


@rule("LSTM")
def _lstm(
    n: NodeCall, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None,
    c: Any = None, p: Any = None,
) -> Any:  # fmt: skip
    tied = n.get("input_forget", 0)

    def step(cell: _Cell, row: Any, state: list[Any], f: list[Activation]) -> list[Any]:
        h, c = state
        i, o, g, k = op.split(op.add(row, cell.recurrent(h)), 4, -1)
        pi = po = pf = None
        if p is not None:
            pi, po, pf = op.split(op.index(p, cell_of[id(cell)]), 3, 0)
        i = f[0](i if pi is None else op.add(i, op.mul(pi, c)))
        g = op.sub(1, i) if tied else f[0](g if pf is None else op.add(g, op.mul(pf, c)))
        new = op.add(op.mul(g, c), op.mul(i, f[1](k)))
        o = f[0](o if po is None else op.add(o, op.mul(po, new)))
        return [op.mul(o, f[2](new)), new]

    cell_of: dict[int, int] = {}

    def numbered(cell: _Cell, *rest: Any) -> list[Any]:
        cell_of.setdefault(id(cell), len(cell_of))
        return step(cell, *rest)

    usual = ["Sigmoid", "Tanh", "Tanh"]
    return _recurrent(n, x, w, r, b, lengths, [h, c], numbered, usual)
