"""Programs on a logical mesh: they compute what the whole program does, and say what they move."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from examples.distributed import gpt
from tessera import dist, op
from tessera.core.errors import DeviceError, OperandError, ShapeError
from tessera.core.flags import override
from tessera.core.layout import Layout, changes, cost
from tessera.core.mesh import placed
from tessera.ops.ranks import nodes, tree_of

SPEC = dist.ShardSpec
MESH = dist.Mesh(["dp"], shape=(8,))
GRID = dist.Mesh(["dp", "tp"], shape=(2, 4))


def normal(*shape, seed=0, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


# Meshes and ranks -----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 40))
def test_any_ranks_add_up_the_same_tree(total, ranks):
    """What ranks send are nodes of the tree over all coordinates, whoever owns these."""

    def node(begin, end):
        if end - begin == 1:
            return begin
        size = 1
        while 2 * size < end - begin:
            size *= 2
        return node(begin, begin + size), node(begin + size, end)

    whole = tree_of({(i, i + 1): i for i in range(total)}, total, lambda a, b: (a, b))
    count = min(ranks, total)
    ends = [k * total // count for k in range(count + 1)]
    sent = [n for low, high in itertools.pairwise(ends) for n in nodes(low, high, total)]
    assert whole == tree_of({n: node(*n) for n in sent}, total, lambda a, b: (a, b))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.data())
def test_ranks_share_all_shards_of_a_mesh(shape, data):
    mesh = dist.Mesh([f"a{i}" for i in range(len(shape))], shape=shape)
    ranks = data.draw(
        st.sampled_from([n for n in range(1, mesh.size() + 1) if mesh.size() % n == 0])
    )
    owners = {}
    for r in range(ranks):
        place = placed(mesh, r, ranks)
        assert all(place.rank in place.group(a) for a in mesh.axes)
        for at in np.ndindex(*shape):
            if all(
                low <= c < high
                for c, (low, high) in zip(at, map(place.range, mesh.axes), strict=True)
            ):
                owners.setdefault(at, []).append(r)
    assert {at: place.owner(at) for at in owners} == {at: own[0] for at, own in owners.items()}
    assert len(owners) == mesh.size()
    assert all(len(own) == 1 for own in owners.values())


def test_ranks_that_cannot_share_a_mesh():
    with pytest.raises(DeviceError) as e:
        placed(dist.Mesh(["x", "y"], shape=(2, 2)), 0, 3)
    assert e.value.message == (
        "mesh x=2 x y=2: 3 ranks cannot share 4 shards as a grid; run it on a number of ranks that is a product of "
        "at most the size of each axis"
    )


# Layouts --------------------------------------------------------------------------------------------


def test_changes_of_layout_and_their_cost():
    rows, cols, whole = Layout((("dp",), ())), Layout(((), ("dp",))), Layout(((), ()))
    assert [c.kind for c in changes(rows, whole)] == ["all_gather"]
    assert [c.kind for c in changes(whole, rows)] == ["part"]
    assert [c.kind for c in changes(rows, cols)] == ["all_to_all"]
    summed = Layout(((), ()), ("dp",))
    assert [c.kind for c in changes(summed, whole)] == ["all_reduce"]
    assert [c.kind for c in changes(summed, cols)] == ["reduce_scatter"]
    # A shard of 8 sends its eighth of 8000 bytes to seven others, or seven eighths of what it has, twice.
    assert (cost(rows, whole, 8000, MESH), cost(summed, whole, 8000, MESH)) == (7000, 14000)
    assert Layout((("dp", "tp"), ())).refines(rows)
    assert not rows.refines(cols)


def test_a_tensor_knows_its_layout():
    x = normal(10, 6)
    t = dist.tensor(x, SPEC(("row", "col"), ("dp", "tp")), GRID)
    assert repr(t) == "Tensor(f64[10@dp, 6@tp] on mesh dp=2 x tp=4)"
    assert (t.layout, t.mesh) == (SPEC(("row", "col"), ("dp", "tp")), GRID)
    np.testing.assert_array_equal(t.full(), x)
    for d, part in t.shards.items():
        np.testing.assert_array_equal(part, x[t.shard_slices(d)])
    again = dist.from_shards(t.shards, (10, 6), t.layout, GRID)
    np.testing.assert_array_equal(again.full(), x)
    made = dist.from_function((10, 6), t.layout, GRID, lambda part: x[part], dtype="f64")
    np.testing.assert_array_equal(made.full(), x)
    both = dist.tensor(normal(16, 3), SPEC((0,), (("dp", "tp"),)), GRID)
    assert [s[0].start for s in map(both.shard_slices, range(8))] == list(range(0, 16, 2))


def test_wrong_layouts():
    for shape, spec, text in [
        ((4, 4), SPEC((0,), ("pp",)), "mesh has no axis 'pp'; it has dp, tp"),
        ((4, 4), SPEC((0, 1), ("dp", "dp")), "ShardSpec: (0, 1) over ('dp', 'dp') cuts twice"),
        ((4,), SPEC((3,), ("dp",)), "ShardSpec: 3 is no axis of a tensor of rank 1; write 'row', 'col' or an axis number"),
        ((12,), SPEC((0,), (("dp", "tp"),)), "ShardSpec: axis 0 of size 12 is cut by dp and tp into 8 parts, which do not "
         "divide it; cut it by one mesh axis, or choose a size that divides"),
    ]:  # fmt: skip
        with pytest.raises((OperandError, ShapeError)) as e:
            dist.tensor(shape, spec, GRID)
        assert e.value.message == text
    with pytest.raises(OperandError) as e:
        _ = ts.tensor([1.0]).layout
    assert e.value.message == (
        "layout: f32[1] is on cpu:0 and has no layout; lay it out with dist.tensor(x, layout, mesh)"
    )


# Programs -------------------------------------------------------------------------------------------


def test_eager_ops_keep_layouts():
    x = normal(9, 5)
    t = dist.tensor(x, SPEC((0,), ("dp",)), MESH)
    y = op.softmax(op.exp(t) * 2 + 1, axis=-1)
    assert y.layout == SPEC((0,), ("dp",))
    np.testing.assert_array_equal(y.full(), op.softmax(op.exp(ts.tensor(x)) * 2 + 1, axis=-1))
    total = op.sum(t, axis=0)
    assert total.layout == SPEC()
    np.testing.assert_allclose(total.full(), x.sum(0), rtol=1e-13)
    assert dist.reshard(t, SPEC((1,), ("dp",))).layout == SPEC((1,), ("dp",))


def test_a_sum_over_a_mesh_axis_is_that_of_vmap():
    """vmap with axis names is what a mesh means, to the bit."""
    x, w = normal(8, 4, 3, dtype=np.float32), normal(3, 5, dtype=np.float32)
    mapped = ts.vmap(lambda x: op.psum(op.transpose(x) @ x @ w, "dp"), axis_name="dp")(x)[0]
    t = dist.tensor(x.reshape(32, 3), SPEC((0,), ("dp",)), MESH)

    def whole(t, w):
        return (op.transpose(t) @ t) @ w

    y = ts.jit(whole)(t, dist.replicate(ts.tensor(w), MESH))
    gram = ts.vmap(lambda x: op.psum(op.transpose(x) @ x, "dp"), axis_name="dp")(x)[0]
    np.testing.assert_array_equal(y.full(), gram @ w)
    np.testing.assert_allclose(y.full(), mapped, rtol=1e-4)


def test_the_gpt_agrees_with_the_whole_program_in_f64():
    params = ts.tree.map(lambda x: x.astype("f64"), gpt.init())
    tokens = np.random.default_rng(3).integers(0, gpt.VOCABULARY, (8, gpt.LENGTH + 1))
    s = gpt.strategy_of("zero3+tp")
    with override(target="numpy"):
        f = ts.jit(ts.value_and_grad(gpt.loss))
        value, grads = f(params, ts.tensor(tokens))
        found, sharded = f(s.params(params), s.batch(tokens))
    np.testing.assert_allclose(float(found), float(value), rtol=1e-13)
    for a, b in zip(ts.tree.leaves(sharded), ts.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-14)


def test_strategies_that_cut_the_same_sums_have_one_hash():
    """ZeRO changes where things are, not what is added to what."""
    with override(target="numpy"):
        assert len({gpt.train(s, 2) for s in ("data", "zero1", "zero2", "zero3")}) == 1


@pytest.mark.deep
def test_strategies_that_cut_the_same_sums_have_one_hash_in_machine_code():
    assert len({gpt.train(s, 10) for s in ("data", "zero1", "zero2", "zero3")}) == 1


def test_explain_lists_what_is_moved():
    def layer(x, w):
        return op.sum(op.relu(x @ w), axis=0)

    x = dist.tensor((64, 32), SPEC((0,), ("dp",)), GRID)
    w = dist.tensor((32, 16), SPEC((1,), ("tp",)), GRID)
    report = dist.explain(layer, x, w)
    (found,) = report
    assert (found.kind, found.axis, found.bytes) == ("all_reduce", "dp", 16)
    lines = str(report).splitlines()
    assert lines[0] == "layer on mesh dp=2 x tp=4: 1 all_reduce, 16 bytes a shard"
    assert lines[1].startswith(
        "  all_reduce over dp of f32[16@tp] sum@dp for the result, 16 bytes a shard"
    )
    assert lines[2] == "  -> f32[16@tp]"
    moved = dist.explain(lambda x: op.sort(x, axis=0), x)
    assert [(c.kind, c.value, c.user) for c in moved] == [("all_to_all", "f32[64@dp, 32]", "sort")]
    with pytest.raises(OperandError) as e:
        dist.explain(layer, ts.tensor(normal(4, 4)), ts.tensor(normal(4, 4)))
    assert e.value.message == (
        "dist.explain: no argument is on a mesh; lay one out with dist.tensor(x, layout, mesh)"
    )


def test_tensor_parallel_moves_one_sum_for_two_layers():
    s = gpt.strategy_of("tp")
    step = s.step(gpt.loss, ts.optim.adam(1e-3))
    params = gpt.init()
    state = s.state(ts.optim.adam(1e-3).init(params))
    tokens = s.batch(np.zeros((16, gpt.LENGTH + 1), np.int64))
    report = dist.explain(step, s.params(params), state, tokens)
    # Two a block forward and two backward, one for the head, and five small ones of the loss.
    assert report.counts == {"all_reduce": 4 * gpt.LAYERS + 1 + 5}


def test_zero_moves_what_the_paper_says():
    """A reduce-scatter and an all-gather move together what an all-reduce does."""
    found = {}
    for name in ("data", "zero2", "zero3"):
        s, params = gpt.strategy_of(name), gpt.init()
        state = s.state(ts.optim.adam(1e-3).init(params))
        tokens = s.batch(np.zeros((16, gpt.LENGTH + 1), np.int64))
        found[name] = dist.explain(
            s.step(gpt.loss, ts.optim.adam(1e-3)), s.params(params), state, tokens
        )
    count = len(ts.tree.leaves(gpt.init()))
    assert found["data"].counts == {"all_reduce": count + 1}
    assert found["zero2"].counts == {"all_reduce": 1, "reduce_scatter": count, "all_gather": count}
    assert found["data"].bytes == found["zero2"].bytes == found["zero3"].bytes


@settings(max_examples=8)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1))
def test_uneven_shards(rows, cols, parts, axis):
    mesh = dist.Mesh(["x"], shape=(parts,))
    x = normal(rows, cols, seed=rows * 10 + cols)
    t = dist.tensor(x, SPEC((axis,), ("x",)), mesh)
    np.testing.assert_allclose((op.log(op.square(t) + 1) @ op.transpose(t)).full(),
                               np.log(x * x + 1) @ x.T, rtol=1e-12)  # fmt: skip
    np.testing.assert_array_equal(op.max(t).full(), x.max())
    np.testing.assert_allclose(op.mean(t, axis=0).full(), x.mean(0), rtol=1e-12, atol=1e-15)


# Collectives ----------------------------------------------------------------------------------------


def test_collectives_over_a_named_axis():
    x = normal(4, 8, 3)

    def run(f, **more):
        return ts.vmap(f, axis_name="i", **more)(x)

    np.testing.assert_allclose(run(lambda v: dist.all_reduce(v, "i"))[2], x.sum(0), rtol=1e-13)
    np.testing.assert_allclose(
        run(lambda v: dist.all_reduce(v, "i", op="mean"))[0], x.mean(0), rtol=1e-13
    )
    np.testing.assert_array_equal(run(lambda v: dist.all_reduce(v, "i", op="min"))[1], x.min(0))
    np.testing.assert_allclose(
        run(lambda v: dist.all_reduce(v, "i", op="prod"))[3], x.prod(0), rtol=1e-13
    )
    np.testing.assert_array_equal(
        run(lambda v: dist.all_gather(v, "i", dim=1))[0], np.concatenate(x, 1)
    )
    np.testing.assert_allclose(
        run(lambda v: dist.reduce_scatter(v, "i", dim=0)), x.sum(0).reshape(4, 2, 3), rtol=1e-13
    )
    np.testing.assert_array_equal(run(lambda v: dist.broadcast(v, "i", root=2))[0], x[2])
    moved = run(lambda v: dist.all_to_all(v, "i", split=0, join=1))
    np.testing.assert_array_equal(moved[1], np.concatenate([p[2:4] for p in x], 1))
    turned = run(lambda v: dist.permute(v, "i", [(k, (k + 1) % 4) for k in range(4)]))
    np.testing.assert_array_equal(turned, np.roll(x, 1, 0))


@pytest.mark.parametrize("f", [
    lambda v: dist.all_reduce(v, "i"), lambda v: dist.all_gather(v, "i", dim=0),
    lambda v: dist.reduce_scatter(v, "i", dim=0), lambda v: dist.all_to_all(v, "i", 0, 1),
    lambda v: dist.broadcast(v, "i", 1), lambda v: dist.all_reduce(v, "i", op="prod"),
], ids=["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "prod"])  # fmt: skip
def test_collectives_have_derivatives(f):
    mapped = ts.vmap(lambda v: op.sin(f(v)), axis_name="i")
    x, t = normal(4, 8, 3), normal(4, 8, 3, seed=1)
    y, push = ts.jvp(mapped, (ts.tensor(x),), (ts.tensor(t),))
    step = 1e-6
    slope = (mapped(ts.tensor(x + step * t)).numpy() - mapped(ts.tensor(x - step * t)).numpy()) / (
        2 * step
    )
    np.testing.assert_allclose(push, slope, rtol=1e-5, atol=1e-7)
    ct = normal(*y.shape, seed=2)
    (back,) = ts.vjp(mapped, ts.tensor(x))[1](ts.tensor(ct))
    np.testing.assert_allclose((push.numpy() * ct).sum(), (back.numpy() * t).sum(), rtol=1e-10)


def test_pmap_is_vmap_on_a_mesh():
    def f(w, x):
        g = ts.grad(lambda w: op.sum(op.square(x @ w)))(w)
        return w - 0.1 * dist.all_reduce(g, "dp", op="mean"), dist.axis_index("dp")

    w, x = normal(8, 3, dtype=np.float32), normal(8, 5, 3, seed=1, dtype=np.float32)
    given_w = ts.tensor(w)
    new, index = ts.pmap(f, "dp", donate={0})(given_w, ts.tensor(x))
    want, _ = ts.vmap(f, axis_name="dp")(w, x)
    np.testing.assert_array_equal(new.full(), want)
    np.testing.assert_array_equal(index.full(), range(8))
    assert new.layout == SPEC((0,), ("dp",))
    with pytest.raises(OperandError, match="was donated"):
        op.exp(given_w)
    with pytest.raises(ShapeError) as e:
        ts.pmap(f, "dp", mesh=MESH)(ts.tensor(w[:4]), ts.tensor(x[:4]))
    assert e.value.message == (
        "pmap: the first axis of f32[4,3] is 4, expected 8, the size of mesh axis 'dp'"
    )


def test_with_mesh_names_axes():
    x = normal(16, 6)
    with ts.mesh(range(8), layout={"batch": "dp", "seq": "replicate"}) as m:
        t = dist.tensor(x, names=("batch", "seq"))
    assert (t.layout, m.mesh.axes, m.mesh.shape) == (SPEC((0,), ("dp",)), ("dp",), (8,))
    with ts.mesh(range(4)).shard("d_model"):
        w = dist.tensor((6, 8), names=("d_in", "d_model"))
    assert w.shown_layout == "f32[6, 8@shard] on mesh shard=4"
    with pytest.raises(OperandError, match="mesh is missing"):
        dist.tensor(x)


def test_messages_show_layouts_in_types():
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 4))
    x = dist.tensor((16, 2048), SPEC((0,), ("dp",)), mesh)
    w = dist.tensor((256, 8), SPEC((0,), ("tp",)), mesh)
    shown = "f32[16@dp, 2048], f32[256@tp, 8] on mesh dp=2 x tp=4"
    with pytest.raises(ShapeError) as found:
        x @ w
    assert str(found.value).splitlines()[-1] == f"  operands are {shown}"
    with pytest.raises(ShapeError) as found:
        ts.jit(lambda x, w: op.tanh(x) @ w)(x, w)
    assert str(found.value).splitlines()[-1] == f"  arguments are {shown}"
    with pytest.raises(ShapeError) as found:
        op.concat([x, w])
    assert str(found.value).splitlines()[-1] == f"  operands are {shown}"


def test_a_large_gather_that_no_one_asked_for_warns():
    mesh = dist.Mesh(["x"], shape=(4,))
    x = dist.tensor(np.arange(64.0), SPEC((0,), ("x",)), mesh)
    text = r"sort: gathers f64\[64@x\] over x, 384 bytes a shard, more than TESSERA_GATHER_LIMIT \(100\); cut"
    with override(target="numpy", gather_limit=100):
        with pytest.warns(RuntimeWarning, match=text):
            ts.jit(lambda x: op.sort(x))(x)
        ts.jit(lambda x: op.sort(dist.constrain(x, SPEC())))(x)
    with override(target="numpy"):
        ts.jit(lambda x: op.sort(x))(x)


@given(
    st.lists(st.integers(0, 6), min_size=0, max_size=3),
    st.sampled_from(["f4", "f8", "i2", "c16"]),
    st.booleans(),
)
def test_a_sharded_array_has_the_attributes_of_the_whole_one(shape, dtype, cut):
    x = np.zeros(shape, dtype)
    held = dist.shard(ts.tensor(x), SPEC((0,), ("dp",)) if cut and shape else SPEC(), MESH).storage
    for name in ("shape", "ndim", "size", "nbytes", "dtype"):
        assert getattr(held, name) == getattr(x, name), name


ON_PARTIAL_SUMS = {
    "where whole": lambda p, y, m: op.where(m, p, y), "where turned": lambda p, y, m: op.where(m, y, p),
    "where zero": lambda p, y, m: op.where(m, p, 0.0), "where both": lambda p, y, m: op.where(m, p, 2.0 * p),
    "where one": lambda p, y, m: op.where(m, p, 1.0), "where by it": lambda p, y, m: op.where(p > 0, y, p),
    "plus": lambda p, y, m: p + y, "minus": lambda p, y, m: y - p, "twice": lambda p, y, m: p + p,
    "multiple": lambda p, y, m: 3.0 * p, "quotient": lambda p, y, m: p / 2.0, "under": lambda p, y, m: 2.0 / p,
    "product": lambda p, y, m: p * y, "square": lambda p, y, m: p * p, "negative": lambda p, y, m: -p,
    "max": lambda p, y, m: op.maximum(p, y), "sin": lambda p, y, m: op.sin(p), "plus one": lambda p, y, m: p + 1.0,
    "sum": lambda p, y, m: op.sum(p, 0), "largest": lambda p, y, m: op.max(p, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_PARTIAL_SUMS)
def test_what_follows_a_partial_sum_is_that_of_the_whole_sum(name):
    """A product over a cut axis leaves partial sums on the shards; not every op may be applied to those."""
    x, w, y = normal(3, 8), normal(8, 4, seed=1), normal(3, 4, seed=2)
    m = y > 0
    f = ON_PARTIAL_SUMS[name]
    xs, ws = dist.tensor(x, SPEC((1,), ("dp",)), MESH), dist.tensor(w, SPEC((0,), ("dp",)), MESH)
    ys, ms = dist.replicate(y, MESH), dist.replicate(m, MESH)
    with override(target="numpy"):
        want = f(ts.tensor(x) @ ts.tensor(w), ts.tensor(y), ts.tensor(m)).numpy()
        for run in (ts.jit, lambda g: g):
            got = run(lambda x, w, y, m: f(x @ w, y, m))(xs, ws, ys, ms)
            np.testing.assert_allclose(got.full(), want, rtol=1e-12, atol=1e-12)


LIKES = {
    "zeros_like": lambda x: op.zeros_like(x),
    "ones_like": lambda x: op.ones_like(x),
    "empty_like": lambda x: op.empty_like(x),
    "full_like": lambda x: op.full_like(x, 2.0),
    "of another dtype": lambda x: op.full_like(x, 3, dtype=ts.i32),
    "of a bool": lambda x: op.full_like(x, True, dtype=ts.bool_),
}


@pytest.mark.parametrize("name", LIKES)
@pytest.mark.parametrize("way", ["eager", "jit"])
def test_a_tensor_like_one_on_a_mesh_has_its_layout(name, way):
    """It was whole, on the CPU: moments that an optimiser begins with took the memory of all shards on each."""
    mesh, whole = dist.Mesh(axes=["dp", "tp"], shape=(2, 2)), np.ones((5, 6), np.float32)
    x = dist.tensor(whole, layout=dist.ShardSpec((0, 1), ("dp", "tp")), mesh=mesh)
    f = LIKES[name] if way == "eager" else ts.jit(LIKES[name])
    made, want = f(x), LIKES[name](ts.tensor(whole))
    assert made.layout == x.layout
    assert made.dtype == want.dtype
    np.testing.assert_array_equal(made.full().numpy(), want.numpy())


@pytest.mark.parametrize(
    "make", [ts.optim.adam, ts.optim.lion, ts.optim.muon, lambda r: ts.optim.sgd(r, momentum=0.9)]
)
def test_states_of_optimisers_have_the_layout_of_their_parameters(make):
    mesh = dist.Mesh(axes=["tp"], shape=(2,))
    w = dist.tensor(np.ones((4, 6), np.float32), layout=dist.ShardSpec((1,), ("tp",)), mesh=mesh)
    held = [x for x in ts.tree.leaves(make(1e-2).init({"w": w})) if x.shape == w.shape]
    assert held
    assert all(x.layout == w.layout for x in held)
