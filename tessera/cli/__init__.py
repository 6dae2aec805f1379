"""The command line: `tessera ops | compile | inspect | run | profile | bench | tune | cache | doctor | version`.

Exit status: 0 when all went well, 1 when the user's program or a check failed, 2 when the command
itself was wrong, 130 after Ctrl-C.  A TesseraError is shown as its message and the user's line, without a
traceback.  A command's module is loaded when it is asked for: `tessera doctor` works without a compiler.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from tessera.cli.arguments import parse
from tessera.cli.show import Failure, ProgramError, UsageError, complain
from tessera.core.errors import TesseraError
from tessera.core.source import caller

PACKAGES = ("llvmlite", "scipy", "matplotlib")  # that a command may miss when it is asked for
INTERRUPTED = 130  # as shells count: 128 and the number of the signal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    here = caller()  # the script that calls us: no line of the user's
    args = parse(sys.argv[1:] if argv is None else argv)
    try:
        module, function = args.run.split(":")
        status: int = getattr(importlib.import_module(module), function)(args)
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
