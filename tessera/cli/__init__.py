"""The command line: `tessera ops | compile | inspect | run | replay | profile | bench | tune | cache |
bundle | registry | generate | chat | serve | doctor | version`.

Exit status: 0 when all went well, 1 when the user's program or a check failed, 2 when the command
itself was wrong, 130 after Ctrl-C.  A TesseraError is shown as its message and the user's line, without a
traceback.  A command's module is loaded when it is asked for: `tessera doctor` works without a compiler.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tessera.cli.arguments import parse
from tessera.cli.show import Failure, ProgramError, UsageError, complain, program_errors, split
from tessera.core.errors import TesseraError
from tessera.core.source import caller

PACKAGES = (
    "llvmlite",
    "scipy",
    "matplotlib",
    "starlette",
    "uvicorn",
)  # that a command may miss when it is asked for
PACKAGE = str(Path(__file__).parent.parent)  # the folder of the compiler
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a disk that is full
INTERRUPTED = 130  # as shells count: 128 and the number of the signal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    here = caller()  # the script that calls us: no line of the user's
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        module, function = args.run.split(":")
        path, _ = split(getattr(args, "file", None) or "")
        with _plain_warnings(), program_errors(path):
            status: int = getattr(importlib.import_module(module), function)(args)
        sys.stdout.flush()  # what cannot be written is said here, not at the end of Python
        return status
    except UsageError as e:
        return complain(str(e), 2)
    except TesseraError as e:
        return complain(e.message if e.location == here else str(e), 1)
    except Failure as e:
        return complain(str(e), 1)
    except ProgramError as e:
        sys.stderr.write(str(e))
        return 1
    except ModuleNotFoundError as e:
        package = (e.name or "").split(".")[0]
        if package not in PACKAGES:
            raise
        return complain(
            f"this needs {package}, which is not installed; get it with pip install {package}", 1
        )
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of our output has gone, as in `tessera ops | head`
        _print_nothing_more()
        return 0
    except OSError as e:  # files have messages of their own: this is what we print to
        if e.errno not in UNWRITABLE:
            raise
        _print_nothing_more()
        return complain(f"the output cannot be written ({e.strerror})", 1)


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show what the compiler warns of without its own lines; warnings of programs stay as they are."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, file: str, *rest: Any) -> None:
            if file.startswith(PACKAGE):
                complain(str(message), 0, "warning")
            else:
                usual(message, category, file, *rest)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def _print_nothing_more() -> None:
    """Let what is left in buffers go nowhere, so that Python ends without an error of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
