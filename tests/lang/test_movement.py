"""Movement in programs: a prefetch is a step of every level and of the profile; what is not moved is
named.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, op
from tessera.core.errors import OperandError
from tessera.ir.schedule.ir import Primitive
from tests.support.fakes.gpu_fake import fake_gpu

X, W = np.full((8, 64), 0.5, np.float32), np.full((64, 64), 0.25, np.float32)


def layer(x: Any, w: Any) -> Any:
    with ts.prefetch({"w": w}, into="l2") as near:
        return op.exp(x) @ near["w"]


def plain(x: Any, w: Any) -> Any:
    return op.exp(x) @ w


def test_a_prefetch_is_in_every_level_and_changes_no_bit() -> None:
    f = ts.jit(layer, target="cpu")
    low = f.lower(X, W)
    assert 'effects = ["movement"], into = "l2"' in low.graph.text
    (step,) = (s for s in low.schedule.steps if isinstance(s, Primitive))
    assert (step.primitive, step.params["into"]) == ("state_prefetch", "l2")
    assert "tile.prefetch" in low.tile[step.name].text
    assert "@llvm.prefetch" in str(low.target[step.name])
    want = ts.jit(plain, target="cpu")(X, W).numpy()
    np.testing.assert_array_equal(f(X, W).numpy(), want)
    assert ts.ir.parse(low.schedule.text).text == low.schedule.text


def test_the_profile_has_it_with_its_line() -> None:
    f = ts.jit(layer, target="cpu")
    f(X, W)
    with ts.profile() as p:
        f(X, W)
    (row,) = (r for r in p.kernels if r.what == "state_prefetch")
    assert row.launches == 1
    assert "with ts.prefetch" in str(p)


def test_transforms_keep_it() -> None:
    g = ts.trace(ts.grad(lambda w: op.sum(layer(ts.tensor(X), w))), ts.tensor(W))
    assert [n.op.name for n in g.nodes].count("state_prefetch") == 1
    many = ts.jit(ts.vmap(layer, in_axes=(None, 0)), target="cpu")(X, np.stack([W, W]))
    np.testing.assert_allclose(many.numpy()[1], plain(ts.tensor(X), ts.tensor(W)).numpy(),
        rtol=1e-6)  # fmt: skip


def test_a_cache_is_asked_for_where_it_is_prefetched() -> None:
    @ts.jit
    def f(c: Any, k: Any) -> Any:
        c = c.prefetch()
        return ts.flash_attention(k, c.append(k, k))

    c, k = KVCache.empty(1, 2, 64, 8), op.ones((1, 2, 1, 8))
    steps = f.lower(c, k).schedule.steps
    assert [getattr(s, "primitive", "") for s in steps].count("state_prefetch") == 3
    np.testing.assert_array_equal(f(c, k).numpy(), np.ones((1, 1, 16)))


def test_what_does_not_move_is_named() -> None:
    def f(c: Any, k: Any) -> Any:
        return c.append(k, k).offload()

    c, k = KVCache.empty(1, 2, 8, 4), op.ones((1, 2, 1, 4))
    with pytest.warns(RuntimeWarning) as caught:
        ts.jit(f, target="cpu")(c, k)
    (w,) = caught
    assert str(w.message) == (
        "offload: f32[1,2,8,4] is not moved: on a CPU the memory of the host is that of the device; offload "
        "it outside of "
        "the program, or leave it out"
    )
    assert w.filename == __file__
    with fake_gpu():
        there = ts.tree.map(lambda x: x.to("cuda"), (c, k))
        with pytest.warns(
            RuntimeWarning, match="is read or returned before it moves back to the device"
        ):
            ts.jit(f)(*there)


def test_a_memory_that_there_is_not() -> None:
    with pytest.raises(OperandError) as e:
        op.state_prefetch(ts.tensor(X), into="moon")
    assert e.value.message == (
        "state_prefetch: into is 'moon', expected one of smem, shared, register, l2"
    )
