"""Caches on a GPU: decode is prefill is any chunking is any neighbours, to the bit, also after moves to the host and back."""

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
MASK = np.uint8  # bits are compared as bytes

Sizes = dict[str, Any]
SMALL: Sizes = {
    "batch": 2,
    "heads": 2,
    "shared": 1,
    "dim": 8,
    "seq": 12,
    "room": 32,
    "dtype": "bf16",
}
LARGE: Sizes = {
    "batch": 3,
    "heads": 8,
    "shared": 2,
    "dim": 64,
    "seq": 200,
    "room": 384,
    "dtype": "bf16",
}
PLACES = [
    pytest.param(("fake", SMALL, (1, 7)), id="fake"),
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
    return np.ascontiguousarray(x.numpy()).view(MASK)


def chunked(cache: Any, xs: list[Any], size: int, between: Any = lambda c: c) -> np.ndarray:
    """The bits of the rows of attention, fed in chunks of this size."""
    rows = []
    for i in range(0, xs[0].shape[2], size):
        y, cache = step(cache, *(x[:, :, i : i + size] for x in xs))
        cache = between(cache)
        rows.append(bits(y))
    return np.concatenate(rows, axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_decode_is_prefill_is_any_chunking(kind: str, case: Any) -> None:
    n, chunks = case
    xs = drawn(n)
    whole = chunked(empty(kind, n), xs, n["seq"])
    assert whole.any()
    for size in chunks:
        np.testing.assert_array_equal(chunked(empty(kind, n), xs, size), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_moving_to_the_host_and_back_changes_no_bit(kind: str, case: Any) -> None:
    n, _ = case
    xs = drawn(n)
    places = []

    def there_and_back(c: Any) -> Any:
        away = c.offload()
        places.append(away.K.device.kind)
        return away.prefetch("cuda")

    moved = chunked(empty(kind, n), xs, 7, there_and_back)
    assert set(places) == {"cpu"}
    np.testing.assert_array_equal(moved, chunked(empty(kind, n), xs, 7))


@pytest.mark.parametrize("kind", ["plain", "pages", "window"])
def test_a_sequence_has_its_bits_beside_any_other(kind: str, case: Any) -> None:
    n, chunks = case
    xs = drawn(n)
    beside = chunked(empty(kind, n), xs, chunks[-1])
    for b in range(n["batch"]):
        alone = chunked(empty(kind, n, 1), [x[b : b + 1] for x in xs], chunks[-1])
        np.testing.assert_array_equal(alone[0], beside[b])


@pytest.mark.parametrize("kind", ["lengths", "pages"])
def test_sequences_of_unequal_lengths(kind: str, case: Any) -> None:
    """A sequence in a batch of unequal lengths has the bits that it has token by token."""
    n, _ = case
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
    want = chunked(empty(kind, n), [x[:, :, : max(at_)] for x in xs], 1)
    for b in range(n["batch"]):
        np.testing.assert_array_equal(np.concatenate(rows[b]), want[b, : at_[b]])
