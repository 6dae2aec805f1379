"""Sizes and Python numbers in arithmetic: jitted code computes what Python computes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, f32, op
from tessera.core.errors import AnnotationError, OperandError, ShapeError

ARITHMETIC = {
    "quotient": lambda x, n: x * (n / (n - 1)),
    "reciprocal": lambda x, n: 1.0 / n * x,
    "root": lambda x, n: x * n**0.5,
    "op.sqrt": lambda x, n: x * op.sqrt(n),
    "negative power": lambda x, n: x * n**-1,
    "power of two": lambda x, n: x * 2**n,
    "floor": lambda x, n: x * (n // 2.5) + n % 1.5,
    "sum": lambda x, n: x + (n + 0.5) - (1.5 - n),
    "size alone": lambda x, n: n,
    "scalar alone": lambda x, n: n / 2,
    "sign": lambda x, n: x * -(n * 1.0) + abs(-n),
    "where": lambda x, n: op.where(n * 1.0 > 3, x, -x),
    "op.gt": lambda x, n: op.where(op.gt(n, 3), x, -x),
    "known": lambda x, n: x if n > 0.5 else -x,
    "numpy float": lambda x, n: np.float64(2.0) * n * x,
    "numpy integer": lambda x, n: op.sum(op.reshape(op.stack([x, x]), (np.int64(2) * n,))),
    "numpy array": lambda x, n: np.array([1.0, 2.0]) * (n / 3),
    "grad": lambda x, n: ts.grad(lambda y: op.sum(y * y) / y.shape[0])(x),
    "vmap": lambda x, n: ts.vmap(lambda y: y / n**0.5)(x),
    "jit": lambda x, n: ts.jit(lambda y, k: y / (k - 1))(x, n),
    "scan": lambda x, n: ts.scan(lambda c, v: (c + v / n, c), 0.0, x)[0],
}


@pytest.mark.parametrize("name", ARITHMETIC)
@pytest.mark.parametrize("size", [2, 5])
def test_a_symbolic_size_is_a_scalar(name, size):
    f = ARITHMETIC[name]

    @ts.jit
    def jitted(x: Tensor["N", f32]):
        return f(x, x.shape[0])

    x = ts.tensor(np.arange(1.0, 1.0 + size, dtype=np.float32))
    got, want = jitted(x), f(x, size)
    want = ts.tensor(want)
    assert got.type is want.type
    np.testing.assert_allclose(got, want, rtol=3e-7)


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda n: float(n), "size N is symbolic and has no number while tracing; write 1.0 * n for a "
                             "scalar, functions of ops for those of math (op.sqrt(n)), or give the axis a "
                             "number in the annotation"),
        (lambda n: math.sqrt(n), "size N is symbolic and has no number while tracing; write 1.0 * n for a "
                                 "scalar, functions of ops for those of math (op.sqrt(n)), or give the axis "
                                 "a number in the annotation"),
        (lambda n: np.sqrt(n), "numpy.sqrt: size N is symbolic and has no number while tracing; use op.sqrt "
                               "instead"),
        (lambda n: n > 3, "whether N > 3 is not known while tracing; use max(a, b) or min(a, b), or give "
                          "the axis a number"),
        (lambda n: n > "a", "size N cannot be compared with str by an operator; use op.lt, op.gt and their "
                            "kin"),
        (lambda n: n // 0, "size N is divided by 0"),
        (lambda n: n % 0, "size N is divided by 0"),
        (lambda n: n**100, "size N to the power 100 is too large; powers go up to 64"),
    ],
)  # fmt: skip
def test_what_a_size_cannot_do_names_what_to_write(f, text):
    @ts.jit
    def jitted(x: Tensor["N", f32]):
        return x * f(x.shape[0])

    with pytest.raises(ShapeError) as e:
        jitted(op.ones((5,)))
    assert e.value.message == text


NUMBERS = {
    "twice": lambda x, k: x * (k * 2),
    "third": lambda x, k: x * (k / 3),
    "square": lambda x, k: x + k**2,
    "negative": lambda x, k: x * -k,
    "rest": lambda x, k: x * (1 - k),
    "floor": lambda x, k: x * (k // 2) + k % 2,
    "compare": lambda x, k: op.where(k > 0.3, x, -x),
    "alone": lambda x, k: k * 2,
    "outside": lambda x, k: (k + 1) + x,
    "numpy": lambda x, k: np.ones(3) * k,
}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i32"])
def test_arithmetic_of_numbers_is_python_s_in_jit_too(name, dtype):
    f, x = NUMBERS[name], ts.tensor([1.0, 2.0, 3.0]).astype(dtype)
    for k in (0.1, 0.30000001, 3, True, -2):
        got, want = ts.jit(f)(x, k), ts.tensor(f(x, k))
        assert got.type is want.type
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: Tensor["2**3000000"], AnnotationError,
        "'2**3000000': size 2 to the power 3000000 is too large; powers go up to 64"),
        (lambda: Tensor["B**3000000", 2], AnnotationError,
        "'B**3000000': size B to the power 3000000 is too large; powers go up to 64"),
        (lambda: Tensor["B//0"], AnnotationError, "'B//0': size B is divided by 0"),
        (lambda: Tensor["B%0"], AnnotationError, "'B%0': size B is divided by 0"),
        (lambda: Tensor["4//0"], AnnotationError, "'4//0': size 4 is divided by 0"),
        (lambda: Tensor["10**30"], AnnotationError, "Tensor[...]: a size of 100 bits is beyond 2**63 - 1"),
        (lambda: Tensor[2**63], AnnotationError, "Tensor[...]: a size of 64 bits is beyond 2**63 - 1"),
        (lambda: Tensor[(1,) * 70], ShapeError,
        "Tensor[...]: 70 axes are more than the 64 that a tensor can have"),
        (lambda: op.zeros((1,) * 70), ShapeError,
        "zeros: 70 axes are more than the 64 that a tensor can have"),
        (lambda: op.expand_dims(op.zeros((1,) * 64), 0), ShapeError,
        "reshape: 65 axes are more than the 64 that a tensor can have"),
        (lambda: op.zeros(2**70), ShapeError,
        f"zeros: shape ({2**70},) has 1.18e+21 elements, more than the 2**63 - 1 that an index reaches"),
        (lambda: op.broadcast_to(op.ones((5,)), (2**62, 5)), ShapeError,
        f"broadcast_to: shape ({2**62}, 5) has 2.31e+19 elements, more than the 2**63 - 1 that an index "
        f"reaches"),
        (lambda: op.zeros(1 << 5000), ShapeError,
        "zeros: a size of 5001 bits is more than an index of 64 bits reaches"),
        (lambda: op.zeros("3"), OperandError, "zeros: the shape is str '3', expected sizes"),
    ],
)  # fmt: skip
def test_sizes_beyond_reach_are_named(call, error, text):
    with pytest.raises(error) as e:
        call()
    assert e.value.message == text


def test_annotations_that_are_nested_deep_are_named():
    for text in ("(" * 500 + "B" + ")" * 500, "-" * 5000 + "B", "9" * 5000):
        with pytest.raises(AnnotationError, match="is not a size"):
            Tensor[text]


def test_equality_of_a_named_size_is_decided_by_what_is_known_or_refused():
    seen = []

    @ts.jit
    def known(x: Tensor["N", f32], y: Tensor["M", f32]):
        n, m = x.shape[0], y.shape[0]
        seen.append(
            (
                n == x.shape[0],
                n + 1 == n,
                n != x.shape[0],
                n == -1,
                n + m == m + n,
                x.shape == (x + 1).shape,
            )
        )
        x + ts.tensor([1.0, 2.0, 3.0])
        seen.append((n == 3, n == 3 + 0 * m, n != 3, n == 4, n in (1, 3), x.shape == (3,)))
        return x * 2

    known(op.ones((3,)), op.ones((3,)))
    assert seen == [(True, False, False, False, True, True), (True, True, False, False, True, True)]

    for question in (
        lambda x, y: x.shape[0] == 1,
        lambda x, y: x.shape != (1,),
        lambda x, y: x.shape[0] in (1, 2),
        lambda x, y: x.shape == y.shape,
    ):

        @ts.jit
        def undecided(x: Tensor["N", f32], y: Tensor["M", f32], ask=question):
            return x + y if ask(x, y) else x * 2

        with pytest.raises(ShapeError, match=r"whether N == (1|M) is not known while tracing"):
            undecided(op.ones((1,)), op.ones((1,)))

    @ts.jit
    def decided(x: Tensor["N", f32]):
        return op.where(op.eq(x.shape[0], 1), x + 10, x)

    assert decided(op.ones((1,))).tolist() == [11]
    assert decided(op.ones((2,))).tolist() == [1, 1]
