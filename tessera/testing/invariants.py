"""The law of bits for a user's function: runs, threads, batch neighbours and schedules change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.compile.cpu.build import image_of
from tessera.compile.cpu.executable import MachineExecutable
from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, TesseraError, located
from tessera.ir.graph.ir import Value, data_of
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.nests.space import nests
from tessera.lang.create import tensor
from tessera.lang.jit import Jitted, jit
from tessera.lang.kernel.decorate import KernelFunction
from tessera.lang.schedule import Schedule
from tessera.runtime.code import Loading
from tessera.runtime.threads import threads
from tessera.testing.close import CheckFailed, array_of, difference

KINDS = ("runs", "threads", "batch", "schedule")
_THREADS = (1, 2, 3)
_BLOCKS = ((8,), (16,), (32,), (8, 16), (16, 16), (32, 32), (16, 64))  # of hand-written kernels


@dataclass(frozen=True)
class Invariance:
    """How many times a function ran in each way with the same bits."""

    function: str
    runs: dict[str, int]

    def __str__(self) -> str:
        said = ", ".join(f"{n} by {kind}" for kind, n in self.runs.items())
        return f"{self.function}: the same bits in {sum(self.runs.values())} runs ({said})"


@blames_arguments
def invariant(
    f: Callable[..., Any], *args: Any, of: Sequence[str] | None = None,
    batch: int | Sequence[int] | None = None,
    repeats: int = 3, schedules: int = 6,
) -> Invariance:  # fmt: skip
    """Raise unless f gives the same bits in every run, on 1, 2 and 3 threads, and under other schedules of
    its kernels.

    `batch` gives the arguments, by number, whose first axis is a batch: then each row alone, and the rows
    in reverse, must have the bits that they have together.  `of` chooses among "runs", "threads", "batch"
    and "schedule".
    """
    chosen = _chosen(of, batch)
    g = f if isinstance(f, Jitted | KernelFunction) else jit(f)
    name = getattr(f, "__name__", "f")
    want = _arrays(g(*args))
    done: dict[str, int] = {}
    for kind in chosen:
        done[kind] = 0
        for how, got, expected in _ways(kind, g, args, batch, repeats, schedules, want):
            _demand(name, how, got, expected)
            done[kind] += 1
    return Invariance(name, done)


def _chosen(of: Sequence[str] | None, batch: Any) -> tuple[str, ...]:
    if of is None:
        return tuple(k for k in KINDS if k != "batch" or batch is not None)
    found = (of,) if isinstance(of, str) else tuple(of)
    for k in found:
        if k not in KINDS:
            raise located(
                OperandError(f"invariant: of has {k!r}, expected some of {', '.join(KINDS)}")
            )
    if "batch" in found and batch is None:
        raise located(
            OperandError(
                "invariant: 'batch' needs batch=, the numbers of the arguments whose first axis is a batch"
            )
        )
    return found


_Way = tuple[str, Sequence[Any], Sequence[Any]]


def _ways(
    kind: str, g: Any, args: Sequence[Any], batch: Any, repeats: int, schedules: int, want: Sequence[Any]
) -> Iterator[_Way]:  # fmt: skip
    """Runs of one kind: what each is called, what it gave, what was expected."""
    if kind == "runs":
        for i in range(repeats):
            yield f"run {i + 2}", _arrays(g(*args)), want
    elif kind == "threads":
        for n in _THREADS:
            with threads(n):
                yield f"{n} threads", _arrays(g(*args)), want
    elif kind == "batch":
        yield from _batches(g, args, (batch,) if isinstance(batch, int) else tuple(batch), want)
    elif isinstance(g, KernelFunction):
        yield from _blocks(g, args, want)
    else:
        yield from _nests(g, args, schedules, want)


def _arrays(result: Any) -> list[Any]:
    return [np.array(array_of(x)) for x in tree.leaves(result)]


def _demand(name: str, how: str, got: Sequence[Any], want: Sequence[Any]) -> None:
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        found = difference(a, b)
        if found:
            which = f" in result {i}" if len(want) > 1 else ""
            raise CheckFailed(f"{name}: {how} has other bits{which}: {found}")


def _batches(
    g: Any, args: Sequence[Any], batched: Sequence[int], want: Sequence[Any]
) -> Iterator[_Way]:
    sizes = {len(x) for i in batched for x in map(array_of, tree.leaves(args[i]))}
    if len(sizes) != 1:
        raise located(
            OperandError(f"invariant: batched arguments have first axes of sizes {sorted(sizes)}")
        )
    rows = range(sizes.pop())
    if any(w.shape[:1] != (len(rows),) for w in want):
        raise located(
            OperandError(
                f"invariant: a result has no first axis of {len(rows)}, the size of the batch"
            )
        )

    def cut(index: Any) -> list[Any]:
        return _arrays(
            g(
                *[
                    tree.map(lambda x: _rows(x, index), a) if i in batched else a
                    for i, a in enumerate(args)
                ]
            )
        )

    turned = np.asarray(rows)[::-1].copy()
    yield "the batch in reverse", cut(turned), [w[turned] for w in want]
    for i in rows:
        yield f"row {i} of the batch alone", cut(slice(i, i + 1)), [w[i : i + 1] for w in want]


def _rows(x: Any, index: Any) -> Any:
    made = np.ascontiguousarray(array_of(x)[index])
    return tensor(made, dtype=x.dtype) if isinstance(x, Value) else made


def _blocks(g: KernelFunction, args: Sequence[Any], want: Sequence[Any]) -> Iterator[_Way]:
    """The same kernel with other blocks; those that it cannot have are left out."""
    for block in _BLOCKS:
        other = g.with_schedule(Schedule(block=block))
        try:
            got = _arrays(other(*args))
        except TesseraError:
            continue
        yield f"schedule {other.schedule}", got, want


def _nests(g: Jitted, args: Sequence[Any], count: int, want: Sequence[Any]) -> Iterator[_Way]:
    """The same program with other loop nests for its kernels."""
    made, tensors = g.program(*args)
    if not isinstance(made, MachineExecutable):
        return
    data = [data_of(v, "invariant") for v in tensors]
    for i, p in enumerate(_schedules(made.schedule, count)):
        with Loading() as loading:
            image = image_of(p, loading)
            loading.finish()
        other = MachineExecutable(made.graph, (), image, made.numerics)
        yield f"schedule {i + 1} of its kernels", [np.array(x) for x in other.run(data)], want


def _schedules(p: Program, count: int) -> Iterator[Program]:
    """So many schedules of a program, from all over the spaces of its kernels."""
    spaces = {s.name: list(nests(s)) for s in p.steps if isinstance(s, Kernel)}
    most = max(map(len, spaces.values()), default=1)
    seen, count = {p.hash}, min(count, most - 1)
    for i in range(1, count + 1):
        steps = tuple(
            replace(s, nest=spaces[s.name][i * len(spaces[s.name]) // (count + 1)])
            if isinstance(s, Kernel)
            else s
            for s in p.steps
        )
        q = replace(p, steps=steps)
        if q.hash not in seen:
            seen.add(q.hash)
            yield q
