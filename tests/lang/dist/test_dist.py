"""Meshes and layouts: every element has its place."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import KVCache, dist, op
from tessera.core.errors import DeviceError, ShapeError
from tessera.lang.dist import balanced


@given(st.integers(1, 500), st.integers(1, 4))
def test_default_shapes_use_every_device(count, axes):
    shape = balanced(count, axes)
    assert (len(shape), math.prod(shape)) == (axes, count)
    assert list(shape) == sorted(shape, reverse=True)


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.booleans(),
)
def test_shards_tile_the_tensor(shape, mesh_shape, both):
    mesh = dist.Mesh(["x", "y"], mesh_shape, range(math.prod(mesh_shape)))
    layout = dist.ShardSpec(("row", "col"), ("x", "y")) if both else dist.ShardSpec((1,), ("y",))
    t = dist.tensor(shape, layout, mesh)
    held = np.zeros(shape, int)
    for d in mesh.devices:
        held[t.shard_slices(d)] += 1
        assert t.shard(d).shape == np.zeros(shape)[t.shard_slices(d)].shape
    assert (held == (1 if both else mesh_shape[0])).all()


def test_coordinates():
    mesh = dist.Mesh(["x", "y"], (2, 3), [5, 6, 7, 8, 9, 10])
    assert mesh.coordinates(9) == {"x": 1, "y": 1}
    with pytest.raises(DeviceError, match="device 3 is not on this mesh of 6 devices"):
        mesh.coordinates(3)


def test_cache_appends_without_changing_the_old_one():
    empty = KVCache.empty(1, 2, 5, 3)
    k = ts.tensor(np.random.default_rng(0).normal(size=(1, 2, 2, 3)).astype(np.float32))
    one = empty.append(k, -k)
    two = ts.jit(lambda c, k: c.append(k, k))(one, k)
    assert [int(c.length) for c in (empty, one, two)] == [0, 2, 4]
    np.testing.assert_array_equal(two.K[:, :, :4], op.concat([k, k], 2))
    np.testing.assert_array_equal(two.V[:, :, :4], op.concat([-k, k], 2))
    assert not empty.K.numpy().any()
    with pytest.raises(ShapeError) as e:
        empty.append(k.astype("bf16"), k)
    assert e.value.message == (
        "KVCache.append: got bf16[1,2,2,3] for K, expected f32[1,2,positions,3] as in the cache f32[1,2,5,3]"
    )


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: dist.Mesh(3), "Mesh: got axes 3 and shape None, expected names of axes and a size for each"),
        (lambda: dist.Mesh(["dp"], 3), "and shape 3, expected names of axes"),
        (lambda: dist.Mesh(["dp"], ("a",)), "Mesh: shape is .*expected integers"),
        (lambda: dist.Mesh(["dp"], (0,)), "Mesh: shape"),
    ],
    ids=["axes", "shape", "letters", "none"],
)  # fmt: skip
def test_meshes_that_cannot_be(make, text):
    with pytest.raises(ts.TesseraError, match=text):
        make()


def test_a_mesh_takes_axes_shape_and_devices_in_this_order():
    assert dist.Mesh(["dp", "tp"], (2, 4)) == dist.Mesh(["dp", "tp"], (2, 4), range(8))
