"""Every layer with every setting: its parameters, its summary, and what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import tessera as ts
from tessera import nn, op
from tessera.core import tree
from tessera.core.errors import TesseraError
from tests.support.pinned import pinned

RUNS_ON = "numpy"
K = op.random.key(3)


def drawn(*shape: int) -> Any:
    return ts.tensor(np.sin(np.arange(np.prod(shape)) * 1.7).reshape(shape).astype(np.float32))


LINE, IMAGE, SPACE = drawn(2, 4, 9), drawn(2, 4, 6, 7), drawn(1, 4, 3, 4, 5)
ROWS, SEQUENCE = drawn(3, 8), drawn(2, 5, 8)
IDS = ts.tensor(np.array([[0, 3], [9, 1]]))
PLAIN = [nn.GLU(), nn.GLU(0), nn.LogSigmoid(), nn.Mish(), nn.ReLU(), nn.ReLU6(), nn.SELU(),
         nn.SiLU(), nn.Sigmoid(),
         nn.Softsign(),
         nn.Tanh(), nn.Tanhshrink(), nn.Hardsigmoid(), nn.Hardswish(), nn.Identity(), nn.CELU(),
         nn.CELU(0.5), nn.ELU(), nn.ELU(0.5),
         nn.GELU(), nn.GELU("tanh"), nn.Hardshrink(), nn.Hardshrink(0.2), nn.Hardtanh(),
         nn.Hardtanh(-0.5, 0.25), nn.LeakyReLU(), nn.LeakyReLU(0.3),
         nn.LogSoftmax(), nn.LogSoftmax(0), nn.Softmax(), nn.Softmax(0), nn.Softplus(), nn.Softplus(3.0),
         nn.Softshrink(), nn.Softshrink(0.2),
         nn.Threshold(0.1, 7.0), nn.PReLU(), nn.PReLU(8, 0.5), nn.Flatten(), nn.Flatten(0, 0),
         nn.Activation(op.tanh), nn.Dropout(0.5)]  # fmt: skip
Make = Callable[[], Any]
LAYERS: list[tuple[Make, Any]] = [
    *(((lambda m=m: m), ROWS) for m in PLAIN),
    (lambda: nn.Linear(8, 3, key=K), ROWS), (lambda: nn.Linear(8, 3, False, key=K, dtype="f16"), ROWS),
    (lambda: nn.Linear(8, 3, key=K, weight_init=nn.init.ones), ROWS), (lambda: nn.Embedding(10, 4,
    key=K), IDS),
    (lambda: nn.Embedding(10, 4, 3, key=K), IDS), (lambda: nn.Embedding(10, 4, -1, key=K), IDS),
    (lambda: nn.LayerNorm(8), ROWS), (lambda: nn.LayerNorm((5, 8), 0.1, bias=False), SEQUENCE),
    (lambda: nn.LayerNorm(8, affine=False), ROWS),
    (lambda: nn.RMSNorm(8), ROWS), (lambda: nn.RMSNorm((5, 8), 0.1, False), SEQUENCE),
    (lambda: nn.GroupNorm(2, 4), IMAGE),
    (lambda: nn.GroupNorm(4, 4, 0.1, False), IMAGE), (lambda: nn.InstanceNorm(4), IMAGE),
    (lambda: nn.InstanceNorm(4, 0.1, True), LINE),
    (lambda: nn.LocalResponseNorm(3), IMAGE), (lambda: nn.LocalResponseNorm(2, 0.1, 0.5, 2.0), IMAGE),
    *((lambda d=d, x=x, m=m: getattr(nn, f"Conv{d}d")(4, 6, 3, key=K, **m), x) for d, x in ((1, LINE),
    (2, IMAGE), (3, SPACE))
      for m in ({}, {"stride": 2, "padding": 1, "groups": 2, "bias": False})),
    *((lambda m=m: nn.Conv2d(4, 6, (3, 2), key=K, **m), IMAGE) for m in (
        {"dilation": 2}, {"padding": "same"}, {"padding": "valid"}, {"padding": (1, 2),
        "padding_mode": "reflect"},
        {"padding": 1, "padding_mode": "circular"}, {"padding": 1, "padding_mode": "replicate"},
        {"stride": (1, 2), "padding": ((1, 0), (0, 1))})),
    *((lambda d=d, x=x, m=m: getattr(nn, f"ConvTranspose{d}d")(4, 6, 3, key=K, **m), x) for d, x in ((1,
    LINE), (2, IMAGE), (3, SPACE))
      for m in ({}, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "bias": False},
                {"dilation": 2})),
    *((lambda m=m: nn.MaxPool(**m), IMAGE) for m in ({"size": 2}, {"size": 3, "stride": 2, "padding": 1,
    "ceil_mode": True}, {"size": 2, "dilation": 2})),
    *((lambda m=m: nn.AvgPool(**m), IMAGE) for m in ({"size": 2}, {"size": 3, "stride": 2, "padding": 1,
    "ceil_mode": True},
                                                     {"size": 3, "padding": 1, "count_include_pad": False})),
    *((lambda m=m: nn.LPPool(**m), IMAGE) for m in ({"p": 2.0, "size": 2}, {"p": 3.0, "size": 3,
    "stride": 2, "ceil_mode": True})),
    (lambda: nn.AdaptiveAvgPool(3), IMAGE), (lambda: nn.AdaptiveMaxPool((2, 4)), IMAGE),
    (lambda: nn.AdaptiveMaxPool(2), LINE),
    (lambda: nn.AdaptiveMaxPool((2, 4)), LINE), (lambda: nn.GlobalAvgPool(), IMAGE),
    (lambda: nn.PixelShuffle(2), IMAGE),
    *((lambda m=m: nn.Upsample(**m), IMAGE) for m in (
        {"scale": 2.0}, {"size": (9, 4)}, {"scale": (1.5, 2.0), "mode": "linear"}, {"scale": 2.0,
        "mode": "cubic"},
        {"size": 5, "mode": "linear", "align_corners": True}, {}, {"size": 3, "scale": 2.0},
        {"scale": 2.0, "mode": "x"})),
    *((lambda c=c, m=m: getattr(nn, c)(8, 3, key=K, **m), SEQUENCE) for c in ("RNN", "LSTM", "GRU")
      for m in ({}, {"layers": 2, "bias": False}, {"bidirectional": True, "layers": 2}, {"projection": 2})),
    (lambda: nn.Bilinear(8, 8, 3, key=K), (ROWS, ROWS)), (lambda: nn.Bilinear(8, 8, 3, False, key=K),
    (ROWS, ROWS)),
    (lambda: nn.MLP((8, 6, 4), key=K), ROWS), (lambda: nn.MLP((8, 6, 4, 2), op.relu, False, key=K),
    ROWS), (lambda: nn.MLP((8,), key=K), ROWS),
    (lambda: nn.SwiGLU(8, 6, key=K), ROWS), (lambda: nn.SwiGLU(8, 6, True, op.gelu, key=K), ROWS),
    *((lambda m=m: nn.MoE(8, 6, 4, key=K, **m), SEQUENCE) for m in ({}, {"top_k": 1},
    {"normalise": False}, {"activation": op.relu})),
    *((lambda m=m: nn.MultiHeadAttention(8, 4, key=K, **m), SEQUENCE) for m in (
        {}, {"causal": True}, {"kv_heads": 2}, {"head_dim": 4, "bias": False}, {"out_bias": False},
        {"qk_norm": True}, {"window": 2, "causal": True},
        {"head_dim": 4, "rope": nn.Rope(4)}, {"kv_heads": 3})),
    (lambda: nn.Sequential(nn.Linear(8, 4, key=K), op.relu, nn.Linear(4, 2, key=K)), ROWS),
    (lambda: nn.Linear(8, 3), ROWS), (lambda: nn.Linear(7, 3, key=K), ROWS), (lambda: nn.Conv2d(4, 6, 3,
    key=K, groups=3), IMAGE),
    (lambda: nn.GroupNorm(3, 4), IMAGE), (lambda: nn.Conv2d(4, 6, 3, key=K, padding_mode="x"), IMAGE),
]  # fmt: skip


def numbers(x: Any) -> str:
    """A few numbers that tell a tensor."""
    a = np.asarray(x).astype(np.float64).ravel()
    weights = np.cos(np.arange(a.size))
    return (
        " ".join(f"{v:.6e}" for v in (*a[:2], a.sum(), a @ weights, np.abs(a).sum()))
        if a.size
        else "empty"
    )


def said(make: Make, given: Any) -> Iterator[str]:
    try:
        m = make()
        xs = given if isinstance(given, tuple) else (given,)
        yield f"{m}"
        for path, x in zip(tree.paths(m), tree.leaves(m), strict=True):
            yield f"  {path}: {x.type} {numbers(x)}"
        for y in tree.leaves(m(*xs)):
            yield f"  -> {y.type} {numbers(y)}"
        yield f"{nn.summary(m, *xs)}"
    except TesseraError as e:
        yield f"  {str(e).splitlines()[0]}"


def test_every_layer() -> None:
    pinned("nn_layers", (line for make, given in LAYERS for line in said(make, given)), near=2e-4)


# Initialisers, whose moments are checked elsewhere ------------------------------------------------

INITIALISERS: list[tuple[str, dict[str, Any]]] = [
    ("zeros", {}), ("ones", {}), ("constant", {"value": 3.0}), ("uniform", {}), ("uniform", {"low": -2.0,
    "high": 5.0}), ("normal", {}),
    ("normal", {"mean": 2.0, "std": 0.5}), ("truncated_normal", {}), ("truncated_normal", {"mean": 1.0,
    "std": 2.0, "low": 0.0, "high": 1.5}),
    ("truncated_normal", {"low": 1.0, "high": 1.0}), ("xavier_uniform", {}), ("xavier_uniform",
    {"gain": 2.0}), ("xavier_normal", {}),
    ("kaiming_uniform", {}), ("kaiming_uniform", {"mode": "fan_out", "slope": 0.5}), ("kaiming_uniform",
    {"nonlinearity": "tanh"}),
    ("kaiming_normal", {}), ("kaiming_normal", {"nonlinearity": "relu", "mode": "fan_out"}),
    ("kaiming_normal", {"mode": "x"}),
    ("kaiming_normal", {"nonlinearity": "x"}), ("lecun_normal", {}), ("lecun_uniform", {}),
    ("orthogonal", {}), ("orthogonal", {"gain": 2.0}),
    ("dirac", {}), ("dirac", {"groups": 2}), ("sparse", {"sparsity": 0.3}), ("sparse", {"sparsity": 0.5,
    "std": 1.0}), ("eye", {}),
]  # fmt: skip


def initialised() -> Iterator[str]:
    for name, more in INITIALISERS:
        for shape in ((5,), (4, 6), (6, 4), (4, 3, 3), (4, 3, 3, 2)):
            try:
                text = numbers(getattr(nn.init, name)(K, shape, **more))
            except TesseraError as e:
                text = str(e).splitlines()[0]
            yield f"{name} {more} {shape}: {text}"
    for kind in (*nn.init.GAINS, "leaky_relu"):
        yield f"{kind} {nn.init.gain(kind):.6e} {nn.init.gain(kind, 0.5):.6e}"
    yield " ".join(str(nn.init.fans(s)) for s in ((4, 6), (4, 3, 3), (4, 3, 3, 2)))


def test_initialisers() -> None:
    pinned("nn_init", initialised(), near=2e-4)


def stateful() -> Iterator[str]:
    settings: list[dict[str, Any]] = [
        {}, {"momentum": None}, {"momentum": 0.5, "eps": 0.1}, {"affine": False},
    ]  # fmt: skip
    for more in settings:
        m, state = nn.with_state(nn.BatchNorm(4, **more))
        yield f"{m} {sorted(state)}"
        for train in (True, True, False):
            y, state = m(IMAGE + 1, state, training=train)
            yield f"  {numbers(y)} | " + " | ".join(numbers(x) for x in tree.leaves(state))


def test_running_statistics() -> None:
    pinned("nn_state", stateful(), near=2e-4)
