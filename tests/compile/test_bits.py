"""The law of bits: one digest for any schedule, thread count, neighbours, chunks and form of a program.

A case is a function, the shapes of its arguments and how many of them are a batch.  To put another workload
under the law, add a row to CASES.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile.cpu.build import identity
from tessera.core.flags import override
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests.space import nests
from tessera.ir.tile.cpu import complexes, fft, group
from tessera.ir.tile.cpu.lower import expand
from tessera.runtime import tuned
from tests.support.runners.levels import Runtime, by_runtime, prepared
from tests.support.runners.schedules import SCHEDULES, schedules

THREADS = (1, 2, 3, 8)


@dataclass(frozen=True)
class Case:
    """A workload: its function, its arguments, and the axis of a batch in argument and result."""

    run: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    batch: int | None = 0  # how rows of the first argument lie; None: there is no batch
    integers: bool = False  # whether the first argument is of whole numbers, below 40

    def inputs(self) -> list[Any]:
        rng = np.random.default_rng(7)
        drawn = [rng.normal(size=s).astype(np.float32) for s in self.shapes]
        if self.integers:
            drawn[0] = rng.integers(0, 40, size=self.shapes[0])
        return drawn


def gpt(tokens: Any, table: Any, wq: Any, wo: Any, up: Any, down: Any) -> Any:
    """Two layers of a transformer with two heads, causal, that share their weights."""
    x = op.take(table, tokens, axis=0)
    b, s, d = x.shape
    for _ in range(2):
        h = op.layernorm(x)
        q, k, v = (op.swapaxes(op.reshape(h @ wq[i], (b, s, 2, d // 2)), 1, 2) for i in range(3))
        a = op.attention(q, k, v, causal=True)
        x = x + op.reshape(op.swapaxes(a, 1, 2), (b, s, d)) @ wo
        x = x + op.gelu(op.layernorm(x) @ up) @ down
    return op.layernorm(x) @ table.T


GPT = ((3, 17), (40, 32), (3, 32, 32), (32, 32), (32, 64), (64, 32))
CASES = {
    "gemm nn": Case(lambda a, b: a @ b, ((49, 600), (600, 70))),
    "gemm nt": Case(lambda a, b: a @ b.T, ((49, 600), (70, 600))),
    "gemm tn": Case(lambda a, b: a.T @ b, ((600, 49), (600, 70)), 1),
    "gemm batched": Case(lambda a, b: a @ b, ((5, 13, 40), (5, 40, 70)), None),
    "gemm, bias and gelu": Case(lambda a, b, c: op.gelu(a @ b + c), ((49, 70), (70, 70), (70,))),
    "softmax": Case(op.softmax, ((70, 1100),)),
    "layernorm": Case(op.layernorm, ((70, 1100),)),
    "row sums": Case(lambda x: op.sum(x, 1), ((70, 1700),)),
    "column sums": Case(lambda x: op.sum(x, 0), ((2700, 300),), 1),
    "sum": Case(op.sum, ((1 << 17,),), None),
    "gelu chain": Case(lambda x: op.gelu(x * 2.0 + 1.0) * x, ((70, 300),)),
    "attention": Case(op.attention, ((3, 70, 24), (3, 90, 24), (3, 90, 24)), None),
    "causal attention": Case(partial(op.attention, causal=True), ((3, 70, 24),) * 3, None),
    "fft": Case(lambda x: op.real(op.fft(x)), ((40, 12),)),
    "fft along columns": Case(lambda x: op.imag(op.fft(x, axis=0)), ((12, 40),), None),
    "gpt": Case(gpt, GPT, 0, True),
}
every_case = pytest.mark.parametrize("name", CASES)
FEW = SCHEDULES // 10
# Seeded faults show in one of these, and not among the few.
NEEDS = {"softmax": SCHEDULES, "attention": SCHEDULES // 3, "gemm, bias and gelu": SCHEDULES // 3}


def counted(names: Iterable[str]) -> Any:
    """Cases by the number of schedules to compare: a few in `make test`, all in `make test-deep`."""
    few = [(name, NEEDS.get(name, FEW)) for name in names]
    rest = [
        pytest.param(name, SCHEDULES, marks=pytest.mark.deep)
        for name, count in few
        if count < SCHEDULES
    ]
    return pytest.mark.parametrize(("name", "count"), [*few, *rest])


def digest(*arrays: Any) -> str:
    whole = hashlib.sha256()
    for x in arrays:
        whole.update(np.ascontiguousarray(x).tobytes())
    return whole.hexdigest()


def tensors(arrays: Sequence[Any]) -> list[Any]:
    return [ts.tensor(x) for x in arrays]


@cache
def jitted(name: str) -> Any:
    return ts.jit(CASES[name].run, target="cpu")


@cache
def wanted(name: str) -> str:
    return digest(jitted(name)(*tensors(CASES[name].inputs())))


def program(c: Case) -> Program:
    return lower(prepared(ts.trace(c.run, *tensors(c.inputs()))))


# What is no kernel of its own has no nest; its lowering has numbers instead, which are varied here.


def attention_schedules() -> Iterator[dict[Any, Any]]:
    """Blocks at once and strip by strip, in turn."""
    found = product((12, 35, 24, 7, 18, 10, 14, 5), (1, 2, 3, 6), (16, 32, 48))
    for i, (tall, *block) in enumerate(found):
        close = 1 << 18 if i % 2 else 0
        rows = dict.fromkeys(
            ((group, x) for x in ("_TALL", "_LOW", "_TALLER", "_TALL_ENOUGH")), tall
        )
        yield {**rows, (group, "_CLOSE"): close,
               (group, "block"): lambda dtype, block=tuple(block): block}  # fmt: skip


def fft_schedules() -> Iterator[dict[Any, Any]]:
    choices = product(range(32, 288, 32), (1, 2, 3, 8, 16), (1, 100), (8, 8192), (16, 64))
    for block, *chosen in choices:
        s = fft.FftSchedule(*chosen)
        yield {(fft, "Transform"): partial(fft.Transform, schedule=s), (complexes, "_BLOCK"): block}


VARIED = {"attention": attention_schedules, "causal attention": attention_schedules,
          "fft": fft_schedules, "fft along columns": fft_schedules}  # fmt: skip


@counted(VARIED)
def test_every_number_of_a_lowering_gives_the_same_bits(
    name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    p, inputs = program(CASES[name]), CASES[name].inputs()
    types = {n: b.type for n, b in p.buffers.items()}
    programs: set[str] = set()
    for settings in VARIED[name]():
        with monkeypatch.context() as patch:
            for (module, constant), value in settings.items():
                patch.setattr(module, constant, value)
            made = [str(x.kernel) for s in p.steps for x in expand(s, types).launches]
            text = "\n".join(made)
            if text not in programs:
                programs.add(text)
                assert digest(*by_runtime(p, inputs)) == wanted(name), settings
        if len(programs) == count:
            return
    raise AssertionError(f"{len(programs)} schedules only")


@counted([n for n in CASES if n not in VARIED])
def test_every_schedule_has_the_same_bits(name: str, count: int) -> None:
    c = CASES[name]
    p, inputs, runtime = program(c), c.inputs(), Runtime()
    digests = {digest(*runtime.run(q, inputs)) for q in schedules(p, count)}
    assert digests == {wanted(name)}


@every_case
@pytest.mark.parametrize("threads", THREADS)
def test_every_number_of_threads_has_the_same_bits(name: str, threads: int) -> None:
    with ts.threads(threads):
        assert digest(jitted(name)(*tensors(CASES[name].inputs()))) == wanted(name)


@every_case
def test_tuned_programs_have_the_same_bits_on_all_threads(name: str, tmp_path: Path) -> None:
    c = CASES[name]
    p = program(c)
    types = {n: b.type for n, b in p.buffers.items()}
    with override(cache_dir=tmp_path):
        chosen = 0
        for i, s in enumerate(p.steps):
            if isinstance(s, Kernel):
                found = list(nests(s))
                nest = str(found[(17 + i) % len(found)])
                tuned.keep(tuned.Tuned(identity(s, types), "", nest, 1.0, 2.0))
                chosen += 1
        f = ts.jit(c.run, target="cpu")
        steps = f.lower(*tensors(c.inputs())).schedule.steps
        assert sum(isinstance(s, Kernel) and s.nest is not None for s in steps) == chosen
        for threads in THREADS:
            with ts.threads(threads):
                assert digest(f(*tensors(c.inputs()))) == wanted(name)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.batch is not None])
def test_a_row_has_the_same_bits_alone_in_a_chunk_and_in_a_batch(name: str) -> None:
    c = CASES[name]
    x, *rest = c.inputs()
    axis = c.batch
    assert axis is not None
    whole = jitted(name)(*tensors([x, *rest])).numpy()
    n = x.shape[axis]
    for first, last in ((0, 1), (n // 2, n // 2 + 1), (0, n // 3), (n // 3, n), (1, n)):
        part = np.ascontiguousarray(np.take(x, range(first, last), axis))
        got = jitted(name)(*tensors([part, *rest])).numpy()
        assert digest(got) == digest(whole[first:last]), (first, last)


def test_a_sequence_has_the_same_bits_whole_and_cut_short() -> None:
    tokens, *rest = CASES["gpt"].inputs()
    whole = jitted("gpt")(*tensors([tokens, *rest])).numpy()
    for length in (1, 8, 16):
        got = jitted("gpt")(*tensors([np.ascontiguousarray(tokens[:, :length]), *rest])).numpy()
        assert digest(got) == digest(whole[:, :length]), length


@every_case
def test_eager_code_has_the_same_bits(name: str) -> None:
    c = CASES[name]
    with override(target="cpu"):
        assert digest(c.run(*tensors(c.inputs()))) == wanted(name)
