"""Errors a user can see.

A message says which op, what it got, what it wanted and what to do, on one line; the user's file
and line stand below it.
"""

from __future__ import annotations

import sys
from typing import Self

from tessera.core.source import Location, caller


class TesseraError(Exception):
    """Base of every error raised on purpose."""

    location: Location | None
    origins: tuple[str, ...] = ()  # where the operands came from

    def __init__(self, message: str = ""):
        super().__init__(message)
        self.location = caller()

    def at(self, location: Location | None) -> Self:
        """This error, pointing at another line of the user's."""
        if location is not None:
            self.location = location
        return self

    @property
    def message(self) -> str:
        """The text without the location."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        where = [f"at {self.location}"] if self.location else []
        return "\n  ".join([self.message, *where, *self.origins])


class ShapeError(TesseraError, ValueError):
    """Operand shapes do not fit an op, or a size breaks a constraint."""


class AxisError(ShapeError, IndexError):
    """An axis or an index is out of range, repeated or missing."""


class DTypeError(TesseraError, TypeError):
    """Operand dtypes do not fit an op or do not promote."""


class PolicyError(DTypeError):
    """Numeric policies are contradictory or mixed without a cast."""


class OperandError(TesseraError, TypeError):
    """An operand or a parameter is of a kind that the op cannot take."""


class NoAttributeError(TesseraError, AttributeError):
    """An object has no attribute of this name."""


class DeviceError(TesseraError, ValueError):
    """A device does not exist, or operands live on different ones."""


class RankError(TesseraError, RuntimeError):
    """A rank of a run is dead, too late, or at another collective."""


class CopyError(TesseraError, ValueError):
    """Data would have to be copied, which the call ruled out."""


class TreeError(TesseraError, ValueError):
    """Pytrees differ in structure."""


class AnnotationError(TesseraError, TypeError):
    """An annotation is malformed, or a call breaks it."""


class TraceError(TesseraError, TypeError):
    """A traced value was used where only a concrete one can be, or outside its trace."""


class RuleError(TesseraError, TypeError):
    """A transform met an op that has no rule for it."""


class NumericalError(TesseraError, ArithmeticError):
    """The values of an operand admit no result: a singular matrix, an iteration that diverges."""


class VerifyError(TesseraError, ValueError):
    """IR breaks an invariant of its level."""


class ParseError(TesseraError, ValueError):
    """Text is not IR of a known level and version."""


class ScheduleError(TesseraError, ValueError):
    """A schedule that a kernel cannot be computed by."""


class CompileError(TesseraError, RuntimeError):
    """LLVM could not turn a kernel into machine code."""


class CompilerFault(TesseraError, RuntimeError):
    """The compiler failed, and TESSERA_STRICT is set or nothing else can run the program."""


class CompilerFaultWarning(RuntimeWarning):
    """The compiler failed, and the program runs by a plainer lowering."""


class OutOfMemoryError(TesseraError, MemoryError):
    """There is not enough memory for what a program needs."""


class ModelError(TesseraError, ValueError):
    """A model file is damaged, or of a kind that cannot be read."""


class FlagError(TesseraError, ValueError):
    """An environment variable or a flag has a value that it cannot take."""


class FileError(TesseraError, ValueError):
    """A file cannot be read or written: it is missing, truncated, damaged or of another format."""


class MissingFileError(FileError, FileNotFoundError):
    """There is no file of this name."""


def out_of_memory(user: str, e: MemoryError) -> OutOfMemoryError:
    """The error of an op or a function whose memory could not be had."""
    if isinstance(e, OutOfMemoryError):
        return e
    said = f" ({e})" if str(e) else ""
    return OutOfMemoryError(
        f"{user}: there is not enough memory{said}; use smaller tensors or a loop over pieces"
    )


def located(error: TesseraError) -> TesseraError:
    """The error without the frames of the compiler; it knows the user's line since it was made."""
    return error.with_traceback(None)


def too_deep(what: str) -> TraceError:
    """The error of a program that is nested deeper than Python can follow."""
    return TraceError(
        f"{what}: Python's recursion limit of {sys.getrecursionlimit()} was reached: functions, branches or "
        "loops "
        "are nested too deep, or a function calls itself without end; write a loop with ts.fori_loop or "
        "ts.scan, "
        "or raise the limit with sys.setrecursionlimit"
    )


def nested_too_deep(what: str, limit: int) -> TraceError:
    """The error of functions, branches and loops inside each other past a limit."""
    return TraceError(
        f"{what}: functions, branches or loops are nested too deep, past {limit} levels, or a function "
        "calls itself "
        "without end; write a loop with ts.fori_loop or ts.scan"
    )
