"""tile.print and tile.check: the same lines by machine code, the interpreter, step by step and in
programs.
"""

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


@kernel.schedule(block(2, 4))
def walked(x: KTile["M", "N"]):
    T = tile.context()
    acc = tile.zeros((T.m,))
    tile.print("begins")
    for nb in tile.range_k(x.shape, T.n):
        part = tile.sum(tile.load(x, rows=T.m, cols=nb), axis=1)
        acc = acc + part
        tile.print("part", part)
        for i in tile.range(2):
            if tile.max(part) > 20:
                tile.print("{large}", i)
        tile.print("so far", acc)
    tile.print("ends")
    return acc


WALKED = """\
walked[m=0] begins
walked[m=0] part [ 6. 26.]
walked[m=0] {large} 0
walked[m=0] {large} 1
walked[m=0] so far [ 6. 26.]
walked[m=0] part [4. 9.]
walked[m=0] so far [10. 35.]
walked[m=0] ends
walked[m=1] begins
walked[m=1] part [46.  0.]
walked[m=1] {large} 0
walked[m=1] {large} 1
walked[m=1] so far [46.  0.]
walked[m=1] part [14.  0.]
walked[m=1] so far [60.  0.]
walked[m=1] ends
"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: ts.jit(lambda x: f(x))], ids=["call", "jit"]
)
def test_loops_print_every_turn_in_the_order_of_the_instance(way, wrap, capsys):
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    with WAYS[way]():
        np.testing.assert_array_equal(wrap(walked)(ts.tensor(x)).numpy(), x.sum(1))
    assert capsys.readouterr().out == WALKED


def noisy(a, b):
    tile.print("join", a, b)
    return a + b


@kernel.schedule(block(2))
def collatz(x: KTile["N", f32], start: KTile["M"]):
    """A loop that data end, and the function of a fold."""
    n = start[0]
    while n > 1:
        tile.print("at", n)
        tile.check(n < 40, "too far")
        n = tile.where(n % 2 == 0, n // 2, 3 * n + 1)
    return tile.load(x) * tile.reduce(tile.arange(3), noisy, axis=0)


@pytest.mark.parametrize("way", WAYS)
def test_loops_that_data_end_and_functions_of_folds_print(way, capsys):
    x, texts = np.ones(2, np.float32), (6, 3, 10, 5, 16, 8, 4, 2)
    with WAYS[way]():
        np.testing.assert_array_equal(collatz(x, np.array([6])).numpy(), x * 3)
        lines = [f"collatz[m=0] at {n}" for n in texts]
        assert capsys.readouterr().out.splitlines() == [
            *lines, "collatz[m=0] join 0 1", "collatz[m=0] join 1 2",
        ]  # fmt: skip
        with pytest.raises(
            ts.TesseraError, match=r"the check \(too far\) fails in 1 of 1 instances"
        ):
            collatz(x, np.array([9]))
        capsys.readouterr()


@kernel.schedule(block(4))
def counted(x: KTile["N"], n: KTile[()]):
    for i in range(n[()]):
        tile.print("turn", i)
    return tile.load(x)


def test_the_first_turns_are_kept_and_the_others_told_of(capsys):
    counted(np.ones(8, np.float32), np.array(100))
    lines = capsys.readouterr().out.splitlines()
    want = [f"counted[m=0] turn {i}" for i in range(64)]
    assert lines[:65] == [*want, "counted[m=0] (more turns than the first 64 print 'turn {}')"]
    assert len(lines) == 2 * 65
    counted(np.ones(3, np.float32), np.array(2))
    assert capsys.readouterr().out == "counted[m=0] turn 0\ncounted[m=0] turn 1\n"


def test_a_check_in_a_long_loop_is_stepped_through():
    """Step by step, each turn had a tensor of its own, and there were as many as the compiler tried turns."""
    x = np.ones((2, 6, 40), np.float32)
    with ts.interpret(step=True):
        np.testing.assert_array_equal(folded(x / 64).numpy(), (x / 64).sum(-1))
    assert ts.check(walked, x[0]).ok
    assert walked.lower(x[0]).triton.count("tl.store(report") == 8


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
        (numbers, "check: got 3, expected a tile of truth values"),
        (silent, "silent neither returns nor stores anything"),
    ],
    ids=["number", "nothing"],
)
def test_what_cannot_be_said_is_an_error_at_its_line(f, text):
    x = np.ones(4, np.float32)
    with pytest.raises(ts.TesseraError, match=text) as e:
        f(x)
    assert "test_reports.py" in str(e.value)
