"""Records of when jobs ran: blank until something is noted, and blank again once they were taken."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tessera.runtime.stamps import Records, spans


@pytest.mark.parametrize("count", [0, 1, 5])
def test_records_are_blank_until_something_is_noted(count: int) -> None:
    records = Records(count)
    for _ in range(2):
        assert spans(records.take(), [range(count)]) == []
        assert not records.table[:, 1:].any()
        if count:
            records.note(count - 1, 100, 130)
            taken = records.take()
            assert taken[count - 1].tolist() == [100, 130, 30, 1]
            assert spans(taken, [range(count)]) == [(count - 1, 100, 130)]


def test_jobs_of_a_phase_share_its_time_by_what_they_did() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        records = Records(4)
        ran = sorted(rng.choice(4, int(rng.integers(1, 5)), replace=False).tolist())
        for i in ran:
            begin = int(rng.integers(0, 1000))
            records.note(i, begin, begin + int(rng.integers(1, 1000)))
        taken = records.take()
        found = spans(taken, [range(4)])
        assert [i for i, _, _ in found] == ran
        assert found[0][1] == taken[ran, 0].min()
        assert found[-1][2] == taken[ran, 1].max()
        assert all(a[2] == b[1] for a, b in pairwise(found))
        whole = found[-1][2] - found[0][1]
        for i, begin, end in found:
            assert abs((end - begin) - whole * taken[i, 2] / taken[ran, 2].sum()) <= 1
