"""Loops whose steps run without Python between them.

A step of a scan or of a while_loop is a program.  Where all that it does is kernels, copies, and loops and
choices of such programs, the whole loop is one call of machine code (runtime/steps_ir.py).  From time to time
it asks Python whether to go on, so that signals are seen.  A body that calls the host runs step by step.  A
profile has a loop laid out once more with clocks between what its steps do (inspect/profile_loop.py).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Generator, Sequence
from ctypes import CFUNCTYPE, c_int64, c_void_p, cast
from typing import Any, NoReturn

import numpy as np

from tessera.compile.cpu.bound_program import PROGRAMS
from tessera.compile.cpu.loop_layout import (
    Branches,
    Check,
    KernelSteps,
    NotNativeError,
    Steps,
    Words,
    lay_out,
    placed,
)
from tessera.core.observe import Observed
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array
from tessera.runtime import memory
from tessera.runtime.kernel import LAUNCHES, address
from tessera.runtime.pool import pool
from tessera.runtime.pool_ir import TIDY

_PATIENCE = 0.01  # seconds between two looks at signals
_GROWTH = 8  # of the steps between two looks, at most

Slow = Callable[..., Any]

# What runs a loop while programs are observed; None: its steps run one by one.
LOOPS: Observed[Callable[[NativeLoop], Callable[[Sequence[Array]], list[Array]] | None]] = Observed(
    "loops", "loops on the CPU whose steps need no Python"
)


class NativeLoop:
    """A loop: (*carry, *xs, *others) -> (*carry, *ys)."""

    def __init__(self, steps: Steps, results: Sequence[TensorType], slow: Slow):
        self.steps, self.slow = steps, slow
        types = [steps.body.program.types[n] for n in steps.body.program.image.inputs]
        self.carried = [_described(t) for t in types[: steps.carry]]
        self.rows = [_described(t) for t in results[steps.carry :]]
        self.free: list[LoopState] = [LoopState(steps)]
        self.watched: object = None  # what a profile has made of it

    @property
    def bytes(self) -> int:
        """What it needs beside its results."""
        state = self.free[0]
        return sum(state.sizes) + state.room

    def __call__(self, *operands: Array) -> list[Array]:
        if PROGRAMS.observers or LAUNCHES.observers:
            return self.observed(operands)
        try:
            state = self.free.pop()
        except IndexError:  # another thread is in this loop
            state = LoopState(self.steps)
        try:
            return self.run(state, operands)
        finally:
            self.free.append(state)

    def observed(self, operands: Sequence[Array]) -> list[Array]:
        """Run while something looks on."""
        run = LOOPS.observers[-1](self) if LOOPS.observers else None
        made: list[Array] = self.slow(*operands) if run is None else run(operands)
        return made

    def run(self, state: LoopState, operands: Sequence[Array]) -> list[Array]:
        s = self.steps
        n, stop = s.carry, s.carry + s.xs
        slots = [memory.empty(shape, dtype) for shape, dtype in self.carried]
        for slot, x in zip(slots, operands, strict=False):
            np.copyto(slot, x)
        slots += [memory.empty((size,), np.uint8) for size in state.sizes[n:]]
        others = [_in_order(x) for x in operands[n:]]
        ys = [memory.empty(shape, dtype) for shape, dtype in self.rows]
        block = memory.empty((state.room,), np.uint8)
        at = [address(x) for x in slots]
        at += [address(x) for x in others[: s.xs]] + [address(y) for y in ys]
        for x, words in zip(others[s.xs :], state.outer, strict=True):
            at += [address(x)] * len(words)
        state.words[state.places] = at
        state.words[state.held] = state.offsets + address(block)
        assert len(others) + n >= stop
        state.run(s.length)
        by_address = dict(zip(at, slots, strict=False))
        ends = state.words[state.slots : state.slots + n].tolist()
        carry = [
            _shown(by_address[end], shape, dtype) if 0 not in shape else slots[i]
            for i, (end, (shape, dtype)) in enumerate(zip(ends, self.carried, strict=True))
        ]
        return [*carry, *ys]


class LoopState:
    """The words of a loop, which one thread at a time may use."""

    def __init__(self, steps: Steps, words: Words | None = None):
        w = Words() if words is None else words
        w.control = w.add(0, 0, 0)
        laid = lay_out(w, steps)
        self.kept = w, laid
        self.series, self.checks = w.series, w.checks
        self.sizes, self.outer = list(laid.sizes), laid.outer
        self.slots = laid.slots[0] if laid.slots else 0
        everywhere = [*laid.slots, *laid.xs, *laid.ys, *(x for words in laid.outer for x in words)]
        self.places = np.array(everywhere, np.int64)
        self.held = np.array([word for word, _ in w.temporary], np.int64)
        self.offsets, self.room = placed([size for _, size in w.temporary])
        self.words = w.finished()
        base = int(self.words.ctypes.data)
        self.record, self.control = base + 8 * laid.record, w.control
        self.error: BaseException | None = None  # of a signal handler
        self.granted, self.since = 1, 0.0
        self.listen()

    def listen(self) -> None:
        """Have the loop ask `looks` from time to time."""
        self.asked = self.looks()
        next(self.asked)
        self.tick = CFUNCTYPE(c_int64)(self.asked.__next__)
        self.words[self.control + 1] = cast(self.tick, c_void_p).value

    def run(self, length: int) -> None:
        """Do the steps; what a signal handler raises is raised here."""
        if inspect.getgeneratorstate(self.asked) == inspect.GEN_CLOSED:
            self.listen()
        self.words[self.control] = self.granted = 1
        self.words[self.control + 2] = 0
        self.error, self.since = None, time.perf_counter()
        if pool().run_steps(self.record, self.series, 0, length) < 0:
            self.stop()

    def stop(self) -> NoReturn:
        """Raise what a check or a signal handler has to tell."""
        failed = int(self.words[self.control + 2])
        if failed:
            self.checks[failed - 1].fail()
        raise KeyboardInterrupt if self.error is None else self.error

    def looks(self) -> Generator[int, None, None]:
        """How many steps there may be until the next look; 0: no more.

        A generator that goes on runs signal handlers where it stands, inside of `try`; a function runs them
        before its first statement, and what they raise would be lost.
        """
        while True:
            try:
                while True:
                    yield self.granted
                    now = time.perf_counter()
                    enough = self.granted * _PATIENCE / max(now - self.since, 1e-9)
                    self.granted = max(1, int(min(self.granted * _GROWTH, enough)))
                    self.since = now
            except GeneratorExit:
                return
            except BaseException as e:
                self.error, self.granted = e, 0


class NativeStep:
    """A step that Python can run, and that loops can run without it."""

    def __init__(self, run: Slow, steps: KernelSteps | Branches | Check):
        self.own, self.steps = run, steps

    def __call__(self, *operands: Array) -> Any:
        return self.own(*operands)


def native_check(run: Slow, types: Sequence[TensorType]) -> NativeStep:
    """A check of (x, ok, of) that ends the program with the error of a call."""

    def fail() -> None:
        x, _, of = (np.empty(*_described(t)) for t in types)
        run(x, np.zeros((), np.bool_), of)

    return NativeStep(run, Check(fail))


def native(steps: Steps, results: Sequence[TensorType], slow: Slow) -> NativeLoop | None:
    """A loop without Python between its steps; None: they need it."""
    try:
        return NativeLoop(steps, results, slow)
    except NotNativeError:
        return None


def _described(t: TensorType) -> tuple[tuple[int, ...], Any]:
    return tuple(int(n) for n in t.shape), np.dtype(t.dtype.np)


def _in_order(x: Any) -> Array:
    if type(x) is np.ndarray and x.flags.num & TIDY == TIDY:
        return x
    made: Array = np.require(x, requirements=("C", "A"))
    return made


def _shown(x: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """The memory of a slot as what it holds."""
    if x.shape == shape and x.dtype == dtype:
        return x
    made: Array = x.reshape(-1).view(dtype).reshape(shape)
    return made
