"""A process that turns LLVM IR into machine code, so that an abort inside LLVM ends only itself.

    python -P build_worker.py MACHINE     MACHINE: the file of tessera.ir.target.cpu.machine

It is run by path and imports nothing of tessera: starting takes as long as importing llvmlite.
A request is a length and the text of a module; a reply is `+` or `-`, a length, and the machine
code or the message of an error.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import struct
import sys
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")


def main(path: str) -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    _no_core_dumps()
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what LLVM prints must not get between replies
    serve(_module(path), sys.stdin.buffer, replies)


def serve(machine: Any, requests: BinaryIO, replies: BinaryIO) -> None:
    """Build what comes in."""
    while len(head := requests.read(LENGTH.size)) == LENGTH.size:
        text = requests.read(*LENGTH.unpack(head)).decode()
        try:
            status, payload = b"+", machine.build(text)
        except RuntimeError as e:  # what llvmlite raises for IR that is wrong
            status, payload = b"-", str(e).encode()
        replies.write(status + LENGTH.pack(len(payload)) + payload)
        replies.flush()


def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("machine", path)
    assert spec is not None
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _no_core_dumps() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main(sys.argv[1])
