"""Scatters on a GPU: every join, any numbered axes, few values and many, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.ir.tile.gpu import scatter
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.verify import verify
from tests.support.fakes.gpu_fake import fake_gpu

JOINS: dict[str, Any] = {
    "scatter": lambda old, new: new, "scatter_add": np.add, "scatter_mul": np.multiply,
    "scatter_max": np.maximum, "scatter_min": np.minimum,
}  # fmt: skip
TOLERANCE = {"f64": 1e-13, "f32": 1e-5, "f16": 3e-3, "bf16": 2e-2}


def expected(name: str, x: Any, v: Any, indices: list[Any], axes: tuple[int, ...]) -> Any:
    """The reference: one value after the other; what is outside is dropped."""
    front = np.moveaxis(x.copy(), axes, range(len(axes)))
    with np.errstate(all="ignore"):
        for row, *place in zip(v, *indices, strict=True):
            if all(0 <= i < n for i, n in zip(place, front.shape, strict=False)):
                front[tuple(place)] = JOINS[name](front[tuple(place)], row)
    return np.moveaxis(front, range(len(axes)), axes)


def drawn(name: str, seed: int) -> tuple[str, list[Any], tuple[int, ...]]:
    """A dtype, x, values and indices, and the numbered axes."""
    rng = np.random.default_rng(seed)
    dtype = str(rng.choice(["f32", "f64", "i32", "i64", "bf16", "u8", "f16"]))
    rank = int(rng.integers(1, 4))
    shape = tuple(int(rng.choice([1, 2, 3, 7, 17, 40])) for _ in range(rank))
    k = int(rng.integers(1, rank + 1))
    first = int(rng.integers(0, rank - k + 1))
    axes = tuple(range(first, first + k))
    count = int(rng.choice([1, 5, 64, 700, 1500]))
    x = np.round(rng.normal(size=shape) * 3)
    v = np.round(rng.normal(size=(count, *(n for i, n in enumerate(shape) if i not in axes))) * 3)
    if name == "scatter_mul":
        v = np.where(rng.random(v.shape) < 0.9, 1.0, v)
    if dtype[0] in "iu":
        x, v = np.abs(x), np.abs(v)
    elif rng.random() < 0.3:
        v.flat[::7], v.flat[3::11] = np.inf, np.nan
    return dtype, [x, v, *(rng.integers(0, shape[a], count) for a in axes)], axes


@pytest.mark.parametrize("sorted_from", [16, scatter.MOST])
@pytest.mark.parametrize("name", JOINS)
def test_random_scatters(name: str, sorted_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter, "MOST", sorted_from)
    for seed in range(6):
        dtype, (x, v, *indices), axes = drawn(name, seed)
        kind = np.dtype({"i32": "i4", "i64": "i8", "u8": "u1"}.get(dtype, "f8"))
        want = expected(name, x.astype(kind), v.astype(kind), indices, axes)
        with fake_gpu():
            given = [ts.tensor(a).astype(dtype).to("cuda") for a in (x, v)]
            places = [ts.tensor(i).to("cuda") for i in indices]
            got = ts.jit(lambda *xs, a=axes: getattr(op, name)(*xs, axes=a))(*given, *places)
            got = got.numpy().astype(kind)
        if dtype in TOLERANCE and name in ("scatter_add", "scatter_mul"):
            size = float(np.abs(want[np.isfinite(want)]).max(initial=1.0))
            np.testing.assert_allclose(got, want, TOLERANCE[dtype], TOLERANCE[dtype] * size)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("sizes", [(1, 1), (3, 1), (37, 300), (700, 3)], ids=str)
@pytest.mark.parametrize("count", [1, 1021, 1500])
def test_of_values_for_one_row_the_last_stays(count: int, sizes: tuple[int, int]) -> None:
    """Rows are replaced without a sort: in three launches, whatever the numbers of rows and values are."""
    rows, columns = sizes
    p = scatter.ScatterRows(None, ts.f32, 1, (rows,), columns, count, (ts.i64,))
    names = [x.kernel.name for x in p.expansion(("x", "v", "i"), "y").launches]
    assert names == ["scatter_none", "scatter_last", "scatter_replaced"]
    rng = np.random.default_rng([rows, count])
    x, v = rng.normal(size=sizes).astype("f4"), rng.normal(size=(count, columns)).astype("f4")
    index = rng.integers(-2, rows + 2, count)
    want = x.copy()
    for i, row in zip(index, v, strict=True):
        if 0 <= i < rows:
            want[i] = row
    memory = {"x": x, "v": v, "i": index, "y": np.zeros_like(x)}
    e = p.expansion(("x", "v", "i"), "y")
    memory |= {n: np.full(t.shape, 7, t.dtype.np) for n, t in e.between.items()}  # type: ignore[arg-type]
    for launch in e.launches:
        verify(launch.kernel)
        given = zip(launch.kernel.parameters, (*launch.inputs, *launch.outputs), strict=True)
        interpret(launch.kernel, [memory[n].reshape(m.type.shape) for m, n in given])  # type: ignore[arg-type]
    np.testing.assert_array_equal(memory["y"], want)


def test_rows_that_meet_many_values_are_cut_into_pieces() -> None:
    """Pieces change no bit of whole numbers, and a row of floats has the bits that it has among other
    rows.
    """
    rng = np.random.default_rng(1)
    v, index = rng.normal(size=3000).astype(np.float32), rng.integers(0, 3, 3000)
    assert scatter.ScatterRows("add", ts.f32, 1, (3,), 1, 3000, (ts.i64,)).pieces > 1
    with fake_gpu():
        add = ts.jit(lambda v, i: op.scatter_add(op.zeros((3,), "f32"), v, i))
        whole = add(ts.tensor(v).to("cuda"), ts.tensor(index).to("cuda")).numpy()
        other = np.where(index == 1, v, v[::-1])  # row 1 as it was, others with other values
        again = add(ts.tensor(other).to("cuda"), ts.tensor(index).to("cuda")).numpy()
        counts = ts.jit(lambda i: op.bincount(i, length=3))(ts.tensor(index).to("cuda")).numpy()
    np.testing.assert_allclose(
        whole, np.bincount(index, v.astype(np.float64)), rtol=1e-4, atol=1e-4
    )
    assert whole[1] == again[1]
    np.testing.assert_array_equal(counts, np.bincount(index))


@pytest.mark.parametrize("dtype", [ts.f32, ts.bf16], ids=str)
def test_values_that_are_not_finite_stay_in_their_row(dtype: Any) -> None:
    rng = np.random.default_rng(5)
    x, v = rng.integers(-3, 4, (7, 50)), rng.integers(-3, 4, (80, 50)).astype(np.float32)
    index = rng.integers(-1, 9, 80)
    index[:6] = [0, 1, 2, 2, 3, 8]
    v[0, 0], v[1, 1], v[2, 2], v[3, 2], v[4, 3], v[5, 4] = (
        np.nan, np.inf, np.inf, -np.inf, -np.inf, np.nan
    )  # fmt: skip
    want = x.astype(np.float32)
    with np.errstate(invalid="ignore"):
        for i, row in zip(index, v, strict=True):
            if -7 <= i < 7:
                want[i] += row
    with fake_gpu():
        given = [ts.tensor(a.astype(np.float32), dtype=dtype).to("cuda") for a in (x, v)]
        got = ts.jit(op.scatter_add)(*given, ts.tensor(index).to("cuda"))
        np.testing.assert_array_equal(got.numpy().astype(np.float32), want)
