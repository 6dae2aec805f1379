"""The cache folder as a whole: what is in it, and how it is kept within a limit.

Entries of code and of programs are files that can be spared: what is removed is built again.  Reading an
entry sets its time, so that those which were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tessera.core.blame import blames_arguments
from tessera.core.flags import flags

# Machine code of processors and of GPUs, images, what LLVM refused, and faults of the compiler.
KINDS = ("code", "gpu", "programs", "failed", "faults")
_ROOM = 0.8  # of the limit is left full by a trim, so that not every entry trims
_STALE = 3600.0  # seconds after which a file that was being written is nobody's


class UntrustedError(OSError):
    """A file or a folder that another user could have written, or that is no plain file."""

    def __init__(self, why: str):
        super().__init__(errno.EPERM, why)


def private(folder: Path) -> Path:
    """Make a folder that only this user can enter, and those above it; refuse one of another user's."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for f in reversed(missing):
        f.mkdir(mode=0o700, exist_ok=True)
    made = missing[0] if missing else folder
    if not _is_ours(os.stat(made)):
        raise UntrustedError("it belongs to another user")
    return made


def _is_ours(s: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or s.st_uid in (os.geteuid(), 0)


def fault_of_file(s: os.stat_result, others_write: bool = False) -> str | None:
    """Why a file is not to be read: what stands in the cache may have been put there by others.

    `others_write` says that a mode by which other users could write to it is no fault.
    """
    if not stat.S_ISREG(s.st_mode):
        return "is no plain file"
    if not _is_ours(s):
        return "belongs to another user"
    if os.name == "posix" and s.st_mode & 0o022 and not others_write:
        return "can be written by other users"
    return None


def read_trusted(path: Path, most: int) -> bytes:
    """The bytes of a plain file of this user's, at most so many; a pipe or a device is not even opened."""
    fault = fault_of_file(os.lstat(path))
    if fault is not None:
        raise UntrustedError(fault)
    quiet = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, os.O_RDONLY | quiet), "rb") as file:
        fault = fault_of_file(os.fstat(file.fileno()))  # it may be another one by now
        if fault is not None:
            raise UntrustedError(fault)
        return file.read(most)


def saved(kind: str, name: str, text: str) -> Path:
    """Keep a text for people in the cache or, if that is not writable, among temporary files."""
    plain = "".join(c if c.isalnum() or c in "_-." else "_" for c in name)
    try:
        path = private(flags().cache_dir / kind) / plain
        if not path.is_file():
            write_whole(path, text.encode())
    except OSError:
        path = Path(tempfile.mkdtemp(prefix="tessera-")) / plain
        path.write_text(text)
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file of this user's alone, whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
        temporary = ""
    finally:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


class CacheEntry(NamedTuple):
    """A file of the cache."""

    path: Path
    kind: str
    bytes: int
    used: float  # when it was read or written last, in seconds of the epoch


@blames_arguments
def entries() -> list[CacheEntry]:
    """Every file of the cache but the store of tuned nests."""
    root = flags().cache_dir
    return [e for kind in KINDS for e in _files(root / kind, kind)]


def _files(folder: Path, kind: str) -> Iterator[CacheEntry]:
    try:
        with os.scandir(folder) as found:
            for f in found:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    s = f.stat(follow_symlinks=False)
                    if f.is_file(follow_symlinks=False):
                        yield CacheEntry(Path(f.path), kind, s.st_size, s.st_mtime)
    except (FileNotFoundError, NotADirectoryError):
        return


def touch(path: Path) -> None:
    """Say that an entry was used."""
    with contextlib.suppress(OSError):
        os.utime(path)


@blames_arguments
def trim(limit: int) -> tuple[int, int]:
    """Remove what was not used for longest until the rest takes at most `limit` bytes; files and bytes."""
    found = sorted(entries(), key=lambda e: e.used)
    now, total = time.time(), sum(e.bytes for e in found)
    stale = {e for e in found if e.path.name.startswith(".new-") and now - e.used > _STALE}
    total -= sum(e.bytes for e in stale)
    gone = list(stale)
    for e in found:
        if total <= limit:
            break
        if e not in stale:
            gone.append(e)
            total -= e.bytes
    return remove(gone)


def keep_within_limit() -> None:
    """Trim the folder when it has grown beyond the flag `cache_limit`; looks once in a while only."""
    global _next_look
    limit, now = flags().cache_limit, time.monotonic()
    if not limit or now < _next_look:
        return
    _next_look = now + _PAUSE
    if sum(e.bytes for e in entries()) > limit:
        trim(int(limit * _ROOM))


_PAUSE = 60.0  # seconds between two looks at all files, which may be many
_next_look = 0.0


def remove(found: list[CacheEntry]) -> tuple[int, int]:
    """Remove entries; how many files and bytes they were."""
    files = size = 0
    for e in found:
        try:
            e.path.unlink()
        except OSError:  # in use on Windows, removed by another process, or not ours
            continue
        files, size = files + 1, size + e.bytes
    return files, size


@blames_arguments
def clear_code() -> tuple[int, int]:
    """Remove all compiled code and programs; how many files and bytes they were."""
    return remove(entries())
