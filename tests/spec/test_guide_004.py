"""The snippets of the programming guide's second chapter, as written."""

import numpy as np

import tessera as ts


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_operator_graph():
    from tessera import op, graph  # noqa: I001

    @graph.module("attention")
    def attention(Q, K, V):
        S = op.matmul(Q, K.T)
        A = op.softmax(S)
        return op.matmul(A, V)

    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(6, 4)).astype(np.float32) for _ in range(3))
    got = attention(*map(ts.tensor, (q, k, v)))
    np.testing.assert_allclose(got, softmax(q @ k.T) @ v, rtol=1e-5, atol=1e-6)

    names = [n.op.name for n in attention.lower(*map(ts.tensor, (q, k, v))).graph.nodes]
    assert names == ["transpose", "matmul", "softmax", "matmul"]
    outer = ts.trace(lambda x: attention(x, x, x), ts.tensor(q))
    assert [(n.op.name, n.params["name"]) for n in outer.nodes] == [("call", "attention")]


def test_tiles():
    from tessera import op

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(256, 64)), rng.normal(size=(64, 128))
    A, B = ts.tensor(a), ts.tensor(b)

    Y = op.matmul(A, B, tile_shape=(128, 128, 64))

    np.testing.assert_allclose(Y, a @ b, rtol=1e-12)
    node = ts.trace(lambda A, B: op.matmul(A, B, tile_shape=(128, 128, 64)), A, B).nodes[0]
    assert node.params["tile_shape"] == (128, 128, 64)


def test_meshes_and_shard_specifications():
    from tessera import dist

    # Define a 3D mesh over 72 GPUs: tensor, pipeline, and data parallel axes
    mesh = dist.Mesh(axes=["tp", "pp", "dp"], devices=range(72))

    W = dist.tensor(
        shape=(1_000_000, 1_000_000),
        layout=dist.ShardSpec(partition=("row", "col"), mesh_axes=("tp", "pp")),
        mesh=mesh,
        dtype="bf16"
    )  # fmt: skip

    assert mesh.shape == (6, 4, 3)
    assert W.dtype is ts.bf16
    assert W.shape == (1_000_000, 1_000_000)
    rows = {W.shard_slices(d)[0].start for d in range(72)}
    cols = {W.shard_slices(d)[1].start for d in range(72)}
    assert (len(rows), len(cols)) == (6, 4)
    # every element lies on exactly as many devices as there are replicas along dp
    areas = [(r.stop - r.start) * (c.stop - c.start) for r, c in map(W.shard_slices, range(72))]
    assert sum(areas) == 3 * 10**12
