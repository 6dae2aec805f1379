"""Mutation of a kernel: each mutant has one fault in its Tile IR, which a good test must notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.dims import Size
from tessera.core.errors import OperandError, located
from tessera.core.source import Location
from tessera.ir.tile.ir import Block, Kernel, Operation, walk
from tessera.lang.kernel.decorate import KernelFunction
from tessera.lang.kernel.launch import interpret
from tessera.lang.kernel.signature import BoundArguments
from tessera.lang.kernel.translate import Translated
from tessera.lang.schedule import Schedule

# A scalar op, and a wrong one that takes the same operands.
_OTHERS = {
    "add": "sub", "sub": "add", "mul": "add", "div": "mul", "max": "min", "min": "max", "lt": "le",
    "le": "lt",
    "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "exp": "exp2", "exp2": "exp", "log": "log2",
    "log2": "log",
    "sin": "cos", "cos": "sin", "sqrt": "rsqrt", "rsqrt": "sqrt", "tanh": "sigmoid", "neg": "pos",
    "abs": "pos",
    "logical_and": "logical_or", "logical_or": "logical_and", "floor": "ceil", "ceil": "floor",
    "square": "abs",
}  # fmt: skip
_FOLDS = {"add": "max", "max": "min", "min": "max", "mul": "add"}


@dataclass(frozen=True)
class Mutant:
    """One fault: the operation that it is in, counted from the begin of the kernel, and what changed."""

    number: int
    change: str
    attributes: Mapping[str, Any]
    location: Location | None = None

    def __str__(self) -> str:
        return f"{self.change}" + (f", at {self.location}" if self.location else "")

    def of(self, kernel: Kernel) -> Kernel:
        """The kernel with this fault."""
        count = iter(range(1 << 30))

        def changed(b: Block) -> Block:
            out = []
            for op in b.operations:
                mine = next(count) == self.number
                inner = None if op.block is None else changed(op.block)
                given = {**op.attributes, **self.attributes} if mine else op.attributes
                out.append(
                    Operation(
                        op.name, op.operands, given, op.results, op.memory, inner, op.location
                    )
                )
            return Block(b.arguments, tuple(out), b.outputs)

        return replace(kernel, body=changed(kernel.body))


@dataclass(frozen=True)
class Mutations:
    """What a test made of the mutants of a kernel."""

    kernel: str
    killed: tuple[Mutant, ...]
    survived: tuple[Mutant, ...]

    @property
    def score(self) -> float:
        """The share of mutants that the test noticed."""
        count = len(self.killed) + len(self.survived)
        return len(self.killed) / count if count else 1.0

    def __str__(self) -> str:
        count = len(self.killed) + len(self.survived)
        lines = [f"{self.kernel}: {len(self.killed)} of {count} mutants killed ({self.score:.0%})"]
        return "\n".join([*lines, *(f"  survived: {m}" for m in self.survived)])


class _Mutated(KernelFunction):
    """A kernel with a fault."""

    def __init__(self, base: KernelFunction, mutant: Mutant | None, seen: list[Kernel]):
        super().__init__(base.function, base.schedule, base.auto)
        self._mutant, self._seen = mutant, seen

    def translated(
        self, bound: BoundArguments, sizes: Mapping[str, Size], s: Schedule, fixed: bool = False
    ) -> Translated:
        """The translation of the kernel, with the fault."""
        t = super().translated(bound, sizes, s, fixed)
        self._seen.append(t.kernel)
        return t if self._mutant is None else replace(t, kernel=self._mutant.of(t.kernel))

    def with_schedule(self, schedule: Any = None, *, gpu: Any = None) -> KernelFunction:
        """The same faulty kernel under another schedule."""
        plain = KernelFunction(self.function, self.schedule, gpu=self.on_gpu)
        base = plain.with_schedule(schedule, gpu=gpu)
        return _Mutated(base, self._mutant, self._seen)


@blames_arguments
def mutate(
    kernel: Any, check: Callable[[Any], Any], *, count: int | None = None, seed: int = 0
) -> Mutations:
    """Run a test on mutants of a kernel, each with one fault, and tell which ones it noticed.

    `check(k)` calls the kernel that it is given and raises when a result is wrong.  Mutants run by the Tile
    interpreter, so that one which reads out of bounds is an error and no crash.  `count` takes so many at
    random.
    """
    if not isinstance(kernel, KernelFunction):
        raise located(OperandError(f"mutate: got {type(kernel).__name__}, expected a @kernel"))
    seen: list[Kernel] = []
    with interpret():
        check(_Mutated(kernel, None, seen))
    if not seen:
        raise located(OperandError("mutate: the test did not call the kernel that it was given"))
    found = list(mutants(seen[0]))
    if count is not None and count < len(found):
        found = sorted(random.Random(seed).sample(found, count), key=lambda m: m.number)
    outcome = [(m, _is_killed(kernel, m, check)) for m in found]
    killed = tuple(m for m, dead in outcome if dead)
    return Mutations(kernel.signature.name, killed, tuple(m for m, dead in outcome if not dead))


def _is_killed(kernel: KernelFunction, m: Mutant, check: Callable[[Any], Any]) -> bool:
    """Whether a test fails on a mutant: whatever it raises, it noticed."""
    with interpret():
        try:
            check(_Mutated(kernel, m, []))
        except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
            return True
    return False


def mutants(kernel: Kernel) -> Iterator[Mutant]:
    """Every mutant of a kernel, in the order of its operations."""
    for number, op in enumerate(walk(kernel.body)):
        for change, attributes in _changes(op):
            yield Mutant(number, change, attributes, op.location)


def _changes(op: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    a, dtype = op.attributes, op.results[0].dtype.name if op.results else ""
    if op.name in ("apply", "fold", "scan"):
        other = (_OTHERS if op.name == "apply" else _FOLDS).get(a["scalar"])
        if other is not None and not (dtype == "bool" and other in ("sub", "max", "min")):
            yield f"{op.name} {a['scalar']} -> {other}", {"scalar": other}
    elif op.name == "full":
        new = (
            not a["value"]
            if isinstance(a["value"], bool)
            else a["value"] + 1
            if abs(a["value"]) < 1e30
            else 0.0
        )
        yield f"constant {a['value']} -> {new}", {"value": type(a["value"])(new)}
    elif op.name == "index":
        yield "index + 1", {"at": a["at"] + 1}
    elif op.name == "for":
        yield "loop begins one step late", {"start": a["start"] + a["step"]}
        yield "loop ends one step early", {"stop": a["stop"] - a["step"]}
    elif op.name in ("load", "store", "gather", "scatter"):
        yield from _moved(op)


def _moved(op: Operation) -> Iterator[tuple[str, dict[str, Any]]]:
    """A box one element on, a mask that is missing, and another number where a load is masked."""
    a, name = op.attributes, op.memory.name if op.memory is not None else ""
    for i, at in enumerate(a["at"]):
        yield (
            f"{op.name} of {name} one on along axis {i}",
            {"at": (*a["at"][:i], at + 1, *a["at"][i + 1 :])},
        )
    for i in a["masked"]:
        yield (
            f"{op.name} of {name} without its mask on axis {i}",
            {"masked": tuple(j for j in a["masked"] if j != i)},
        )
    if a["masked"] and isinstance(a.get("fill"), float):
        yield f"{op.name} of {name} fills with {a['fill'] + 1.0}", {"fill": a["fill"] + 1.0}
