"""Names of parameters, state dicts, parts of modules, batch norm's state, initialisers and summaries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import bf16, f32, f64, nn, op
from tessera.core.errors import NoAttributeError, OperandError, ShapeError, TreeError
from tests.support.runners.tolerance import assert_close, assert_same_bits

RUNS_ON = "numpy"
KEYS = ts.split(ts.key(7), 8)


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, key=KEYS[0]), nn.BatchNorm(4), op.relu, nn.MaxPool(2), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(36, 3, key=KEYS[1]),
    )  # fmt: skip


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "6.weight", "6.bias"]


def test_names_of_a_sequential_are_those_of_pytorch():
    m, state = nn.with_state(cnn())
    assert list(nn.state_dict(m)) == NAMES
    kept = ["1.num_batches_tracked", "1.running_mean", "1.running_var"]
    assert list(nn.state_dict(m, state)) == NAMES + kept
    assert nn.get(m, "1").name == "1"
    assert nn.get(m, "6.weight").shape == (3, 36)
    assert [n for n, _ in nn.modules(m)] == ["", *map(str, range(7))]
    with pytest.raises(
        TreeError, match=r"nn\.get: no '9' in Sequential; it has 0, 1, 2, 3, 4, 5, 6"
    ):
        nn.get(m, "9.weight")


def test_a_state_goes_through_and_is_returned():
    m, state = nn.with_state(cnn())
    x = op.random.normal(KEYS[2], (8, 1, 6, 6))
    y, new = m(x, state, key=KEYS[3])
    assert int(new["1"]["num_batches_tracked"]) == 1
    assert int(state["1"]["num_batches_tracked"]) == 0
    calm, same = m(x, new, training=False)
    assert same == new
    assert y.shape == calm.shape == (8, 3)

    def loss(m: Any, state: Any) -> Any:
        y, state = m(x, state)
        return op.sum(y), state

    (_, aux), g = ts.jit(ts.value_and_grad(loss, has_aux=True))(m, state)
    assert_close(aux["1"]["running_mean"], new["1"]["running_mean"])
    assert type(g) is nn.Sequential
    with pytest.raises(
        OperandError, match=r"nn\.Sequential: BatchNorm has state; write model, state"
    ):
        m(x)
    with pytest.raises(
        OperandError, match=r"nn\.BatchNorm: no statistics named '1' in the state; wri"
    ):
        m(x, {"2": state["1"]})


def test_loading_checks_names_and_shapes():
    m = nn.Linear(3, 2, key=KEYS[0])
    good = {"weight": np.ones((2, 3)), "bias": np.zeros(2)}
    loaded = nn.load_state(m, good)
    assert loaded.weight.dtype.name == "f32"
    assert loaded(ts.ones((3,))).numpy().tolist() == [3, 3]
    with pytest.raises(
        TreeError, match=r"^nn\.load_state: no tensor for bias and no place for b, c; re"
    ):
        nn.load_state(m, {"weight": good["weight"], "b": 1, "c": 2})
    with pytest.raises(
        ShapeError, match=r"'weight' is f64\[3,2\], expected f32\[2,3\] as in the module"
    ):
        nn.load_state(m, {**good, "weight": np.ones((3, 2))})
    with pytest.raises(
        TreeError, match=r"nn\.load_state: rename gives two tensors the name 'bias'"
    ):
        nn.load_state(m, good, rename={"weight": "bias"})
    part = nn.load_state(m, {"b": good["bias"], "x": 3}, rename={"^b$": "bias"}, strict=False)
    assert_same_bits(part.weight, m.weight)
    assert part.bias.numpy().tolist() == [0, 0]
    named = {"fc.weight": good["weight"], "fc.bias": good["bias"], "step": 1}
    by_function = nn.load_state(m, named, rename=lambda n: n[3:] if n.startswith("fc.") else None)
    assert_same_bits(by_function.weight, loaded.weight)
    with pytest.raises(TreeError, match=r"from_torch: 'a\.b' goes through a name that is a tensor"):
        ts.from_torch({"a": np.ones(2), "a.b": np.ones(2)})


def test_parts_come_together_again():
    m = cnn()
    chosen, rest = nn.partition(m, lambda name, p: name.startswith("6."))
    assert [x.shape for x in ts.tree.leaves(chosen)] == [(3, 36), (3,)]
    back = nn.combine(chosen, rest)
    assert ts.tree.structure(back) == ts.tree.structure(m)
    x = op.random.normal(KEYS[2], (2, 1, 6, 6))
    named, state = nn.with_state(m)
    chosen, rest = nn.partition(named, lambda name, p: name == "6.bias")
    g = ts.grad(lambda c: op.sum(nn.combine(c, rest)(x, state)[0]))(chosen)
    assert [v.numpy().tolist() for v in ts.tree.leaves(g)] == [[2, 2, 2]]
    with pytest.raises(
        TreeError, match=r"nn\.combine: both trees have Tensor and Tensor at one place"
    ):
        nn.combine(m, m)


def test_modules_are_replaced_by_name():
    m = nn.map_modules(lambda n, x: nn.Identity() if isinstance(x, nn.Dropout) else x, cnn())
    assert isinstance(m[5], nn.Identity)
    assert len(m[:3]) == 3
    nested = {"a": [nn.Linear(2, 2, key=KEYS[0])], "b": (nn.Identity(), None)}
    assert [n for n, _ in nn.modules(nested)] == ["a.0", "b.0"]
    doubled = nn.map_modules(lambda n, x: nn.replace(x, bias=None) if n == "a.0" else x, nested)
    assert doubled["a"][0].bias is None


def test_names_of_pytorch_are_told():
    with pytest.raises(
        NoAttributeError, match=r"nn has no attribute 'BatchNorm2d'; write nn\.BatchNorm"
    ):
        nn.BatchNorm2d  # noqa: B018
    with pytest.raises(AttributeError, match=r"nn has no 'Lineer'; did you mean nn\.Linear\?"):
        nn.Lineer  # noqa: B018


def test_a_summary_counts_as_one_would_by_hand():
    m, state = nn.with_state(cnn())
    s = nn.summary(m, op.ones((2, 1, 6, 6)), state, training=False)
    rows = {r.name: r for r in s.rows}
    assert rows["0"].flops == 2 * (2 * 4 * 36) * 9 + 2 * 4 * 36  # products, and the bias
    assert rows["6"].flops == 2 * 2 * 36 * 3 + 2 * 3
    assert [r.kind for r in s.rows] == ["Sequential", "Conv2d", "BatchNorm", "Activation", "MaxPool",
        "Flatten", "Dropout", "Linear"]  # fmt: skip
    assert rows["3"].result == "f32[2,4,3,3]"
    assert (s.parameters, s.bytes) == (40 + 8 + 111, 4 * 159)
    assert str(s).splitlines()[-1] == f"159 parameters, 636 B, {s.flops:,.0f} flops"
    head = nn.MultiHeadAttention(8, 2, key=KEYS[0])
    t = nn.summary(head, ts.Tensor[3, 5, 8, f64])
    assert [r.name for r in t.rows] == ["", "qkv", "out"]
    assert t.rows[0].flops >= 2 * 15 * 8 * 32 + 4 * 3 * 2 * 25 * 4


def test_a_summary_goes_into_lists_of_modules():
    class Block(nn.Module):
        norm: nn.LayerNorm
        mlp: nn.MLP

        def __init__(self, key):
            self.norm, self.mlp = nn.LayerNorm(4), nn.MLP([4, 8, 4], key=key)

        def __call__(self, x):
            return x + self.mlp(self.norm(x))

    class Stack(nn.Module):
        blocks: list[Block]

        def __call__(self, x):
            for b in self.blocks:
                x = b(x)
            return x

    s = nn.summary(Stack([Block(k) for k in KEYS[:2]]), ts.Tensor[3, 4, f32])
    rows = {r.name: r for r in s.rows}
    assert [n for n in rows if n.count(".") <= 1] == ["", "blocks.0", "blocks.1"]
    assert rows["blocks.1.mlp.layers.0"].flops == 2 * 3 * 4 * 8 + 3 * 8
    assert rows["blocks.0"].parameters == s.parameters / 2 == 8 + 40 + 36
    assert rows["blocks.0"].flops == rows["blocks.1"].flops == s.flops / 2


MOMENTS = {  # standard deviation for shape (300, 200)
    "xavier_uniform": ({}, math.sqrt(2 / 500)), "xavier_normal": ({"gain": 2.0}, 2 * math.sqrt(2 / 500)),
    "kaiming_uniform": ({}, math.sqrt(2 / 200)),
    "kaiming_normal": ({"mode": "fan_out", "nonlinearity": "tanh"}, 5 / 3 / math.sqrt(300)),
    "lecun_normal": ({}, 1 / math.sqrt(200)), "lecun_uniform": ({}, 1 / math.sqrt(200)),
    "normal": ({"std": 0.3}, 0.3),
    "uniform": ({"low": -1.0, "high": 1.0}, 1 / math.sqrt(3)),
    "truncated_normal": ({"std": 0.5, "low": -1.0, "high": 1.0}, 0.5 * 0.8796256610342398),
}  # fmt: skip


@pytest.mark.parametrize("name", MOMENTS)
def test_initialisers_have_their_moments(name):
    settings, std = MOMENTS[name]
    x = getattr(nn.init, name)(KEYS[0], (300, 200), **settings).numpy().astype(float)
    n = x.size
    kurtosis = np.mean((x - x.mean()) ** 4) / x.var() ** 2
    assert abs(x.mean()) < 5 * std / math.sqrt(n)
    assert abs(x.std() / std - 1) < 5 * math.sqrt((kurtosis - 1) / (4 * n))
    if "uniform" in name:
        assert abs(kurtosis - 1.8) < 0.05
        assert abs(np.abs(x).max() / (std * math.sqrt(3)) - 1) < 1e-3
    elif name == "truncated_normal":
        assert np.abs(x).max() <= 1
    else:
        assert abs(kurtosis - 3) < 0.15


def test_initialisers_of_structure():
    for shape in ((6, 4), (4, 6), (4, 2, 3)):
        q = nn.init.orthogonal(KEYS[0], shape, gain=2.0, dtype=f64).numpy().reshape(shape[0], -1)
        gram = q @ q.T if q.shape[0] <= q.shape[1] else q.T @ q
        np.testing.assert_allclose(gram, 4 * np.eye(len(gram)), atol=1e-12)
    x = op.random.normal(KEYS[1], (2, 4, 7))
    w = nn.init.dirac(None, (4, 2, 3), groups=2)
    assert_close(op.conv1d(x, w, padding=1, groups=2), x)
    s = nn.init.sparse(KEYS[2], (20, 6), sparsity=0.25).numpy()
    assert ((s == 0).sum(axis=0) == 5).all()
    assert nn.init.eye(None, (2, 3)).numpy().tolist() == [[1, 0, 0], [0, 1, 0]]
    assert nn.init.constant(None, (2,), value=3.0, dtype=bf16).dtype is bf16
    assert nn.init.gain("leaky_relu", 1.0) == 1
    with pytest.raises(
        OperandError, match=r"nn\.init\.gain: got 'swish', expected one of linear, sigm"
    ):
        nn.init.gain("swish")
    with pytest.raises(
        ShapeError, match=r"nn\.init: got shape \(3,\), expected at least \(out, in\)"
    ):
        nn.init.xavier_normal(KEYS[0], (3,))


def test_layers_start_as_those_of_pytorch():
    """Uniform within 1 / sqrt(fan in), whose variance is a third of the square."""
    for w, fan in (
        (nn.Linear(50, 400, key=KEYS[0]).weight, 50),
        (nn.Conv2d(8, 100, 3, key=KEYS[0]).weight, 72),
        (nn.LSTM(30, 64, key=KEYS[0]).weights["weight_ih_l0"], 64),
    ):
        x = w.numpy()
        assert np.abs(x).max() <= 1 / math.sqrt(fan)
        assert abs(x.std() * math.sqrt(3 * fan) - 1) < 0.02


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (3, 2), (1, 2, 5), (2, 2, 3, 1)])
def test_running_statistics_are_those_of_numpy_without_bias(shape):
    m, state = nn.with_state(nn.BatchNorm(2, momentum=0.25))
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    _, new = m(ts.tensor(x), state)
    rows = np.moveaxis(x, 1, 0).reshape(2, -1)
    (found,) = new.values()
    var = rows.var(1, ddof=1) if rows.shape[1] > 1 else np.zeros(2)
    assert_close(found["running_mean"].numpy(), (0.25 * rows.mean(1)).astype(np.float32))
    assert_close(found["running_var"].numpy(), (0.75 + 0.25 * var).astype(np.float32))
