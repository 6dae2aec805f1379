"""Parts of tiles: sorted, turned, joined, cut, taken and seen as other bits; by step, interpreter and
machine code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, i32, kernel, tile
from tests.lang.kernel.test_kernel_language import both

ROWS, WIDTH = 3, 8


@kernel.schedule(block(1))
def applied(x: KTile["M", "N"], *, part, width):
    p = tile.program(x.shape[0])
    y = tile.empty((x.shape[0], width), x.dtype)
    tile.store(y, part(tile.reshape(tile.load(x, at=(p, 0), shape=(1, 8)), (8,))), at=(p, 0))
    return y


@kernel.schedule(block(1))
def counted(x: KTile["M", "N"], *, part, width):
    p = tile.program(x.shape[0])
    y = tile.empty((x.shape[0], width), i32)
    tile.store(
        y,
        tile.cast(part(tile.reshape(tile.load(x, at=(p, 0), shape=(1, 8)), (8,))), i32),
        at=(p, 0),
    )
    return y


def sample(dtype: str) -> np.ndarray:
    x = np.random.default_rng(3).integers(-9, 9, (ROWS, WIDTH)).astype(dtype)
    if x.dtype.kind == "f":
        x[0, 2], x[1, 5], x[2, 0] = np.nan, -0.0, np.inf
    return x


def ordered(t):
    return tile.sort(t)


def falling(t):
    return tile.sort(t, descending=True)


def turned(t):
    return tile.flip(t)


def twice(t):
    return tile.concat((t, t))


def stacked(t):
    return tile.reshape(tile.stack((t, t)), (16,))


def once(t):
    return tile.concat((t,))


def thrice(t):
    return tile.concat((t, t * 2, t * 3))


def stacked_once(t):
    return tile.reshape(tile.stack((t,)), (8,))


def joined(t):
    return tile.reshape(tile.join(t, t), (16,))


def half(t):
    return tile.split(t)[1]


def largest(t):
    return tile.topk(t, 4)[0]


def taken(t):
    return tile.gather(t, tile.argsort(t))


def places(t):
    return tile.argsort(t)


def bits(t):
    return tile.bitcast(t, i32)


def bits_and_back(t):
    return tile.bitcast(tile.bitcast(t, i32), f32)


PARTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "sort": (ordered, lambda x: np.sort(x, -1), WIDTH),
    "sort descending": (falling, lambda x: np.sort(x, -1)[:, ::-1], WIDTH),
    "flip": (turned, lambda x: x[:, ::-1], WIDTH),
    "concat": (twice, lambda x: np.concatenate([x, x], 1), 2 * WIDTH),
    "stack": (stacked, lambda x: np.concatenate([x, x], 1), 2 * WIDTH),
    "concat of one": (once, lambda x: x, WIDTH),
    "concat of three": (thrice, lambda x: np.concatenate([x, x * 2, x * 3], 1), 3 * WIDTH),
    "stack of one": (stacked_once, lambda x: x, WIDTH),
    "join": (joined, lambda x: np.repeat(x, 2, 1), 2 * WIDTH),
    "split": (half, lambda x: x[:, 4:], WIDTH // 2),
    "topk": (largest, lambda x: np.sort(x, -1)[:, ::-1][:, :4], 4),
    "gather": (taken, lambda x: np.sort(x, -1), WIDTH),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int8"])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_that_of_numpy(name: str, dtype: str) -> None:
    f, want, width = PARTS[name]
    x = sample(dtype)
    np.testing.assert_array_equal(both(applied, x, part=f, width=width), want(x))


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_places_of_sorted_elements_keep_the_order_of_equal_ones(dtype: str) -> None:
    x = sample(dtype)
    got = both(counted, x, part=places, width=WIDTH)
    np.testing.assert_array_equal(got, np.argsort(x, -1, kind="stable"))


def test_bits_are_seen_as_another_dtype() -> None:
    x = sample("float32")
    np.testing.assert_array_equal(both(counted, x, part=bits, width=WIDTH), x.view(np.int32))
    assert both(applied, x, part=bits_and_back, width=WIDTH).tobytes() == x.tobytes()


@pytest.mark.parametrize("how", ["concat", "stack"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("odd", ["dtype", "rank"])
def test_whichever_tile_differs_from_the_others_is_told(how: str, count: int, odd: str) -> None:
    for at in range(count):

        def mixed(t, at=at):
            other = tile.cast(t, i32) if odd == "dtype" else tile.reshape(t, (8, 1))
            return getattr(tile, how)(tuple(other if i == at else t for i in range(count)))

        with pytest.raises(
            ts.TesseraError, match=f"{how}: tiles .* differ in dtype or rank; cast or"
        ):
            applied(sample("float32"), part=mixed, width=WIDTH)


def test_a_lambda_is_refused_wherever_it_is_written() -> None:
    parts = {
        "sort": (lambda t: tile.sort(t), 1),
    }
    with pytest.raises(ts.TesseraError, match="<lambda>: expected a function that def makes"):
        applied(sample("float32"), part=parts["sort"][0], width=WIDTH)
