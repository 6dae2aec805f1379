"""Caches on a GPU: decode is prefill is any chunking is any neighbours, to the bit, also after moves to
the host and back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, op
from tests.support.fakes.gpu_fake import at

RUNS_ON = "numpy"
KINDS: dict[str, dict[str, Any]] = {
    "plain": {}, "lengths": {"per_sequence": True}, "i8": {"quantized": "i8"},
    "f8": {"quantized": "f8e4m3"}, "window": {"window": 20}, "pages": {"page": 16, "pages": 64},
}  # fmt: skip

Sizes = dict[str, Any]
SMALL: Sizes = {
    "batch": 2, "heads": 2, "shared": 1, "dim": 8, "seq": 12, "room": 32, "dtype": "bf16",
}  # fmt: skip
LARGE: Sizes = {
    "batch": 3, "heads": 8, "shared": 2, "dim": 64, "seq": 196, "room": 384, "dtype": "bf16",
}  # fmt: skip
PLACES = [
    pytest.param(("fake", SMALL, (3,)), id="fake"),
    *(
        pytest.param(("device", {**LARGE, "dtype": d}, (1, 7, 64)), id=d, marks=pytest.mark.gpu)
        for d in ("bf16", "f32")
    ),
]


@pytest.fixture(params=PLACES)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[Sizes, tuple[int, ...]]]:
    """Sizes and chunks on a device, where an op that runs on the host is an error."""
    place, sizes, chunks = request.param
    with at(place):
        yield sizes, chunks


def drawn(n: Sizes) -> list[Any]:
    """Queries, keys and values on the device."""
    rng = np.random.default_rng(3)
    shapes = [(n["batch"], h, n["seq"], n["dim"]) for h in (n["heads"], n["shared"], n["shared"])]
    made = [ts.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes]
    return [x.astype(n["dtype"]).to("cuda") for x in made]


def empty(kind: str, n: Sizes, batch: int | None = None) -> Any:
    made = KVCache.empty(
        n["batch"] if batch is None else batch, n["shared"], n["room"], n["dim"], n["dtype"], **KINDS[kind]
    )  # fmt: skip
    return made.prefetch("cuda")


@ts.jit
def step(cache: Any, q: Any, k: Any, v: Any) -> Any:
    cache = cache.append(k, v)
    return ts.flash_attention(q, cache), cache


@ts.jit
def ragged_step(cache: Any, q: Any, k: Any, v: Any, counts: Any) -> Any:
    cache = cache.append(k, v, counts=counts)
    return ts.flash_attention(q, cache, counts=counts), cache


def bits(x: Any) -> Any:
    return np.ascontiguousarray(x.numpy()).view(np.uint8)


def chunked(cache: Any, xs: list[Any], size: int, between: Any = lambda c: c) -> np.ndarray:
    """The bits of the rows of attention, fed in chunks of this size."""
    rows = []
    for i in range(0, xs[0].shape[2], size):
        y, cache = step(cache, *(x[:, :, i : i + size] for x in xs))
        cache = between(cache)
        rows.append(bits(y))
    return np.concatenate(rows, axis=1)


def differing(got: np.ndarray, want: np.ndarray) -> int:
    """How many bytes are others."""
    assert got.shape == want.shape
    return int((got != want).sum())


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_moves_and_neighbours_change_no_bit(kind: str, case: Any) -> None:
    """Decoding is prefill is any chunking; also after moves to the host and back, and beside any other
    sequences.
    """
    n, chunks = case
    if n["dtype"] == "f32" and kind not in ("plain", "window", "f8"):
        pytest.skip("in bf16 alone, to compile less")
    xs, places = drawn(n), []

    def there_and_back(c: Any) -> Any:
        away = c.offload()
        places.append(away.K.device.kind)
        return away.prefetch("cuda")

    whole = chunked(empty(kind, n), xs, n["seq"])
    assert whole.any()
    found = {f"chunks of {i}": differing(chunked(empty(kind, n), xs, i), whole) for i in chunks}
    few = [x[:, :, :21] for x in xs]
    moved = chunked(empty(kind, n), few, 7, there_and_back)
    found["moved"] = differing(moved, whole[:, : moved.shape[1]])
    assert set(places) == {"cpu"}
    for size in (7, n["seq"]):
        alone = chunked(empty(kind, n, 1), [x[-1:, :, : 3 * size] for x in xs], size)
        found[f"alone by {size}"] = differing(alone, whole[-1:, : alone.shape[1]])
    assert not any(found.values()), found


@pytest.mark.parametrize("kind", ["lengths", "pages"])
def test_sequences_of_unequal_lengths(kind: str, case: Any) -> None:
    """A sequence in a batch of unequal lengths has the bits that it has token by token."""
    n, chunks = case
    if n["dtype"] == "f32" and kind == "pages":
        pytest.skip("in bf16 alone, to compile less")
    xs = drawn(n)
    counts = np.array([[5, 3, 1], [1, 4, 0], [4, 0, 6], [2, 2, 3]], np.int32)[:, : n["batch"]]
    cache, rows, at_ = empty(kind, n), [[] for _ in range(n["batch"])], [0] * n["batch"]
    host = [x.numpy() for x in xs]
    for c in counts:
        parts = [np.zeros((n["batch"], x.shape[1], int(c.max()), n["dim"]), x.dtype) for x in host]
        for b in range(n["batch"]):
            for p, x in zip(parts, host, strict=True):
                p[b, :, : c[b]] = x[b, :, at_[b] : at_[b] + c[b]]
        given = [op.cast(ts.tensor(p), n["dtype"]).to("cuda") for p in parts]
        y, cache = ragged_step(cache, *given, ts.tensor(c).to("cuda"))
        for b in range(n["batch"]):
            rows[b].append(bits(y)[b, : c[b]])
            at_[b] += int(c[b])
    assert cache.length.numpy().tolist() == at_ == counts.sum(0).tolist()
    want = chunked(empty(kind, n), [x[:, :, : max(at_)] for x in xs], chunks[0])
    for b in range(n["batch"]):
        np.testing.assert_array_equal(np.concatenate(rows[b]), want[b, : at_[b]])
