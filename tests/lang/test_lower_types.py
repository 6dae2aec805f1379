"""lower and traced take types in the place of tensors."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import OperandError


def attention(p, x):
    return op.softmax(x @ p["w"], axis=-1) * p["scale"]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_types_of_numbers_are_lowered_as_tensors_are(target):
    f = ts.jit(attention, target=target)
    given = f.lower({"w": Tensor[8, 5], "scale": 2.0}, Tensor[3, 8])
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 5)).astype(np.float32), rng.normal(size=(3, 8)).astype(np.float32)
    of_tensors = f.lower({"w": w, "scale": 2.0}, x)
    assert str(given.graph) == str(of_tensors.graph)
    assert str(given.target) == str(of_tensors.target)
    assert given.memory.peak == of_tensors.memory.peak


def test_sizes_stay_symbolic_and_serve_every_call():
    f = ts.jit(lambda x, y: x + op.sum(y, axis=0))
    lowered = f.lower(Tensor["B", "S", ts.f64], Tensor["M", "S", ts.f64])
    assert [str(v.type) for v in lowered.graph.outputs] == ["f64[B,S]"]
    assert "llvm" in str(lowered.target)
    for what in ("memory", "sizes"):
        with pytest.raises(
            OperandError, match=f"lower: {what} needs a number for B, M, S; lower with"
        ):
            getattr(lowered, what)


@pytest.mark.parametrize("what", ["tile", "target", "memory", "code", "host_steps", "record"])
def test_a_level_of_a_gpu_that_needs_numbers_says_so(what):
    lowered = ts.jit(op.softmax, target="cuda:sm_90").lower(Tensor["N", 64])
    assert "schedule.program" in str(lowered.schedule)
    with pytest.raises(OperandError, match="needs a number for N"):
        getattr(lowered, what)


def test_types_of_results_are_arguments():
    types = ts.eval_shape(lambda x: {"a": op.sin(x), "b": op.argmax(x)}, Tensor[3, 4])
    g = ts.jit(lambda t: t["a"] + t["b"]).traced(types)
    assert [str(v.type) for v in g.inputs] == ["f32[3,4]", "i64[]"]


def test_a_static_type_stays_a_type():
    f = ts.jit(lambda spec, x: op.ones(spec.shape) + x, static_argnames=("spec",))
    assert [str(v.type) for v in f.lower(Tensor[2, 3], 1.0).graph.inputs] == ["f64[]"]


def test_types_of_jax_stand_for_arrays():
    class ShapeDtypeStruct:  # as JAX's own, which needs no import to be known
        shape, dtype = (2, 3), np.dtype("float16")

    ShapeDtypeStruct.__module__ = "jax._src.core"
    assert str(ts.eval_shape(op.sin, ShapeDtypeStruct())) == "f16[2,3]"
    assert str(ts.jit(op.sin).lower(ShapeDtypeStruct()).graph.outputs[0].type) == "f16[2,3]"
