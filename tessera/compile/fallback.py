"""What runs when the compiler fails: a plainer lowering, with a warning and a file to report.

A fault inside the compiler never stops the user's program (docs/errors.md).  A caller gives its ways to
run a program, the best one first:

    compiled as a whole -> op by op, each compiled -> by the Schedule interpreter -> by NumPy references
    a hand-written kernel: compiled -> by the Tile interpreter

The first that works runs.  What failed before it becomes a CompilerFaultWarning at the user's line, which
names the pass, the op and a file that reproduces the fault.  With TESSERA_STRICT the fault is an error, and
has its cause.
"""

from __future__ import annotations

import hashlib
import platform
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from tessera.compile.executable import Executable, PassResult
from tessera.core.during import pass_of
from tessera.core.errors import (
    CompileError,
    CompilerFault,
    CompilerFaultWarning,
    OperandError,
    OutOfMemoryError,
    TesseraError,
    VerifyError,
)
from tessera.core.flags import flags, override
from tessera.core.source import Location, caller
from tessera.core.text import type_text
from tessera.core.types import TensorType
from tessera.ir.graph.ir import Array, Graph, Node, eager_kernel
from tessera.ir.tile.ir import Kernel
from tessera.runtime.folder import saved

T = TypeVar("T")
Way = tuple[str, Callable[[], T]]  # what it is called in a warning, and what makes it
HEAD = "// A fault of the Tessera compiler."
BY_OPS = "op by op, each op compiled by itself"
BY_TILES = "by the Tile interpreter, which is slow"
BY_REFERENCES = "by the NumPy references of its ops, which may differ in the last bits"
_FAULTS = (
    CompileError,
    VerifyError,
)  # errors that are never the user's while a program is compiled
_LONGEST = 100_000_000  # characters of IR in a file: large constants are part of the text


@dataclass(frozen=True)
class Task:
    """What the compiler was asked for; the types are those of a call, where it was for one."""

    graph: Graph | Kernel  # a program, or a kernel that the user wrote
    target: str
    numerics: str
    types: Sequence[TensorType] = ()

    @property
    def program(self) -> Graph:
        """The graph, where it is for no kernel."""
        assert isinstance(self.graph, Graph), self.graph
        return self.graph


def first_that_works(task: Task, *ways: Way[T]) -> T:
    """What the first way gives; when the compiler fails there, what the next one gives, with a warning."""
    fault: Exception | None = None
    for name, make in ways:
        made, error = _attempted(make)
        if error is None:
            if fault is not None:
                _warn(fault, task, name)
            return made  # type: ignore[return-value]
        fault = fault or error
        if flags().strict:
            break
    assert fault is not None, task
    raise _error(fault, task) from fault


def demanded(task: Task, make: Callable[[], T]) -> T:
    """What a part of the compiler gives, where nothing else would do: its fault is an error."""
    return first_that_works(task, ("", make))


def _attempted(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """What a part of the compiler gives, or its fault; errors of the user's pass through.

    This is the only place that catches every exception: whatever a pass raises is our fault.
    """
    try:
        return make(), None
    except CompilerFault:  # told already, or to be told
        raise
    except _FAULTS as e:
        return None, e
    except (TesseraError, Warning):  # a warning that the user's filters made an error is theirs
        raise
    except MemoryError:
        raise OutOfMemoryError(
            "compile: there is too little memory to compile the program"
        ) from None
    except Exception as e:
        return None, e


# Plain executables


class PlainExecutable(Executable):
    """A graph as it was traced, run op by op, each op as eager code runs it."""

    kernel_of = staticmethod(eager_kernel)

    def __init__(self, graph: Graph, record: Sequence[PassResult], numerics: str):
        self.numerics = numerics
        with override(numerics=numerics):
            super().__init__(graph, record)

    def run(self, inputs: Sequence[Array], donated: frozenset[int] = frozenset()) -> list[Array]:
        """The outputs for these inputs; the memory of those that are donated is not used."""
        with override(numerics=self.numerics):
            return super().run(inputs)


def plain_ways(task: Task) -> tuple[Way[Executable], ...]:
    """How a program runs without the whole of the compiler."""
    g = task.program
    record = (PassResult("trace", 0.0, g),)
    return (
        (BY_OPS, lambda: PlainExecutable(g, record, task.numerics)),
        (BY_REFERENCES, lambda: Executable(g, record)),
    )


class PlainRun:
    """A plain executable where a prepared program would stand."""

    peak = 0
    constants: list[Array] | None = None

    def __init__(self, executable: Executable):
        self.executable = executable
        self._own = len(executable.graph.inputs) - len(executable.graph.captured)

    def run(self, xs: Sequence[Array]) -> list[Array]:
        """The outputs for inputs, after which captured arrays stand."""
        return self.executable.run(xs[: self._own])

    def direct(self, short: float) -> None:
        """No call of machine code runs it."""
        return


def plain_runs(ways: Sequence[Way[Executable]]) -> Iterator[Way[PlainRun]]:
    """The same ways, in the place of a program that was to be prepared for the sizes of a call."""
    for name, make in ways:
        yield name, lambda make=make: PlainRun(make())  # type: ignore[misc]


# What is told


def failed(who: str, missing: str) -> OperandError:
    """What to say of a function that runs plainly, to who asks for what only compiled ones have."""
    return OperandError(
        f"{who}: the compiler failed on this function, which has no {missing}; the warning says where, and "
        "TESSERA_STRICT=1 makes it an error"
    )


def _warn(e: Exception, task: Task, instead: str) -> None:
    text, place = _told(e, task)
    message = f"{text}; the program runs {instead}; {_kept(e, task)}"
    if place is None:
        warnings.warn(message, CompilerFaultWarning, stacklevel=4)
    else:
        warnings.warn_explicit(message, CompilerFaultWarning, place.file, place.line)


def _error(e: Exception, task: Task) -> TesseraError:
    if isinstance(e, TesseraError):
        return e
    text, place = _told(e, task)
    return CompilerFault(f"{text}; {_kept(e, task)}").at(place)


def _told(e: Exception, task: Task) -> tuple[str, Location | None]:
    """The fault in one line: pass, op, exception; and the user's line."""
    node = _node(e)
    place = (node.location if node else None) or caller()
    at = f" at {node.op.name}" if node else ""
    at += f" ({place.file}:{place.line})" if node and place else ""
    what = " ".join(traceback.format_exception_only(e)[-1].split())
    stage = pass_of(e)
    return f"{task.graph.name}: the compiler failed in {stage}{at} with {what:.300}", place


def _node(e: Exception) -> Node | None:
    """The node that the failing code had in its hands: that of the innermost frame which has one."""
    found: Node | None = None
    for frame, _ in traceback.walk_tb(e.__traceback__):
        for x in frame.f_locals.values():
            x = getattr(x, "node", x)  # a value, or a step that the host runs
            if isinstance(x, Node):
                found = x
    return found


def _kept(e: Exception, task: Task) -> str:
    """Where the reproduction lies, and what to do with it."""
    text, error = _attempted(lambda: reproduction(e, task))
    if text is None:
        return f"a file to reproduce it could not be written ({error})"
    number = hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        path = saved("faults", f"{task.graph.name}-{number}.mlir", text)
    except OSError as why:
        return f"a file to reproduce it could not be written ({why.strerror or why})"
    return f"please report it with {path}, which `tessera replay` runs"


def reproduction(e: Exception, task: Task) -> str:
    """All that is needed to see a fault again: the types, the trace and the IR, but no data."""
    g = task.graph
    given = g.parameters if isinstance(g, Kernel) else g.inputs
    types = task.types or [x.type for x in given]
    lines = [
        HEAD + "  Please report it with this file, which holds no data but constants.",
        "// See it again: tessera replay FILE",
        f"// target: {task.target}",
        f"// numerics: {task.numerics}",
        f"// pass: {pass_of(e)}",
        *(f"// input: {type_text(t)}" for t in types),
        f"// versions: {_versions()}",
    ]
    trace = "".join(traceback.format_exception(e)).rstrip().splitlines()
    text = g.text
    body = text if len(text) < _LONGEST else f"// The IR has {len(text)} characters: left out."
    return "\n".join([*lines, *(f"// | {line}" for line in trace), body, ""])


@cache
def _versions() -> str:
    from importlib import metadata  # with the library's e-mail: a tenth of the import of tessera

    names = ("tessera", "numpy", "llvmlite", "triton")
    found = [f"{d.name} {d.version}" for d in metadata.distributions() if d.name in names]
    return ", ".join([*sorted(found), f"python {platform.python_version()}", platform.platform()])
