"""shard_map, regions on meshes and context parallel attention: what they compute is what the whole program does."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import OperandError, ShapeError

SPEC = dist.ShardSpec
MESH = dist.Mesh(["dp", "sp"], shape=(2, 4))


@pytest.fixture(autouse=True)
def _interpreted():
    with ts.core.flags.override(target="numpy"):
        yield


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def turned(v, w):
    moved = dist.permute(v, "sp", [(k, (k + 1) % 4) for k in range(4)])
    place = op.cast(dist.axis_index("sp"), "f64")
    return moved * place @ w, dist.all_reduce(op.sum(v @ w, axis=1), "sp")


def test_shard_map_sees_one_shard_and_other_axes_propagate():
    x, w = normal(6, 8, 3), normal(3, 3, seed=1)
    f = dist.shard_map(turned, MESH, (SPEC((1,), ("sp",)), None), (SPEC((1,), ("sp",)), None))
    xs, ws = dist.tensor(x, SPEC((0, 1), ("dp", "sp")), MESH), dist.replicate(w, MESH)
    y, total = f(xs, ws)
    assert (str(y), str(total)) == (
        "Tensor(f64[6@dp, 8@sp, 3] on mesh dp=2 x sp=4)", "Tensor(f64[6@dp, 3] on mesh dp=2 x sp=4)"
    )  # fmt: skip
    np.testing.assert_allclose(y.full(), np.roll(x, 2, 1) * np.repeat(range(4), 2)[:, None] @ w)
    np.testing.assert_allclose(total.full(), (x @ w).sum(1), rtol=1e-13)
    report = dist.explain(f, xs, ws)
    assert report.counts == {"permute": 1, "all_reduce": 1}
    assert report.bytes == 6 * 8 * 3 * 8 // 8 + 2 * (6 * 3 * 8 // 2) * 3 // 4


def test_shard_map_has_derivatives():
    """Of what is cut, of what is whole on every shard, and of what is captured."""
    x, w, b = normal(6, 8, 3), normal(3, 3, seed=1), normal(3, 2, seed=2)

    def loss(x, w, b):
        spec = SPEC((1,), ("sp",))
        y, total = dist.shard_map(
            lambda v: [u @ b for u in turned(v, w)], MESH, spec, [spec, None]
        )(x)  # fmt: skip
        return op.sum(op.sin(y)) + op.sum(op.square(total))

    def whole(x, w, b):
        y = op.roll(x, 2, 1) * np.repeat(np.arange(4.0), 2)[:, None] @ w @ b
        return op.sum(op.sin(y)) + op.sum(op.square(op.sum(x @ w, axis=1) @ b))

    args = [
        dist.tensor(x, SPEC((0, 1), ("dp", "sp")), MESH),
        *(dist.replicate(v, MESH) for v in (w, b)),
    ]
    found = ts.jit(ts.grad(loss, argnums=(0, 1, 2)))(*args)
    wanted = ts.jit(ts.grad(whole, argnums=(0, 1, 2)))(*map(ts.tensor, (x, w, b)))
    for f, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f.full(), want, rtol=1e-10, atol=1e-12)
    assert found[0].layout == SPEC((0, 1), ("dp", "sp"))


EAGER = {
    "index": lambda v: v * dist.axis_index("sp"),
    "sum": lambda v: v * dist.all_reduce(v, "sp"),
    "max": lambda v: v * dist.all_reduce(v, "sp", op="max"),
    "gather": lambda v: v * op.sum(dist.all_gather(v, "sp"), axis=0),
    "scatter": lambda v: dist.all_gather(dist.reduce_scatter(v, "sp", dim=0), "sp", dim=0),
    "to all": lambda v: v * op.sum(dist.all_to_all(v, "sp", 0, 0)),
    "permute": lambda v: v * dist.permute(v, "sp", [(0, 1), (3, 2)]),
    "branch": lambda v: op.cond(
        dist.all_reduce(op.sum(v), "sp") > 0, lambda v: dist.all_reduce(v, "sp"), lambda v: dist.all_reduce(2 * v, "sp"), v),
    "loop": lambda v: op.scan(lambda c, r: (c + dist.all_reduce(op.sum(r), "sp"), c * r), 0.0 * dist.all_reduce(op.sum(v), "sp"), v)[1],
}  # fmt: skip


@pytest.mark.parametrize("name", EAGER)
def test_eager_derivatives_are_those_of_a_jitted_function(name):
    """Node by node, what a shard holds was taken for a whole tensor: value and gradient were wrong."""
    spec = SPEC((1,), ("sp",))
    f = dist.shard_map(EAGER[name], MESH, spec, spec)
    x, t = (dist.tensor(normal(4, 8, seed=k), spec, MESH) for k in (0, 1))

    def loss(x):
        return op.sum(op.sin(f(x)))

    value, found = ts.value_and_grad(loss)(x)
    wanted = ts.jit(ts.value_and_grad(loss))(x)
    np.testing.assert_allclose(float(value), float(wanted[0]), rtol=1e-12)
    np.testing.assert_allclose(found.full(), wanted[1].full(), rtol=1e-12, atol=1e-12)
    assert found.layout == wanted[1].layout
    y, back = ts.vjp(f, x)
    at, line = ts.linearize(f, x)
    ahead = ts.jit(lambda x, t: ts.jvp(f, (x,), (t,))[1])(x, t)
    behind = ts.jit(lambda x, ct: ts.vjp(f, x)[1](ct)[0])(x, t)
    for a, b in ((y, f(x)), (at, f(x)), (line(t), ahead), (line.T(t), behind), (back(t)[0], behind)):
        np.testing.assert_allclose(a.full(), b.full(), rtol=1e-12, atol=1e-12)


def test_shard_map_names_what_is_wrong():
    x = dist.tensor(normal(6, 7), SPEC(), MESH)
    with pytest.raises(ShapeError) as e:
        dist.shard_map(lambda v: v, MESH, SPEC((1,), ("sp",)), None)(x)
    assert e.value.message == (
        "shard_map: axis 1 of f64[6,7] is 7, which mesh axis 'sp' of size 4 does not divide; pad it to a multiple"
    )
    with pytest.raises(OperandError) as e:
        dist.shard_map(lambda v: v, MESH, None, None)
    assert e.value.message == "shard_map: no layout names a mesh axis; give axes="


# Branches and loops -------------------------------------------------------------------------------


def recurrent(x, w):
    def step(c, r):
        c = op.tanh(c @ w + r)
        return c, op.sum(c, axis=1)

    last, sums = op.scan(step, op.zeros(x.shape[1:], dtype="f64"), x)
    return op.sum(op.square(last)) + op.sum(sums[-1] * sums[0])


def branched(x, w):
    y = op.cond(op.sum(x) > 0, lambda x: op.exp(x) @ w, lambda x: x @ w, x)
    return op.sum(
        op.while_loop(lambda c: op.sum(op.square(c)) > 1, lambda c: c @ w * 0.05, y, bound=6)
    )


@pytest.mark.parametrize("f", [recurrent, branched], ids=["scan", "cond and while"])
@pytest.mark.parametrize("rows", [4, 5])
def test_loops_keep_their_layouts(f, rows):
    mesh = dist.Mesh(["dp", "tp"], shape=(2, 2))
    x, w = normal(3, rows, 6), normal(6, 6, seed=1)
    args = [
        dist.tensor(x, SPEC((1, 2), ("dp", "tp")), mesh),
        dist.tensor(w, SPEC((1,), ("tp",)), mesh),
    ]
    g = ts.jit(ts.value_and_grad(f, argnums=(0, 1)))
    value, grads = g(*args)
    wanted, others = g(ts.tensor(x), ts.tensor(w))
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-12)
    for a, b in zip(grads, others, strict=True):
        np.testing.assert_allclose(a.full(), b, rtol=1e-9, atol=1e-14)


def test_a_loop_gathers_nothing_that_its_body_keeps_cut():
    x = dist.tensor((10, 8, 6), SPEC((1,), ("dp",)), MESH)

    def f(x):
        return op.scan(lambda c, r: (op.tanh(c + r), op.exp(r)), op.zeros((8, 6)), x)

    report = dist.explain(f, x)
    assert (len(report), report.results) == (0, ("f32[8@dp, 6]", "f32[10, 8@dp, 6]"))
    w = dist.tensor((6, 6), SPEC((0,), ("sp",)), MESH)
    report = dist.explain(
        lambda x, w: op.scan(lambda c, r: (c @ w + r, c), op.zeros((8, 6)), x), x, w
    )
    (found,) = report
    assert (found.kind, found.times, found.bytes) == (
        "all_reduce",
        10,
        10 * 2 * (4 * 6 * 4) * 3 // 4,
    )


# Attention ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [pytest.param(False, marks=pytest.mark.deep), True])
@pytest.mark.parametrize("shards", [3, pytest.param(4, marks=pytest.mark.deep)])
def test_context_parallel_attention_is_attention(causal, shards):
    mesh = dist.Mesh(["dp", "tp", "sp"], shape=(1, 2, shards))
    q, k, v = normal(2, 4, 12, 8), normal(2, 2, 12, 8, seed=1), normal(2, 2, 12, 8, seed=2)
    spec = SPEC((0, 1, 2), ("dp", "tp", "sp"))
    f = ts.jit(
        ts.value_and_grad(
            lambda q, k, v: op.sum(op.sin(dist.attention(q, k, v, causal=causal))),
            argnums=(0, 1, 2),
        )
    )
    args = [dist.tensor(x, spec, mesh) for x in (q, k, v)]
    value, grads = f(*args)
    wanted, others = f(*map(ts.tensor, (q, k, v)))
    np.testing.assert_allclose(float(value), float(wanted), rtol=1e-12)
    for a, b in zip(grads, others, strict=True):
        np.testing.assert_allclose(a.full(), b, rtol=1e-9, atol=1e-13)
        assert a.layout == spec
    # Keys and values go round, and nothing is gathered.
    kinds = dist.explain(f, *args).counts
    assert set(kinds) == {"permute", "all_reduce"}
    assert dist.explain(f, *args).results[1] == "f64[2@dp, 4@tp, 12@sp, 8]"


def test_context_parallel_attention_names_what_is_wrong():
    mesh = dist.Mesh(["sp"], shape=(4,))
    x = dist.tensor((2, 4, 10, 8), SPEC(), mesh)
    with pytest.raises(OperandError) as e:
        dist.attention(x, x, x)
    assert e.value.message == (
        "dist.attention: sequences of 10 queries and 10 keys must be equal and divide by the 4 shards of mesh axis 'sp'"
    )


@pytest.mark.parametrize("root", [-1, 4, 5])
def test_a_broadcast_from_nowhere_is_refused(root):
    f = ts.vmap(lambda v: dist.broadcast(v, "i", root=root), axis_name="i")
    for run in (f, ts.jit(f)):
        with pytest.raises(OperandError, match=f"broadcast: root is {root}, expected 0 to 3"):
            run(ts.tensor(np.arange(4.0)))


def test_a_result_that_shards_may_hold_differently_is_refused_where_its_layout_does_not_cut_it() -> None:
    """The sums of single shards once came back as that of the first one."""
    mesh = dist.Mesh(("dp", "tp"), shape=(4, 2))
    cut, whole = dist.ShardSpec((0,), ("dp",)), dist.ShardSpec()
    x = dist.tensor(np.arange(16, dtype="f4").reshape(4, 4), cut, mesh)
    refused = "result 0, f32.*, may differ between shards along 'dp'"
    for f in (
        lambda v: op.sum(v),
        lambda v: op.sum(v) + dist.all_reduce(op.sum(v), "dp"),
        lambda v: dist.axis_index("dp") * 2.0,
    ):
        g = dist.shard_map(f, mesh, cut, whole)
        for call in (g, ts.jit(g), ts.grad(lambda v, g=g: g(v) * 2)):
            with pytest.raises(OperandError, match=refused):
                call(x)
    held = dist.shard_map(lambda v: op.sum(v) * 0, mesh, cut, whole, check=False)
    assert float(held(x).numpy()) == 0
    for same, want in (
        (lambda v: dist.all_reduce(op.sum(v), "dp"), 120),
        (lambda v: op.max(dist.all_gather(v, "dp")), 15),
    ):
        assert float(dist.shard_map(same, mesh, cut, whole)(x).numpy()) == want
