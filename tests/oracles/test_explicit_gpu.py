"""What schedules ask of a GPU is in the machine code that Triton makes of a kernel."""

import numpy as np
import pytest

from tessera import bf16, block, tensor
from tests.lang.kernel.test_explicit_gpu import BASE, product

pytest.importorskip("triton")
pytestmark = [pytest.mark.oracle, pytest.mark.slow]


@pytest.mark.parametrize(
    ("schedule", "architecture", "word"),
    [
        (BASE.tma(), "sm_90", "cp.async.bulk.tensor"),
        (BASE.tma().specialise(), "sm_100", "setmaxnreg"),
        (BASE.registers(128), "sm_90", ".maxnreg 128"),
    ],
    ids=["tma", "roles", "registers"],
)
def test_a_knob_is_in_the_assembly(schedule, architecture, word):
    a = tensor(np.ones((256, 256), np.float32)).astype(bf16)
    plain, asked = (
        product.with_schedule(block(16, 16), gpu=s).lower(a, a).assembly(architecture)
        for s in (BASE, schedule)
    )
    assert word not in plain
    assert word in asked
