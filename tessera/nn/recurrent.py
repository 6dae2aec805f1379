"""Recurrent layers: RNN, LSTM and GRU, of several layers and both directions.

x is (batch, seq, in).  The input products of a layer are one GEMM over all steps; a scan carries the state.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.linear import keys_of, natural, sized
from tessera.nn.module import Module
from tessera.ops.control import scan
from tessera.ops.random_bits import split


class _Recurrent(Module):
    """What RNN, LSTM and GRU share; parameters have PyTorch's names: weight_ih_l0, bias_hh_l1_reverse."""

    __tessera_inline__ = "weights"
    weights: dict[str, Any]
    hidden: int
    layers: int
    bias: bool
    bidirectional: bool
    dropout: float
    projection: int

    gates: ClassVar[int] = 1
    carries: ClassVar[int] = 1  # h, or h and c

    def __init__(
        self,
        in_features: int,
        hidden: int,
        layers: int = 1,
        bias: bool = True,
        bidirectional: bool = False,
        dropout: float = 0.0,
        projection: int = 0,
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        name = type(self).__name__
        sized(name, in_features=in_features, hidden=hidden, layers=layers)
        if projection and (self.carries == 1 or projection >= hidden):
            raise located(
                OperandError(
                    f"nn.{name}: projection is {projection}; only an LSTM has one, smaller than its "
                    f"{hidden} hidden units"
                )
            )
        self.hidden, self.layers, self.bias = hidden, layers, bias
        self.bidirectional, self.dropout, self.projection = bidirectional, dropout, projection
        shapes = self._shapes(in_features)
        keys = keys_of(name, key, len(shapes))
        pairs = zip(shapes.items(), keys, strict=True)
        self.weights = {n: natural(k, shape, hidden, dtype) for (n, shape), k in pairs}

    def _shapes(self, in_features: int) -> dict[str, tuple[int, ...]]:
        rows, out = self.gates * self.hidden, self.projection or self.hidden
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in range(self.layers):
            into = in_features if layer == 0 else out * self._directions
            for end in self._ends(layer):
                shapes |= {f"weight_ih{end}": (rows, into), f"weight_hh{end}": (rows, out)}
                if self.bias:
                    shapes |= {f"bias_ih{end}": (rows,), f"bias_hh{end}": (rows,)}
                if self.projection:
                    shapes[f"weight_hr{end}"] = (out, self.hidden)
        return shapes

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _ends(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self._directions]

    def __call__(
        self, x: Any, state: Any = None, *, lengths: Any = None, key: Any = None
    ) -> tuple[Any, Any]:
        """Outputs (batch, seq, directions * width) and the last state (layers * directions, batch, width).

        The state of an LSTM is a pair (h, c).  lengths (batch,): steps from there on are no part of a
        sequence; their outputs are 0.  key: drop outputs between the layers.
        """
        start = self._start(x, state)
        inside = None if lengths is None else op.arange(x.shape[1])[:, None] < lengths
        last: list[Any] = []
        xs: Any = op.swapaxes(x, 0, 1)
        keys: Any = None if key is None else split(key, self.layers)
        for layer in range(self.layers):
            if keys is not None and layer and self.dropout:
                xs = op.random.dropout(keys[layer], xs, self.dropout)
            outs = []
            for d, end in enumerate(self._ends(layer)):
                first = tuple(s[layer * self._directions + d] for s in start)
                carry, ys = self._run(end, xs, first, inside, reverse=d == 1)
                outs.append(ys)
                last.append(carry)
            xs = outs[0] if len(outs) == 1 else op.concat(outs, axis=-1)
        ends = tuple(op.stack([c[i] for c in last]) for i in range(self.carries))
        return op.swapaxes(xs, 0, 1), ends if self.carries > 1 else ends[0]

    def _start(self, x: Any, state: Any) -> tuple[Any, ...]:
        if x.ndim != 3:
            raise located(
                OperandError(
                    f"nn.{type(self).__name__}: x is {x.type}, expected (batch, seq, features)"
                )
            )
        if state is not None:
            return tuple(state) if self.carries > 1 else (state,)
        count = self.layers * self._directions
        widths = (self.projection or self.hidden, self.hidden)[: self.carries]
        return tuple(op.zeros((count, x.shape[0], n), x.dtype) for n in widths)

    def _run(
        self, end: str, xs: Any, first: tuple[Any, ...], inside: Any, reverse: bool
    ) -> tuple[tuple[Any, ...], Any]:
        """One direction of one layer over xs (seq, batch, in)."""
        w = {n: self.weights.get(n + end) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        into, again, project = w["weight_ih"], w["weight_hh"], self.weights.get("weight_hr" + end)
        given = xs @ into.T  # type: ignore[union-attr]
        given = given if w["bias_ih"] is None else given + w["bias_ih"]

        def step(carry: tuple[Any, ...], at: Any) -> tuple[tuple[Any, ...], Any]:
            g, here = at if inside is not None else (at, None)
            back = carry[0] @ again.T  # type: ignore[union-attr]
            new = self.cell(g, back if w["bias_hh"] is None else back + w["bias_hh"], *carry)
            if project is not None:
                new = (new[0] @ project.T, *new[1:])
            if here is None:
                return new, new[0]
            kept = tuple(op.where(here[:, None], a, b) for a, b in zip(new, carry, strict=True))
            return kept, op.where(here[:, None], new[0], 0)

        return scan(step, first, given if inside is None else (given, inside), reverse=reverse)

    def cell(self, given: Any, back: Any, *carry: Any) -> tuple[Any, ...]:
        """The next carry from the products of the input and of the state."""
        raise AssertionError(type(self))


class RNN(_Recurrent):
    """h = tanh(W x + U h)."""

    def cell(self, given: Any, back: Any, *carry: Any) -> tuple[Any, ...]:
        return (op.tanh(given + back),)


class LSTM(_Recurrent):
    """Long short-term memory with gates in the order input, forget, cell, output."""

    gates = 4
    carries = 2

    def cell(self, given: Any, back: Any, *carry: Any) -> tuple[Any, ...]:
        i, f, g, o = op.split(given + back, 4, axis=-1)
        c = op.sigmoid(f) * carry[1] + op.sigmoid(i) * op.tanh(g)
        return op.sigmoid(o) * op.tanh(c), c


class GRU(_Recurrent):
    """Gated recurrent units with gates in the order reset, update, new."""

    gates = 3

    def cell(self, given: Any, back: Any, *carry: Any) -> tuple[Any, ...]:
        (ri, zi, ni), (rh, zh, nh) = (op.split(t, 3, axis=-1) for t in (given, back))
        r, z = op.sigmoid(ri + rh), op.sigmoid(zi + zh)
        n = op.tanh(ni + r * nh)
        return ((1 - z) * n + z * carry[0],)
