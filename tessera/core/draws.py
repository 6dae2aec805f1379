"""random_bits: words of Philox for every element of a counter, on the machine."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.core.philox import random_words
from tessera.core.primitive import Array, Definition, Params, Types, are_plain
from tessera.core.types import TensorType


def _supports(types: Types, p: Params) -> bool:
    """The words of the key have the shape of the counter."""
    return are_plain(types, p) and all(t.shape == types[2].shape for t in types)


def _types(types: Types, p: Params) -> list[TensorType]:
    return [TensorType(p["dtype"], types[2].shape)]


def _words(xs: Sequence[Array], p: Params) -> list[Array]:
    k0, k1, counter = xs
    return [random_words(k0, k1, counter, p["dtype"].bits // 32, p["draw"], p["purpose"])]


DRAWS = (Definition("random_bits", _supports, _types, _words),)
