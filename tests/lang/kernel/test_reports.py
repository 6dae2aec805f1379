"""tile.print and tile.check: the same lines by machine code, the interpreter, step by step and in programs."""

from contextlib import nullcontext

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, kernel, op, tile

X = np.arange(10, dtype=np.float32)
WAYS = {
    "machine code": nullcontext,
    "interpreter": ts.interpret,
    "step": lambda: ts.interpret(step=True),
}


@kernel.schedule(block(4))
def doubled(x: KTile["N", f32]):
    t = tile.load(x)
    tile.print("sum", tile.sum(t), "of", t)
    tile.check(t >= 0, "negative")
    return t * 2


LINES = [
    "doubled[m=0] sum 6.0 of [0. 1. 2. 3.]",
    "doubled[m=1] sum 22.0 of [4. 5. 6. 7.]",
    "doubled[m=2] sum 17.0 of [8. 9. 0. 0.]",
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: ts.jit(lambda x: f(x))], ids=["call", "jit"]
)
def test_instances_print_in_the_order_of_the_grid(way, wrap, capsys):
    f = wrap(doubled)
    with WAYS[way]():
        for _ in range(2):
            np.testing.assert_array_equal(f(ts.tensor(X)).numpy(), X * 2)
            assert capsys.readouterr().out.splitlines() == LINES


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: ts.jit(lambda x: f(x))], ids=["call", "jit"]
)
def test_a_check_that_fails_is_an_error_with_its_instance(way, wrap):
    text = r"doubled: the check \(negative\) fails in 2 of 3 instances, the first of them m=1"
    with WAYS[way](), pytest.raises(ts.TesseraError, match=text) as e:
        wrap(doubled)(ts.tensor(np.where(X > 5, X - 9, X)))
    assert "test_reports.py" in str(e.value)


@kernel.schedule(block(4, 3))
def folded(x: KTile["B", "M", "N"]):
    T = tile.context()
    acc = tile.zeros((T.m,))
    for nb in tile.range_k(x.shape, T.n):
        part = tile.load(x, cols=nb)
        tile.check(part < 5, "large")
        acc = acc + tile.sum(part, axis=1)
    if tile.max(acc) > 7:
        tile.print("big", acc)
    return acc


@pytest.mark.parametrize("way", WAYS)
def test_a_branch_prints_where_it_is_taken_and_a_loop_checks_every_round(way, capsys):
    x = np.ones((2, 6, 7), np.float32)
    x[1, 5, 6] = 4
    with WAYS[way]():
        np.testing.assert_array_equal(folded(x).numpy(), x.sum(-1))
        assert capsys.readouterr().out == "folded[b=1, m=1] big [ 7. 10.  0.  0.]\n"
        x[1, 5, 0] = 9
        with pytest.raises(
            ts.TesseraError, match=r"large.* fails in 1 of 4 instances, the first of"
        ):
            folded(x)


def test_what_is_said_changes_neither_results_nor_derivatives(capsys):
    slope = ts.grad(lambda x: op.sum(doubled(x) ** 2))(ts.tensor(X))
    np.testing.assert_array_equal(slope.numpy(), 8 * X)
    assert ts.check(doubled, X).ok
    text = doubled.lower(X).triton
    assert text.count("tl.store(report") == 4


@kernel
def printing(x: KTile["M", "N"]):
    for nb in tile.range_k(x.shape, 8):
        tile.print(tile.load(x, cols=nb))
    return tile.load(x)


@kernel
def numbers(x: KTile["N"]):
    tile.check(3, "three")
    return tile.load(x)


@kernel
def silent(x: KTile["N"]):
    tile.print("only", tile.load(x))


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (printing, "print: it stands in a loop that runs; print what the loop carries after it"),
        (numbers, "check: got 3, expected a tile of truth values"),
        (silent, "silent neither returns nor stores anything"),
    ],
    ids=["loop", "number", "nothing"],
)
def test_what_cannot_be_said_is_an_error_at_its_line(f, text):
    x = np.ones((4, 20) if f is printing else 4, np.float32)
    with pytest.raises(ts.TesseraError, match=text) as e:
        f(x)
    assert "test_reports.py" in str(e.value)
