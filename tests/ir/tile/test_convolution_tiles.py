"""Convolutions below Graph IR: every level has the definition's bits, which are near SciPy's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.signal
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, bf16, f16, f32, f64, op
from tessera.core.convolutions import ConvolutionLeaves, phases
from tessera.core.flags import override
from tessera.core.folds import LEAF, contract
from tessera.core.types import TensorType
from tessera.ir.schedule.factors import factors, lies_along
from tessera.ir.schedule.ir import HostCall, Kernel
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify
from tessera.ir.tile.cpu.conv.windows import ConvolutionProblem
from tessera.ops.shape import pad
from tests.support.cases.random_graphs import same_bits
from tests.support.runners import levels


def draw(shape, dtype=f32, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype.np)


def program(f, *types, host=False):
    p = lower(levels.prepared(ts.trace(f, *types)))
    called = [s.node.op.name for s in p.steps if isinstance(s, HostCall)]
    assert host or set(called) <= {"reshape"}, str(p)
    verify(p)
    assert parse_program(p.text).text == p.text
    return p


def check(f, *xs, interpret=True):
    """All levels agree on f; the output."""
    p = program(f, *map(ts.tensor, xs))
    want = levels.by_schedule(p, xs)
    for run in (levels.by_tile, levels.by_llvm) if interpret else (levels.by_llvm,):
        assert same_bits(run(p, xs), want), run.__name__
    return want[0]


def reference(f, *shapes):
    """f by the references of the ops, in f64."""
    xs = [ts.tensor(draw(s, f64, seed=i)) for i, s in enumerate(shapes)]
    return ts.jit(f, target="numpy")(*xs).numpy()


def oracle(x, w, stride=1, padding=((0, 0), (0, 0)), dilation=1, groups=1):
    """Correlations of SciPy, in f64, for two spatial axes."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    wide = np.pad(x, ((0, 0), (0, 0), *padding))
    spread = np.zeros((*w.shape[:2], *((k - 1) * dilation + 1 for k in w.shape[2:])))
    spread[..., ::dilation, ::dilation] = w
    made, into = w.shape[0] // groups, w.shape[1]
    rows = []
    for image in wide:
        for o in range(w.shape[0]):
            first = o // made * into
            rows.append(
                sum(
                    scipy.signal.correlate2d(image[first + c], spread[o, c], "valid")
                    for c in range(into)
                )
            )
    y = np.stack(rows)[:, ::stride, ::stride]
    return y.reshape(x.shape[0], w.shape[0], *y.shape[1:])


# The definition ---------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 3000))
def test_leaves_are_whole_runs_that_cover_all_places_in_order(inner, first):
    leaves = ConvolutionLeaves.of((first % 50 + 1, *inner))
    if np.prod(leaves.sizes) > 20000:
        return
    found = list(leaves.places())
    assert len(found) == leaves.count
    assert all(0 < len(places) <= LEAF for places in found)
    everything = list(itertools.product(*map(range, leaves.sizes)))
    assert [k for places in found for k in places] == everything


def test_a_window_of_one_place_has_the_order_of_a_contraction():
    """So a convolution that becomes a matrix product has the bits that the definition gives it."""
    x, w = draw((2, 600, 3, 4)), draw((5, 600, 1, 1))
    y = check(lambda x, w: op.conv(op.pad(x, 0), w, stride=(1, 2)), x, w, interpret=False)
    seen = np.moveaxis(x[:, None, :, :, ::2], 2, -1)
    want = contract(seen, w.reshape(1, 5, 1, 1, 600))
    assert np.array_equal(y, want)


# Levels -----------------------------------------------------------------------------------------

CASES = {
    "plain": ((2, 3, 5, 7), (24, 3, 3, 3), {"padding": 1}),
    "stride": ((2, 5, 9, 11), (17, 5, 3, 2), {"padding": 1, "stride": (2, 3)}),
    "dilation": ((2, 4, 5, 6), (70, 2, 3, 3), {"groups": 2, "dilation": 2, "padding": 2}),
    "leaves": ((1, 64, 2, 3), (16, 64, 3, 3), {"padding": 1}),
    "images": ((32, 1, 3, 3), (16, 1, 2, 2), {}),
    "many places": ((1, 1, 26, 25), (16, 1, 25, 24), {}),
    "one axis": ((2, 6, 40), (18, 6, 5), {"stride": 2}),
    "three axes": ((1, 2, 2, 4, 5), (16, 2, 2, 3, 3), {"padding": 1, "stride": (1, 2, 1)}),
    "depthwise": ((2, 4, 9, 10), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "depthwise stride": ((2, 4, 9, 33), (8, 1, 3, 4), {"groups": 4, "padding": 2, "stride": 3}),
    "few channels": ((1, 60, 2, 17), (2, 60, 3, 3), {"padding": 1}),
    "pointwise": ((2, 7, 5, 6), (9, 7, 1, 1), {}),
    "uneven": ((1, 2, 6, 17), (3, 2, 2, 3), {"padding": ((2, 0), (0, 1))}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_level_has_the_bits_of_the_definition(case):
    x, w, params = CASES[case]
    found = check(lambda x, w: op.conv(x, w, **params), draw(x), draw(w, seed=1))
    want = reference(lambda x, w: op.conv(x, w, **params), x, w)
    assert np.abs(found - want).max() < 2e-6 * np.abs(want).max()


@pytest.mark.parametrize("made", [3, 20])
@pytest.mark.parametrize(("window", "dilation"), [((3, 1), 40), ((5, 3), 27), ((3, 3), 6)])
def test_only_what_windows_see_is_copied(made, window, dilation):
    """Rows between the places of a window are left out, where they are farther apart than the outputs."""
    x, w = draw((1, 4, 110, 60)), draw((made, 4, *window), seed=1)
    pads = tuple(((k - 1) // 2 * dilation,) * 2 for k in window)

    def f(x, w):
        return op.conv(x, w, padding=pads, dilation=dilation)

    got = check(f, x, w, interpret=dilation == 6 and made == 3)
    np.testing.assert_allclose(
        got, oracle(x, w, padding=pads, dilation=dilation), rtol=1e-4, atol=1e-4
    )
    step = ConvolutionProblem.of(
        *(TensorType(f32, a.shape) for a in (x, w, got)),
        {"groups": 1, "padding": pads, "stride": (1, 1), "dilation": (dilation,) * 2},
    )
    for rows in range(1, dilation + 1):
        assert step.span(1, rows) == window[0] * rows
    seen = {y + k * step.gap(1, 5): y + k * dilation for y in range(5) for k in range(window[0])}
    assert all(step.place(1, 5, at) == y for at, y in seen.items())


@settings(max_examples=15)
@given(st.data())
def test_random_convolutions_are_near_scipy(data):
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    groups, into, made = number(1, 2), number(1, 3), number(1, 20)
    stride, dilation = number(1, 3), number(1, 2)
    window = (number(1, 3), number(1, 4))
    padding = tuple((number(0, 2), number(0, 2)) for _ in range(2))
    sizes = tuple((k - 1) * dilation + 1 + number(0, 3) for k in window)
    x, w = draw((number(1, 2), groups * into, *sizes)), draw((groups * made, into, *window), seed=1)
    params = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    p = program(lambda x, w: op.conv(x, w, **params), ts.tensor(x), ts.tensor(w), host=True)
    found = levels.by_schedule(p, [x, w])
    assert same_bits(levels.by_tile(p, [x, w]), found)
    assert same_bits(levels.by_llvm(p, [x, w]), found)
    want = oracle(x, w, **params)
    assert np.abs(found[0] - want).max() <= 1e-5 * max(np.abs(want).max(), 1)


@pytest.mark.parametrize("dtype", [f16, bf16, f64])
def test_other_dtypes_accumulate_wide_and_round_once(dtype):
    x, w = draw((2, 3, 5, 8), dtype), draw((18, 3, 3, 3), dtype, seed=1)
    found = check(lambda x, w: op.conv(x, w, padding=1), x, w)
    wide = oracle(x, w, padding=((1, 1), (1, 1)))
    bound = {"f16": 1e-3, "bf16": 8e-3, "f64": 1e-14}[dtype.name]
    assert found.dtype == dtype.np
    assert np.abs(found.astype(float) - wide).max() < bound * np.abs(wide).max()
    check(lambda x, w: op.conv_weights(x, w, window=3), x, draw((2, 5, 3, 6), dtype, seed=2))


@pytest.mark.parametrize("inner", [(0, 1), (2, 0), (1, 3)])
def test_padding_between_neighbours_agrees_at_every_level(inner):
    x = draw((3, 20))
    for low, high in (((1, 2), (0, 3)), ((-2, -1), (1, -3))):
        found = check(
            lambda x, v, low=low, high=high: pad.bind(x, v, low=low, high=high, inner=inner),
            x,
            np.float32(1.5),
        )
        apart = np.full([n + (n - 1) * i for n, i in zip(x.shape, inner, strict=True)], 1.5)
        apart[:: inner[0] + 1, :: inner[1] + 1] = x
        around = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
        cut = tuple(
            slice(max(-a, 0), n - max(-b, 0))
            for a, b, n in zip(low, high, apart.shape, strict=True)
        )
        want = np.pad(apart[cut], around, constant_values=1.5)
        assert np.array_equal(found, want)


def test_transposed_convolutions_stay_on_the_machine():
    x, w = draw((2, 3, 4, 5)), draw((3, 4, 3, 3), seed=1)
    found = check(lambda x, w: op.conv_transpose(x, w, stride=2, padding=1), x, w)
    want = reference(
        lambda x, w: op.conv_transpose(x, w, stride=2, padding=1), (2, 3, 4, 5), (3, 4, 3, 3)
    )
    assert np.abs(found - want).max() < 2e-6 * np.abs(want).max()


# The derivative in the kernel

WEIGHTS = {
    "plain": ((2, 3, 5), (2, 4, 3), {"window": 3}),
    "stride": ((1, 2, 6), (1, 2, 4), {"window": 2, "stride": 2, "padding": 1}),
    "groups": ((2, 4, 7), (2, 2, 6), {"window": 3, "dilation": 2, "padding": ((2, 1),), "groups": 2}),
    "rows are leaves": ((2, 1, 23, 26), (2, 18, 23, 26), {"window": 3, "padding": 1}),
    "pieces of rows": ((2, 1, 2, 600), (2, 4, 2, 600), {"window": (1, 3), "padding": ((0, 0), (1, 1))}),
    "planes": ((2, 1, 9, 9, 9), (2, 3, 9, 9, 9), {"window": (1, 2, 3), "padding": ((0, 0), (0, 1), (1, 1))}),
    "images are leaves": ((20, 1, 5, 6), (20, 3, 5, 6), {"window": 3, "padding": 1}),
    "depthwise": ((2, 3, 9, 10), (2, 3, 9, 10), {"window": 3, "padding": 1, "groups": 3}),
    "pointwise": ((2, 3, 4), (2, 2, 4), {"window": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_have_the_bits_of_the_definition(case):
    x, ct, params = WEIGHTS[case]
    found = check(lambda x, ct: op.conv_weights(x, ct, **params), draw(x), draw(ct, seed=1))
    want = reference(lambda x, ct: op.conv_weights(x, ct, **params), x, ct)
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


# The derivative in x

INPUT = {
    "plain": ((2, 4, 3, 4), (4, 9, 3, 3), {"size": (5, 6)}),
    "stride": ((2, 4, 3, 4), (4, 9, 3, 3), {"size": (5, 7), "stride": 2, "padding": 1}),
    "strides": ((1, 2, 3, 2), (2, 9, 3, 2), {"size": (5, 6), "stride": (2, 3), "padding": ((1, 1), (0, 1))}),
    "nothing reaches": ((2, 4, 3, 4), (4, 9, 1, 1), {"size": (5, 7), "stride": 2}),
    "shared factor": ((2, 4, 4), (4, 10, 3), {"size": 19, "stride": 4, "dilation": 6, "padding": ((3, 4),)}),
    "leaves": ((1, 60, 2, 3), (60, 17, 3, 3), {"size": (2, 3), "padding": 1}),
    "groups": ((1, 4, 2, 3, 2), (4, 8, 2, 3, 2),
    {"size": (4, 6, 4), "groups": 2, "stride": 2, "padding": ((0, 0), (1, 1), (0, 0))}),
    "images": ((32, 2, 2, 3), (2, 16, 3, 3), {"size": (2, 3), "padding": 1}),
}  # fmt: skip


@pytest.mark.parametrize("case", INPUT)
def test_derivatives_in_x_have_the_bits_of_the_definition(case):
    ct, w, params = INPUT[case]
    found = check(lambda ct, w: op.conv_input(ct, w, **params), draw(ct), draw(w, seed=1))
    want = reference(lambda ct, w: op.conv_input(ct, w, **params), ct, w)
    assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


@given(*(st.integers(1, 6),) * 3, st.integers(-3, 8))
def test_every_place_of_the_kernel_is_in_one_phase_of_each_residue(
    window, stride, dilation, padding
):
    """Place k of the turned kernel reaches q from the place of ct that the phase of q says."""
    before = (window - 1) * dilation - padding
    for phase in phases(window, stride, dilation, padding):
        seen = {phase.first + u * phase.every: u for u in range(phase.size)}
        for k in range(window):
            reaches = (phase.offset + k * dilation - before) % stride == 0
            assert (k in seen) == reaches
            if reaches:
                at = (phase.offset + k * dilation - before) // stride
                assert at == seen[k] * phase.dilation - phase.low


@pytest.mark.parametrize("case", ["plain", "stride", "dilation", "depthwise", "pointwise"])
def test_gradients_on_the_machine_are_near_the_reference(case):
    shape, kernel, params = CASES[case]
    x, w = ts.tensor(draw(shape)), ts.tensor(draw(kernel, seed=1))

    def loss(x, w):
        return op.sum(op.tanh(op.conv(x, w, **params)))

    for wrt in (0, 1):
        found = ts.jit(ts.grad(loss, wrt), target="cpu")(x, w).numpy()
        want = ts.jit(ts.grad(loss, wrt), target="numpy")(x, w).numpy()
        assert np.abs(found - want).max() < 1e-5 * np.abs(want).max()


# Bits -------------------------------------------------------------------------------------------


def convolved(x, w):
    f = ts.jit(lambda x, w: op.conv(x, w, padding=1), target="cpu")
    return f(ts.tensor(x), ts.tensor(w)).numpy()


@pytest.mark.parametrize("made", [3, 40])
def test_bits_do_not_depend_on_threads_or_batch(made):
    x, w = draw((6, 70, 8, 9)), draw((made, 70, 3, 3), seed=1)
    with override(threads=1):
        want = convolved(x, w)
    for threads in (2, 3):
        with override(threads=threads):
            assert np.array_equal(convolved(x, w), want)
    for i in (0, 5):
        assert np.array_equal(convolved(x[i : i + 1], w)[0], want[i])


def test_weights_do_not_depend_on_threads():
    x, ct = ts.tensor(draw((9, 5, 20, 21))), ts.tensor(draw((9, 18, 20, 21), seed=1))
    f = ts.jit(lambda x, ct: op.conv_weights(x, ct, window=3, padding=1), target="cpu")
    with override(threads=1):
        want = f(x, ct).numpy()
    for threads in (2, 3):
        with override(threads=threads):
            assert np.array_equal(f(x, ct).numpy(), want)


@pytest.mark.parametrize("made", [2, 20])
def test_one_program_serves_all_sizes(made):
    """With the bits that a program of known sizes gives."""
    x, w = draw((3, 2, 9, 18)), draw((made, 2, 3, 3), seed=1)
    f = ts.jit(lambda x, w: op.conv(x, w, padding=1, stride=2), target="cpu")
    t = Tensor["B", 2, "H", "W", f32]
    p = program(lambda x, w: op.conv(x, w, padding=1, stride=2), t, Tensor[made, 2, 3, 3, f32])
    want = f(ts.tensor(x), ts.tensor(w)).numpy()
    for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        assert same_bits(run(p, [x, w]), [want]), run.__name__
    ct = draw((3, 5, 9, 18), seed=2)
    g = lambda x, ct: op.conv_weights(x, ct, window=3, padding=1)  # noqa: E731
    q = program(g, Tensor["B", 2, 9, 18, f32], Tensor["B", 5, 9, 18, f32])
    known = levels.by_llvm(program(g, ts.tensor(x), ts.tensor(ct)), [x, ct])
    for run in (levels.by_schedule, levels.by_tile, levels.by_llvm):
        assert same_bits(run(q, [x, ct]), known), run.__name__


def test_weights_of_one_place_are_read_as_a_matrix():
    """Neighbours along the channels are neighbours in memory: no element is gathered."""
    x, w = draw((1, 40, 3, 5)), draw((20, 40, 1, 1), seed=1)
    p = program(lambda x, w: op.conv(x, w), *map(ts.tensor, (x, w)))
    product = next(s for s in p.steps if isinstance(s, Kernel) and s.contracts)
    assert any(lies_along(f, product.stages[0].reduced[0]) for f in factors(product.stages[0]))
    check(lambda x, w: op.conv(x, w), x, w)


def test_a_number_is_a_factor_of_a_product():
    check(lambda x, s: x @ op.reshape(s, (1, 1)), draw((1, 1)), np.float32(3))
