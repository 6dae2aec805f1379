"""Products with a vector that make their vector themselves: the same numbers, in fewer launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.accelerator.program import GpuProgram
from tessera.core.dtype import bf16, f16, f32
from tessera.ir.target.gluon.stream import stream
from tessera.ir.tile.gpu import thin
from tests.gpu_fake import fake_gpu
from tests.random_graphs import same_bits

RUNS_ON = "numpy"
DEPTH, ROWS = 512, 64


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU on which short vectors and few rows are worth it, so that the interpreter is soon done."""
    monkeypatch.setattr(thin, "_SHORTEST", DEPTH)
    monkeypatch.setattr(thin, "_FEWEST", ROWS)
    monkeypatch.setattr(thin, "_MOST", 3)  # instances of which the first has two blocks
    with fake_gpu():
        yield


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rms(x: Any, g: Any) -> Any:
    w = x.astype(f32)
    return (w * op.rsqrt(op.mean(w * w) + 1e-5) * g).astype(x.dtype)


def ran(f: Callable[..., Any], *xs: Any) -> tuple[list[Any], list[Any]]:
    """The results of a jitted function on a GPU, and its kernels."""
    there = [ts.tensor(x, device="cuda") for x in xs]
    g = ts.jit(f)
    out = [y.numpy() for y in ts.tree.leaves(g(*there))]
    (variant,) = g._variants.values()
    (program,) = variant.executable._prepared.values()
    return out, list(program.tiles.values())


PROGRAMS: dict[str, Callable[..., Any]] = {
    "plain": lambda w, x, g, u: w @ x,
    "norm": lambda w, x, g, u: w @ rms(x, g),
    "norm of a sum that stays": lambda w, x, g, u: (x + u, w @ rms(x + u, g)),
    "gate": lambda w, x, g, u: w @ (op.silu(x) * u),
    "what follows": lambda w, x, g, u: op.tanh((w @ (x * 2.0)).astype(f32) + g[:ROWS]),
    "two of one vector": lambda w, x, g, u: (w @ rms(x, g), (w + 1.0) @ rms(x, g)),
    "halves": lambda w, x, g, u: w @ (op.concat([x, u])[:DEPTH] * op.concat([x, u])[DEPTH:]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_separate_kernels(
    name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = (normal(ROWS, DEPTH) * 0.03).astype(dtype.np)
    x, u = (normal(DEPTH, seed=i).astype(dtype.np) for i in (1, 2))
    g = normal(DEPTH, seed=3)
    got, kernels = ran(PROGRAMS[name], w, x, g, u)
    assert any(stream(k) is not None for k in kernels) == (name not in ("plain", "what follows"))
    monkeypatch.setattr(GpuProgram, "roles", False)
    want, more = ran(PROGRAMS[name], w, x, g, u)
    assert not any(stream(k) is not None for k in more)
    assert len(kernels) <= len(more)
    assert same_bits(got, want)


def test_a_norm_before_a_product_takes_no_launch() -> None:
    w, x, g = normal(ROWS, DEPTH).astype(bf16.np), normal(DEPTH).astype(bf16.np), normal(DEPTH)
    _, kernels = ran(lambda w, x, g: w @ rms(x, g), w, x, g)
    assert len(kernels) == 1
