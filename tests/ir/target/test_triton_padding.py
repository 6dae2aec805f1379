"""Which reshapes of padded tiles are reshapes in Triton, whose sizes are powers of two."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tessera.ir.target.triton.types import physical
from tessera.ir.target.triton.writer import keeps_padding


def places(shape: tuple[int, ...]) -> list[int]:
    """Where the elements of a tile lie in its padded form, in their order."""
    whole = np.arange(math.prod(physical(shape))).reshape(physical(shape))
    return whole[tuple(map(slice, shape))].reshape(-1).tolist()


def test_a_reshape_keeps_padding_only_if_every_element_stays_in_its_place() -> None:
    shapes = [
        s for rank in (1, 2, 3) for s in itertools.product((1, 2, 3, 4, 6, 8, 12), repeat=rank)
    ]
    told = set()
    for a, b in itertools.product(shapes, shapes):
        if math.prod(a) != math.prod(b):
            continue
        kept = keeps_padding(a, b)
        told.add(kept)
        same = math.prod(physical(a)) == math.prod(physical(b)) and places(a) == places(b)
        assert same or not kept, (a, b)
        if [n for n in a if n != 1] == [n for n in b if n != 1] or (physical(a), physical(b)) == (
            a,
            b,
        ):
            assert kept, (a, b)
    assert told == {True, False}
