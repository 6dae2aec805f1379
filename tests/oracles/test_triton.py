"""Kernels for GPUs, without one: Triton compiles them for NVIDIA and AMD, and its interpreter runs them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import bf16, f32
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.runtime import triton_builder
from tests.support.fakes.gpu_fake import BUILT, fake_gpu, set_roles

# Triton runs in processes of its own: its LLVM would lie beside llvmlite's and torch's here.
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]

TARGETS = {"sm_80": ("cuda", 80, 32), "sm_90": ("cuda", 90, 32), "sm_100": ("cuda", 100, 32),
           "gfx942": ("hip", "gfx942", 64), "gfx950": ("hip", "gfx950", 64)}  # fmt: skip
RNG = np.random.default_rng(0)


def _programs() -> None:
    """Programs whose kernels are the compiler's own forms and the kernels of the library."""

    def on(*shape: int) -> Any:
        return ts.tensor(RNG.standard_normal(shape).astype(np.float32)).to("cuda")

    def narrow(*shape: int) -> Any:
        return on(*shape).astype(bf16)

    x, w, g = on(64, 96), on(96, 80), on(96)
    ts.jit(lambda x: op.softmax(x))(x)
    ts.jit(lambda x, g: op.rmsnorm(x + x, g))(narrow(64, 96), narrow(96))
    ts.jit(lambda x, g: op.layernorm(x, g, g))(x, g)
    ts.jit(lambda x, w: op.gelu(x @ w))(narrow(256, 128), narrow(128, 512))
    ts.jit(lambda x, w: x @ w)(x, w)
    ts.jit(lambda x: (op.sum(x, 0), op.sum(x)))(on(3000, 70))
    ts.jit(lambda x: op.sin(x) * op.erf(x) + op.log1p(op.abs(x)))(x)
    ts.jit(lambda x: op.cumsum(x, 1))(x)
    conv = lambda x, w: op.conv2d(x, w, padding=1, stride=2)  # noqa: E731
    both = ts.jit(lambda x, w: ts.vjp(conv, x, w)[1](conv(x, w)))
    both(narrow(2, 16, 9, 9), narrow(32, 16, 3, 3))
    ts.jit(lambda x, w: op.conv2d(x, w, groups=4))(on(2, 4, 9, 9), on(4, 1, 3, 3))
    ts.jit(lambda x: ts.vjp(lambda x: op.max_pool2d(x, 3, 2, 1), x)[1](op.max_pool2d(x, 3, 2, 1)))(
        narrow(2, 3, 9, 9)
    )
    ts.jit(lambda x: op.topk(x, 3))(on(4, 9))
    ts.jit(lambda k: op.random.uniform(k, (30,)))(ts.key(0).to("cuda"))
    ts.jit(lambda x, i: op.take(x, i, 0))(x, ts.tensor(np.arange(5)).to("cuda"))

    def loss(q: Any) -> Any:
        return op.sum(op.attention(q, q, q, causal=True).astype(f32))

    ts.jit(ts.grad(loss))(narrow(1, 2, 128, 64))
    library = ts.stdlib
    library.stable_softmax(x)
    library.efficient_layernorm(x, g, g)
    library.rmsnorm(x, g)
    library.matmul(x, w)
    library.matmul_gelu(x, w, on(80))
    library.flash_attention_2(on(1, 2, 64, 32), on(1, 2, 64, 32), on(1, 2, 64, 32), causal=True)


@pytest.fixture(scope="module")
def made() -> dict[bool, list[TritonSource]]:
    """The kernels as they are on Hopper, and as they are elsewhere."""
    found = {}
    for hopper in (True, False):
        BUILT.clear()
        with pytest.MonkeyPatch.context() as patch, fake_gpu(), warnings.catch_warnings():
            set_roles(patch, hopper)
            warnings.simplefilter("ignore", RuntimeWarning)
            _programs()
        found[hopper] = list(BUILT)
    return found


@pytest.fixture
def sources(made: dict[bool, list[TritonSource]], target: str) -> list[TritonSource]:
    """The kernels for an architecture."""
    return [replace(s, target=TARGETS[target]) for s in made[target == "sm_90"]]


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_every_kernel_compiles_without_a_gpu(
    sources: list[TritonSource], target: str, tmp_path: Path
) -> None:
    assert len(sources) > 20
    assert any("gdc_wait" in s.text for s in sources) == (target == "sm_90")
    with ts.core.flags.override(cache_dir=tmp_path):
        codes = triton_builder.build(sources)
        again = triton_builder.build(sources)
    assert [c.image for c in codes] == [c.image for c in again]
    for c in codes:
        assert c.image[:4] == b"\x7fELF"
        assert c.shared <= 232_448


@pytest.mark.parametrize("target", TARGETS)
def test_products_and_attention_compile_for_every_architecture(
    sources: list[TritonSource], target: str
) -> None:
    wanted = [s for s in sources if s.name in ("attention", "product")][:3]
    assert wanted
    for s in wanted:
        text = triton_builder.assembly(s)
        if target == "sm_90" and s.name == "attention":
            assert "wgmma.mma_async" in text


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_roles_compiles_for_hopper(causal: bool, tmp_path: Path) -> None:
    BUILT.clear()
    with fake_gpu():
        q = ts.tensor(RNG.standard_normal((1, 2, 256, 128)).astype(np.float32)).to("cuda")
        ts.jit(lambda q: ts.vjp(lambda q: op.attention(q, q, q, causal=causal), q)[1](q))(
            q.astype(bf16)
        )
    made = {s.name: s for s in BUILT if "gluon" in s.text}
    assert {"attention", "attention_keys", "attention_queries"} <= made.keys()
    for source in made.values():
        text = triton_builder.assembly(source)
        for what in ("wgmma.mma_async", "cp.async.bulk.tensor", "mbarrier.try_wait", "setmaxnreg"):
            assert what in text, what
    with ts.core.flags.override(cache_dir=tmp_path):
        codes = triton_builder.build(list(made.values()))
    for code in codes:
        assert (code.warps, code.scratch) == (12, 0)
        assert code.shared <= 232_448


def normed(w: Any, x: Any, g: Any) -> Any:
    y = x.astype(f32)
    y = y * op.rsqrt(op.mean(y * y) + 1e-5) * g
    return op.silu(w @ y.astype(bf16))


def of_one_number(w: Any, x: Any, g: Any) -> Any:
    return w @ op.broadcast_to(op.sum(g * g).astype(bf16), x.shape)


def of_places(w: Any, x: Any, g: Any) -> Any:
    return w @ (op.iota(x.shape, 0, f32) * op.max(g)).astype(bf16)


@pytest.mark.parametrize("f", [normed, of_one_number, of_places], ids=lambda f: f.__name__)
def test_a_vector_made_where_it_is_multiplied_compiles_for_hopper(f: Any) -> None:
    BUILT.clear()

    with fake_gpu():
        x = ts.tensor(RNG.standard_normal((2048, 1024)).astype(np.float32)).to("cuda").astype(bf16)
        ts.jit(f)(x, x[0], x[1].astype(f32))
    (source,) = [s for s in BUILT if s.name == "thin"]
    text = triton_builder.assembly(source)
    assert text.count("wgmma.mma_async") >= 16
    assert "cp.async.bulk.tensor" in text


def test_what_triton_refuses_is_an_error_that_names_the_kernel() -> None:
    bad = TritonSource("import triton\n@triton.jit\ndef broken(x):\n    y = nothing\n", "broken",
                 (("x", "*fp32"),), (0,), TARGETS["sm_90"], 4, 3, None)  # fmt: skip
    with pytest.raises(ts.core.errors.CompileError, match="Triton refused kernel 'broken'"):
        triton_builder.assembly(bad)


def test_triton_is_the_meaning_of_what_is_printed(tmp_path: Path) -> None:
    """Random Tile kernels by Triton's interpreter, in a process of its own, beside ours, bit by bit."""
    env = os.environ | {"TRITON_INTERPRET": "1", "TRITON_DEFAULT_FP_FUSION": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracles.triton_interpreter", str(tmp_path), "150"],
        env=env, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["programs"] > 40
    assert told["different"] == []
