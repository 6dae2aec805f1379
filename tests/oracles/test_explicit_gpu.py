"""What schedules ask of a GPU is in the machine code that Triton makes of a kernel."""

import numpy as np
import pytest

from tessera import KTile, bf16, block, f32, kernel, tensor, tile

pytest.importorskip("triton")
pytestmark = [pytest.mark.oracle, pytest.mark.slow]

BASE = block(64, 64).k(64).warps(4).stages(3)


@kernel
def product(a: KTile["M", "K", bf16], b: KTile["K", "N", bf16]):
    T = tile.context()
    acc = tile.zeros((T.m, T.n), f32)
    for kb in tile.range_k(a.shape, T.k):
        left, right = tile.load(a, rows=T.m, cols=kb), tile.load(b, rows=kb, cols=T.n)
        acc = tile.dot(tile.cast(left, f32), tile.cast(right, f32), acc)
    return acc


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
