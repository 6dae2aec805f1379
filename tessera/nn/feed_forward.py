"""Feed-forward networks: plain, gated, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tessera.core.errors import OperandError, located
from tessera.lang import op
from tessera.nn.linear import Linear, as_layer, keys_of, natural, sized
from tessera.nn.module import Module
from tessera.stdlib.products import grouped_matmul


class MLP(Module):
    """Linear layers with an activation between them: MLP([in, hidden, ..., out])."""

    layers: list[Linear]
    activation: Module

    def __init__(
        self,
        sizes: Any,
        activation: Any = op.gelu,
        bias: bool = True,
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        if not isinstance(sizes, Sequence) or len(sizes) < 2:
            raise located(
                OperandError(
                    f"nn.MLP: got sizes {sizes!r:.40}, expected all widths in one list, as in [in, hidden, "
                    "out]"
                )
            )
        keys = keys_of("MLP", key, len(sizes) - 1)
        pairs = zip(keys, sizes, sizes[1:], strict=False)
        self.layers = [Linear(m, n, bias, key=k, dtype=dtype) for k, m, n in pairs]
        self.activation = as_layer(activation)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


class SwiGLU(Module):
    """down(silu(gate(x)) * up(x)), the gated network of Llama; activation=op.gelu makes it a GEGLU."""

    gate: Linear
    up: Linear
    down: Linear
    activation: Callable[[Any], Any]

    def __init__(
        self,
        dim: int,
        hidden: int,
        bias: bool = False,
        activation: Callable[[Any], Any] = op.silu,
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        a, b, c = keys_of("SwiGLU", key, 3)
        self.gate = Linear(dim, hidden, bias, key=a, dtype=dtype)
        self.up = Linear(dim, hidden, bias, key=b, dtype=dtype)
        self.down = Linear(hidden, dim, bias, key=c, dtype=dtype)
        self.activation = activation

    def __call__(self, x: Any) -> Any:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class MoE(Module):
    """A mixture of gated networks: each token goes to the top_k experts of its router; none is dropped.

    Weights are (experts, out, in).  The call returns the result, or with aux=True also the load-balancing
    loss of Switch (Fedus et al. 2021): experts * sum(share of tokens * mean probability), 1 when balanced.
    """

    router: Linear
    gate: Any
    up: Any
    down: Any
    top_k: int
    normalise: bool
    activation: Callable[[Any], Any]

    def __init__(
        self,
        dim: int,
        hidden: int,
        experts: int,
        top_k: int = 2,
        normalise: bool = True,
        activation: Callable[[Any], Any] = op.silu,
        *,
        key: Any = None,
        dtype: Any = "f32",
    ) -> None:
        sized("MoE", dim=dim, hidden=hidden, experts=experts, top_k=top_k)
        if top_k > experts:
            raise located(
                OperandError(f"nn.MoE: top_k is {top_k}, expected at most the {experts} experts")
            )
        a, b, c, d = keys_of("MoE", key, 4)
        self.router = Linear(dim, experts, bias=False, key=a, dtype=dtype)
        self.gate = natural(b, (experts, hidden, dim), dim, dtype)
        self.up = natural(c, (experts, hidden, dim), dim, dtype)
        self.down = natural(d, (experts, dim, hidden), hidden, dtype)
        self.top_k, self.normalise, self.activation = top_k, normalise, activation

    def __call__(self, x: Any, *, aux: bool = False) -> Any:
        tokens = op.reshape(x, (-1, x.shape[-1]))
        weights, chosen, chances = self.route(tokens)
        y = op.reshape(self._mixed(tokens, weights, chosen), x.shape)
        return (y, self._balance(chosen, chances)) if aux else y

    def route(self, tokens: Any) -> tuple[Any, Any, Any]:
        """Weights and numbers of the chosen experts (tokens, top_k), and all chances (tokens, experts)."""
        scores = self.router(tokens)
        wide = scores if scores.dtype.bits >= 32 else op.cast(scores, "f32")
        chances = op.softmax(wide, axis=-1)
        weights, chosen = op.topk(chances, self.top_k)
        if self.normalise:
            weights = weights / op.sum(weights, axis=-1, keepdims=True)
        return weights, chosen, chances

    def _mixed(self, tokens: Any, weights: Any, chosen: Any) -> Any:
        """Rows sorted by expert, through grouped products, back in the order of tokens."""
        rows, sizes, order = op.moe_dispatch(tokens, chosen, experts=self.gate.shape[0])
        gate, up = (grouped_matmul(rows, op.swapaxes(w, 1, 2), sizes) for w in (self.gate, self.up))
        y = grouped_matmul(self.activation(gate) * up, op.swapaxes(self.down, 1, 2), sizes)
        return op.moe_combine(y, order, weights)

    def _balance(self, chosen: Any, chances: Any) -> Any:
        experts = chances.shape[-1]
        hit = op.cast(chosen[..., None] == op.arange(experts), chances.dtype)
        share = op.mean(op.sum(hit, axis=1), axis=0) / self.top_k
        return experts * op.sum(op.stop_gradient(share) * op.mean(chances, axis=0))
