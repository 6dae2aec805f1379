"""Products with a vector that make their vector themselves: the same numbers, in fewer launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import bf16, f16, f32
from tessera.ir.schedule import thin_products
from tessera.ir.target.gluon.flash_forward_emit import emit
from tessera.ir.tile.gpu import thin
from tessera.ir.tile.gpu.gemv_match import stream
from tessera.ir.tile.launch import Threads
from tests.support.cases.random_graphs import same_bits
from tests.support.fakes.gpu_fake import fake_gpu, set_roles

RUNS_ON = "numpy"
DEPTH, ROWS = 512, 64


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU on which short vectors and few rows are worth it, so that the interpreter is soon done."""
    monkeypatch.setattr(thin_products, "_SHORTEST", DEPTH)
    monkeypatch.setattr(thin_products, "_FEWEST", ROWS)
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
    shapes = [x.shape for x in ts.tree.leaves(there)]
    return out, list(variant.executable.tiles_at(shapes).values())


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
    assert any(stream(k) is not None for k in kernels)
    set_roles(monkeypatch, False)
    want, more = ran(PROGRAMS[name], w, x, g, u)
    assert not any(stream(k) is not None for k in more)
    assert len(kernels) <= len(more)
    assert same_bits(got, want)


def test_a_norm_before_a_product_takes_no_launch() -> None:
    w, x, g = normal(ROWS, DEPTH).astype(bf16.np), normal(DEPTH).astype(bf16.np), normal(DEPTH)
    _, kernels = ran(lambda w, x, g: w @ rms(x, g), w, x, g)
    assert len(kernels) == 1


# Many rows

MANY = 320  # five blocks of 64, or two and a half of two parts


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thin_products, "_MANY", 4)


def silu_gate(z: Any) -> Any:
    return op.silu(z[: MANY // 5 * 2]) * z[MANY // 5 * 2 : MANY // 5 * 4]


# What is made of a vector first, what of the product then, and in how many parts the product is computed.
WIDE: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "plain": (lambda x, g, u: x, lambda z, g: z, 1),
    "norm": (lambda x, g, u: rms(x, g), lambda z, g: z, 1),
    "what follows": (lambda x, g, u: x * 2.0, lambda z, g: op.tanh(z.astype(f32)), 1),
    "pairs": (lambda x, g, u: rms(x, g), lambda z, g: silu_gate(z), 2),
    "pairs of a plain product": (lambda x, g, u: x, lambda z, g: silu_gate(z), 2),
    "pairs with something else": (
        lambda x, g, u: rms(x, g), lambda z, g: silu_gate(z).astype(f32) + g[:128] * 2.0, 2
    ),
    "two places, one of which begins inside of a block": (
        lambda x, g, u: x, lambda z, g: z[:128] * z[130:258], 1
    ),
    "three places": (lambda x, g, u: x, lambda z, g: z[:64] * z[64:128] + z[128:192], 1),
    "read twice": (lambda x, g, u: x, lambda z, g: (silu_gate(z), z), 1),
    "read by a fold": (lambda x, g, u: x, lambda z, g: op.sum(z[:128] * z[128:256]), 1),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=["bf16", "f16"])
@pytest.mark.parametrize("name", WIDE)
def test_many_rows(name: str, dtype: Any, wide: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64 rows, and rows of two parts with what reads both, have the bits of separate kernels."""
    first, then, parts = WIDE[name]

    def f(w: Any, x: Any, g: Any, u: Any) -> Any:
        y = x + u  # which stays
        return y, then(w @ first(y, g, u), g)

    w = (normal(MANY, DEPTH) * 0.03).astype(dtype.np)
    x, u = (normal(DEPTH, seed=i).astype(dtype.np) for i in (1, 2))
    g = normal(DEPTH, seed=3)
    got, kernels = ran(f, w, x, g, u)
    (found,) = [s for s in map(stream, kernels) if s is not None]
    assert (found.matrix.rows, len(found.rows)) == (thin.WIDE, parts)
    assert found.offsets == ((0,) if parts == 1 else (0, 128))
    text = emit(found.kernel, Threads(4, 4, roles=True))
    assert text.count(" mma_v2(") == parts
    set_roles(monkeypatch, False)
    want, more = ran(f, w, x, g, u)
    assert len(kernels) <= len(more)
    assert same_bits(got, want)


def test_a_gate_takes_no_launch(wide: None) -> None:
    w, x, g = normal(MANY, DEPTH).astype(bf16.np), normal(DEPTH).astype(bf16.np), normal(DEPTH)
    _, kernels = ran(lambda w, x, g: silu_gate(w @ rms(x, g)), w, x, g)
    assert len(kernels) == 1
