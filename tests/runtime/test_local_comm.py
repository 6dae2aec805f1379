"""Memory that ranks of one machine share: what was sent last and before that lies side by side, whole."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.runtime.comm.local import _LEAST, _Sender

SIZES = [1, 7, _LEAST // 8 - 1, _LEAST // 8, _LEAST // 8 + 1, _LEAST // 4]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["f4", "f8", "i1"])
def test_a_message_leaves_the_one_before_it(size: int, dtype: str) -> None:
    sender = _Sender()
    sent = [(np.arange(size) + 3 * i).astype(dtype) for i in range(4)]
    places = []
    for i, x in enumerate(sent):
        places.append(sender.put(x)[0])
        assert places[i] % 64 == 0
        memory = sender._memory
        assert memory is not None
        assert len(memory) >= 2 * x.nbytes
        for k in range(max(i - 1, 0), i + 1):
            found = np.frombuffer(memory, dtype, size, places[k])
            np.testing.assert_array_equal(found, sent[k])


def test_memory_grows_with_what_is_sent_and_is_told_once() -> None:
    sender = _Sender()
    told = [sender.put(np.zeros(n, np.int8))[1] for n in (9, _LEAST, _LEAST + 1, 5, 2 * _LEAST + 1)]
    assert [x is not None for x in told] == [True, False, True, False, True]
