"""Tile IR: text, verifier and interpreter, and machine code with the interpreter's bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera.core.dims import symbol
from tessera.core.dtype import DType, bf16, bool_, c64, f16, f32, f64, i8, i32, saturate, u8
from tessera.core.dtype import stochastic_round as stochastic
from tessera.core.errors import ParseError, ShapeError, VerifyError
from tessera.core.source import Location
from tessera.core.types import TensorType
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Block, Builder, Kernel, Memory, Operation, Tile
from tessera.ir.tile.rules import ATTRIBUTES, WITH_MEMORY
from tessera.ir.tile.text import parse_kernel, print_kernel
from tessera.ir.tile.traits import TRAITS
from tessera.ir.tile.verify import verify
from tests.support.cases.random_graphs import same_bits
from tests.support.cases.tile_kernels import Program, programs
from tests.support.runners.tile_machine import Machine

M, N = symbol("M"), symbol("N")

# Laws on random kernels -----------------------------------------------------------------------


@given(programs())
def test_text_reads_back(p: Program) -> None:
    verify(p.kernel)
    parsed = ts.ir.parse(p.kernel.text)
    assert isinstance(parsed, Kernel)
    assert parsed.text == p.kernel.text
    verify(parsed)
    again = p.fresh()
    interpret(parsed, again)
    assert same_bits(again, p.run())


@settings(max_examples=120)
@given(st.lists(programs(), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_machine_code_equals_the_interpreter(ps: list[Program], random: Random) -> None:
    """Also when parts of the grid run in any order."""
    machine = Machine([p.kernel for p in ps])
    for i, p in enumerate(ps):
        want, whole, cut = p.run(), p.fresh(), p.fresh()
        machine.run(i, whole)
        assert same_bits(whole, want)
        n = machine.instances(i, cut)
        parts = list(pairwise(sorted({0, n, *(random.randint(0, n) for _ in range(3))})))
        random.shuffle(parts)
        machine.run(i, cut, parts)
        assert same_bits(cut, want)


# The order of folds, scans and products -------------------------------------------------------


def whole(op: Callable[..., Tile], *types: TensorType) -> Kernel:
    """A kernel that applies an operation to whole parameters."""
    b = Builder("whole")
    xs = [b.parameter(f"x{i}", t) for i, t in enumerate(types)]
    y = op(b, *(b.load(x, (0,) * x.type.rank, x.type.shape) for x in xs))  # type: ignore[arg-type]
    out = b.parameter("y", y.type, True)
    b.store(out, y, (0,) * len(y.shape), y.shape)
    return b.finish()


def results(kernels: list[Kernel], inputs: list[list[Any]]) -> list[Any]:
    """What the last parameter of each kernel holds after the interpreter, which machine code equals."""
    machine, outs = Machine(kernels), []
    for i, (k, xs) in enumerate(zip(kernels, inputs, strict=True)):
        t = k.parameters[-1].type
        got, want = (np.zeros(t.shape, t.dtype.np) for _ in range(2))
        machine.run(i, [*xs, got])
        interpret(k, [*xs, want])
        assert same_bits([got], [want]), k.text
        outs.append(want)
    return outs


def balanced(xs: list[Any]) -> Any:
    """The upper part onto the lower, until one is left."""
    while len(xs) > 1:
        half = 1 << (len(xs) - 1).bit_length() - 1
        xs = [a + b for a, b in zip(xs, xs[half:], strict=False)] + xs[len(xs) - half : half]
    return xs[0]


def test_a_fold_is_a_balanced_tree() -> None:
    rng = np.random.default_rng(0)
    shapes = [((n, 5), 0) for n in range(1, 10)] + [
        ((2, n), 1) for n in (*range(1, 20), 32, 48, 64)
    ]
    kernels = [
        whole(lambda b, x, a=axis: b.fold("add", x, a), TensorType(f32, s)) for s, axis in shapes
    ]
    data = [rng.normal(size=s).astype(f32.np) for s, _ in shapes]
    for (_, axis), x, y in zip(shapes, data, results(kernels, [[x] for x in data]), strict=True):
        np.testing.assert_array_equal(y.squeeze(axis), balanced(list(np.moveaxis(x, axis, 0))))


def neighbours(xs: list[np.ndarray]) -> np.ndarray:
    """Neighbours are joined, again and again; the last of an odd number waits."""
    while len(xs) > 1:
        xs = [sum(xs[i + 1 : i + 2], xs[i]) for i in range(0, len(xs), 2)]
    return xs[0]


def down_the_tree(xs: list[np.ndarray], before: np.ndarray | None = None) -> list[np.ndarray]:
    """The running sums of 2^k numbers: a right half has the sum of the left one before it."""
    if len(xs) == 1:
        return [xs[0] if before is None else before + xs[0]]
    half = 1 << (len(xs) - 1).bit_length() - 1
    left = neighbours(xs[:half])
    return [
        *down_the_tree(xs[:half], before),
        *down_the_tree(xs[half:], left if before is None else before + left),
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 48, 100])
@pytest.mark.parametrize("scalar", ["add", "mul"])
def test_neighbours_are_an_order_of_folds_and_scans(n: int, scalar: str) -> None:
    x = np.random.default_rng(n).normal(size=(2, n, 3)).astype(np.float32)
    lines = list(np.moveaxis(x, 1, 0))
    if scalar == "mul":  # the logarithm of nothing: products of powers of two are exact
        lines = [np.ldexp(np.float32(1), np.sign(v).astype(int)) for v in lines]
        x = np.stack(lines, 1)
    for name in ("fold", "scan"):
        b = Builder("f")
        source = b.parameter("x", TensorType(f32, x.shape))
        t = b.load(source, (0, 0, 0), x.shape)
        made = (
            b.fold(scalar, t, 1, "neighbours")
            if name == "fold"
            else b.scan(scalar, t, 1, "neighbours")
        )
        y = b.parameter("y", made.type, writable=True)
        b.store(y, made, (0, 0, 0), made.shape)
        k = b.finish()
        verify(k)
        assert print_kernel(parse_kernel(print_kernel(k))) == print_kernel(k)
        out = np.zeros(made.shape, np.float32)
        interpret(k, [x, out], {})
        if scalar == "mul":
            want = np.multiply.reduce(x, 1, keepdims=True) if name == "fold" else np.cumprod(x, 1)
        else:
            parts = [neighbours(lines)] if name == "fold" else down_the_tree(lines)
            want = np.stack(parts, 1)
        np.testing.assert_array_equal(out, want)


def test_a_scan_runs_in_ascending_order() -> None:
    rng = np.random.default_rng(1)
    shapes = [((7, 3), 0), ((3, 18), 1), ((2, 4, 5), 1), ((6,), 0)]
    kernels = [
        whole(lambda b, x, a=axis: b.scan("add", x, a), TensorType(f32, s)) for s, axis in shapes
    ]
    data = [rng.normal(size=s).astype(f32.np) for s, _ in shapes]
    for (_, axis), x, y in zip(shapes, data, results(kernels, [[x] for x in data]), strict=True):
        np.testing.assert_array_equal(y, np.cumsum(x, axis))


@pytest.mark.parametrize(
    ("dtype", "wide"),
    [(f32, f32), (f64, f64), (bf16, f32), (f16, f32), (i8, i32), (u8, u8)],
    ids=str,
)
def test_a_dot_is_one_chain_of_fused_multiply_adds(dtype: DType, wide: DType) -> None:
    rng = np.random.default_rng(2)
    sizes = [(2, 3, 4), (1, 20, 17), (5, 1, 1), (3, 16, 33)]
    kernels = [
        whole(lambda b, x, y, z: b.dot(x, y, z), *(TensorType(d, s) for d, s in (
            (dtype, (m, k)), (dtype, (k, n)), (wide, (m, n)))))
        for m, k, n in sizes
    ]  # fmt: skip
    data = [
        [(rng.normal(size=s) * 9).astype(i32.np if d.kind != "f" else f64.np).astype(d.np)
         for d, s in ((dtype, (m, k)), (dtype, (k, n)), (wide, (m, n)))]
        for m, k, n in sizes
    ]  # fmt: skip
    for (x, y, z), got in zip(data, results(kernels, data), strict=True):
        for i, j in np.ndindex(got.shape):
            acc = z[i, j]
            for k in range(x.shape[1]):
                acc = _fused(x[i, k], y[k, j], acc, wide)
            assert got[i, j] == acc


def _fused(x: Any, y: Any, z: Any, dtype: DType) -> Any:
    if dtype.kind != "f":
        return (np.int64(x) * np.int64(y) + np.int64(z)).astype(dtype.np)
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if dtype is f64:
        return np.float64(exact.numerator / exact.denominator)
    near = np.float32(float(exact))  # f64 holds these sums, but where it does not, f32 must not tie
    assert abs(Fraction(float(near)) - exact) <= Fraction(float(np.spacing(np.abs(near)))) / 2
    return near


def test_shapes_change_as_in_numpy() -> None:
    x = np.arange(34, dtype=np.int32)
    cases: list[tuple[Callable[..., Tile], tuple[int, ...], Any]] = [
        (lambda b, t: b.transpose(t), (2, 17), x.reshape(2, 17).T),
        (lambda b, t: b.reshape(t, (17, 2)), (2, 17), x.reshape(17, 2)),
        (lambda b, t: b.expand(t, 1), (34,), x[:, None]),
        (lambda b, t: b.broadcast(t, (34, 3)), (34, 1), np.repeat(x[:, None], 3, 1)),
        (
            lambda b, t: b.broadcast(b.reshape(b.fold("max", t, 0), ()), (2, 3)),
            (34,),
            np.full((2, 3), 33),
        ),
    ]
    kernels = [whole(op, TensorType(i32, shape)) for op, shape, _ in cases]
    got = results(kernels, [[x.reshape(shape)] for _, shape, _ in cases])
    for (_, _, want), y in zip(cases, got, strict=True):
        np.testing.assert_array_equal(y, want)


def test_sizes_below_zero_divide_as_in_python() -> None:
    """A loop from -20 on: positions by // and %, and masks on both sides of the memory."""
    b = Builder("signed")
    x, y = b.parameter("x", TensorType(f32, (N,))), b.parameter("y", TensorType(f32, (64, 4)), True)
    with b.loop(-20, 20, 1) as l:
        i = l.variable
        at = i // 3 + i % 7 - 2
        b.store(y, b.load(x, (at,), (4,), masked=(0,), fill=-1), (i + 20, 0), (1, 4), axes=(1,))
    k = b.finish()
    data = np.arange(9, dtype=f32.np)
    got, want = np.zeros((64, 4), f32.np), np.zeros((64, 4), f32.np)
    Machine([k]).run(0, [data, got])
    interpret(k, [data, want])
    assert same_bits([got], [want])
    lines = [[i // 3 + i % 7 - 2 + j for j in range(4)] for i in range(-20, 20)]
    expected = [[data[p] if 0 <= p < 9 else -1 for p in line] for line in lines]
    np.testing.assert_array_equal(want[:40], expected)


# The interpreter checks -----------------------------------------------------------------------


def rows(masked: bool) -> Kernel:
    """y = 2 x in pieces of 4 columns."""
    b = Builder("rows")
    x, y = (
        b.parameter("x", TensorType(f32, (M, N))),
        b.parameter("y", TensorType(f32, (M, N)), True),
    )
    row, column = b.program(M), b.program((N + 3) // 4) * 4
    where = ((row, column), (1, 4), (1,), (1,) if masked else ())
    t = b.load(x, *where)
    b.store(y, b.apply("add", t, t), *where)
    return b.finish()


def test_a_box_outside_of_a_memory_needs_a_mask() -> None:
    x = np.arange(10, dtype=f32.np).reshape(2, 5)
    y = np.zeros_like(x)
    interpret(rows(True), [x, y])
    np.testing.assert_array_equal(y, 2 * x)
    with pytest.raises(VerifyError) as e:
        interpret(rows(False), [x, y])
    assert e.value.message == (
        "load: elements 4 to 7 lie outside axis 1 of global x: f32[M,N] of size 5"
    )


def test_scratch_holds_nothing_before_it_is_written() -> None:
    b = Builder("unwritten")
    y = b.parameter("y", TensorType(f32, (4,)), True)
    b.store(y, b.load(b.alloc(f32, (4,)), (0,), (4,)), (0,), (4,))
    out = np.zeros(4, f32.np)
    interpret(b.finish(), [out])
    assert np.isnan(out).all()


def test_sizes_of_arguments_must_agree() -> None:
    with pytest.raises(ShapeError, match="axis 0 of y is 3, but M is 2"):
        interpret(rows(True), [np.zeros((2, 5), f32.np), np.zeros((3, 5), f32.np)])


# Text -----------------------------------------------------------------------------------------

EXAMPLE = """\
"builtin.module"() ({
  "tile.kernel"() ({
  ^bb0(%0: tensor<?xf32, ["N"]>, %1: tensor<1xf32>):
    %2 = "tile.alloc"() {space = "private"} : () -> tensor<4xf32>
    %3 = "tile.full"() {value = 0.0 : f64} : () -> tensor<4xf32>
    %4 = "tile.for"(%3) ({
    ^bb0(%5: tensor<4xf32>):
      %6 = "tile.load"(%0) {at = [#tessera.dim<"_i2">], axes = [0], extent = [4], fill = 0.0 : f64, masked = [0]} : (tensor<?xf32, ["N"]>) -> tensor<4xf32>
      %7 = "tile.apply"(%5, %6) {scalar = "add"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
      "tile.yield"(%7) : (tensor<4xf32>) -> ()
    }) {start = 0 : i64, step = 4 : i64, stop = #tessera.dim<"N">, variable = "_i2"} : (tensor<4xf32>) -> tensor<4xf32>
    "tile.store"(%2, %4) {at = [0], axes = [0], extent = [4], masked = []} : (tensor<4xf32>, tensor<4xf32>) -> ()
    %8 = "tile.fold"(%4) {axis = 0 : i64, scalar = "add"} : (tensor<4xf32>) -> tensor<1xf32>
    "tile.store"(%1, %8) {at = [0], axes = [0], extent = [1], masked = []} : (tensor<1xf32>, tensor<1xf32>) -> ()
    "tile.return"() : () -> ()
  }) {grid = [{count = 1 : i64, variable = "_p0"}], level = "tile", name = "sum", parameters = ["x", "y"], version = 1 : i64, writable = [1]} : () -> ()
}) : () -> ()"""  # noqa: E501


def total() -> Kernel:
    """The kernel that EXAMPLE is the text of."""
    b = Builder("sum", Location("sum.py", 7))
    x, y = b.parameter("x", TensorType(f32, (N,))), b.parameter("y", TensorType(f32, (1,)), True)
    b.program(1)
    kept = b.alloc(f32, (4,))
    with b.loop(0, N, 4, [b.full(f32, (4,), 0)]) as l:
        l.carry(b.apply("add", l.carried[0], b.load(x, (l.variable,), (4,), masked=(0,))))
    b.store(kept, l.results[0], (0,), (4,))
    b.store(y, b.fold("add", l.results[0], 0), (0,), (1,))
    return b.finish()


def test_the_text_of_a_kernel() -> None:
    k = total()
    assert str(k) == k.text == EXAMPLE
    assert k.hash == hashlib.sha256(EXAMPLE.encode()).hexdigest()
    out = np.zeros(1, f32.np)
    interpret(ts.ir.parse(EXAMPLE), [np.arange(7, dtype=f32.np), out])
    assert out == 21


def test_locations_read_back() -> None:
    text = print_kernel(total(), locations=True)
    assert text.count('loc("sum.py":7:0)') == 8
    assert print_kernel(ts.ir.parse(text), locations=True) == text


PARSE_ERRORS = [
    ('"tile.kernel"() (', '"tile.kern"() (',
    'line 2, column 3: expected "tile.kernel" with one region, got "tile.kern"'),
    ('"tile.fold"', '"tile.bend"', 'line 13, column 5: unknown operation "tile.bend"'),
    ('"tile.fold"', '"tessera.fold"', 'line 13, column 5: unknown operation "tessera.fold"'),
    ("(%5, %6) {", "(%5, %9) {", "line 9, column 7: tile.apply: operand 1 %9 is not defined"),
    ('"tile.fold"(%4)', '"tile.fold"(%7)',
    "line 13, column 5: tile.fold: operand 0 %7 is of a loop that has ended"),
    ('"tile.fold"(%4)', '"tile.fold"(%2)',
    "line 13, column 5: tile.fold: memory s1 stands where a tile must"),
    ('"tile.load"(%0) {', '"tile.load"(%1) {',
    'line 8, column 7: tile.load: operand 0 %1 is tensor<1xf32>, but its type is written tensor<?xf32, ["N"]>'),  # noqa: E501
    ('"tile.store"(%2, %4)', '"tile.store"(%4, %4)',
    "line 12, column 5: tile.store: operand 0 must be a memory"),
    ("%8 = ", "%4 = ", "line 13, column 5: %4 is defined twice"),
    ("(tensor<4xf32>) -> tensor<1xf32>", "(tensor<4xf32>) -> tensor<2xf32>",
    "line 13, column 5: tile.fold: the result is tensor<2xf32>, expected tensor<1xf32>"),
    ("axis = 0 : i64", "axis = 1 : i64", "line 13, column 5: fold: axis 1 is no axis of f32[4]"),
    ("axis = 0 : i64, ", "", "line 13, column 5: fold: has the attributes scalar, expected axis, scalar"),
    ("axis = 0 : i64", "axis = 0.5 : f64", "line 13, column 5: fold: axis is 0.5, expected a whole number"),
    ('stop = #tessera.dim<"N">', 'stop = "N"', "line 6, column 5: for: stop is 'N', expected a size"),
    ('      "tile.yield"(%7) : (tensor<4xf32>) -> ()\n', "",
    "line 6, column 5: tile.for: the region does not end in tile.yield"),
    ('"tile.return"() :', '"tile.yield"() :',
    "line 2, column 3: tile.kernel: the region does not end in tile.return"),
    ('parameters = ["x", "y"]', 'parameters = ["x"]', "line 2, column 3: 1 names for 2 parameters"),
    ("writable = [1]", "writable = [2]", "line 2, column 3: parameter 2 is writable, but there is none"),
    ("writable = [1]", "writable = 1 : i64", "line 2, column 3: tile.kernel: writable must be a list"),
    ("{count = 1 : i64, variable", "{variable",
    "line 2, column 3: an axis of the grid needs a variable and a count"),
    ('"tile.fold"(%4) {', '"tile.fold"(%4) ({}) {', "line 13, column 5: tile.fold: has 1 regions"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), PARSE_ERRORS, ids=[m for *_, m in PARSE_ERRORS])
def test_a_parse_error_says_where_and_what(old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(ParseError) as e:
        ts.ir.parse(EXAMPLE.replace(old, new, 1))
    assert e.value.message == message


# What the builder refuses ---------------------------------------------------------------------


def tile(b: Builder, dtype: DType = f32, shape: tuple[int, ...] = (4,)) -> Tile:
    return b.full(dtype, shape, 1)


def mem(b: Builder, *shape: Any, dtype: DType = f32) -> Memory:
    return b.parameter("x", TensorType(dtype, shape))


REFUSED: list[tuple[Callable[[Builder], object], str]] = [
    (lambda b: b.load(mem(b, M, N), (0,), (4,)), "load: 1 positions and 1 extents for f32[M,N] of rank 2"),
    (lambda b: b.load(mem(b, N), (0,), (0,)), "load: the extent of axis 0 is 0, expected at least 1"),
    (lambda b: b.load(mem(b, M, N), (0, 0), (4, 4), axes=(1,)),
    "load: axis 0 is dropped, but its extent is 4, not 1"),
    (lambda b: b.load(mem(b, N), (0,), (4,), axes=(1,)), "load: axes [1] are no distinct axes of f32[N]"),
    (lambda b: b.load(mem(b, N), (0,), (4,), masked=(0, 0)),
    "load: masked [0, 0] are no distinct axes of f32[N]"),
    (lambda b: b.load(mem(b, N, dtype=c64), (0,), (4,)),
    "load: c64 is no dtype of tiles; cast to one that is before"),
    (lambda b: b.load(mem(b, N), (0.5,), (4,)),
    "load: at is (0.5,), expected a list of sizes"),  # type: ignore[list-item]
    (lambda b: b.store(mem(b, N), tile(b), (0,), (4,)), "store: global x: f32[N] is not writable"),
    (lambda b: b.store(b.alloc(f32, (9,)), tile(b), (0,), (5,)),
    "store: the tile is f32[4], but the box is f32[5]"),
    (lambda b: b.alloc(f32, (4,), "global"), "alloc: space is 'global', expected 'shared' or 'private'"),
    (lambda b: b.full(c64, (4,), 0), "full: c64 is no dtype of tiles; cast to one that is before"),
    (lambda b: b.full(f32, (0,), 0), "full: a tile of f32[0] needs sizes that are numbers of at least 1"),
    (lambda b: b.full(f32, (N,), 0),
    "full: a tile of f32[N] needs sizes that are numbers of at least 1"),  # type: ignore[list-item]
    (lambda b: b.index(0, (4,), 1), "index: axis 1 is no axis of i64[4]"),
    (lambda b: b.apply("plus", tile(b)), "apply: 'plus' is no scalar op"),
    (lambda b: b.apply("add", tile(b)), "add: got 1 operands, expected 2"),
    (lambda b: b.apply("add", tile(b), tile(b, f64)), "add: operands f32, f64 must be of one dtype"),
    (lambda b: b.apply("add", tile(b), tile(b, f32, (3,))),
    "add: tiles of shapes [(4,), (3,)] do not broadcast"),
    (lambda b: b.apply("add", tile(b), tile(b, f32, (1, 4))),
    "add: tiles of shapes [(4,), (1, 4)] differ in rank"),
    (lambda b: b.apply("div", tile(b, i32), tile(b, i32)), "div: takes no i32"),
    (lambda b: b.apply("where", tile(b), tile(b), tile(b)), "where: the condition is f32, expected bool"),
    (lambda b: b.apply("neg", tile(b, f16 @ saturate)),
    "neg: f16 @ saturate rounds by a policy; compute in f32, then cast"),
    (lambda b: b.cast(tile(b), bf16 @ stochastic),
    "cast: bf16 @ stochastic_round draws from the index of an element, which a tile does not know"),
    (lambda b: b.fold("sub", tile(b), 0), "fold: 'sub' is no scalar op that folds"),
    (lambda b: b.scan("add", tile(b), 1), "scan: axis 1 is no axis of f32[4]"),
    (lambda b: b.dot(tile(b), tile(b), tile(b)),
    "dot: f32[4], f32[4] and f32[4] are not (m, k), (k, n) and (m, n)"),
    (lambda b: b.dot(*(tile(b, bf16, (2, 2)) for _ in range(3))),
    "dot: products of bf16 do not add up in bf16"),
    (lambda b: b.reshape(tile(b), (3,)), "reshape: f32[4] has 4 elements, f32[3] has 3"),
    (lambda b: b.broadcast(tile(b, f32, (2, 1)), (1, 3)), "broadcast: f32[2,1] does not spread to f32[1,3]"),
    (lambda b: b.transpose(tile(b)), "transpose: f32[4] has rank 1, expected 2"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_the_builder_refuses(make: Callable[[Builder], object], message: str) -> None:
    with pytest.raises(VerifyError) as e:
        make(Builder("k"))
    assert e.value.message == message


def test_a_loop_carries_what_it_was_given() -> None:
    b = Builder("k")
    with pytest.raises(VerifyError, match=r"for: carries \['f32\[4\]'\] in but \[\] out"):  # noqa: SIM117
        with b.loop(0, 3, 1, [tile(b)]) as l:
            l.carry()


# What the verifier refuses --------------------------------------------------------------------


def changed(op: str, **fields: Any) -> Kernel:
    """EXAMPLE with fields or attributes of the first operation of this name replaced."""
    k = total()

    def change(block: Block) -> Block:
        out, found = [], False
        for o in block.operations:
            inner = None if o.block is None else change(o.block)
            if o.name == op and not found:
                found = True
                given = {n: getattr(o, n) for n in ("operands", "results", "memory")} | {
                    "block": inner
                }
                given |= {n: v for n, v in fields.items() if n in given}
                more = {n: v for n, v in fields.items() if n not in given and n != "name"}
                name = fields.get("name", o.name)
                out.append(
                    Operation(
                        name,
                        given["operands"],
                        {**o.attributes, **more},
                        given["results"],
                        given["memory"],
                        given["block"],
                    )
                )
            else:
                out.append(Operation(o.name, o.operands, o.attributes, o.results, o.memory, inner))
        return replace(block, operations=tuple(out))

    return replace(k, body=change(k.body))


STRANGER = Tile(TensorType(f32, (4,)))
WRONG: list[tuple[Kernel, str]] = [
    (changed("fold", name="bend"), "sum: operation 6 bend: there is no such operation"),
    (changed("fold", operands=(STRANGER,)),
    "sum: operation 6 fold: operand 0 f32[4] is not defined before its use"),
    (changed("fold", order="down"),
    "sum: operation 6 fold: fold: order is 'down', expected 'neighbours' or none"),
    (changed("fold", axis=1), "sum: operation 6 fold: fold: axis 1 is no axis of f32[4]"),
    (changed("fold", results=(STRANGER,)), "sum: operation 6 fold: the result is f32[4], expected f32[1]"),
    (changed("fold", operands=()), "sum: operation 6 fold: fold: got 0 tiles, expected 1"),
    (changed("load", at=(symbol("_k"),)), "sum: operation 3 load: a position mentions the unknown _k"),
    (changed("load", masked=(1,)), "sum: operation 3 load: load: masked [1] are no distinct axes of f32[N]"),
    (changed("load", fill=1), "sum: operation 3 load: load: 1 is no number of f32"),
    (changed("load", memory=None), "sum: operation 3 load: needs a memory"),
    (changed("load", memory=Memory("z", TensorType(f32, (N,)))),
    "sum: operation 3 load: memory z is not defined before its use"),
    (changed("store", memory=total().parameters[0]),
    "sum: operation 5 store: memory x is not defined before its use"),
    (changed("full", value=1e-60), "sum: operation 1 full: full: 1e-60 is no number of f32"),
    (changed("alloc", memory=Memory("s", TensorType(f32, (symbol("_p0"),)), "private", True)),
    "sum: operation 0 alloc: the shape f32[_p0] may not depend on _p0"),
    (changed("alloc", memory=Memory("s", TensorType(f32, (symbol("_k"),)), "private", True)),
    "sum: operation 0 alloc: the shape f32[_k] mentions the unknown _k"),
    (changed("for", step=0), "sum: operation 2 for: the step is 0, expected at least 1"),
    (changed("for", variable="N"), "sum: operation 2 for: N is the name of a size; a counter begins with _"),
    (changed("for", variable="_p0"), "sum: operation 2 for: _p0 is a variable already"),
    (changed("for", start=symbol("_i2")), "sum: operation 2 for: a bound mentions the unknown _i2"),
    (changed("for", results=()), "sum: operation 2 for: the loop gives nothing, expected f32[4]"),
    (changed("for", block=None), "sum: operation 2 for: has no block"),
    (replace(total(), grid=(("N", 1),)),
    "sum: grid variable N: N is the name of a size; a counter begins with _"),
    (replace(total(), grid=(("_p0", symbol("_k")),)), "sum: grid variable _p0 mentions the unknown _k"),
    (replace(total(), parameters=total().parameters[:1] * 2), "sum: two parameters are called x"),
    (replace(total(), parameters=(Memory("x", TensorType(c64, ())),)),
    "sum: parameter x: memory: c64 is no dtype of tiles; cast to one that is before"),
    (replace(total(), parameters=(Memory("x", TensorType(f32, ()), "shared"),)),
    "sum: parameter x is in shared memory, not global"),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "message"), WRONG, ids=[m for _, m in WRONG])
def test_the_verifier_refuses(kernel: Kernel, message: str) -> None:
    with pytest.raises(VerifyError) as e:
        verify(kernel)
    assert e.value.message == message


def test_the_verifier_knows_scopes_and_what_is_writable() -> None:
    k = total()
    loop, fold = k.body.operations[2], k.body.operations[4]
    assert loop.block is not None
    inside = loop.block.outputs[0]
    leak = Operation("fold", (inside,), fold.attributes, fold.results)
    operations = (*k.body.operations[:4], leak, *k.body.operations[5:])
    with pytest.raises(VerifyError, match=r"operand 0 f32\[4\] is of a loop that has ended"):
        verify(replace(k, body=replace(k.body, operations=operations)))
    again = replace(k.body, operations=(*k.body.operations, k.body.operations[1]))
    with pytest.raises(VerifyError, match=r"operation 8 full: result 0 f32\[4\] is defined twice"):
        verify(replace(k, body=again))
    locked = [Memory(m.name, m.type) for m in k.parameters]
    swap = dict(zip(k.parameters, locked, strict=True))
    body = tuple(
        Operation(o.name, o.operands, o.attributes, o.results, swap.get(o.memory, o.memory))  # type: ignore[arg-type]
        for o in k.body.operations
        if o.name != "for"
    )
    flat = (
        body[0],
        body[1],
        Operation("fold", (body[1].results[0],), fold.attributes, fold.results),
        body[-1],
    )
    with pytest.raises(VerifyError, match=r"global y: f32\[1\] is not writable"):
        verify(replace(k, parameters=tuple(locked), body=Block((), flat, ())))


def test_bools_are_stored_as_bytes() -> None:
    b = Builder("bools")
    x, y = (b.parameter(n, TensorType(bool_, (N,)), n == "y") for n in "xy")
    t = b.load(x, (-1,), (20,), masked=(0,), fill=True)
    b.store(y, b.apply("logical_not", t), (0,), (20,), masked=(0,))
    x_, got, want = (np.array([True, False] * 9), np.zeros(18, bool), np.zeros(18, bool))
    k = b.finish()
    Machine([k]).run(0, [x_, got])
    interpret(k, [x_, want])
    np.testing.assert_array_equal(want, ~np.concatenate([[True], x_[:17]]))
    np.testing.assert_array_equal(got, want)


def test_every_operation_has_traits_and_one_kind() -> None:
    """Only operations with a memory read or write it; what is pure does neither and orders nothing."""
    assert TRAITS.keys() == ATTRIBUTES.keys()
    for name, t in TRAITS.items():
        assert (t.reads or t.writes) <= (name in WITH_MEMORY), name
        assert t.reads + t.writes + t.pure + t.orders <= 1, name
