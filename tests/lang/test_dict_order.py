"""A dict keeps the order in which it was written, in every transform as in eager code."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import nn, op
from tessera.core import tree
from tessera.core.errors import OperandError, TreeError

LAYERS = [f"layer{i}" for i in range(12)]  # layer10 and layer11 sort before layer2


def params(order=LAYERS):
    made = {
        n: ts.tensor(np.float32(0.3) + np.float32(i) * np.float32(0.11))
        for i, n in enumerate(LAYERS)
    }
    return {n: made[n] for n in order}


def in_turn(p):
    """A value that tells the order of the values."""
    x = op.ones(())
    for w in p.values():
        x = op.sin(x * w) + x
    return x


def names(p):
    return tuple(p)


def test_eager_code_and_transforms_meet_one_order():
    p = params()
    want = in_turn(p).numpy()
    assert ts.jit(in_turn)(p).numpy() == want
    assert ts.value_and_grad(in_turn)(p)[0].numpy() == want
    assert ts.jvp(in_turn, (p,), (p,))[0].numpy() == want
    assert ts.vjp(in_turn, p)[0].numpy() == want
    assert ts.linearize(in_turn, p)[0].numpy() == want
    assert ts.jit(ts.value_and_grad(in_turn))(p)[0].numpy() == want
    assert ts.checkpoint(in_turn)(p).numpy() == want
    rows = {n: op.stack([x, x]) for n, x in p.items()}
    assert ts.vmap(in_turn)(rows).numpy().tolist() == [want, want]
    assert ts.jit(lambda q: ts.jit(in_turn)(q))(p).numpy() == want


def test_jit_keeps_dicts_of_other_orders_apart():
    f, back = ts.jit(in_turn), params(LAYERS[::-1])
    for p in (params(), back, params(), back):  # by the way of the first call and of later ones
        assert f(p).numpy() == in_turn(p).numpy()
        assert f(p).numpy() == in_turn(p).numpy()
    assert in_turn(back).numpy() != in_turn(params()).numpy()


def test_results_have_the_order_in_which_they_were_made():
    f = ts.jit(lambda x: {"z": x, "a": {"c": x + 1, "b": x + 2}})
    for _ in range(3):
        made = f(op.ones(()))
        assert list(made) == ["z", "a"]
        assert list(made["a"]) == ["c", "b"]
        assert (float(made["a"]["c"]), float(made["a"]["b"])) == (2, 3)


def test_functions_of_pytorch_meet_the_order_that_was_written():
    torch = pytest.importorskip("torch")
    f = ts.torch.wrap(in_turn)
    for order in (LAYERS, LAYERS[::-1], LAYERS):
        p = params(order)
        got = f({n: torch.tensor(x.numpy()) for n, x in p.items()})
        assert got.numpy() == in_turn(p).numpy()


def test_keywords_keep_their_order():
    def f(**named):
        return in_turn(named)

    one, two = params(), params(LAYERS[::-1])
    g = ts.jit(f)
    for _ in range(2):
        assert g(**one).numpy() == f(**one).numpy()
        assert g(**two).numpy() == f(**two).numpy()
    assert ts.vmap(f)(**{n: op.stack([x]) for n, x in one.items()}).numpy()[0] == f(**one).numpy()


def test_gradients_have_the_order_of_the_arguments():
    p = params()
    assert names(ts.grad(in_turn)(p)) == names(p)
    assert names(ts.jit(ts.grad(in_turn))(p)) == names(p)
    assert names(ts.vjp(in_turn, p)[1](op.ones(()))[0]) == names(p)
    assert names(tree.map(lambda x: x, p)) == names(p)


def test_a_tangent_of_another_order_is_taken_by_its_keys():
    p, t = {"b": op.ones(()), "a": op.ones(()) * 2}, {"a": op.ones(()) * 5, "b": op.zeros(())}
    assert float(ts.jvp(lambda q: q["a"] * q["a"] + q["b"], (p,), (t,))[1]) == 20
    assert tree.map(lambda x, y: (x, y), {"b": 1, "a": 2}, {"a": 3, "b": 4}) == {
        "b": (1, 4),
        "a": (2, 3),
    }


def test_structures_that_differ_in_order_alone_are_one():
    one, two = tree.structure({"b": 0, "a": 0}), tree.structure({"a": 0, "b": 0})
    assert one == two
    assert hash(one) == hash(two)
    assert str(one) == str(two)
    assert tree.token(one) != tree.token(two)
    assert list(tree.unflatten(one, [1, 2]).items()) == [("b", 2), ("a", 1)]
    assert list(tree.unflatten(two, [1, 2]).items()) == [("a", 1), ("b", 2)]
    for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert list(tree.unflatten(copied, [1, 2])) == ["b", "a"]
        assert copied == one


def test_keys_of_several_classes_zip_in_any_order():
    one, two = {1: "x", "a": "y"}, {"a": "v", 1: "w"}
    assert tree.map(lambda x, y: x + y, one, two) == {1: "xw", "a": "yv"}
    assert list(tree.map(lambda x: x, two)) == ["a", 1]


keyed = st.dictionaries(
    st.text(max_size=2) | st.integers(-3, 3) | st.booleans(), st.integers(), max_size=5
)
nested = st.dictionaries(
    st.text("abc", max_size=2), st.integers() | keyed | st.lists(keyed, max_size=2), max_size=5
)


def _shuffled(x: Any, r: Any) -> Any:
    if isinstance(x, dict):
        items = list(x.items())
        r.shuffle(items)
        return {k: _shuffled(v, r) for k, v in items}
    return [_shuffled(v, r) for v in x] if isinstance(x, list) else x


def _written(x: Any) -> Any:
    if isinstance(x, dict):
        return [(k, _written(v)) for k, v in x.items()]
    return [_written(v) for v in x] if isinstance(x, list) else x


@given(nested, st.randoms(use_true_random=False))
def test_a_tree_comes_back_as_it_was_written_and_zips_with_any_order(x, r):
    other = _shuffled(x, r)
    for t in (x, other):
        leaves, s = tree.flatten(t)
        assert _written(tree.unflatten(s, leaves)) == _written(t)
    assert tree.structure(x) == tree.structure(other)
    assert tree.leaves(x) == tree.leaves(other)
    assert _written(tree.in_order_of(tree.structure(x), other)) == _written(x)
    same = _written(x) == _written(other)
    assert (tree.token(tree.structure(x)) == tree.token(tree.structure(other))) == same


@given(nested, st.randoms(use_true_random=False))
def test_tokens_and_structures_tell_the_same_trees_apart(x, r):
    other, out, more = _shuffled(x, r), [], []
    tree.tokens(x, type, out)
    tree.tokens(other, type, more)
    assert (out == more) == (_written(x) == _written(other))


def test_dicts_of_the_standard_library_keep_their_order():
    made = defaultdict(list, {"b": 1, "a": 2})
    assert list(tree.map(str, made)) == ["b", "a"]
    f = ts.jit(in_turn)
    for kind in (OrderedDict, lambda p: defaultdict(float, p), dict):
        for order in (LAYERS, LAYERS[::-1]):
            assert f(kind(params(order))).numpy() == in_turn(params(order)).numpy()


# Control flow -------------------------------------------------------------------------------------


def _turned(p):
    """The same values under other keys, in another order."""
    return {"a": p["b"] + 1, "b": in_turn(p)}


@pytest.mark.parametrize("unroll", [1, 2, 3, True])
def test_a_carry_keeps_the_order_in_which_it_began(unroll):
    init = {"b": op.ones(()) * 0.7, "a": op.ones(()) * 0.2}

    def run(init):
        return op.scan(lambda c, _: (_turned(c), in_turn(c)), init, length=7, unroll=unroll)

    want, c = [], init
    for _ in range(7):
        want.append(in_turn(c).numpy())
        c = tree.in_order_of(tree.structure(init), _turned(c))
    for f in (run, ts.jit(run)):
        last, ys = f(init)
        assert names(last) == ("b", "a")
        np.testing.assert_array_equal(ys.numpy(), np.stack(want))
        np.testing.assert_array_equal(last["b"].numpy(), c["b"].numpy())


def test_a_while_loop_keeps_the_order_of_its_carry():
    init = {"n": op.zeros((), ts.i32), "b": op.ones(()), "a": op.ones(()) * 0.5}

    def body(c):
        total = op.ones(())
        for k, v in c.items():
            total = total if k == "n" else op.sin(total * v) + total
        return {"a": c["b"], "b": total, "n": c["n"] + 1}

    def run(c):
        return op.while_loop(lambda c: c["n"] < 5, body, c)

    want = init
    for _ in range(5):
        want = tree.in_order_of(tree.structure(init), body(want))
    for f in (run, ts.jit(run)):
        got = f(init)
        assert names(got) == ("n", "b", "a")
        assert got["b"].numpy() == want["b"].numpy()


def test_both_branches_give_the_order_of_the_first():
    def run(p, x):
        return op.cond(p, lambda x: {"b": x, "a": x + 1}, lambda x: {"a": x * 5, "b": x * 7}, x)

    for p in (True, False):
        for f in (run, ts.jit(run)):
            made = f(ts.asarray(p), op.ones(()) * 3)
            assert names(made) == ("b", "a")
            assert (float(made["b"]), float(made["a"])) == ((3, 4) if p else (21, 15))
    rows = ts.vmap(run)(ts.asarray([True, False]), op.ones((2,)) * 3)
    assert names(rows) == ("b", "a")
    assert rows["a"].tolist() == [4, 15]


def test_rules_of_a_user_meet_the_order_of_the_arguments():
    @ts.custom_vjp
    def f(p):
        return in_turn(p)

    f.defvjp(lambda p: (in_turn(p), p), lambda p, ct: ({n: ct * in_turn(p) for n in reversed(p)},))
    p = params()
    value, grads = ts.jit(ts.value_and_grad(f))(p)
    assert value.numpy() == in_turn(p).numpy()
    assert names(grads) == names(p)
    assert grads["layer3"].numpy() == in_turn(p).numpy()


# Files, states, modules ---------------------------------------------------------------------------


def test_files_keep_the_order_of_dicts(tmp_path):
    p = {"state": params(LAYERS[::-1]), "b": [params()], "a": 1}
    ts.save(tmp_path / "x.safetensors", p)
    for found in (ts.load(tmp_path / "x.safetensors"), ts.load(tmp_path / "x.safetensors", like=p)):
        assert _written(tree.map(float, found)) == _written(tree.map(float, p))
    like = {"a": 0, "b": [params(LAYERS[::-1])], "state": params()}
    found = ts.load(tmp_path / "x.safetensors", like=like)
    assert names(found["state"]) == tuple(LAYERS)
    assert names(found) == ("a", "b", "state")
    assert float(found["state"]["layer3"]) == float(p["state"]["layer3"])


def test_a_run_that_is_loaded_goes_on_with_the_same_bits(tmp_path):
    opt = ts.optim.adam(0.05)

    def loss(p):
        return in_turn(p) * in_turn(p)

    @ts.jit
    def step(p, s):
        value, g = ts.value_and_grad(loss)(p)
        p, s = opt.update(g, s, p)
        return value, p, s

    p = params()
    s = opt.init(p)
    _, p, s = step(p, s)
    assert names(p) == tuple(LAYERS)
    assert all(names(part) == tuple(LAYERS) for part in s.values() if isinstance(part, dict))
    ts.save(tmp_path / "run", {"p": p, "s": s})
    found = ts.load(tmp_path / "run")
    assert step(found["p"], found["s"])[0].numpy() == step(p, s)[0].numpy()


def test_a_state_of_another_order_is_taken_by_its_keys():
    opt, p = ts.optim.adam(0.1), params()
    s = opt.init(p)
    g = ts.grad(in_turn)(p)
    want, _ = opt.update(g, s, p)
    turned = {n: g[n] for n in reversed(g)}
    back = {
        k: {n: v[n] for n in reversed(v)} if isinstance(v, dict) else v
        for k, v in reversed(s.items())
    }
    got, after = opt.update(turned, back, p)
    assert names(got) == names(p)
    assert all(got[n].numpy() == want[n].numpy() for n in p)
    assert all(names(v) == names(p) for v in after.values() if isinstance(v, dict))


def test_a_bundle_gives_dicts_in_the_order_in_which_they_were_made(tmp_path):
    def f(x):
        return {"z": x, "a": (x + 1, {"c": x + 2, "b": x + 3})}

    ts.bundle.save(f, tmp_path / "f.tess", ts.tensor(np.ones(3, np.float32)))
    made = ts.bundle.load(tmp_path / "f.tess")(np.zeros(3, np.float32))
    assert list(made) == ["z", "a"]
    assert list(made["a"][1]) == ["c", "b"]
    assert [float(v[0]) for v in (made["z"], made["a"][0], *made["a"][1].values())] == [0, 1, 2, 3]


def test_modules_in_a_dict_run_in_the_order_in_which_they_were_written():
    keys = ts.split(ts.key(0), 12)
    blocks = {n: nn.Linear(4, 4, key=keys[i]) for i, n in enumerate(LAYERS)}

    def net(blocks, x):
        for b in blocks.values():
            x = op.tanh(b(x))
        return x

    x = op.random.normal(ts.key(1), (3, 4))
    np.testing.assert_array_equal(ts.jit(net)(blocks, x).numpy(), net(blocks, x).numpy())
    assert [n for n, _ in nn.modules(blocks)] == LAYERS
    assert names(nn.map_modules(lambda _, m: m, blocks)) == tuple(LAYERS)


def test_the_two_parts_of_a_tree_go_together_in_any_order():
    made = nn.combine({"b": 1, "a": None}, {"a": 2, "b": None})
    assert list(made.items()) == [("b", 1), ("a", 2)]


# Layouts and axes ---------------------------------------------------------------------------------

MESH = ts.dist.Mesh(("x",), shape=(2,))
ROWS, WHOLE = ts.dist.ShardSpec((0,), ("x",)), ts.dist.ShardSpec()


@dataclasses.dataclass
class Pair:
    w: Any
    b: Any


@pytest.mark.parametrize(
    "kind", [dict, OrderedDict, lambda d: Pair(**d)], ids=["dict", "ordered", "class"]
)
def test_layouts_go_by_key(kind):
    given = {"w": op.ones((2, 3)), "b": op.ones((3,))}
    made = ts.dist.shard(kind(given), {"w": ROWS, "b": WHOLE}, MESH)
    w, b = (made.w, made.b) if isinstance(made, Pair) else (made["w"], made["b"])
    assert (w.layout, b.layout) == (ROWS, WHOLE)
    again = ts.dist.shard(kind(given), {"b": WHOLE, "w": ROWS}, MESH)
    assert tree.leaves(tree.map(lambda v: v.layout, again)) == tree.leaves(
        tree.map(lambda v: v.layout, made)
    )


def test_layouts_for_other_names_are_refused():
    with pytest.raises(
        OperandError, match=r"dist.shard: layouts for 'v', 'b', expected them for 'b', 'w'"
    ):
        ts.dist.shard({"w": op.ones((2,)), "b": op.ones(3)}, {"v": ROWS, "b": WHOLE}, MESH)


def test_axes_of_vmap_go_by_key_for_all_trees():
    for kind in (dict, OrderedDict, lambda d: Pair(**d), lambda d: defaultdict(int, d)):
        x = kind({"w": op.arange(6).reshape(2, 3), "b": op.arange(3)})
        read = (lambda p: p.w + p.b) if isinstance(x, Pair) else (lambda p: p["w"] + p["b"])
        got = ts.vmap(read, in_axes=(kind({"w": 1, "b": 0}),))(x)
        np.testing.assert_array_equal(
            got.numpy(), (np.arange(6).reshape(2, 3).T + np.arange(3)[:, None])
        )
    with pytest.raises(TreeError, match="in_axes"):
        ts.vmap(lambda p: p["w"], in_axes=({"v": 0},))({"w": op.ones(3)})


def test_samples_of_other_keys_are_not_stacked():
    samples = [{"x": np.ones(2), "y": np.zeros(2)}, {"x": np.ones(2), "z": np.ones(2)}]
    with pytest.raises(OperandError, match="samples of one batch have the structures"):
        next(iter(ts.data.Loader(samples, batch=2)))
    mixed = [{"x": np.ones(2), "y": np.zeros(2)}, {"y": np.ones(2), "x": np.zeros(2)}]
    batch = next(iter(ts.data.Loader(mixed, batch=2)))
    assert list(batch) == ["x", "y"]
    assert np.asarray(batch["x"]).tolist() == [[1, 1], [0, 0]]


# What equality passes by but a program can tell apart ----------------------------------------------


@dataclasses.dataclass
class Scaled:
    x: Any
    by: Any = dataclasses.field(default=1, metadata={"static": True})


def test_static_fields_that_are_equal_but_of_other_classes_are_told_apart():
    f = ts.jit(lambda s: s.x * s.by)
    x = op.arange(3)
    for by in (2, 2.0, True, 1, 1.0, 0.0, -0.0):
        for _ in range(2):
            got, want = f(Scaled(x, by)), x * by
            assert got.dtype is want.dtype, by
            np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(want.numpy()))


def test_keys_that_are_equal_but_of_other_classes_are_told_apart():
    f = ts.jit(lambda d: sum(v * k for k, v in d.items()))
    x = op.arange(3)
    for k in (1, 1.0, True):
        for _ in range(2):
            assert f({k: x}).dtype is (x * k + 0).dtype


class Named(NamedTuple):
    by: Any


@dataclasses.dataclass(frozen=True)
class Config:
    by: Any
    note: Any = dataclasses.field(default=None, compare=False)


@pytest.mark.parametrize(
    "kind", [lambda x: x, Named, Config, lambda x: (Config(x),), lambda x: Named(Named(x))],
    ids=["plain", "named", "class", "in a tuple", "nested"],
)  # fmt: skip
def test_static_values_that_are_equal_but_of_other_classes_are_told_apart(kind):
    def by(s):
        while isinstance(s, tuple | Config):
            s = s[0] if isinstance(s, tuple) else s.by
        return s

    f = ts.jit(lambda x, s: x * by(s), static_argnames=("s",))
    g = ts.jit(lambda s: s.x * by(s.by))
    for dtype in (ts.i32, ts.f32):
        x = ts.tensor([1, 2, 3], dtype=dtype)
        for c in (2, 2.0, True, 1, 0.0, -0.0, np.float32(-0.0)):
            want = x * c
            for got in (f(x, kind(c)), f(x, kind(c)), g(Scaled(x, kind(c))), g(Scaled(x, kind(c)))):
                assert got.dtype is want.dtype
                np.testing.assert_array_equal(np.signbit(got.numpy()), np.signbit(want.numpy()))


def test_a_field_that_is_not_compared_is_not_in_the_key():
    f = ts.jit(lambda x, s: x * s.by, static_argnames=("s",))
    assert (
        f(op.ones(2), Config(2, [1])).tolist()
        == f(op.ones(2), Config(2, {3: 4})).tolist()
        == [2, 2]
    )
    assert f.compiled == 1
