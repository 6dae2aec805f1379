"""Launches that begin before the one before them ends: which do, when they wait, and how their blocks
share a device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.gpu.bind import Bound, function_of
from tessera.compile.gpu.image import GpuCall
from tessera.compile.gpu.lowering import call_of
from tessera.core.dtype import bf16, f32
from tessera.ir.schedule import thin_products
from tessera.ir.target.code import Code
from tessera.ir.target.gluon import flash_forward_emit as gluon
from tessera.ir.target.triton import dependent_launch as pass_early
from tessera.ir.target.triton.dependent_launch import early
from tessera.ir.target.triton.emit import emit
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.ir.tile.gpu.gemv_match import stream
from tessera.ir.tile.launch import Launch, Threads
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.module import DriverModule
from tessera.runtime.triton_builder import BuiltCode
from tests.support.fakes.gpu_fake import fake_gpu, launching_gpus

RUNS_ON = "numpy"
DEPTH, ROWS = 512, 64
NEXT, WAIT = "gdc_launch_dependents()", "gdc_wait()"


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def prepared(f: Callable[..., Any], *xs: Any, **options: Any) -> Bound:
    """The program of a function, which ran once on a GPU."""
    g: Any = ts.jit(f, **options)
    g(*(ts.tensor(x, device="cuda") for x in xs))
    (variant,) = g._variants.values()
    (program,) = variant.executable._prepared.values()
    return program


def body(text: str) -> list[str]:
    """The lines of the last function of a module, which is the kernel."""
    lines = text[text.rindex("\ndef ") :].splitlines()[2:]
    return [x.strip() for x in lines if x.strip()]


def every_other(early: Callable[..., Launch]) -> Callable[..., Launch]:
    """A pass under which every second launch begins late."""
    seen: list[Launch] = []

    def changed(launch: Launch, *rest: Any) -> Launch:
        seen.append(launch)
        return early(launch, *rest) if len(seen) % 2 else launch

    return changed


@pytest.mark.parametrize("some", [False, True])
def test_a_graph_of_early_launches_is_the_program(
    some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are a chain; where others are among them, what waits for one that is not the last, or for two,
    begins late.
    """
    if some:
        monkeypatch.setattr(pass_early, "early", every_other(pass_early.early))

    def f(x: Any, y: Any) -> Any:
        for _ in range(4):
            x = op.softmax(x @ y) + x
        return x, (op.cumsum(y, axis=0) @ op.exp(y)) * op.mean(x)

    with launching_gpus() as fake:
        g: Any = ts.jit(f)
        x, y = (ts.tensor(normal(24, 24, seed=i), device="cuda") for i in range(2))
        first = [v.numpy() for v in g(x, y)]
        assert not fake.early
        for _ in range(3):
            last = [v.numpy() for v in g(x, y)]
        assert len(fake.early) > 3
        for nodes in fake.graphs.values():
            assert any(len(fake.behind[n]) > 1 for n in nodes) == some
            for before, n in zip([0, *nodes], nodes, strict=False):
                follows = fake.behind[n] == (before,)
                assert n not in fake.early or follows
                assert some or (n in fake.early) == follows
        for got, want in zip(last, first, strict=True):
            np.testing.assert_array_equal(got, want)


def test_an_early_kernel_waits_before_it_touches_memory() -> None:
    with fake_gpu():
        p = prepared(lambda x: op.softmax(x) @ x, normal(24, 24))
        assert len(p.planned.lowered.sources) > 1
        for name, text in p.planned.lowered.sources.items():
            assert body(text)[:2] == [NEXT, WAIT]
            assert text.count("gdc") == 4  # where they come from, and there
            assert "gdc" not in emit(p.planned.lowered.tiles[name])


def rms(x: Any, g: Any) -> Any:
    w = x.astype(f32)
    return (w * op.rsqrt(op.mean(w * w) + 1e-5) * g).astype(x.dtype)


# What is multiplied, what is donated, and whether the first rows are fetched before the wait.
MATRICES: dict[str, tuple[Callable[..., Any], tuple[str, ...], bool]] = {
    "an input": (lambda w, x, g: w @ rms(x, g), (), True),
    "computed": (lambda w, x, g: op.softmax(w) @ rms(x, g), (), False),
    "donated": (lambda w, x, g: (w @ rms(x, g), op.exp(w)), ("w",), False),
    "another one is donated": (lambda w, x, g: (w @ rms(x, g), op.exp(g)), ("g",), True),
}


@pytest.mark.parametrize("name", MATRICES)
def test_a_stream_fetches_ahead_what_nothing_writes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thin_products, "_SHORTEST", DEPTH)
    monkeypatch.setattr(thin_products, "_FEWEST", ROWS)
    f, donate, ahead = MATRICES[name]
    with fake_gpu():
        w, x = normal(2 * ROWS, DEPTH).astype(bf16.np), normal(DEPTH).astype(bf16.np)
        p = prepared(f, w, x, normal(DEPTH), donate=donate)
        ((kernel, text),) = [
            (k, p.planned.lowered.sources[n])
            for n, k in p.planned.lowered.tiles.items()
            if stream(k) is not None
        ]
    lines = body(text)
    fetch = next(i for i, x in enumerate(lines) if x.startswith("fetch("))
    load = next(i for i, x in enumerate(lines) if "gl.load(" in x)
    assert lines.index(NEXT) < fetch < load
    assert lines.index(NEXT) < lines.index(WAIT) < load
    assert (fetch < lines.index(WAIT)) == ahead
    assert "gdc" not in gluon.emit(kernel, Threads(4, 3, roles=True))


def test_long_launches_do_not_begin_early(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu():
        p = prepared(lambda x: op.softmax(x) @ x, normal(24, 24))
    (kernel, *_) = p.planned.lowered.tiles.values()
    blocks = int(np.prod([int(n) for _, n in kernel.grid]))
    launch = Launch(kernel, (), ())
    for most, want in ((blocks, True), (blocks - 1, False)):
        monkeypatch.setattr(pass_early, "_MOST", most)
        assert early(launch, (), lambda n: False).threads == Threads(early=want)
    boxes = Launch(kernel, (), (), Threads(descriptors=True))
    assert early(boxes, (), lambda n: False) is boxes


def test_no_multiprocessor_gets_more_blocks_of_a_product_than_its_share() -> None:
    with launching_gpus() as fake:
        p = prepared(lambda x: op.softmax(x) @ x, normal(24, 24))
        kernels = {
            any(op.name == "dot" for op in k.body.operations)
            or "dot(" in p.planned.lowered.sources[n]: k
            for n, k in p.planned.lowered.tiles.items()
        }
        assert len(kernels) == 2
        name, image = next(iter(fake.kernels)), b"fake"

        def call(is_product: bool, blocks: int) -> GpuCall:
            """An early launch of so many blocks."""
            launch = Launch(kernels[is_product], (), (), Threads(early=True))
            source = TritonSource("", "k", (), (), ("cuda", 90, 32), 4, 2, None)
            return replace(call_of(Code("k", launch, entry=source), (), ()), blocks=blocks)

        code, module = BuiltCode(name, 4, 1000, 0, (1, 1, 1), image), DriverModule(image, gpu())
        whole = gpu().shared_per_block + 1024
        for blocks in (1, 16, 132, 133, 264, 500):
            used = function_of(call(True, blocks), code, module).shared + 1024
            share = -(-blocks // gpu().multiprocessors)
            assert share * used <= whole < (share + 1) * used
        plain = function_of(call(False, 1), code, module)
        late = function_of(replace(call(True, 1), early=False), code, module)
        assert (plain.shared, late.shared) == (1000, 1000)
        assert fake.attributes[plain.handle, 9] == 100
        large = BuiltCode(name, 4, 200_000, 0, (1, 1, 1), image)
        assert function_of(call(True, 1), large, module).shared == 200_000
