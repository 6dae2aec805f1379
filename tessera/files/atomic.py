"""Atomic files: a name holds the old bytes or the new ones, whenever the process or the machine stops."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tessera.core.errors import FileError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in, which takes its name when the block ends and goes away when it fails.

    The bytes are on the disk before the name is changed, and the name before the block returns.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        clear_abandoned(path)
        with open(temporary, "wb") as f:
            yield f
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as e:
        error = FileError(f"save: cannot write {path}: {e.strerror or e}")
    else:
        return
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    raise error


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def claim(folder: Path) -> int:
    """An open file that says who saves in a folder; the system takes the claim back when the process ends.

    A process may claim a folder again.  The file stays open: closing one of several would end them all.
    """
    path = folder / ".saving"
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as e:
        raise FileError(f"save: cannot write {path}: {e.strerror or e}") from None
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.EAGAIN):
            return handle  # a disk that has no locks
        who = os.read(handle, 200).decode(errors="replace").strip()
        os.close(handle)
        raise FileError(
            f"save: another run ({who}) saves in {folder}; give each run a folder of its own, or end that one"
        ) from None
    os.ftruncate(handle, 0)
    os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    return handle


def clear_abandoned(path: Path) -> None:
    """Remove what processes that were killed left beside a path."""
    pattern = re.compile(re.escape(f".{path.name}.") + r"(\d+)\.tmp")
    for name in os.listdir(path.parent):
        found = pattern.fullmatch(name)
        if found and not _is_alive(int(found[1])):
            with contextlib.suppress(OSError):
                (path.parent / name).unlink()


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True
