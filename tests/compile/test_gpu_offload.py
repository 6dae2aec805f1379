"""Activation offload on a GPU: values leave and come back beside the kernels, with their bits, by a
driver that works as late as it may.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import RuleError
from tessera.core.offloaded import held
from tessera.runtime.cuda.device import gpu
from tests.support.fakes import gpu_fake
from tests.support.fakes.cuda_fake import FakeCuda, LazyCuda

RUNS_ON = "numpy"
LAYERS, WIDTH, ROWS = 6, 8, 16


def weights() -> list[Any]:
    rng = np.random.default_rng(1)
    return [
        ts.tensor((rng.standard_normal((WIDTH, WIDTH)) / 3).astype(np.float32))
        for _ in range(LAYERS)
    ]


def rows() -> Any:
    return ts.tensor(np.random.default_rng(2).standard_normal((ROWS, WIDTH)).astype(np.float32))


def stack(ws: Any, x: Any) -> Any:
    for w in ws:
        x = op.checkpoint_name(x, "x")
        x = x + op.tanh(op.checkpoint_name(x @ w, "h")) * 0.5
    return x


def loss(policy: Any) -> Any:
    f = ts.checkpoint(stack, policy=policy)
    return lambda ws, x: op.sum(op.square(f(ws, x)))


def by_layers(policy: Any) -> Any:
    """Each layer is a checkpoint of its own; every second one computes again."""

    def run(ws: Any, x: Any) -> Any:
        for i, w in enumerate(ws):
            kept = policy if i % 2 else "nothing"
            x = ts.checkpoint(lambda x, w: x + op.tanh(x @ w) * 0.5, policy=kept)(x, w)
        return op.sum(op.square(x))

    return run


PROGRAMS = {
    "x": (loss, ["x"]), "x and h": (loss, ["x", "h"]), "dots": (loss, "dots"),
    "everything": (loss, "everything"), "by layers": (by_layers, "everything"),
}  # fmt: skip


@pytest.fixture(params=range(3))
def lazy(request: pytest.FixtureRequest) -> Iterator[FakeCuda]:
    """A device whose streams do their work when a seed says so, and where a step on the host is an error."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        patch.setitem(gpu_fake.FAKES, "cuda", partial(LazyCuda, request.param))
        with gpu_fake.launching_gpus() as fake:
            yield fake


def on_gpu(tree: Any) -> Any:
    return ts.tree.map(lambda x: x.to("cuda"), tree)


def bits(tree: Any) -> list[bytes]:
    return [x.numpy().tobytes() for x in ts.tree.leaves(tree)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_was_written_out_comes_back_with_its_bits(name: str, lazy: FakeCuda) -> None:
    make, kept = PROGRAMS[name]
    ws, x = on_gpu(weights()), on_gpu(rows())
    want = bits(ts.jit(ts.grad(make(kept), (0, 1)))(ws, x))
    f = ts.jit(ts.grad(make(ts.offload(kept)), (0, 1)))
    given = [(ws, x), (ws, on_gpu(rows())), (ws, x)]
    made = [f(*g) for g in given]  # one after another, before any of them is done
    assert all(bits(y) == want for y in made)
    assert held() == 0


@pytest.mark.parametrize("lazy", [0], indirect=True)  # eager programs stay with their first device
def test_a_pullback_of_another_program_reads_them_back_once(lazy: FakeCuda) -> None:
    ws, x = on_gpu(weights()), on_gpu(rows())
    want = bits(ts.jit(ts.grad(loss(["x"]), 1))(ws, x))
    _, back = ts.vjp(lambda x: loss(ts.offload(["x"]))(ws, x), x)
    assert held() == LAYERS
    one = ts.tensor(np.float32(1)).to("cuda")
    assert bits(back(one)) == want
    assert held() == 0
    with pytest.raises(RuleError, match="offload: what this derivative kept was already read back"):
        back(one)


def test_layers_of_a_scan_are_written_out(lazy: FakeCuda) -> None:
    def run(ws: Any, x: Any, policy: Any) -> Any:
        layer = ts.checkpoint(
            lambda x, w: x + op.tanh(op.checkpoint_name(x @ w, "h")), policy=policy
        )
        return op.sum(op.square(ts.scan(lambda x, w: (layer(x, w), op.sum(x)), x, ws)[0]))

    ws, x = on_gpu(op.stack(weights()[:3])), on_gpu(rows())
    want = bits(ts.jit(ts.grad(lambda ws, x: run(ws, x, ["h"])))(ws, x))
    got = ts.jit(ts.grad(lambda ws, x: run(ws, x, ts.offload(["h"]))))(ws, x)
    assert bits(got) == want
    assert held() == 0


def rested(cache: Any, q: Any, k: Any, v: Any) -> Any:
    """A cache that is on the host while something else is computed, and then goes on."""
    cache = cache.append(k, v).offload()
    y = op.tanh(q @ op.swapaxes(q, -1, -2))
    cache = cache.prefetch()
    return ts.flash_attention(q, cache), y, cache


def test_a_cache_leaves_and_comes_back_within_a_program(lazy: FakeCuda) -> None:
    """By copies beside the kernels, with the bits of the program that leaves it where it is."""
    rng = np.random.default_rng(4)
    q, k, v = (
        on_gpu(ts.tensor(rng.standard_normal((1, 2, 5, 16)).astype(np.float32))) for _ in range(3)
    )
    cache = on_gpu(ts.KVCache.empty(1, 2, 64, 16))
    f = ts.jit(rested)

    def stays(cache: Any, q: Any, k: Any, v: Any) -> Any:
        cache = cache.append(k, v)
        return ts.flash_attention(q, cache), op.tanh(q @ op.swapaxes(q, -1, -2)), cache

    want = bits(ts.jit(stays)(cache, q, k, v))
    before = gpu().engines.pinned
    assert bits(f(cache, q, k, v)) == want
    assert gpu().engines.pinned - before == 2 * 64 * 2 * 16 * 4  # K and V; the length is a number
    assert held() == 0


def test_a_cache_that_is_returned_from_the_host_is_not_moved_and_named() -> None:
    with gpu_fake.launching_gpus():
        k = on_gpu(ts.tensor(np.ones((1, 2, 5, 16), np.float32)))
        cache = on_gpu(ts.KVCache.empty(1, 2, 64, 16))
        with pytest.warns(
            RuntimeWarning,
            match=r"offload: f32\[1,2,64,16\] is not moved: it is read or returned before",
        ):
            ts.jit(lambda c, k: c.append(k, k).offload())(cache, k)


def test_pinned_memory_is_used_again() -> None:
    with gpu_fake.launching_gpus() as fake:
        ws, x = on_gpu(weights()), on_gpu(rows())
        f = ts.jit(ts.grad(loss(ts.offload(["x"]))))
        f(ws, x)
        pinned = gpu().engines.pinned
        assert pinned == LAYERS * ROWS * WIDTH * 4
        count = len(fake.pinned)
        for _ in range(3):
            f(ws, x)
        assert (gpu().engines.pinned, len(fake.pinned)) == (pinned, count)


@pytest.mark.parametrize("layers", [8, 24])
def test_the_planned_peak_falls_by_all_but_a_few_of_the_values(layers: int) -> None:
    """Without offload the derivative holds a value for each layer, with it those that are on their way."""
    rng, (tokens, width) = np.random.default_rng(0), (64, 32)
    ws = [ts.tensor(rng.standard_normal((width, width)).astype(np.float32)) for _ in range(layers)]
    x = ts.tensor(rng.standard_normal((tokens, width)).astype(np.float32))

    def peak(policy: Any) -> int:
        f = ts.jit(ts.grad(loss(policy), 1), target="cuda:sm_90")
        lowered = f.lower(ws, x)
        assert lowered.host_steps == {}
        return lowered.memory.peak

    one = tokens * width * 4
    fell = peak(["x"]) - peak(ts.offload(["x"]))
    assert (layers - 6) * one <= fell <= layers * one


def test_copies_are_in_the_schedule_and_in_the_profile() -> None:
    with gpu_fake.launching_gpus():
        ws, x = on_gpu(weights()), on_gpu(rows())
        f = ts.jit(ts.grad(loss(ts.offload(["x"]))))
        text = str(f.lower(ws, x).schedule)
        assert (text.count("offload_put"), text.count("offload_get")) == (LAYERS, LAYERS)
        f(ws, x)
        with ts.profile() as p:
            f(ws, x)
    size = ROWS * WIDTH * 4 + 8  # a value and its number
    for name in ("put", "get"):
        found = [r for r in p.kernels if r.name.startswith(f"offload_{name}_")]
        assert {r.kind for r in found} == {"copy"}
        assert [(r.launches, r.bytes) for r in found] == [(1, size)] * LAYERS
        assert all(__file__ in next(iter(r.lines)) for r in found)
    tracks = {s.thread: s.device for s in p.spans if s.device}
    assert sorted(tracks.values()) == ["cuda:0", "cuda:0 copies back", "cuda:0 copies out"]
    assert len(p.memory) == 1
