"""Buckets of times."""

from __future__ import annotations

from itertools import pairwise

from tessera.serve.metrics import BOUNDS


def test_buckets_rise_by_steps_of_two_to_three() -> None:
    assert all(1.9 < b / a < 3.1 for a, b in pairwise(BOUNDS))
