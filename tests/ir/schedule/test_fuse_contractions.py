"""Groups: chains of contraction, rows and contraction have the bits of their kernels, hidden columns too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.dtype import f32, i64
from tessera.core.flags import override
from tessera.ir.schedule.ir import Group, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.passes.fuse_contractions import hidden_columns
from tessera.ir.tile.cpu import group as tile_group
from tests.support.cases.random_graphs import same_bits
from tests.support.cases.random_programs import Case
from tests.support.runners.laws import check_all
from tests.support.runners.levels import by_llvm, by_schedule, prepared

INF = float("inf")


def places(s: Any) -> tuple[Any, Any]:
    """The number of the row and of the column of every score."""
    row, column = (op.iota(s.shape[-2:], axis, i64) for axis in (0, 1))
    return row, column


def weighed(s: Any, v: Any) -> tuple[Any, Any]:
    """The mean of v, weighed by exp of scores of which some are -inf, and the weights."""
    top = op.max(s, -1, keepdims=True)
    e = op.exp(s - op.where(top == -INF, 0.0, top))
    total = op.sum(e, -1, keepdims=True)
    return (e @ v) / op.where(total == 0.0, 1.0, total), e


def attention(seen: Callable[[Any, Any], Any] | None = None, hidden: float = -INF) -> Any:
    """Attention whose rows see the columns that `seen` says."""

    def f(q: Any, k: Any, v: Any) -> Any:
        s = q @ op.swapaxes(k, -1, -2) * 0.5
        if seen is not None:
            s = op.where(seen(*places(s)), s, hidden)
        return weighed(s, v)[0]

    return f


def with_weights(q: Any, k: Any, v: Any) -> Any:
    s = q @ op.swapaxes(k, -1, -2)
    row, column = places(s)
    return weighed(op.where(row >= column, s, -INF), v)


def with_scores(q: Any, k: Any, v: Any) -> Any:
    s = q @ op.swapaxes(k, -1, -2)
    row, column = places(s)
    masked = op.where(row >= column, s, -INF)
    return weighed(masked, v)[0], op.exp(s * 0.5), s


def zeroed(q: Any, k: Any, v: Any) -> Any:
    """The largest of a row with zeros is no less than 0, though what the row sees is below."""
    s = q @ op.swapaxes(k, -1, -2)
    row, column = places(s)
    masked = op.where(row >= column, s - 9.0, 0.0)
    top = op.max(masked, -1, keepdims=True)
    return op.where(row >= column, op.exp(masked - top), 0.0) @ v


def filled(q: Any, k: Any, v: Any) -> Any:
    """A row sees ones beyond its own columns, which the product counts."""
    s = q @ op.swapaxes(k, -1, -2)
    row, column = places(s)
    return op.where(row >= column, op.tanh(s), 1.0) @ v


def twice(q: Any, k: Any, v: Any) -> Any:
    """What follows a row is read by two stages, and once more after it was used."""
    s = q @ op.swapaxes(k, -1, -2)
    e = op.exp(op.tanh(s))
    p = e / op.sum(e, -1, keepdims=True)
    return (p + s * 0.125) @ v, op.max(s, -1)


def needed_between(q: Any, k: Any, v: Any) -> Any:
    """The second contraction needs what another step makes of the first."""
    s = q @ op.swapaxes(k, -1, -2)
    p = op.softmax(s)
    return p @ op.cumsum(op.swapaxes(p, -1, -2) @ q[..., :1], -2)


def used_again(q: Any, k: Any, v: Any) -> Any:
    """Other products read the weights too, in their place and turned, and skip what is 0."""
    s = q @ op.swapaxes(k, -1, -2)
    row, column = places(s)
    y, e = weighed(op.where(row + 1 >= column, s, -INF), v)
    return y, e @ op.sin(v), op.swapaxes(e, -1, -2) @ q, op.swapaxes(q, -1, -2) @ e


def whole(q: Any, k: Any, v: Any) -> Any:
    """The op, which has heads."""
    return op.attention(*(op.expand_dims(x, 0) for x in (q, k, v)), causal=True)


def gradient(f: Any) -> Any:
    return ts.grad(lambda q, k, v: op.sum(op.sin(f(q, k, v))), (0, 1, 2))


FORMS: dict[str, Any] = {
    "full": attention(),
    "at least": attention(lambda r, c: r >= c),
    "at most": attention(lambda r, c: c <= r),
    "above": attention(lambda r, c: r + 1 > c),
    "below": attention(lambda r, c: c < r + 3),
    "later": attention(lambda r, c: r + 5 >= c),
    "nothing at first": attention(lambda r, c: r >= c + 30),
    "far away": attention(lambda r, c: c <= r + 200),
    "low but not hidden": attention(lambda r, c: r >= c, -3.0),
    "with weights": with_weights,
    "with scores": with_scores,
    "zeroed": zeroed,
    "filled": filled,
    "twice": twice,
    "needed between": needed_between,
    "gradient": gradient(attention()),
    "gradient, at least": gradient(attention(lambda r, c: r >= c)),
    "gradient, later": gradient(attention(lambda r, c: r + 2 >= c)),
    "gradient of the op": gradient(whole),
    "used again": used_again,
    "plain": lambda q, k, v: (q @ op.swapaxes(k, -1, -2)) @ v,
}
# Queries, keys: less than a vector, more than one, more than one block of rows where columns are hidden.
SHAPES = [(2, 5, 5), (1, 13, 33), (1, 33, 19)]


def case(name: str, b: int, q: int, k: int, d: int = 3) -> Case:
    rng = np.random.default_rng([b, q, k])
    xs = [rng.normal(size=(b, n, d)).astype(np.float32) for n in (q, k, k)]
    return Case(1, name, ts.trace(FORMS[name], *(Tensor[(*x.shape, f32)] for x in xs)), (xs,))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_groups_agree_at_every_level(shape: tuple[int, int, int]) -> None:
    check_all([case(name, *shape) for name in FORMS])


# How an instance takes its rows: strip by strip of one block or of several, or a block at once.
TAKEN: dict[str, dict[str, int]] = {
    "strips": {},
    "blocks of strips": {"_TALLER": 36, "_TALL_ENOUGH": 36},
    "blocks": {"_CLOSE": 0},
}


# More rows than a block has and more columns than a panel; the last row sees one column of a new panel.
@pytest.mark.parametrize(
    ("taken", "sizes"), [*((t, (131, 140)) for t in TAKEN), ("strips", (65, 70))], ids=str
)
@pytest.mark.parametrize("name", FORMS)
def test_blocks_of_rows(
    name: str, taken: str, sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interpreted tiles would take minutes."""
    for setting, value in TAKEN[taken].items():
        monkeypatch.setattr(tile_group, setting, value)
    c = case(name, 1, *sizes, 2)
    p = lower(prepared(c.graph))
    assert same_bits(by_llvm(p, c.inputs[0]), by_schedule(p, c.inputs[0]))


def program(name: str) -> Program:
    return lower(prepared(case(name, 2, 19, 33).graph))


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"needed between"}))
def test_there_is_a_group(name: str) -> None:
    assert any(isinstance(s, Group) for s in program(name).steps), program(name)


def test_groups_beside_each_other_are_all_found() -> None:
    """Steps between the kernels of a group move when it is made, and the next group finds them."""

    def beside(q: Any, k: Any, v: Any) -> Any:
        scores = [x @ op.swapaxes(k, -1, -2) for x in (q, op.exp(q), op.sin(q))]
        weights = [op.softmax(s) for s in scores]
        return tuple(w @ v for w in weights)

    xs = case("full", 2, 9, 21).inputs[0]
    p = lower(prepared(ts.trace(beside, *(Tensor[(*x.shape, f32)] for x in xs))))
    assert sum(isinstance(s, Group) for s in p.steps) == 3, p
    assert same_bits(by_llvm(p, xs), by_schedule(p, xs))


HIDES = {"at least": 0, "at most": 0, "above": 0, "below": 2, "later": 5, "far away": 200,
         "nothing at first": -30, "with weights": 0, "used again": 1}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(FORMS) - {"needed between"}))
def test_what_rows_see(name: str) -> None:
    group = next(s for s in program(name).steps if isinstance(s, Group))
    found = hidden_columns(group)
    if name in HIDES:
        assert found is not None
        assert found.offset == HIDES[name]
    elif not name.startswith("gradient"):
        assert found is None


def test_a_product_of_rows_with_all_rows_is_no_group() -> None:
    """Both factors are made row by row, but one of them is read at every row."""

    def f(x: Any) -> Any:
        h = x @ x
        total = op.sum(h, 1, keepdims=True)
        return (op.exp(total) * h) @ (op.exp(x) * total)

    x = ts.tensor(np.random.default_rng(0).normal(size=(5, 5)) / 4)
    jitted = ts.jit(f, target="cpu")
    assert not any(isinstance(s, Group) for s in jitted.lower(x).schedule.steps)
    with override(target="cpu"):
        assert same_bits([jitted(x).numpy()], [f(x).numpy()])
    np.testing.assert_allclose(jitted(x), ts.jit(f, target="numpy")(x), rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 1, 2)])
def test_a_right_factor_that_the_group_would_make_stays_out(shape: tuple[int, ...]) -> None:
    """Rows of one element: the derivative of pinv packed a factor at a row that was not begun (KeyError)."""
    x = np.random.default_rng(0).standard_normal(shape) + 2.0
    gradient = ts.grad(lambda v: op.sum(op.pinv(v) ** 2))
    wanted = ts.jit(gradient, target="numpy")(ts.tensor(x)).numpy()
    np.testing.assert_allclose(ts.jit(gradient)(ts.tensor(x)).numpy(), wanted, rtol=1e-9)
    twice = ts.jit(lambda a, b: (a @ b) @ op.transpose(a @ b, (0, 2, 1)))
    b = np.random.default_rng(1).standard_normal((shape[0], shape[2], 1))
    y = x @ b
    got = twice(ts.tensor(x), ts.tensor(b)).numpy()
    np.testing.assert_allclose(got, y @ y.transpose(0, 2, 1), rtol=1e-9)
