"""dynamic_update_slice on a GPU: a small part is replaced where the tensor lies, and nothing else is
touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.runtime.gpu.launch_order import order
from tests.support.fakes.gpu_fake import BUILT, fake_gpu, launching_gpus

RUNS_ON = "numpy"
CASES = (
    ((8, 64, 16), (8, 1, 16), (0, 5, 0)), ((8, 64, 16), (8, 1, 16), (0, 99, 0)),
    ((8, 64, 16), (2, 3, 5), (-4, 60, 7)), ((40,), (7,), (38,)), ((6, 7, 8, 9), (2, 7, 1, 9), (3, 0, 4, 0)),
    ((64, 33), (16, 33), (17, 0)), ((2000, 3), (450, 3), (1234, 0)),
)  # fmt: skip


@pytest.fixture
def cuda() -> Iterator[None]:
    BUILT.clear()
    with fake_gpu():
        yield


def there(*arrays: Any) -> list[Any]:
    return [ts.tensor(x).to("cuda") for x in arrays]


def want(x: Any, v: Any, start: tuple[int, ...]) -> Any:
    at = [min(max(s, 0), n - m) for s, n, m in zip(start, x.shape, v.shape, strict=True)]
    out = x.copy()
    out[tuple(slice(a, a + m) for a, m in zip(at, v.shape, strict=True))] = v
    return out


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
@pytest.mark.parametrize(("shape", "part", "start"), CASES, ids=str)
def test_an_update_is_numpys(shape: Any, part: Any, start: Any, dtype: str, cuda: None) -> None:
    rng = np.random.default_rng(0)
    x, v = (rng.integers(0, 100, s).astype(dtype) for s in (shape, part))
    a, b = there(x, v)
    at = [ts.tensor(np.int32(s) if i % 2 else np.int64(s)).to("cuda") for i, s in enumerate(start)]
    got = ts.jit(lambda x, v, *s: op.dynamic_update_slice(x, v, s))(a, b, *at)
    np.testing.assert_array_equal(got.numpy(), want(x, v, start))
    np.testing.assert_array_equal(a.numpy(), x)
    assert "update" in {s.name for s in BUILT}


def _step(memory: Any, new: Any, at: Any) -> Any:
    return op.dynamic_update_slice(memory, new * 2, (0, at, 0))


@pytest.mark.parametrize("devices", [fake_gpu, launching_gpus])
def test_a_cache_that_is_given_away_is_not_copied(devices: Any) -> None:
    x, v = np.ones((4, 32, 8), np.float32), np.full((4, 1, 8), 3, np.float32)
    with devices():
        a, b, at = *there(x, v), ts.tensor(np.int64(7)).to("cuda")
        for donate, copies in (((), 1), (("memory",), 0)):
            f: Any = ts.jit(_step, donate=donate)
            (m,) = there(x)
            got = f(m, b, at)
            np.testing.assert_array_equal(got.numpy(), want(x, v * 2, (0, 7, 0)))
            assert _launched(f).count("copy") == copies, donate
        np.testing.assert_array_equal(a.numpy(), x)


def _program(f: Any) -> Any:
    (entry,) = f._variants.values()
    (p,) = entry.executable._prepared.values()
    return p


def _launched(f: Any) -> str:
    return " ".join(x.name for s in _program(f).segments for x in s.launches)


def test_tokens_fill_a_cache_one_after_another() -> None:
    """In place many times over, the old values where nothing was written, both updates of a step."""

    def f(k: Any, v: Any, x: Any, at: Any) -> Any:
        k = op.dynamic_update_slice(k, x[None], (at, 0))
        v = op.dynamic_update_slice(v, x[None] + 1, (at, 0))
        return k, v, op.sum(k @ op.transpose(v))

    rng = np.random.default_rng(1)
    with launching_gpus():
        step: Any = ts.jit(f, donate=("k", "v"))
        wide = [np.zeros((16, 8), np.float32) for _ in range(2)]
        k, v = there(*wide)
        for at in range(16):
            x = rng.standard_normal(8).astype(np.float32)
            k, v, s = step(k, v, *there(x), ts.tensor(np.int64(at)).to("cuda"))
            wide[0][at], wide[1][at] = x, x + 1
            np.testing.assert_array_equal(k.numpy(), wide[0])
            np.testing.assert_allclose(s.numpy(), (wide[0] @ wide[1].T).sum(), rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(v.numpy(), wide[1])


def test_what_others_still_read_is_copied(cuda: None) -> None:
    x, v = np.arange(64, dtype=np.float32), np.full(4, -1, np.float32)
    f = ts.jit(lambda x, v: (op.dynamic_update_slice(x * 2, v, (3,)), op.sum(x * 2), x))
    new, total, same = f(*there(x, v))
    np.testing.assert_array_equal(new.numpy(), want(x * 2, v, (3,)))
    np.testing.assert_array_equal(same.numpy(), x)
    assert total.numpy() == x.sum() * 2
    both = ts.jit(lambda x, v: [op.dynamic_update_slice(x, v, (i,)) for i in (1, 9)])
    for got, i in zip(both(*there(x, v)), (1, 9), strict=True):
        np.testing.assert_array_equal(got.numpy(), want(x, v, (i,)))


def test_a_large_part_is_a_selection(cuda: None) -> None:
    x, v = np.zeros(64, np.float32), np.ones(33, np.float32)
    f = ts.jit(lambda x, v: op.dynamic_update_slice(x, v, (5,)))
    np.testing.assert_array_equal(f(*there(x, v)).numpy(), want(x, v, (5,)))
    assert "update" not in {s.name for s in BUILT}


# What makes a part is computed in the update's launch


def turned(x: Any, at: Any) -> Any:
    """Pairs of numbers turned, as keys of an attention are."""
    c, s = np.arange(4, dtype=np.float32), np.array([[-1.0], [1.0]], np.float32)
    pairs = op.reshape(x, (x.shape[0], 2, 4))
    return op.reshape(pairs * (c + at.astype(ts.f32)) + op.flip(pairs, 1) * (s * c), x.shape)


def turned_by_numpy(x: Any, at: int) -> Any:
    c, s = np.arange(4, dtype=np.float32), np.array([[-1.0], [1.0]], np.float32)
    pairs = x.reshape(x.shape[0], 2, 4)
    return (pairs * (c + np.float32(at)) + np.flip(pairs, 1) * (s * c)).reshape(x.shape)


# Of a vector of 96 numbers: what a user writes, what NumPy says, the dtype of the tensor
PARTS: dict[str, tuple[Any, Any, Any]] = {
    "slice": (lambda h, i: op.reshape(h, (12, 8))[5:9], lambda h, i: h.reshape(12, 8)[5:9], np.float32),
    "arithmetic": (lambda h, i: op.reshape(h[32:64] * 2 - h[:32], (4, 8)),
                   lambda h, i: (h[32:64] * 2 - h[:32]).reshape(4, 8), np.float32),
    "turned": (lambda h, i: turned(op.reshape(h, (12, 8)), i)[8:],
               lambda h, i: turned_by_numpy(h.reshape(12, 8), i)[8:], np.float32),
    "transposed": (lambda h, i: op.transpose(op.reshape(h, (8, 12)))[2:6],
                   lambda h, i: h.reshape(8, 12).T[2:6], np.float32),
    "reversed": (lambda h, i: op.flip(op.reshape(h, (12, 8))[3:7], (0, 1)),
                 lambda h, i: h.reshape(12, 8)[3:7][::-1, ::-1], np.float32),
    "cast": (lambda h, i: op.reshape(h[:32], (4, 8)).astype(ts.bf16),
             lambda h, i: h[:32].reshape(4, 8).astype(ts.bf16.np), ts.bf16.np),
    "rounded": (lambda h, i: op.round(op.reshape(h[9:41], (4, 8))).astype(ts.i8),
                lambda h, i: np.round(h[9:41].reshape(4, 8)).astype(np.int8), np.int8),
    "picked": (lambda h, i: op.reshape(h, (3, 4, 8))[i % 3], lambda h, i: h.reshape(3, 4, 8)[i % 3],
    np.float32),
    "positions": (lambda h, i: op.reshape(h[:32], (4, 8)) + op.reshape(op.arange(32), (4, 8)).astype(ts.f32),
                  lambda h, i: h[:32].reshape(4, 8) + np.arange(32, dtype=np.float32).reshape(4, 8),
                  np.float32),
}  # fmt: skip


@pytest.mark.parametrize("at", [0, 7, 99, -3])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_computed_where_it_is_stored(name: str, at: int, cuda: None) -> None:
    part, by_numpy, dtype = PARTS[name]
    rng = np.random.default_rng(at % 10)
    h = rng.integers(-40, 40, 96).astype(np.float32)
    m = rng.integers(-9, 9, (4, 32, 8)).astype(dtype)

    def f(memory: Any, h: Any, i: Any) -> Any:
        place = op.reshape(part(h, i), (4, 1, 8))
        return op.dynamic_update_slice(memory, place, (0, i, 0))

    step: Any = ts.jit(f, donate=("memory",))
    got = step(*there(m, h), ts.tensor(np.int64(at)).to("cuda")).numpy()
    v = by_numpy(h, at).reshape(4, 1, 8)
    np.testing.assert_array_equal(got, want(m, v, (0, at, 0)))
    assert _launched(step).split() == [f"update_{_program(step).planned.outputs[0]}"]


def keys_and_values(k: Any, v: Any, w: Any, x: Any, at: Any) -> Any:
    """A product, of which a part is turned: some of that is a query, the rest a key; and a value."""
    h = op.reshape(w @ x, (6, 8))
    q = turned(h[:4], at)
    k = op.dynamic_update_slice(k, op.reshape(q[2:], (2, 1, 8)), (0, at, 0))
    v = op.dynamic_update_slice(v, op.reshape(h[4:], (2, 1, 8)), (0, at, 0))
    return k, v, op.sum(op.reshape(q[:2], (2, 1, 8)) * k * v)


def test_keys_and_values_are_one_launch_that_waits_for_the_product_alone() -> None:
    rng = np.random.default_rng(3)
    w = rng.integers(-3, 3, (48, 16)).astype(np.float32)
    wide = [np.zeros((2, 16, 8), np.float32) for _ in range(2)]
    with fake_gpu():
        step: Any = ts.jit(keys_and_values, donate=("k", "v"))
        k, v = there(*wide)
        for at in range(4):
            x = rng.integers(-3, 3, 16).astype(np.float32)
            k, v, s = step(k, v, *there(w, x), ts.tensor(np.int64(at)).to("cuda"))
            h = (w @ x).reshape(6, 8)
            q = turned_by_numpy(h[:4], at)
            wide[0][:, at], wide[1][:, at] = q[2:], h[4:]
            np.testing.assert_array_equal(k.numpy(), wide[0])
            np.testing.assert_array_equal(v.numpy(), wide[1])
            want_sum = (q[:2, None].astype(np.float64) * wide[0] * wide[1]).sum()
            np.testing.assert_allclose(s.numpy(), want_sum, rtol=1e-5)
        assert _launched(step).count("update") == 1
        waits = _waits(_program(step))
    (update,) = (n for n in waits if n.startswith("update"))
    (product,) = waits[update]
    assert len([n for n, before in waits.items() if before == {product}]) == 2  # it and the queries


def _waits(p: Any) -> dict[str, set[str]]:
    """The launches that each launch waits for because of memory, by name."""
    calls = [c for s in p.segments for c in s.launches]
    touched = [p.planned.touched(c, SimpleNamespace(scratch=0)) for c in calls]
    waits = order([replace(t, early=False) for t in touched])
    return {c.name: {calls[j].name for j in w} for c, w in zip(calls, waits, strict=True)}


def _run(f: Any, *xs: Any) -> tuple[list[Any], list[str], Any]:
    """What a program gives on a GPU whose first tensors are given away, its launches, and itself."""
    step: Any = ts.jit(f, donate=("m",))
    out = [y.numpy() for y in ts.tree.leaves(step(*there(*xs)))]
    return out, _launched(step).split(), _program(step)


def test_a_part_that_others_read_is_made_for_them_too(cuda: None) -> None:
    m, h = np.zeros((9, 8), np.float32), np.arange(16, dtype=np.float32)

    def f(m: Any, h: Any, at: Any) -> Any:
        v = op.reshape(h * 3, (2, 8))
        return op.dynamic_update_slice(m, v, (at, 0)), v, op.sum(v)

    (new, v, s), launched, p = _run(f, m, h, np.int64(4))
    part = (h * 3).reshape(2, 8)
    np.testing.assert_array_equal(new, want(m, part, (4, 0)))
    np.testing.assert_array_equal(v, part)
    assert s == part.sum()
    waits = _waits(p)
    assert not any(before for n, before in waits.items() if n.startswith("update")), launched


def test_a_part_that_needs_folds_is_made_before(cuda: None) -> None:
    m, h = np.zeros((16, 8), np.float32), np.arange(24, dtype=np.float32).reshape(3, 8) % 7

    def f(m: Any, h: Any, at: Any) -> Any:
        return op.dynamic_update_slice(m, h - op.max(h, 1, keepdims=True), (at, 0))

    (got,), launched, _ = _run(f, m, h, np.int64(4))
    np.testing.assert_array_equal(got, want(m, h - h.max(1, keepdims=True), (4, 0)))
    assert len(launched) == 2


def test_a_part_of_the_tensor_itself_is_read_before_it_is_replaced(cuda: None) -> None:
    """In place, where the update's launch cannot read what it writes: rows 3 to 5 go to rows 4 to 6."""
    m = np.arange(96, dtype=np.float32).reshape(12, 8)
    for shape, first in (((12, 8), 3), ((8, 12), 2), ((24, 4), 5)):

        def part(m: Any) -> Any:
            rows = m.reshape(shape)[first : first + 24 // shape[1]]  # noqa: B023
            return (rows * 2 - 1).reshape(3, 8)

        def f(m: Any, at: Any) -> Any:
            return op.dynamic_update_slice(m, part(m), (at, 0))

        (got,), launched, p = _run(f, m, np.int64(4))
        np.testing.assert_array_equal(got, want(m, part(m), (4, 0)))
        assert f"copy_{p.planned.outputs[0]}" not in launched
        assert len(launched) == 2


def test_what_is_read_of_a_tensor_that_was_replaced_meanwhile_is_what_it_was(cuda: None) -> None:
    """Old rows of one tensor go to another one, after the first has new ones."""

    def f(m: Any, v: Any, x: Any) -> Any:
        old = m[2:4] * 2
        m = op.dynamic_update_slice(m, x, (1, 0))
        return m, op.dynamic_update_slice(v, old, (0, 0)), op.dynamic_update_slice(m, x + 1, (3, 0))

    m, v, x = (np.arange(n * 8, dtype=np.float32).reshape(n, 8) for n in (9, 8, 2))
    (a, b, c), *_ = _run(f, m, v, x)
    np.testing.assert_array_equal(a, want(m, x, (1, 0)))
    np.testing.assert_array_equal(b, want(v, m[2:4] * 2, (0, 0)))
    np.testing.assert_array_equal(c, want(want(m, x, (1, 0)), x + 1, (3, 0)))


def test_a_function_of_wide_floats_stays_in_a_kernel_of_its_own(cuda: None) -> None:
    """A kernel that stores narrow floats has the GPU's own functions, which have other bits."""

    def f(m: Any, h: Any) -> Any:
        e = op.exp(h)
        return op.dynamic_update_slice(m, e.astype(ts.bf16)[None], (1, 0)), op.sum(e), e

    _, launched, p = _run(f, np.zeros((8, 32), ts.bf16.np), np.ones(32, np.float32))
    (update,) = (n for n in launched if n.startswith("update"))
    assert "exp" not in str(p.planned.lowered.tiles[update])
    assert p.planned.lowered.tiles[update].parameters[1].type.dtype is ts.f32


@pytest.mark.parametrize(
    ("f", "launches"),
    [
        (lambda m, v, x: (op.dynamic_update_slice(m, x, (1, 0)), op.dynamic_update_slice(v, x * 2, (3, 0))),
        1),
        (lambda m, v, x: (op.dynamic_update_slice(m, x, (1, 0)), op.dynamic_update_slice(v, x[:1], (3, 0))),
        2),
        (lambda m, v, x: op.dynamic_update_slice(op.dynamic_update_slice(m, x, (1, 0)), x, (2, 0)), 2),
        (lambda m, v, x: (op.dynamic_update_slice(m, v[1:3], (1, 0)),
        op.dynamic_update_slice(v, x, (1, 0))), 2),
    ],
    ids=["apart", "of two sizes", "one after another", "read and written"],
)  # fmt: skip
def test_updates_that_need_nothing_of_each_other_are_one_launch(f: Any, launches: int,
    cuda: None) -> None:  # fmt: skip
    m, v, x = (np.arange(n * 8, dtype=np.float32).reshape(n, 8) for n in (16, 17, 2))
    got, launched, _ = _run(f, m, v, x)
    assert sum(n.startswith("update") for n in launched) == launches
    by_numpy = _by_numpy(f, m, v, x)
    for a, b in zip(got, by_numpy, strict=True):
        np.testing.assert_array_equal(a, b)


def _by_numpy(f: Any, *xs: Any) -> list[Any]:
    """A function of updates, with NumPy in place of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(op, "dynamic_update_slice", want)
        out = f(*xs)
    return list(out) if isinstance(out, tuple) else [out]


MOVES: tuple[Any, ...] = (
    lambda x, n: x.T, lambda x, n: x[::-1], lambda x, n: x * np.float32(n - 3), lambda x, n: x + x,
    lambda x, n: x.reshape(x.shape[1], x.shape[0]), lambda x, n: x[:, ::-1] - x,
)  # fmt: skip
THERE: tuple[Any, ...] = (
    lambda x, n: op.transpose(x), lambda x, n: op.flip(x, 0), lambda x, n: x * float(n - 3), lambda x,
    n: x + x,
    lambda x, n: op.reshape(x, (x.shape[1], x.shape[0])), lambda x, n: op.flip(x, 1) - x,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_random_parts(seed: int, cuda: None) -> None:
    """Views and arithmetic one after another, some of them read by others, of two updates."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(2, 7, 2)]
    moves = [[int(n) for n in rng.integers(0, len(MOVES), 4)] for _ in range(2)]
    h = rng.integers(-5, 6, sizes).astype(np.float32)
    kept = bool(rng.integers(0, 2))
    at = [int(n) for n in rng.integers(-2, 12, 2)]

    def parts(h: Any, table: Any) -> list[Any]:
        out, x = [], h
        for number, path in enumerate(moves):
            x = h if number and seed % 2 else x
            for n in path:
                x = table[n](x, n)
            out.append(x)
        return out

    def f(m: Any, v: Any, h: Any, i: Any, j: Any) -> Any:
        a, b = parts(h, THERE)
        m = op.dynamic_update_slice(m, a, (i, j))
        v = op.dynamic_update_slice(v, b, (j, i))
        return (m, v, op.sum(a), b) if kept else (m, v)

    a, b = parts(h, MOVES)
    m, v = (rng.integers(-5, 6, (n, 12)).astype(np.float32) for n in (14, 13))
    got, *_ = _run(f, m, v, h, *(np.int64(i) for i in at))
    wanted = [want(m, a, (at[0], at[1])), want(v, b, (at[1], at[0])), a.sum(), b]
    for x, y in zip(got, wanted if kept else wanted[:2], strict=True):
        np.testing.assert_array_equal(x, y)
