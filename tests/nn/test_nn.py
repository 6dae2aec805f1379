"""Modules: trees of parameters that jit, grad and vmap take, with static fields by annotation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f64, nn, op
from tessera.core.errors import AxisError, OperandError, TreeError
from tessera.nn.summary import _size
from tests.support.runners.tolerance import assert_close, assert_same_bits

RUNS_ON = "numpy"


class Net(nn.Module):
    first: nn.Linear
    layers: list[nn.Linear]
    width: int
    activation: Callable[[Any], Any] = op.tanh

    def __init__(self, width: int, *, key: Any) -> None:
        a, b = ts.split(key)
        self.first = nn.Linear(4, width, key=a)
        self.layers = [nn.Linear(width, width, key=k) for k in ts.split(b)]
        self.width = width

    def __call__(self, x: Any) -> Any:
        h = self.activation(self.first(x))
        for layer in self.layers:
            h = self.activation(layer(h))
        return op.reshape(h, (*x.shape[:-1], self.width))


class Wider(Net):
    def __call__(self, x: Any) -> Any:
        return 2 * super().__call__(x)


def net() -> Net:
    return Net(8, key=ts.key(0))


def sample(*shape: int, seed: int = 1) -> Any:
    return op.random.normal(ts.key(seed), shape)


def test_parameters_are_leaves_and_plain_values_are_structure():
    names = ["first.weight", "first.bias", "layers.0.weight", "layers.0.bias", "layers.1.weight",
        "layers.1.bias"]  # fmt: skip
    assert ts.tree.names(net()) == names
    assert [x.shape for x in ts.tree.leaves(net())][:2] == [(8, 4), (8,)]
    assert ts.tree.structure(net()) == ts.tree.structure(net())
    assert ts.tree.structure(net()) != ts.tree.structure(Net(9, key=ts.key(0)))


def test_a_module_is_an_argument_of_every_transform():
    m, x = net(), sample(3, 4)
    assert_same_bits(ts.jit(lambda m, x: m(x))(m, x), m(x))
    assert_same_bits(ts.jit(m)(x), m(x))
    assert_close(ts.vmap(lambda m, x: m(x), in_axes=(None, 0))(m, x), m(x))
    many = ts.vmap(lambda k: Net(8, key=k))(ts.split(ts.key(0), 5))
    assert many.first.weight.shape == (5, 8, 4)
    assert ts.vmap(lambda m, x: m(x), in_axes=(0, None))(many, x).shape == (5, 3, 8)


def test_the_gradient_in_a_module_is_a_module():
    m, x = net(), sample(3, 4)
    g = ts.grad(lambda m: op.sum(op.square(m(x))))(m)
    assert type(g) is Net
    assert (g.width, g.activation) == (8, op.tanh)
    h = 1e-3
    moved = ts.tree.map(lambda p, d: p + h * d, m, g)
    rise = op.sum(op.square(moved(x))) - op.sum(op.square(m(x)))
    slope = sum(op.sum(op.square(d)).item() for d in ts.tree.leaves(g))
    assert rise.item() / h == pytest.approx(slope, rel=0.05)


def test_a_jitted_function_of_a_module_compiles_once_for_new_weights():
    traced = []

    @ts.jit
    def f(m: Net, x: Any) -> Any:
        traced.append(1)
        return m(x)

    for seed in range(3):
        f(Net(8, key=ts.key(seed)), sample(3, 4))
    assert len(traced) == 1


def test_modules_that_inherit_an_init_use_it():
    x = sample(3, 4)
    assert_close(Wider(8, key=ts.key(0))(x), 2 * net()(x))
    assert type(ts.tree.map(lambda p: p, Wider(8, key=ts.key(0)))) is Wider


def test_modules_of_plain_fields_have_the_init_of_a_dataclass():
    class Scale(nn.Module):
        by: Any
        power: int = 2

        def __call__(self, x: Any) -> Any:
            return self.by * x**self.power

    m = Scale(ts.tensor(3.0))
    assert m(ts.tensor(2.0)).item() == 12
    assert repr(m) == "Scale(by=f32[])"
    assert ts.tree.leaves(m)[0].item() == 3


def test_replace_gives_another_module():
    m = nn.replace(net(), width=4, activation=op.relu)
    assert (m.width, m.activation, net().width) == (4, op.relu, 8)
    with pytest.raises(
        TreeError, match=r"nn\.replace: Net has no field 'depth'; it has first, lay"
    ):
        nn.replace(m, depth=3)


def test_fields_do_not_change():
    with pytest.raises(
        TreeError,
        match=r"^Net\.width: a module is a value and does not change after __init__; make an",
    ):
        net().width = 3
    with pytest.raises(TreeError, match=r"Net\.width: a module is a value and keeps its fields"):
        del net().width


def test_what_init_sets_beside_the_fields_is_told_with_what_to_write():
    """It worked eagerly, and was lost by grad, jit and save: a field is what the class names."""

    class Lost(nn.Module):
        act: Any = nn.static(default=op.relu)

        def __init__(self, key: Any) -> None:
            self.act = op.relu
            self.fc = nn.Linear(2, 2, key=key)
            self.blocks = [nn.LayerNorm(2), nn.LayerNorm(2)]
            self.scale = op.ones((2,))
            self.heads = 3

    with pytest.raises(TreeError) as e:
        Lost(ts.key(0))
    assert e.value.message == (
        "Lost: __init__ sets 'fc', 'blocks', 'scale', 'heads', but the class has no such field, so grad, "
        "jit and save would lose them; write in the class: fc: nn.Linear; blocks: list[nn.LayerNorm]; "
        "scale: ts.Tensor; heads: int"
    )


def test_a_cached_property_may_be_read_in_init():
    class Scaled(nn.Module):
        w: ts.Tensor

        def __init__(self) -> None:
            self.w = op.ones((2,))
            assert self.twice.shape == (2,)

        @functools.cached_property
        def twice(self) -> Any:
            return self.w * 2

    grown = ts.tree.map(lambda w: w + 1, Scaled())
    np.testing.assert_array_equal(grown.twice.numpy(), [4, 4])

    class Unset(nn.Module):
        w: ts.Tensor

        def __init__(self) -> None:
            self.w, self.head = op.ones((2,)), None

    with pytest.raises(TreeError, match="write in the class: head: Any"):
        Unset()


def test_a_layer_of_a_sequence_is_named_by_any_index():
    model = nn.Sequential(op.relu, op.tanh)
    assert model[np.int64(1)] is model[1] is model[ts.tensor(1)]
    for i in (2, -3, 1.0, None, "a"):
        with pytest.raises(AxisError, match="does not name one of 2 layers"):
            model[i]


def test_fields_that_fit_neither_kind_are_named():
    class Untold(nn.Module):
        act: Any

    class Static(nn.Module):
        act: Callable[[Any], Any]

    class Listed(nn.Module):
        sizes: Any = nn.static()

    class Forgotten(nn.Module):
        w: Any

        def __init__(self) -> None:
            pass

    with pytest.raises(
        TreeError, match=r"Untold\.act holds .* is no parameter; annotate the field"
    ):
        Untold(op.relu)
    with pytest.raises(
        TreeError, match=r"Static\.act is a static field by its annotation, but holds"
    ):
        Static(nn.Linear(2, 2, key=ts.key(0)))
    with pytest.raises(
        TreeError, match=r"Listed\.sizes is a static field and holds list, which has"
    ):
        Listed([1, 2])
    with pytest.raises(TreeError, match="Forgotten: __init__ did not set field 'w'"):
        Forgotten()
    with pytest.raises(OperandError, match="Untold has no __call__; define one"):
        Untold(ts.tensor(1.0))()


def test_layers_say_what_they_need():
    with pytest.raises(OperandError, match=r"nn\.Linear: out_features is 0, expected a positive"):
        nn.Linear(3, 0, key=ts.key(0))
    with pytest.raises(
        OperandError, match=r"nn\.Linear: needs a key for its weights; write key=ts"
    ):
        nn.Linear(3, 4)
    with pytest.raises(
        OperandError, match=r"got dim 10, 4 heads and 4 kv_heads; expected heads that"
    ):
        nn.MultiHeadAttention(10, 4, key=ts.key(0))
    with pytest.raises(
        OperandError, match=r"nn\.Rope: got dim 4, scaling 'far', factor 1\.0; expect"
    ):
        nn.Rope(4, scaling="far")
    with pytest.raises(OperandError, match=r"nn\.Dropout: p is 2, expected 0 to 1"):
        nn.Dropout(2)


def test_dropout_needs_a_key_to_drop():
    x = op.ones((1000, 4))
    assert nn.Dropout(0.25)(x) is x
    y = nn.Dropout(0.25)(x, key=ts.key(0)).numpy()
    assert set(np.unique(y)) <= {0, np.float32(1 / 0.75)}
    assert abs((y == 0).mean() - 0.25) < 0.03
    z = nn.Dropout(0.5, whole_channels=True)(op.ones((8, 4, 5)), key=ts.key(0)).numpy()
    assert (z == z[..., :1]).all()


def attention(**settings: Any) -> nn.MultiHeadAttention:
    given = {"causal": True, "rope": nn.Rope(4), "key": ts.key(0), **settings}
    return nn.MultiHeadAttention(16, 4, **given)


def in_chunks(m: Any, x: Any, chunks: tuple[int, ...], room: int = 9, **kind: Any) -> Any:
    step = ts.jit(lambda m, x, cache: m(x, cache=cache))
    cache, parts, at = ts.KVCache.empty(2, m.kv_heads, room, 4, **kind), [], 0
    for n in chunks:
        y, cache = step(m, x[:, at : at + n], cache)
        parts.append(y.numpy())
        at += n
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize("settings", [{}, {"kv_heads": 2}, {"kv_heads": 1, "window": 3}], ids=str)
def test_decoding_with_a_cache_equals_the_whole(settings):
    m, x = attention(**settings), sample(2, 7, 16)
    for chunks in ((7,), (1,) * 7, (3, 1, 3)):
        assert_close(in_chunks(m, x, chunks), m(x))


@pytest.mark.parametrize(
    ("kind", "room", "error"),
    [({"per_sequence": True}, 9, 1e-5), ({"page": 4, "pages": 6}, 9, 1e-5), ({"quantized": "i8"}, 9, 0.05),
     ({"window": 3}, 5, 1e-5)], ids=str,
)  # fmt: skip
def test_decoding_works_with_every_kind_of_cache(kind, room, error):
    m, x = attention(kv_heads=2, window=kind.get("window")), sample(2, 7, 16)
    want = m(x).numpy()
    one, parts = (in_chunks(m, x, c, room, **kind) for c in ((1,) * 7, (3, 1, 3)))
    np.testing.assert_allclose(one, want, atol=error)
    np.testing.assert_allclose(parts, want, atol=error)
    ring = attention(kv_heads=2)
    if "window" in kind:  # which limits what a layer sees that has none
        np.testing.assert_allclose(in_chunks(ring, x, (1,) * 7, room, **kind), want, atol=error)


@pytest.mark.usefixtures("compiled")
def test_decoding_has_the_bits_of_the_prefill():
    m, x = attention(kv_heads=2), sample(2, 7, 16).numpy()
    assert_same_bits(in_chunks(m, x, (1,) * 7), in_chunks(m, x, (7,)))


def test_fused_and_separate_weights_of_attention_agree():
    one = attention(kv_heads=2)
    three = attention(kv_heads=2, fused=False)
    w, b = one.qkv.weight, one.qkv.bias
    cut = {"q": slice(0, 16), "k": slice(16, 24), "v": slice(24, 32)}
    parts = {n: nn.replace(getattr(three, n), weight=w[s], bias=b[s]) for n, s in cut.items()}
    three = nn.replace(three, out=one.out, **parts)
    x, memory = sample(2, 5, 16), sample(2, 6, 16, seed=2)
    assert_close(three(x), one(x))
    loose = [nn.replace(m, causal=False, rope=None) for m in (one, three)]
    assert_close(loose[0](x, memory), loose[1](x, memory))


def test_dropping_no_weight_is_plain_attention():
    x = sample(2, 5, 16)
    m = attention(kv_heads=2, dropout=1e-9)
    assert_close(m(x, key=ts.key(1)), m(x))
    mask = op.arange(5) < 3
    assert_close(m(x, mask=mask, key=ts.key(1)), m(x, mask=mask))


def test_rope_is_the_op_and_turns_only_what_it_should():
    x = op.cast(sample(2, 5, 8), f64)
    assert_close(nn.Rope(8, base=500.0)(x), op.rope(x, base=500.0))
    part = nn.Rope(4)(x)
    assert_same_bits(part[..., 4:], x[..., 4:])
    order = np.array([0, 4, 1, 5, 2, 6, 3, 7])
    assert_close(nn.Rope(8, interleaved=True)(x[..., order]), op.rope(x)[..., order])


def test_padding_gets_no_gradient():
    m = nn.Embedding(5, 3, padding=-1, key=ts.key(0))
    ids = ts.tensor([0, 4, 4, 1])
    assert m(ids)[1].numpy().tolist() == [0, 0, 0]
    g = ts.grad(lambda m: op.sum(m(ids)))(m).weight.numpy()
    assert g.sum(axis=1).tolist() == [3, 3, 0, 0, 0]
    assert m.attend(op.ones((2, 3))).shape == (2, 5)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda k: nn.LSTM(3, key=k),
        r"nn\.LSTM: missing a required argument: 'hidden'; it takes \(in_features, hidden"),
        (lambda k: nn.MLP(3, [8], 2, key=k), r"nn\.MLP: got sizes 3, expected all widths in one list"),
        (lambda k: nn.Linear(3, 4, biass=True, key=k),
        r"nn\.Linear: got an unexpected keyword argument 'biass'; use 'bias'"),
        (lambda k: nn.Conv2d(3, key=k), r"nn\.Conv2d: missing a required argument: 'out_channels'"),
    ],
    ids=["missing", "sizes", "keyword", "convolution"],
)  # fmt: skip
def test_arguments_that_a_layer_cannot_take_are_named(make, text):
    with pytest.raises(ts.TesseraError, match=text) as e:
        make(ts.key(0))
    assert "test_nn.py" in str(e.value)


def test_layers_of_the_user_raise_what_python_raises():
    class Own(nn.Module):
        a: Any

        def __init__(self, n, key):
            self.a = nn.Linear(n, 3, key=key)

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'key'"):
        Own(3)


def test_an_ensemble_is_a_batch_of_modules():
    keys = ts.split(ts.key(0), 4)
    many = ts.vmap(lambda k: nn.MLP([3, 8, 2], key=k))(keys)
    x = ts.ones((3,))
    ys = ts.vmap(lambda m: m(x))(many)
    for i in range(4):
        one = nn.MLP([3, 8, 2], key=keys[i])(x)
        assert ys[i].numpy().tobytes() == one.numpy().tobytes()


PYTORCH = (
    [f"{n}{d}d" for n in ("BatchNorm", "InstanceNorm", "MaxPool", "AvgPool", "AdaptiveAvgPool",
    "AdaptiveMaxPool")
     for d in (1, 2, 3)]
    + ["LPPool1d", "LPPool2d", "LPPool3d", "MultiheadAttention", "ModuleList", "ModuleDict",
    "CrossEntropyLoss", "MSELoss"]
)  # fmt: skip


@pytest.mark.parametrize("name", PYTORCH)
def test_layers_of_pytorch_are_answered_with_ours(name: str) -> None:
    with pytest.raises(AttributeError, match=f"nn has no attribute '{name}'; write ") as caught:
        getattr(ts.nn, name)
    first = str(caught.value).splitlines()[0].split("; write ")[1].split("(")[0]
    if first.startswith(("nn.", "op.")):
        assert callable(getattr({"nn": ts.nn, "op": ts.op}[first[:2]], first[3:]))
    elif name[-2:] in ("1d", "2d", "3d"):
        raise AssertionError(first)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 9])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_what_limits_attention_is_its_formula(causal, window, masked, kv_heads):
    m, x = attention(causal=causal, window=window, rope=None, kv_heads=kv_heads), sample(2, 7, 16)
    q, k, v = (np.asarray(t) for t in m.project(x))
    k, v = (np.repeat(t, 4 // kv_heads, -3) for t in (k, v))
    at = np.arange(7)
    behind = at[:, None] - at
    seen = np.ones((7, 7), bool)
    if causal or window is not None:
        seen &= behind >= 0
    if window is not None:
        seen &= behind < window
    given = at != 2 if masked else None
    if masked:
        seen[:, 2] = False
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / 2, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True).clip(-1e30))
    rows = seen.any(-1)  # a query that sees nothing has no result
    y = weights / np.where(rows[:, None], weights.sum(-1, keepdims=True), 1) @ v
    got = m(x, mask=given)
    want = m.out(ts.tensor(y.swapaxes(1, 2).reshape(2, 7, 16).astype(np.float32)))
    assert rows.sum() >= 6
    assert_close(got[:, rows], want[:, rows], times=10)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_a_convolution_without_settings_is_the_plain_one(name, rank):
    layer = getattr(nn, f"{name}{rank}d")(2, 3, 2, key=ts.key(0))
    f = getattr(op, "conv_transpose" if name == "ConvTranspose" else "conv")
    x = sample(2, 2, *(4, 5, 6)[:rank])
    assert_same_bits(layer(x), f(x, layer.weight, layer.bias))
    grown = 1 if name == "ConvTranspose" else -1
    assert layer(x).shape == (2, 3, *(n + grown for n in (4, 5, 6)[:rank]))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["MaxPool", "AvgPool"])
def test_a_pool_without_settings_has_windows_side_by_side(name, rank):
    x = np.random.default_rng(0).normal(size=(2, 3, *(5, 6, 7)[:rank]))
    y = getattr(nn, name)((2,) * rank)(ts.tensor(x))
    blocks = x[(..., *(slice(0, n // 2 * 2) for n in x.shape[2:]))]
    for a in range(rank):
        at = 2 + a
        parts = np.stack([blocks.take(range(k, blocks.shape[at], 2), at) for k in (0, 1)])
        blocks = parts.max(0) if name == "MaxPool" else parts.mean(0)
    np.testing.assert_allclose(y, blocks, rtol=1e-12)


@pytest.mark.parametrize(
    ("count", "text"),
    [(1, "4 B"), (249, "996 B"), (250, "1 KB"), (251, "1 KB"), (308, "1.23 KB"), (25_000, "100 KB"),
     (249_874, "999 KB"), (249_875, "1 MB"), (249_999, "1 MB"), (250_000, "1 MB"), (308_642, "1.23 MB")],
)  # fmt: skip
def test_a_summary_states_bytes_with_three_digits(count: int, text: str) -> None:
    class Held(nn.Module):
        w: ts.Tensor

        def __call__(self, x: Any) -> Any:
            return x

    shown = str(nn.summary(Held(ts.zeros((count,))), ts.zeros((2,))))
    assert f"{count:,} parameters, {text}, " in shown


@pytest.mark.parametrize(
    ("size", "text"),
    [(999_499_999, "999 MB"), (999_500_000, "1 GB"), (1e9, "1 GB"), (999.4e9, "999 GB"), (1e12, "1 TB"),
     (1.234e12, "1.23 TB"), (1234e12, "1234 TB")],
)  # fmt: skip
def test_sizes_of_large_models_are_no_powers_of_ten(size: float, text: str) -> None:
    assert _size(size) == text
