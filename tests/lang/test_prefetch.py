"""prefetch: reads ahead on a CPU, moves between devices, and says where it cannot act."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.lang import effects
from tests.support.fakes.gpu_fake import fake_gpu


@pytest.mark.parametrize("overlap", ["compute", "none"])
@pytest.mark.parametrize("into", ["smem", "shared", "register", "l2"])
def test_tensors_are_read_beside_the_block_or_before_it(tmp_path, into, overlap, monkeypatch):
    path = tmp_path / "weights"
    np.zeros(8 << 20, np.uint8).tofile(path)
    x, begun = ts.asarray(np.memmap(path, np.float32, "r")), threading.Event()
    read, usual = [], effects._read

    def waiting(arrays: Any) -> None:
        if overlap == "compute":
            assert begun.wait(60)  # the block runs meanwhile
        usual(arrays)
        read.extend(a.shape for a in arrays)

    monkeypatch.setattr(effects, "_read", waiting)
    with ts.prefetch({"w": x, "n": 3}, into=into, overlap=overlap) as near:
        assert near["w"] is x
        assert read == ([x.shape] if overlap == "none" else [])
        begun.set()
    assert read == [x.shape]


def test_what_has_no_elements_or_no_order_is_left_alone():
    x = op.ones((4, 6))
    with ts.prefetch([op.ones((0, 3)), op.transpose(x), op.ones(()), "text"]) as near:
        assert near[3] == "text"


def test_inside_of_jit_it_is_a_step_on_a_cpu_and_refused_by_name_on_a_gpu():
    def f(x: Any) -> Any:
        with ts.prefetch(x, into="l2") as y:
            return y + 1

    g = ts.jit(f, target="cpu")
    np.testing.assert_array_equal(g(op.ones((3,))).numpy(), 2)
    names = [getattr(s, "primitive", "") for s in g.lower(op.ones((3,))).schedule.steps]
    assert names.count("state_prefetch") == 1
    with fake_gpu(), pytest.warns(RuntimeWarning) as caught:
        ts.jit(f)(op.ones((3,)).to("cuda"))
    assert [str(w.message) for w in caught] == [
        "prefetch: into 'l2' is not done here: on a GPU a kernel decides what lies near; see tile.prefetch "
        "and "
        "tile.load(stages=...)"
    ]
    assert caught[0].filename == __file__


def test_to_a_device_and_back():
    x = op.ones((3,))
    with fake_gpu(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for overlap in ("compute", "none"):
            with ts.device("cuda"), ts.prefetch({"x": x}, into="device", overlap=overlap) as there:
                assert str(there["x"].device) == "cuda:0"
            with ts.prefetch(there, into="host", overlap=overlap) as here:
                assert here["x"].device.kind == "cpu"
                np.testing.assert_array_equal(here["x"].numpy(), 1)
        y = there["x"]
        told = pytest.warns(RuntimeWarning, match="into 'smem' is not done here: on a GPU a kernel")
        with told, ts.prefetch(y):
            pass
