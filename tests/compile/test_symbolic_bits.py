"""A program of named sizes has the bits of eager code, also where no kernel serves all sizes."""

import inspect

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, c64, f32, f64, op
from tessera.core.primitives import PRIMITIVES, is_open, is_primitive
from tessera.core.types import TensorType
from tessera.ir.graph.op import REGISTRY
from tests.support.runners.tolerance import assert_same_bits

X = np.random.default_rng(3).standard_normal((3, 6))


@pytest.mark.parametrize(
    "f",
    [op.rfft, op.fft, lambda x: op.hfft(op.cast(x, c64)), op.sort, op.cumsum],
    ids=["rfft", "fft", "hfft", "sort", "cumsum"],
)
def test_transforms_and_scans_of_a_named_size_have_the_bits_of_eager_code(f):
    def g(x: Tensor["B", "N", f32]):
        return f(x) if f is not op.cumsum else op.cumsum(x, 1)

    named = ts.jit(g)
    for shape in ((3, 6), (2, 4), (1, 5)):
        x = ts.tensor(np.resize(X, shape), dtype=f32)
        assert_same_bits(named(x), g(x))
    assert named.compiled == 1


def test_conv_of_named_windows_has_the_bits_of_eager_code():
    @ts.jit
    def named(x: Tensor[1, 2, "N", f64], w: Tensor[1, 2, "K", f64]):
        return op.conv(x, w)

    for n, k in ((9, 3), (11, 4)):
        x, w = (ts.tensor(np.resize(X, (1, 2, m))) for m in (n, k))
        assert_same_bits(named(x, w), op.conv(x, w))


@pytest.mark.parametrize("f", [op.layernorm_safe, op.rmsnorm], ids=["layernorm", "rmsnorm"])
def test_rows_of_a_named_length_are_folded_leaf_by_leaf(f):
    """Of several leaves at once, after a pass of another width."""

    @ts.jit
    def named(x: Tensor["B", "N", f64], w: Tensor["N", f64]):
        return f(x, w)

    for n in (1, 511, 2600):
        x, w = (ts.tensor(np.resize(X, s)) for s in ((2, n), (n,)))
        one = ts.jit(lambda x, w: f(x, w))
        assert_same_bits(named(x, w), one(x, w))


# Which sizes of a program have names: its bits are those of a program of numbers, and of eager code.

FREE = {
    "every size": lambda i, j: True,
    "first axes": lambda i, j: j == 0,
    "channels": lambda i, j: j == 1,
    "places": lambda i, j: j > 1,
    "first operand": lambda i, j: i == 0,
    "last operand": lambda i, j: i == 1,
}


def drawn(*shapes):
    rng = np.random.default_rng(7)
    return [ts.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]


def with_names(f, args, free):
    """f with names for sizes in its annotations: equal sizes have one name."""
    types = [
        Tensor[(*(f"N{n}" if n > 1 and free(i, j) else n for j, n in enumerate(x.shape)), x.dtype)]
        for i, x in enumerate(args)
    ]
    given = [
        inspect.Parameter(f"x{i}", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=t)
        for i, t in enumerate(types)
    ]

    def g(*xs):
        return f(*xs)

    g.__signature__ = inspect.Signature(given)
    return ts.jit(g)


def slopes(f):
    """The gradients of f in all of its arguments."""
    return lambda *xs: ts.grad(lambda *ys: op.sum(op.sin(f(*ys))), tuple(range(len(xs))))(*xs)


# At these sizes a leaf of a sum ends between channels, rows or images: another order would have other bits.
CONVOLUTIONS = {
    "conv": (lambda x, w: op.conv(x, w, padding=1), (2, 70, 12), (3, 70, 9)),
    "conv of places": (lambda x, w: op.conv(x, w), (2, 700, 3, 4), (5, 700, 1, 1)),
    "conv with a stride": (lambda x, w: op.conv(x, w, stride=2), (2, 9, 21, 19), (3, 9, 9, 9)),
    "conv of groups": (lambda x, w: op.conv(x, w, groups=2), (2, 140, 12), (4, 70, 9)),
    "conv_weights": (lambda x, y: op.conv_weights(x, y, 3, padding=1), (9, 3, 103), (9, 4, 103)),
    "conv_input": (lambda y, w: op.conv_input(y, w, (13,)), (2, 70, 5), (70, 11, 9)),
    "conv_input of few": (lambda y, w: op.conv_input(y, w, (13,)), (2, 70, 5), (70, 3, 9)),
    "conv_transpose": (lambda y, w: op.conv_transpose(y, w, stride=2), (2, 70, 5), (70, 3, 9)),
    "vmap of conv": (lambda x, w: ts.vmap(op.conv)(x, w), (3, 2, 70, 12), (3, 4, 70, 9)),
}  # fmt: skip


def check_names(f, args, named):
    known = ts.jit(lambda *xs: f(*xs))(*args)
    for made in (f, *(with_names(f, args, FREE[free]) for free in named)):
        for y, want in zip(ts.tree.leaves(made(*args)), ts.tree.leaves(known), strict=True):
            assert_same_bits(y, want)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_have_the_same_bits_whatever_sizes_have_names(name):
    f, *shapes = CONVOLUTIONS[name]
    check_names(f, drawn(*shapes), ["every size"])


@pytest.mark.deep
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("of", [lambda f: f, slopes], ids=["values", "gradients"])
def test_convolutions_and_gradients_have_the_same_bits_whatever_sizes_have_names(name, of):
    f, *shapes = CONVOLUTIONS[name]
    check_names(of(f), drawn(*shapes), FREE)


def test_only_convolutions_are_primitives_with_another_order_than_their_definition():
    """An op that is decomposed where it is no primitive must be asked at the sizes of a call: these are
    tried above.
    """
    both = {o.name for o in REGISTRY.values() if o.call in PRIMITIVES and o.decompose is not None}
    assert both == {"conv", "conv_weights", "conv_input"}


def test_what_sizes_decide_stays_open_until_they_are_known():
    x, w = (TensorType(f32, Tensor[s].shape) for s in (("B", "C", "N"), ("O", "C", 3)))
    p = {"stride": (1,), "dilation": (1,), "padding": ((0, 0),), "inner": (1,), "groups": 1}
    assert is_open("conv", (x, w), p)
    assert not is_primitive("conv", (x, w), p)
    at = [t.substitute({"B": 2, "C": 3, "O": 4, "N": 5}) for t in (x, w)]
    assert is_primitive("conv", at, p)
    assert not is_open("conv", at, p)
    assert not is_open("conv", (x, w), p | {"inner": (2,)})  # no size makes it one
    assert not is_open("matmul", (x, w), {})


def test_strict_numerics_take_convolutions_and_transforms_of_named_sizes():
    x, w = drawn((2, 70, 5), (3, 70, 3))

    def f(x: Tensor["B", "C", "N", f32], w: Tensor["O", "C", 3, f32]):
        return op.conv(x, w), op.rfft(x)

    made = ts.jit(f, numerics="strict")(x, w)
    assert_same_bits(made[0], op.conv(x, w))
    assert_same_bits(made[1], op.rfft(x))
