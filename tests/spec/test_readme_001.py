"""The quick example of the project's first README, as written."""

import numpy as np


def test_quick_example():
    from tessera import op, dist  # noqa: I001

    # Create a distributed mesh across 8 GPUs
    mesh = dist.Mesh(axes=["dp"], devices=range(8))

    # Define a sharded tensor
    X = dist.tensor((1024, 1024), layout=dist.ShardSpec(("row",), ("dp",)), mesh=mesh)

    # Apply a fused operator pipeline
    Y = op.pipeline([
        op.matmul(X, X.T),
        op.relu,
        op.layernorm
    ])  # fmt: skip

    assert Y.shape == (1024, 1024)
    assert np.array_equal(Y.numpy(), np.zeros((1024, 1024), np.float32))
    assert [X.shard_slices(d)[0] for d in (0, 7)] == [slice(0, 128), slice(896, 1024)]
    assert X.shard(3).shape == (128, 1024)


def test_quick_example_on_data():
    from tessera import dist, op

    x = np.random.default_rng(0).normal(size=(24, 16)).astype(np.float32)
    mesh = dist.Mesh(axes=["dp"], devices=range(8))
    X = dist.tensor(x, layout=dist.ShardSpec(("row",), ("dp",)), mesh=mesh)
    Y = op.pipeline([op.matmul(X, X.T), op.relu, op.layernorm])
    y = np.maximum(x @ x.T, 0)
    want = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(Y.numpy(), want, rtol=1e-4, atol=1e-5)
    assert Y.shown_layout == "f32[24@dp, 24] on mesh dp=8"
