"""Loops that end where data says: the same at every level, and checked."""

from dataclasses import replace

import numpy as np
import pytest

from tessera.core.dtype import f32, i64
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.target.triton.emit import emit
from tessera.ir.tile.gpu.scatter import ScatterRows
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.text import parse_kernel
from tessera.ir.tile.verify import verify
from tests.support.runners.levels import run_llvm

ROWS, WIDTH = 5, 12


def prefix_sums() -> Kernel:
    """y[r] = the sum of the first n[r] numbers of x[r], in ascending order."""
    b = Builder("prefix_sums")
    x = b.parameter("x", TensorType(f32, (ROWS, WIDTH)))
    n = b.parameter("n", TensorType(i64, (ROWS,)))
    y = b.parameter("y", TensorType(f32, (ROWS,)), writable=True)
    row = b.program(ROWS)
    bound = b.load(n, (row,), (1,), ())
    with b.loop(0, WIDTH, 1, [b.full(f32, (1,), 0)], bound=bound) as loop:
        one = b.load(x, (row, loop.variable), (1, 1), (1,))
        loop.carry(b.apply("add", loop.carried[0], one))
    b.store(y, loop.results[0], (row,), (1,))
    return b.finish()


def expected(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    y = np.zeros(ROWS, np.float32)
    for r in range(ROWS):
        for c in range(min(max(int(n[r]), 0), WIDTH)):
            y[r] += x[r, c]
    return y


def test_a_bound_ends_a_loop_at_every_level() -> None:
    k = prefix_sums()
    verify(k)
    assert str(parse_kernel(str(k))) == str(k)
    x = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    n = np.array([0, 3, WIDTH, -2, WIDTH + 7])
    for run in (lambda a: interpret(k, a), lambda a: run_llvm(k, a, {})):
        y = np.full(ROWS, 7, np.float32)
        run([x, n, y])
        assert y.tobytes() == expected(x, n).tobytes()
    assert ", 12), -1).to(tl.int32)" in emit(k)


def test_a_bound_is_a_whole_number_that_the_body_passes_on() -> None:
    k = prefix_sums()
    loop = k.body.operations[-2]
    assert loop.block is not None
    loop.attributes = {**loop.attributes, "bounded": "yes"}
    with pytest.raises(VerifyError, match="bounded is 'yes', expected true or false"):
        verify(k)
    loop.attributes = {**loop.attributes, "bounded": True}
    other = Builder("other").index(0)
    loop.block = replace(loop.block, outputs=(other, *loop.block.outputs[1:]))
    with pytest.raises(VerifyError, match="the block changes the bound"):
        verify(k)
    b = Builder("wide")
    with b.loop(0, 4, 1, bound=b.full(f32, (), 3)):
        pass
    with pytest.raises(VerifyError, match=r"the bound is f32\[\], expected i64\[\]"):
        verify(b.finish())


@pytest.mark.parametrize(("rows", "columns", "count"), [(37, 20, 101), (1, 3, 9), (300, 260, 64)])
def test_sums_into_rows_follow_the_order_of_their_numbers(rows, columns, count) -> None:
    rng = np.random.default_rng(rows)
    index = rng.integers(-3, rows + 3, count)
    x = rng.standard_normal((rows, columns)).astype(np.float32)
    v = rng.standard_normal((count, columns)).astype(np.float32)
    made = ScatterRows("add", f32, 1, (rows,), columns, count, (i64,)).expansion(
        ("x", "v", "i"), "y"
    )
    y = np.zeros((1, 1, rows, columns), np.float32)
    arrays = {"x": x[None], "v": v[:, None], "i": index, "y": y}
    arrays |= {n: np.zeros(t.shape, t.dtype.np) for n, t in made.between.items()}
    for launch in made.launches:
        verify(launch.kernel)
        interpret(launch.kernel, [arrays[n] for n in (*launch.inputs, *launch.outputs)])
    # A number that is no row stands behind all rows, and nothing is added for it.
    inside = (index >= 0) & (index < rows)
    held = np.where(inside, index, rows)
    assert (arrays["y_order"] == np.argsort(held, kind="stable")).all()
    want = x.astype(np.float64)
    np.add.at(want, index[inside], v[inside])
    np.testing.assert_allclose(y[0, 0], want, rtol=0, atol=1e-5)
    # What meets elsewhere does not matter, even where it is no number.
    first = held[inside][0]
    v[held != first] = np.nan
    last = made.launches[-1]
    interpret(last.kernel, [arrays[n] for n in (*last.inputs, *last.outputs)])
    np.testing.assert_allclose(y[0, 0, first], want[first], rtol=0, atol=1e-5)
