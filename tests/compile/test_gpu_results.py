"""Results of eager calls lie where they say they lie, also where the host had to find them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.runtime.cuda.memory import DeviceArray
from tests.support.fakes.gpu_fake import fake_gpu

FOUND: dict[str, Any] = {
    "nonzero": op.nonzero, "unique": op.unique, "unique_all": op.unique_all,
    "unique_counts": op.unique_counts,
    "unique_inverse": op.unique_inverse, "unique_values": op.unique_values, "argwhere": op.argwhere,
    "flatnonzero": op.flatnonzero, "mask": lambda x: x[x > 1], "bincount": op.bincount,
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_what_the_host_finds_lies_on_the_device(name: str) -> None:
    x = np.array([3, 0, 2, 3, 1, 0])
    want = ts.tree.leaves(FOUND[name](ts.tensor(x)))
    with fake_gpu():
        found = ts.tree.leaves(FOUND[name](ts.tensor(x).to("cuda")))
        assert len(found) == len(want)
        for a, b in zip(found, want, strict=True):
            assert a.device.kind == "cuda"
            assert isinstance(a.storage, DeviceArray)
            np.testing.assert_array_equal(a.numpy(), b.numpy())
            assert repr(a)
