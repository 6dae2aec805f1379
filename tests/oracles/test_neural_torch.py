"""Convolution, pooling, resize, norms, attention and losses as PyTorch computes them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support.runners.tolerance import Tolerance, assert_close

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.oracle
CLOSE = Tolerance(1e-11, 1e-12)
# PyTorch rounds the constants of a few derivatives to f32.
ROUGH = Tolerance(1e-6, 1e-7)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng([11, *shape]).normal(size=shape)


def grid(**choices: Any) -> list[Any]:
    rows = [
        dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())
    ]
    return [pytest.param(row, id="-".join(f"{k}={v}" for k, v in row.items())) for row in rows]


def agree(ours: Any, theirs: Any, *xs: np.ndarray, slopes: Tolerance = CLOSE) -> None:
    """Equal values, and equal gradients of a weighted sum in every operand."""
    leaves = [torch.tensor(x, requires_grad=True) for x in xs]
    want = theirs(*leaves)
    got, pull_back = ts.vjp(ours, *map(ts.asarray, xs))
    assert_close(got, want.detach().numpy(), CLOSE)
    ct = normal(*got.shape)
    grads = torch.autograd.grad(want, leaves, torch.tensor(ct))
    for g, w in zip(pull_back(ts.asarray(ct)), grads, strict=True):
        assert_close(g, w.numpy(), slopes)


# Convolution ------------------------------------------------------------------------------------

CONVS = [(F.conv1d, op.conv1d, (9,), (3,)), (F.conv2d, op.conv2d, (7, 8), (3, 2)),
         (F.conv3d, op.conv3d, (5, 6, 5), (2, 3, 2))]  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options", grid(stride=(1, 2), padding=(0, 1), dilation=(1, 2), groups=(1, 2))
)
def test_conv(rank: int, options: dict[str, Any]) -> None:
    theirs, ours, sizes, window = CONVS[rank - 1]
    x, w = normal(2, 4, *sizes), normal(6, 4 // options["groups"], *window)
    agree(lambda *xs: ours(*xs, **options), lambda *xs: theirs(*xs, **options), x, w, normal(6))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("dilation", [1, 2])
def test_conv_with_named_padding(padding: str, size: int, dilation: int) -> None:
    options = {"padding": padding, "dilation": dilation}
    agree(
        lambda x, w: op.conv1d(x, w, **options),
        lambda x, w: F.conv1d(x, w, **options), normal(1, 2, 9), normal(3, 2, size),
    )  # fmt: skip


TRANSPOSED = [(F.conv_transpose1d, op.conv_transpose1d), (F.conv_transpose2d, op.conv_transpose2d),
              (F.conv_transpose3d, op.conv_transpose3d)]  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    grid(stride=(2, 3), padding=(0, 1), output_padding=(0, 1), dilation=(1, 2), groups=(1, 2)),
)
def test_conv_transpose(rank: int, options: dict[str, Any]) -> None:
    theirs, ours = TRANSPOSED[rank - 1]
    x, w = normal(2, 4, *(4, 3, 3)[:rank]), normal(4, 3, *(3, 2, 3)[:rank])
    bias = normal(3 * options["groups"])
    agree(lambda *xs: ours(*xs, **options), lambda *xs: theirs(*xs, **options), x, w, bias)


# Pooling and resize -----------------------------------------------------------------------------

MAX = [(F.max_pool1d, op.max_pool1d), (F.max_pool2d, op.max_pool2d), (F.max_pool3d, op.max_pool3d)]
AVG = [(F.avg_pool1d, op.avg_pool1d), (F.avg_pool2d, op.avg_pool2d), (F.avg_pool3d, op.avg_pool3d)]
SIZES = (9, 7, 8)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options", grid(stride=(None, 1, 2), padding=(0, 1), dilation=(1, 2), ceil_mode=(False, True))
)
def test_max_pool(rank: int, options: dict[str, Any]) -> None:
    theirs, ours = MAX[rank - 1]
    x = normal(2, 3, *SIZES[:rank])
    agree(lambda x: ours(x, 3, **options), lambda x: theirs(x, 3, **options), x)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    grid(
        stride=(None, 1, 2),
        padding=(0, 1),
        ceil_mode=(False, True),
        count_include_pad=(False, True),
    ),
)
def test_avg_pool(rank: int, options: dict[str, Any]) -> None:
    theirs, ours = AVG[rank - 1]
    x = normal(2, 3, *SIZES[:rank])
    agree(lambda x: ours(x, 3, **options), lambda x: theirs(x, 3, **options), x)


@pytest.mark.parametrize("size", [1, (3, 2), (7, 8), (9, 5)])
def test_adaptive_avg_pool(size: Any) -> None:
    x = normal(2, 3, 7, 8)
    agree(lambda x: op.adaptive_avg_pool2d(x, size), lambda x: F.adaptive_avg_pool2d(x, size), x)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_lp_pool(p: float) -> None:
    x = np.abs(normal(2, 3, 8)) + 0.1
    agree(lambda x: op.lp_pool(x, 3, p, 2), lambda x: F.lp_pool1d(x, p, 3, 2), x)


LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("sizes", [(9, 3, 8), (4, 12, 1), (5, 6, 7)])
def test_linear_resize(rank: int, corners: bool, sizes: tuple[int, ...]) -> None:
    x, size = normal(2, 2, *(5, 6, 4)[:rank]), sizes[:rank]
    agree(
        lambda x: op.resize(x, size, mode="linear", align_corners=corners),
        lambda x: F.interpolate(x, size, mode=LINEAR[rank], align_corners=corners), x,
    )  # fmt: skip


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("size", [(9, 3), (4, 12), (1, 1)])
def test_cubic_resize(corners: bool, size: tuple[int, ...]) -> None:
    agree(
        lambda x: op.resize(x, size, mode="cubic", align_corners=corners),
        lambda x: F.interpolate(x, size, mode="bicubic", align_corners=corners), normal(2, 2, 5, 6),
    )  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(9, 3, 8), (4, 12, 1), (10, 6, 2)])
def test_nearest_resize(rank: int, sizes: tuple[int, ...]) -> None:
    x, size = normal(2, 2, *(5, 6, 4)[:rank]), sizes[:rank]
    agree(lambda x: op.resize(x, size), lambda x: F.interpolate(x, size), x)


@pytest.mark.parametrize("scale", [2.0, 0.5, 1.7])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_by_a_scale(scale: float, mode: str) -> None:
    theirs = {"nearest": "nearest", "linear": "bilinear"}[mode]
    agree(
        lambda x: op.resize(x, scale=scale, mode=mode),
        lambda x: F.interpolate(x, scale_factor=scale, mode=theirs), normal(1, 2, 6, 7),
    )  # fmt: skip


# Norms and activations --------------------------------------------------------------------------


def test_layernorm_and_rmsnorm() -> None:
    x, gain, bias = normal(2, 3, 4), normal(4), normal(3, 4)
    agree(
        lambda x, g, b: op.layernorm(x, g, b),
        lambda x, g, b: F.layer_norm(x, (4,), g, b), x, gain, normal(1, 4)[0],
    )  # fmt: skip
    agree(
        lambda x, g, b: op.layernorm(x, g, b, axis=(1, 2), eps=1e-3),
        lambda x, g, b: F.layer_norm(x, (3, 4), g, b, 1e-3), x, normal(3, 4), bias,
    )  # fmt: skip
    agree(lambda x, g: op.rmsnorm(x, g), lambda x, g: F.rms_norm(x, (4,), g, 1e-6), x, gain)


def test_batchnorm() -> None:
    x, mean, var = normal(3, 4, 5), normal(4), np.abs(normal(4)) + 0.5
    agree(
        lambda x, g, b: op.batchnorm(x, mean, var, g, b),
        lambda x, g, b: F.batch_norm(x, torch.tensor(mean), torch.tensor(var), g, b),
        x, normal(1, 4)[0], normal(2, 4)[1],
    )  # fmt: skip
    agree(
        lambda x, g, b: op.batchnorm_train(x, g, b)[0],
        lambda x, g, b: F.batch_norm(x, None, None, g, b, training=True),
        x, normal(1, 4)[0], normal(2, 4)[1],
    )  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_groupnorm_and_instancenorm(groups: int) -> None:
    x, gain, bias = normal(2, 6, 3, 2), normal(6), normal(1, 6)[0]
    agree(
        lambda x, g, b: op.groupnorm(x, groups, g, b),
        lambda x, g, b: F.group_norm(x, groups, g, b), x, gain, bias,
    )  # fmt: skip
    agree(
        lambda x, g, b: op.instancenorm(x, g, b),
        lambda x, g, b: F.instance_norm(x, weight=g, bias=b), x, gain, bias,
    )  # fmt: skip


ACTIVATIONS: dict[str, Any] = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu,
    "celu": F.celu, "gelu": F.gelu, "silu": F.silu, "mish": F.mish, "softplus": F.softplus,
    "softsign": F.softsign, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish,
    "hardtanh": F.hardtanh, "log_sigmoid": F.logsigmoid, "tanhshrink": F.tanhshrink,
    "hardshrink": F.hardshrink, "softshrink": F.softshrink, "glu": F.glu,
    "softmin": lambda x: F.softmin(x, -1),
    "softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    x = 4 * normal(5, 8)
    slopes = ROUGH if name == "hardsigmoid" else CLOSE
    agree(getattr(op, name), ACTIVATIONS[name], x, slopes=slopes)


def test_activations_with_parameters() -> None:
    x = 3 * normal(4, 6)
    agree(lambda x: op.gelu(x, approximate="tanh"), lambda x: F.gelu(x, approximate="tanh"), x)
    agree(lambda x: op.elu(x, 0.3), lambda x: F.elu(x, 0.3), x)
    agree(lambda x: op.celu(x, 0.3), lambda x: F.celu(x, 0.3), x, slopes=ROUGH)
    agree(lambda x: op.softplus(x, 2.0), lambda x: F.softplus(x, 2.0, threshold=1e9), x)
    agree(lambda x: op.threshold(x, 0.5, 2.0), lambda x: F.threshold(x, 0.5, 2.0), x)
    agree(lambda x, a: op.prelu(x, a), F.prelu, x, normal(6))


# Attention --------------------------------------------------------------------------------------


def aligned(queries: int, keys: int) -> Any:
    return torch.tril(torch.ones(queries, keys, dtype=torch.bool), keys - queries)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (1, 3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention(groups: int, queries: int, keys: int, causal: bool, scale: float | None) -> None:
    q, k, v = normal(2, 4, queries, 6), normal(2, groups, keys, 6), normal(2, groups, keys, 3)
    mask = aligned(queries, keys) if causal else None
    agree(
        lambda q, k, v: op.attention(q, k, v, causal=causal, scale=scale),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True),
        q, k, v,
    )  # fmt: skip


def test_attention_with_masks() -> None:
    q, k, v = normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 4)
    mask = normal(2, 1, 3, 5) > -0.5
    agree(
        lambda q, k, v: op.attention(q, k, v, mask=mask),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.tensor(mask)), q, k, v,
    )  # fmt: skip
    agree(
        lambda q, k, v, m: op.attention(q, k, v, mask=m), F.scaled_dot_product_attention,
        q, k, v, normal(2, 1, 3, 5),
    )  # fmt: skip


def test_embedding() -> None:
    ids = np.array([[0, 3], [3, 1]])
    agree(lambda t: op.embedding(t, ids), lambda t: F.embedding(torch.tensor(ids), t), normal(5, 3))


# Losses -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    grid(reduction=("mean", "sum", "none"), label_smoothing=(0.0, 0.1), ignore_index=(None, 2)),
)
def test_cross_entropy(options: dict[str, Any]) -> None:
    x, labels = normal(4, 5, 3), np.array([[0, 4, 2], [1, 1, 3], [2, 2, 0], [4, 0, 1]])
    theirs = {k: v for k, v in options.items() if v is not None}
    agree(
        lambda x: op.cross_entropy(x, labels, axis=1, **options),
        lambda x: F.cross_entropy(x, torch.tensor(labels), **theirs), x,
    )  # fmt: skip


def test_cross_entropy_with_probabilities() -> None:
    x, p = normal(4, 5), np.random.default_rng(0).dirichlet(np.ones(5), 4)
    agree(
        lambda x, p: op.cross_entropy(x, p, label_smoothing=0.2),
        lambda x, p: F.cross_entropy(x, p, label_smoothing=0.2), x, p,
    )  # fmt: skip


PAIRS: dict[str, tuple[Any, Any]] = {
    "mse": (op.mse, F.mse_loss), "mae": (op.mae, F.l1_loss),
    "huber": (lambda x, y, **k: op.huber(x, y, 0.7, **k), lambda x, y,
    **k: F.huber_loss(x, y, delta=0.7, **k)),
    "smooth_l1": (lambda x, y, **k: op.smooth_l1(x, y, 0.7, **k), lambda x, y,
    **k: F.smooth_l1_loss(x, y, beta=0.7, **k)),
    "kl_div": (lambda x, y, **k: op.kl_div(x, y, True, **k), lambda x, y,
    **k: F.kl_div(x, y, log_target=True, **k)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_distance(name: str, reduction: str) -> None:
    ours, theirs = PAIRS[name]
    x, y = normal(3, 4), normal(4, 3).T.copy()
    agree(
        lambda x, y: ours(x, y, reduction=reduction),
        lambda x, y: theirs(x, y, reduction=reduction),
        x,
        y,
    )


@pytest.mark.filterwarnings("ignore:reduction")
def test_losses_of_probabilities() -> None:
    x, y = normal(3, 4), np.random.default_rng(0).uniform(0.1, 0.9, (3, 4))
    agree(
        lambda x, y: op.binary_cross_entropy(x, y),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y), x, y,
    )  # fmt: skip
    agree(
        lambda x: op.binary_cross_entropy(x, y, logits=False),
        lambda x: F.binary_cross_entropy(x, torch.tensor(y)), y[::-1].copy(),
    )  # fmt: skip
    agree(lambda x, y: op.kl_div(x, y), lambda x, y: F.kl_div(x, y), x, y)
    labels = np.array([3, 0, 3])
    agree(lambda x: op.nll_loss(x, labels), lambda x: F.nll_loss(x, torch.tensor(labels)), x)
    agree(op.cosine_similarity, lambda x, y: F.cosine_similarity(x, y, -1), x, y)


@pytest.mark.parametrize(("low", "high"), [(1.0, 2.0), (1.0, None), (None, 2.0)])
def test_clip_at_its_ends(low: float | None, high: float | None) -> None:
    x = np.array([0.0, 1.0, 1.5, 2.0, 3.0])
    agree(lambda x: op.clip(x, low, high), lambda x: torch.clamp(x, low, high), x)
