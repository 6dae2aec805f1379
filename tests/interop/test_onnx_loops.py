"""Loops as converters of dynamic graphs write them: beside the reference evaluator of the onnx package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
N = 6
BODY = """
    body (int64 step, bool go, int64 i, float[2] h, float[{n}, 2] rows, float last, float[2, 2] v, bool done)
    => (bool again, int64 next, float[2] moved, float[{n}, 2] written, float[1, 2] row, float[2, 2] v,
        bool finished) {{
        one = Constant<value = int64 {{1}}> ()
        first = Constant<value = int64[1] {{0}}> ()
        whole = Constant<value = int64[1] {{1}}> ()
        length = Constant<value = int64[1] {{{n}}}> ()
        tall = Constant<value = int64[2] {{-1, 1}}> ()
        zeros = Constant<value = int64[1] {{0}}> ()
        real = Constant<value = float {{1.0}}> ()
        most = Constant<value = float {{1.6}}> ()
        hv = MatMul (h, v)
        moved = Tanh (hv)
        row = Unsqueeze (moved, first)
        f = Cast<to = 1> (i)
        g = Add (f, real)
        next = Cast<to = 7> (g)
        from = Reshape (i, whole)
        to = Reshape (next, whole)
        until = Min (length, to)
        part = Slice (rows, from, until, first, whole)
        shape = Shape (part)
        values = Expand (row, shape)
        a = Squeeze (from)
        b = Squeeze (until)
        places = Range (a, b, one)
        column = Reshape (places, tall)
        two = Constant<value = int64[1] {{2}}> ()
        width = Slice (shape, whole, two, first)
        ones = Concat<axis = 0> (whole, width)
        index = Tile (column, ones)
        written = ScatterElements<axis = 0> (rows, index, values)
        total = ReduceSum<keepdims = 0> (moved)
        large = Greater (total, most)
        finished = If (large) <
            then_branch = t () => (bool y) {{ y = Constant<value = bool {{1}}> () }},
            else_branch = e () => (bool z) {{
                w = Cast<to = 7> (done)
                u = Add (w, zeros)
                z = Cast<to = 9> (u)
            }}
        >
        on = Not (finished)
        size = Squeeze (length)
        room = Less (next, size)
        again = And (on, room)
    }}
"""
MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
decoder (float[2] x) => (float[{n}, 2] y, float[M, 2] seen, float[1, 2] last)
<float[2, 2] v = {{1.5, 0.25, 0.5, 1.25}}>
{{
    i0 = Constant<value = int64 {{{start}}}> ()
    go0 = Constant<value = bool {{1}}> ()
    done0 = Constant<value = bool {{0}}> ()
    dummy = Constant<value = float {{0.0}}> ()
    sizes = Constant<value = int64[2] {{{n}, 2}}> ()
    zero = Constant<value = int64[1] {{0}}> ()
    rows0 = ConstantOfShape (sizes)
    count, h, y, last, weights, over = Loop ("", go0, i0, x, rows0, dummy, v, done0) <body = {body}>
    one = Constant<value = int64[1] {{1}}> ()
    end = Reshape (count, one)
    seen = Slice (y, zero, end, zero)
}}
"""


def decoder(n: int = N, start: int = 0) -> Any:
    """A recurrent net that writes a row for each step, until a sum is large or the rows are full."""
    text = MODEL.format(n=n, start=start, body=BODY.format(n=n).strip())
    return onnx.parser.parse_model(text)


def decoded(m: Any, x: Any) -> list[Any]:
    """What the reference evaluator gives."""
    found: list[Any] = reference.ReferenceEvaluator(m).run(None, {"x": x})
    return found


@pytest.mark.parametrize("x", [(0.1, 0.2), (0.01, -0.3), (1.0, 1.0)])
def test_a_loop_that_writes_the_slice_of_its_step_is_part_of_the_program(
    x: tuple[float, ...],
) -> None:
    given, m = np.array(x, np.float32), decoder()
    ours = ts.onnx.load(m.SerializeToString())
    for _ in range(2):
        found = ours.run({"x": given})
        for a, b in zip(found.values(), decoded(m, given), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6, atol=1e-7)
    (plan,) = ours._plans.values()
    late = [m.graph.node[i].op_type for i in plan.late]
    assert late == ["Slice"]  # the number of rows that are seen is data


def test_a_slice_of_another_length_than_assumed_runs_node_by_node() -> None:
    """The loop begins behind the last row, where the slice is empty."""
    given, m = np.array([0.1, 0.2], np.float32), decoder(start=N)
    ours = ts.onnx.load(m.SerializeToString())
    for _ in range(2):
        found = ours.run({"x": given})
        for a, b in zip(found.values(), decoded(m, given), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6, atol=1e-7)


ENDS = """
<ir_version: 8, opset_import: ["" : 18]>
ends (float[5] x) => (float[M] y) {
    one = Constant<value = int64[1] {1}> ()
    zero = Constant<value = int64[1] {0}> ()
    five = Constant<value = int64[1] {5}> ()
    most = ReduceMax<keepdims = 1> (x)
    from = Cast<to = 7> (most)
    next = Add (from, one)
    to = Min (next, five)
    y = Slice (x, from, to, zero)
}
"""


@pytest.mark.parametrize("order", [(2, 4, 7, -1, -9), (7, 2), (-1, 2, 3)])
def test_slices_by_data_at_the_ends_of_a_tensor(order: tuple[int, ...]) -> None:
    """Inside, past the end, and counted from the end."""
    m = onnx.parser.parse_model(ENDS)
    ours = ts.onnx.load(m.SerializeToString())
    for most in order:
        x = np.array([most, most - 1, most - 2, most - 3, most - 4], np.float32)
        np.testing.assert_array_equal(np.asarray(ours.run({"x": x})["y"]), decoded(m, x)[0])
