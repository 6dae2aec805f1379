"""Tensors on meshes where users put them: on another mesh, donated, in other libraries, in composed transforms."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.core.errors import DeviceError, OperandError, ShapeError, TesseraError
from tessera.core.flags import override

FOUR, TWO = dist.Mesh(["x"], shape=(4,)), dist.Mesh(["y"], shape=(2,))
ROWS, ROWS_OF_TWO = dist.ShardSpec((0,), ("x",)), dist.ShardSpec((0,), ("y",))
DATA = np.arange(20.0).reshape(5, 4)


def laid():
    return dist.tensor(DATA, ROWS, FOUR)


# Another mesh -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", [
    lambda x: dist.tensor(x, ROWS_OF_TWO, TWO), lambda x: dist.reshard(x, ROWS_OF_TWO, TWO),
    lambda x: dist.shard({"w": x}, ROWS_OF_TWO, TWO)["w"], lambda x: dist.constrain(x, ROWS_OF_TWO, TWO),
    lambda x: dist.strategy.zero3(TWO, "y").params({"w": x})["w"],
], ids=["tensor", "reshard", "shard", "constrain", "strategy"])  # fmt: skip
def test_a_tensor_moves_to_another_mesh(move):
    moved = move(laid())
    assert moved.mesh == TWO
    assert moved.layout.mesh_axes == ("y",)
    np.testing.assert_array_equal(moved.full(), DATA)


SPECS = [dist.ShardSpec(), dist.ShardSpec((0,), ("x",)), dist.ShardSpec((1,), ("x",)), dist.ShardSpec((-1,), ("x",)),
         dist.ShardSpec((-2,), ("x",))]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_tensor_has_the_layout_as_it_was_written(spec):
    """However it came to it, and from whichever layout."""
    for start in SPECS[:3]:
        x = dist.tensor(DATA[:4], start, FOUR)
        for move in (
            lambda x: dist.tensor(x, spec, FOUR), lambda x: dist.reshard(x, spec),
            lambda x: dist.constrain(x, spec), lambda x: dist.constrain({"w": [x]}, spec)["w"][0],
            lambda x: dist.shard({"w": x}, spec, FOUR)["w"],
        ):  # fmt: skip
            made = move(x)
            assert made.layout == spec
            assert (made.layout.mesh_axes, made.mesh) == (spec.mesh_axes, FOUR)
            np.testing.assert_array_equal(made.full(), DATA[:4])
    assert dist.constrain(dist.tensor(DATA[:4], SPECS[1], FOUR), None).layout == dist.ShardSpec()


def test_axes_of_one_name_do_not_keep_a_tensor_on_its_mesh():
    pair = dist.Mesh(["x"], shape=(2,))
    assert dist.reshard(laid(), ROWS, pair).mesh == pair


def test_a_program_runs_on_one_mesh():
    with pytest.raises(OperandError) as e:
        ts.jit(lambda x: dist.constrain(x, ROWS_OF_TWO, TWO))(laid())
    assert e.value.message == (
        "dist.constrain: f64[5,4] is on mesh x=4, and a program runs on one mesh; move it to mesh y=2 outside of "
        "the function"
    )
    other, advice = (
        dist.tensor(DATA, ROWS_OF_TWO, TWO),
        "; lay one out on the other's mesh with dist.tensor(x, layout, mesh)",
    )
    for f in (op.add, ts.jit(lambda a, b: a + b), ts.grad(lambda a, b: op.sum(a * b))):
        with pytest.raises(DeviceError) as found:
            f(laid(), other)
        assert "is on mesh x=4 but " in found.value.message
        assert found.value.message.endswith(f"is on mesh y=2{advice}")


# Donated, and in other libraries ----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_a_donated_tensor_on_a_mesh(target):
    """Its block becomes that of the result where nothing else shows it, and what is held elsewhere is kept."""
    with override(target=target):
        step = ts.jit(lambda w, g: w - 0.5 * g, donate=("w",))
        kept = np.array(DATA)
        w, g = dist.tensor(kept, ROWS, FOUR), dist.tensor(np.ones((5, 4)), ROWS, FOUR)
        for k in range(1, 4):
            before = w
            w = step(w, g)
            np.testing.assert_array_equal(w.full(), DATA - 0.5 * k)
            with pytest.raises(OperandError, match="was donated"):
                before.numpy()
        np.testing.assert_array_equal(kept, DATA)


def test_a_block_is_written_over_in_place():
    step = ts.jit(lambda w: w + 1, donate=("w",))
    w = step(dist.tensor(np.zeros((64, 64)), ROWS, FOUR))
    first = w.storage.block.ctypes.data
    for _ in range(3):
        w = step(w)
    assert w.storage.block.ctypes.data == first
    np.testing.assert_array_equal(w.full(), np.full((64, 64), 4.0))


def test_other_libraries_see_the_whole_tensor():
    np.testing.assert_array_equal(np.from_dlpack(laid()), DATA)
    assert laid().__dlpack_device__() == (1, 0)
    x = laid()
    np.asarray(np.from_dlpack(x))
    assert x.layout == ROWS  # and still is on the mesh


# Transforms -------------------------------------------------------------------------------------------


def test_alpa_shard_composes():
    f = ts.alpa_shard(lambda x, w: op.tanh(x @ w), FOUR)
    x, w = DATA[:4], DATA[:4, :3] / 10
    want = np.tanh(x @ w)
    for found in (f(x, w), f(x, w=w), ts.jit(f)(x, w), ts.alpa_shard(ts.jit(f), FOUR)(x, w)):
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-12)
    assert f.choice(x, w=w).specs == f.choice(x, w).specs
    g = ts.grad(lambda w: op.sum(f(x, w)))(ts.tensor(w))
    np.testing.assert_allclose(g.numpy(), x.T @ (1 - want**2), rtol=1e-12)


def test_pmap_takes_names():
    f = ts.pmap(lambda w, x: w + 2 * x, donate={"w"})
    w = ts.tensor(DATA)
    np.testing.assert_array_equal(f(x=DATA, w=w).full(), 3 * DATA)
    with pytest.raises(OperandError, match="was donated"):
        w.numpy()
    with pytest.raises(OperandError) as e:
        f(DATA, y=DATA)
    assert e.value.message.startswith("pmap: ")
    with pytest.raises(OperandError) as e:
        ts.pmap(lambda w: w, donate={"v"})
    assert e.value.message == "pmap: donate has 'v', expected numbers or names of arguments"


# Words ------------------------------------------------------------------------------------------------


def test_rules_of_tensor_parallel_say_row_or_col_and_name_parameters():
    params = {"up": op.zeros((4, 8)), "down": op.zeros((8, 4))}
    made = dist.strategy.tensor(FOUR, "x", {"up": "col", "down": "row"}).params(params)
    assert [made[n].shown_layout for n in ("up", "down")] == [
        "f32[4, 8@x] on mesh x=4", "f32[8@x, 4] on mesh x=4",
    ]  # fmt: skip
    for rules, text in [
        ({"upp": 0}, "strategy.tensor: no parameter is named 'upp'; the parameters are down, up"),
        ({"up": 2}, "strategy.tensor: 'up' is cut along axis 2, but has 2 axes"),
    ]:
        with pytest.raises(OperandError) as e:
            dist.strategy.tensor(FOUR, "x", rules).params(params)
        assert e.value.message == text


def test_collectives_name_themselves_and_what_names_a_mesh_axis():
    x = laid()
    calls = {
        "all_reduce": lambda: dist.all_reduce(x, "x"), "all_gather": lambda: dist.all_gather(x, "x"),
        "reduce_scatter": lambda: dist.reduce_scatter(x, "x"), "all_to_all": lambda: dist.all_to_all(x, "x"),
        "broadcast": lambda: dist.broadcast(x, "x"), "permute": lambda: dist.permute(x, "x", [(0, 1)]),
    }  # fmt: skip
    for name, call in calls.items():
        with pytest.raises(OperandError) as e:
            call()
        assert e.value.message == (
            f"{name}: no axis is named 'x' here (named: none); call it in a function of dist.shard_map(f, mesh, "
            "in_specs, out_specs), which names the axes of mesh x=4"
        )


def test_names_of_axes_are_one_for_each():
    with pytest.raises(ShapeError) as e:
        dist.tensor((4, 3), ROWS, FOUR, names=("batch",))
    assert e.value.message == (
        "dist.tensor: 1 names ('batch',) for a tensor of 2 axes; name each axis once"
    )
    with pytest.raises(OperandError) as found:
        ts.mesh(range(4)).shard(d_model="tp")
    assert found.value.message == ("mesh: 'd_model' is cut by 'tp', but the mesh has axes shard")


@pytest.mark.parametrize(
    "trace", [ts.jit, ts.grad, lambda f: ts.jit(ts.grad(f))], ids=["jit", "grad", "both"]
)
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "broadcast"])
def test_a_collective_of_no_axis_in_a_traced_function_says_so(name, trace):
    with pytest.raises(TesseraError) as e:
        trace(lambda x: op.sum(getattr(dist, name)(x)))(np.ones(3, np.float32))
    assert e.value.message.startswith(f"{name}")
    assert (
        "no axis is named inside a traced function; name one of vmap, pmap or a mesh"
        in e.value.message
    )
