"""Primitives that are one program are lowered once; those that differ in anything are not."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.artifact import KernelCall
from tessera.compile.cpu.forms import form_of_primitive
from tessera.core.dtype import f32, f64
from tessera.core.types import TensorType
from tessera.ir.schedule.ir import ANY, Primitive

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def test_equal_convolutions_are_one_kernel_and_each_has_its_own_operands():
    x, *ws = normal(2, 16, 9, 9), *(normal(16, 16, 3, 3) for _ in range(3))

    @ts.jit
    def f(x, a, b, c):
        for w in (a, b, c):
            x = op.conv(x, w, padding=1)
        return x

    low = f.lower(x, *ws)
    image = low._executable.image
    calls = [s for s in image.steps if isinstance(s, KernelCall)]
    assert len(calls) == 6  # weights are packed, then convolved with
    assert len({s.kernel for s in calls}) == len(image.kernels) == 2
    assert {s.name for s in calls} == set(low.tile)  # the record has all of them
    want = x
    for w in ws:
        want = np.asarray(op.conv(want, w, padding=1))
    assert np.array_equal(np.asarray(f(x, *ws)), want)


def step(**changes):
    given = {"primitive": "p", "params": {"n": 1}, "operands": ("a", "b"), "results": ("y",)}
    return Primitive("s", **{**given, **changes})


TYPES = {n: TensorType(f32, (2, 3)) for n in "abcxyz"} | {"wide": TensorType(f64, (2, 3))}


def test_names_are_no_part_of_a_form():
    other = step(operands=("x", "c"), results=("z",))
    assert form_of_primitive(step(), TYPES) == form_of_primitive(other, TYPES)


@pytest.mark.parametrize(
    "other",
    [
        step(primitive="q"), step(order=ANY), step(operands=("a", "a")), step(operands=("a", "wide")),
        step(params={"m": 1}), step(params={"n": 2}), step(params={"n": 1.0}), step(params={"n": True}),
        step(params={"n": "1"}), step(params={"n": (1,)}),
    ],
)  # fmt: skip
def test_what_differs_has_another_form(other):
    assert form_of_primitive(step(), TYPES) != form_of_primitive(other, TYPES)


def test_zeros_of_both_signs_differ():
    forms = {form_of_primitive(step(params={"fill": z}), TYPES) for z in (0.0, -0.0)}
    assert len(forms) == 2


def test_a_parameter_that_is_no_plain_value_has_no_form():
    assert form_of_primitive(step(params={"f": lambda x: x}), TYPES) is None
    assert form_of_primitive(step(params={"f": (1, object())}), TYPES) is None


def test_a_convolution_with_an_epilogue_is_not_one_without():
    """The gradient of tanh(conv(x, w)) took the epilogue of the forward convolution."""
    r = np.random.default_rng(0)
    x, w = (ts.tensor(r.normal(size=s).astype(np.float32)) for s in ((2, 4, 9, 10), (4, 1, 3, 3)))

    def f(x, w):
        inner = op.conv(x, w, groups=4, padding=1)
        return op.conv(op.tanh(inner), w, groups=4, padding=1)

    for g in (f, ts.grad(lambda x, w: op.sum(op.tanh(op.conv(x, w, groups=4, padding=1))))):
        found, want = (ts.jit(g, target=t)(x, w).numpy() for t in ("cpu", "numpy"))
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
