"""Philox against the published vectors, and against NumPy's through a reference of any width."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.philox import philox, random_words

# The known-answer table of Random123 (kat_vectors, philox4x32 10 rounds): zeros, ones, digits of pi.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
CONSTANTS = {
    32: ((0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)),
    64: ((0xD2E7470EE14C6C93, 0xCA5A826395121157), (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)),
}


def reference(width: int, counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Ten rounds on Python integers, for words of any width."""
    (m0, m1), (w0, w1) = CONSTANTS[width]
    c0, c1, c2, c3 = counter
    k0, k1 = key
    top = 2**width
    for _ in range(10):
        h0, l0 = divmod(c0 * m0, top)
        h1, l1 = divmod(c2 * m1, top)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + w0) % top, (k1 + w1) % top
    return c0, c1, c2, c3


words = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], want: tuple[int, ...]
) -> None:
    assert tuple(int(w) for w in philox(counter, key)) == want


@pytest.mark.parametrize("seed", range(5))
def test_the_reference_at_64_bits_is_that_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    key = tuple(int(k) for k in rng.integers(0, 2**64, 2, dtype=np.uint64))
    made = np.random.Philox(key=np.array(key, np.uint64), counter=seed).random_raw(4)
    # NumPy counts up before it draws.
    assert tuple(int(w) for w in made) == reference(64, (seed + 1, 0, 0, 0), key)


@given(st.tuples(words, words, words, words), st.tuples(words, words))
def test_philox_is_the_reference_at_32_bits(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> None:
    assert tuple(int(w) for w in philox(counter, key)) == reference(32, counter, key)


@given(st.integers(0, 2**64 - 1), st.integers(0, 9), st.integers(0, 3), st.sampled_from([1, 2]))
def test_a_draw_is_the_next_words_of_the_element(
    i: int, draw: int, purpose: int, count: int
) -> None:
    sequence = [
        w for b in range(6) for w in reference(32, (i % 2**32, i >> 32, b, purpose), (7, 8))
    ]
    want = sum(w << 32 * k for k, w in enumerate(sequence[draw * count : draw * count + count]))
    key = np.array(7, np.uint32), np.array(8, np.uint32)
    assert int(random_words(*key, np.array(i, np.uint64), count, draw, purpose)) == want


def test_words_do_not_depend_on_how_the_counter_is_cut() -> None:
    key = np.array(3, np.uint32), np.array(4, np.uint32)
    counter = np.arange(20_000, dtype=np.uint64)
    whole = random_words(*key, counter, 2, 0, 0)
    parts = [random_words(*key, part, 2, 0, 0) for part in np.split(counter, [1, 777, 9000, 9000])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(
        random_words(*key, counter.reshape(4, 50, 100), 2, 0, 0), whole.reshape(4, 50, 100)
    )
    np.testing.assert_array_equal(random_words(*key, counter[::-1], 2, 0, 0), whole[::-1])


def test_a_key_may_differ_by_element() -> None:
    k = np.arange(6, dtype=np.uint32).reshape(2, 3)
    i = np.full((2, 3), 9, np.uint64)
    got = random_words(k, k + np.uint32(1), i, 1, 0, 0)
    want = [[reference(32, (9, 0, 0, 0), (int(v), int(v) + 1))[0] for v in row] for row in k]
    np.testing.assert_array_equal(got, want)
