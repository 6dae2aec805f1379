"""Text, which lives on the host as NumPy arrays of Python strings."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tessera.interop.onnx.model import Array, OnnxError
from tessera.interop.onnx.rule import NodeCall, rule


def strings(values: Any, shape: tuple[int, ...]) -> Array:
    """Strings as an array."""
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(shape)


@rule("StringConcat", host=True)
def _concat(n: NodeCall, a: Any, b: Any) -> Any:
    left, right = np.broadcast_arrays(a, b)
    joined = [x + y for x, y in zip(left.reshape(-1), right.reshape(-1), strict=True)]
    return strings(joined, left.shape)


@rule("StringSplit", host=True)
def _split(n: NodeCall, x: Any) -> Any:
    delimiter, most = n.get("delimiter") or None, n.get("maxsplit", -1)
    parts = [s.split(delimiter, -1 if most is None else most) for s in x.reshape(-1)]
    width = max(map(len, parts), default=0)
    padded = [p for row in parts for p in (*row, *[""] * (width - len(row)))]
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    return strings(padded, (*x.shape, width)), counts


@rule("StringNormalizer", host=True)
def _normalize(n: NodeCall, x: Any) -> Any:
    """Words without stop words, in one case; one empty string when none is left."""
    action, exact = n.get("case_change_action", "NONE"), n.get("is_case_sensitive", 0)
    stop = set(n.get("stopwords", []))
    stop = stop if exact else {s.lower() for s in stop}
    rows = x.reshape(-1, x.shape[-1])
    kept = [[s for s in row if (s if exact else s.lower()) not in stop] for row in rows]
    change: Any = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[action]
    made = [[change(s) for s in row] or [""] for row in kept]
    return strings([s for row in made for s in row], (*x.shape[:-1], len(made[0])))


@rule("RegexFullMatch", host=True)
def _match(n: NodeCall, x: Any) -> Any:
    try:
        pattern = re.compile(n.need("pattern"))
    except re.error as e:
        raise OnnxError(
            f"the pattern {n.need('pattern')!r} is not a regular expression: {e}"
        ) from None
    found = [pattern.fullmatch(s) is not None for s in x.reshape(-1)]
    return np.array(found, bool).reshape(x.shape)


@rule("TfIdfVectorizer", host=True)
def _tfidf(n: NodeCall, x: Any) -> Any:
    """Counts of the n-grams of a pool, with skips between their elements."""
    shortest, longest = n.need("min_gram_length"), n.need("max_gram_length")
    skips, mode = n.need("max_skip_count"), n.need("mode")
    pool = n.get("pool_int64s") or n.get("pool_strings") or []
    starts, places = n.need("ngram_counts"), n.need("ngram_indexes")
    grams = _grams(pool, starts, places, shortest, longest)
    weights = n.get("weights")
    width = max(places, default=-1) + 1
    rows = x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1)
    out = np.zeros((len(rows), width), np.float32)
    for i, row in enumerate(rows):
        _count(list(row), grams, shortest, longest, skips, out[i])
    if weights is not None and mode in ("IDF", "TFIDF"):
        by = np.ones(width, np.float32)
        by[places] = weights
        out = (np.minimum(out, 1) if mode == "IDF" else out) * by
    elif mode == "IDF":
        out = np.minimum(out, 1)
    return out.reshape(*x.shape[:-1], width)


def _grams(pool: Any, starts: Any, places: Any, shortest: int, longest: int) -> dict[Any, int]:
    """The column of each n-gram of the pool."""
    found: dict[Any, int] = {}
    number = 0
    for k, start in enumerate(starts):
        stop = starts[k + 1] if k + 1 < len(starts) else len(pool)
        size = k + 1
        for at in range(start, stop, size):
            if shortest <= size <= longest:
                found[tuple(pool[at : at + size])] = places[number]
            number += 1
    return found


def _count(
    row: list[Any], grams: dict[Any, int], shortest: int, longest: int, skips: int, out: Array
) -> None:
    for gap in range(1, skips + 2):
        for size in range(shortest, longest + 1):
            if size == 1 and gap > 1:
                continue
            for i in range(len(row) - (size - 1) * gap):
                place = grams.get(tuple(row[i : i + size * gap : gap]))
                if place is not None:
                    out[place] += 1
