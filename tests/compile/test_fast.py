"""Numerics fast: near the oracle, other bits where that is faster, and nothing of it anywhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import fft, special

import tessera as ts
from tessera import op
from tessera.compile import artifact as image
from tessera.compile import compile_graph
from tessera.core.flags import override
from tessera.core.processor import cores
from tessera.ir.schedule.interp import interpret
from tessera.ir.schedule.ir import ANY, Group, HostCall, Kernel, Program
from tessera.ir.schedule.nests import choose
from tessera.ir.schedule.text import parse_program
from tessera.ir.schedule.verify import verify

RNG = np.random.default_rng(7)


def same_bits(x: Any, y: Any) -> bool:
    return bool(x.dtype == y.dtype and x.tobytes() == y.tobytes())


def draw(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def attend(q: Any, k: Any, v: Any) -> Any:
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    return special.softmax(s, -1) @ v


def normalise(x: Any, g: Any, b: Any) -> Any:
    c = x - x.mean(-1, keepdims=True)
    return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * g + b


# A function of tensors, the same in f64 by NumPy and SciPy, and the operands.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = {
    "gemm": (op.matmul, np.matmul, (draw(70, 1100), draw(1100, 90))),
    "gemm of a long sum": (op.matmul, np.matmul, (draw(20, 5001), draw(5001, 70))),
    "gemm, turned": (lambda a, b: a.T @ b, lambda a, b: a.T @ b, (draw(1300, 40), draw(1300, 50))),
    "gemv": (op.matmul, np.matmul, (draw(1, 3000), draw(3000, 70))),
    "softmax": (op.softmax, lambda x: special.softmax(x, -1), (draw(9, 700),)),
    "shares": (
        lambda x: op.exp(x) / op.sum(op.exp(x), 1, keepdims=True),
        lambda x: special.softmax(x, -1),
        (draw(9, 700),),
    ),
    "layernorm": (op.layernorm, normalise, (draw(9, 1300), draw(1300), draw(1300))),
    "attention": (op.attention, attend, (draw(2, 40, 32), draw(2, 1100, 32), draw(2, 1100, 32))),
    "fft": (op.fft, fft.fft, ((draw(20, 360) + 1j * draw(20, 360)).astype(np.complex64),)),
    # So long that instances have more than a subtree of the law.
    "long sums": (lambda x: op.sum(x, 1), lambda x: x.sum(1), (draw(5, 200_000 * cores() + 1),)),
    "column sums": (lambda x: op.sum(x, 0), lambda x: x.sum(0), (draw(1500, 37),)),
    "products and sums": (
        lambda x, y: (x - 3 * y) + (x * y - y),
        lambda x, y: x - 3 * y + x * y - y,
        (draw(999),) * 2,
    ),
}


def lowered(name: str, numerics: str) -> tuple[Any, Program]:
    f, _, xs = CASES[name]
    jitted = ts.jit(f, numerics=numerics)
    tensors = [ts.tensor(x) for x in xs]
    return jitted(*tensors).numpy(), jitted.lower(*tensors).schedule


@pytest.mark.parametrize("name", CASES)
def test_fast_is_near_the_oracle_and_leaves_the_law_alone(name: str) -> None:
    _, oracle, xs = CASES[name]
    want = oracle(*(x.astype(np.result_type(x, np.float64)) for x in xs))
    quick, loose = lowered(name, "fast")
    usual, kept = lowered(name, "deterministic")
    assert np.linalg.norm(quick - want) < 4e-6 * np.linalg.norm(want)
    assert not same_bits(quick, usual), "fast does nothing for it"
    assert ANY not in {o for s in kept.steps for o in orders(s)}
    assert {ANY} == {o for s in loose.steps for o in orders(s)}
    (again,) = interpret(kept, [np.asarray(x) for x in xs])
    assert same_bits(usual, again)


def orders(s: Any) -> list[str]:
    if isinstance(s, HostCall):
        return []
    return [k.order for k in s.kernels] if isinstance(s, Group) else [s.order]


@pytest.mark.parametrize("name", ["softmax", "attention", "fft"])
def test_the_order_is_part_of_the_text(name: str) -> None:
    _, loose = lowered(name, "fast")
    verify(loose)
    assert parse_program(loose.text).text == loose.text
    assert loose.hash != lowered(name, "deterministic")[1].hash


def test_terms_are_rounded_where_that_is_cheapest() -> None:
    """Shares of rows are multiplied by a reciprocal, layernorm fuses its last product and sum."""
    for name, scalar in (("shares", "recip("), ("layernorm", "fma(")):
        texts = {m: str(lowered(name, m)[1]) for m in ("fast", "deterministic")}
        assert scalar in texts["fast"]
        assert scalar not in texts["deterministic"]


def test_fast_is_chosen_for_a_call_a_block_or_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "_sources", lambda: "unchanged")
    x = ts.tensor(CASES["softmax"][2][0])
    usual, quick = (ts.jit(op.softmax, numerics=m)(x).numpy() for m in ("deterministic", "fast"))
    with ts.numerics("fast"):
        assert same_bits(ts.jit(op.softmax)(x).numpy(), quick)
        assert not same_bits(op.softmax(x).numpy(), usual)
        kept = ts.jit(op.softmax, numerics="deterministic")(x).numpy()
        assert same_bits(kept, usual)
    assert same_bits(op.softmax(x).numpy(), usual)
    g = compile_graph(ts.jit(op.softmax).lower(x).graph).graph
    assert len({image.key_of(g), image.key_of(g, "fast")}) == 2
    with override(numerics="fast"):
        assert image.key_of(g) == image.key_of(g, "fast")


def test_a_long_sum_is_cut_for_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(cores: int, numerics: str) -> list[int]:
        monkeypatch.setattr(choose, "expected_threads", lambda: cores)
        x = ts.tensor(np.zeros(1 << 22, np.float32))
        (k,) = ts.jit(op.sum, numerics=numerics).lower(x).schedule.steps
        assert isinstance(k, Kernel)
        return choose.default_nest(k).steps("c", "parallel")

    assert blocks(2, "fast") != blocks(5, "fast")
    assert blocks(2, "deterministic") == blocks(5, "deterministic")
