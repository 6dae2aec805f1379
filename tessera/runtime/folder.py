"""The cache folder as a whole: what lies in it, and how it is kept within a limit.

Entries of code and of programs are files that nobody misses: what is removed is built again.  Reading an
entry sets its time, so that those which were not used for longest go first.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tessera.core.flags import flags

KINDS = ("code", "programs", "failed")  # machine code, images, and what LLVM refused
_ROOM = 0.8  # of the limit is left full by a trim, so that not every entry trims
_STALE = 3600.0  # seconds after which a file that was being written is nobody's


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    kind: str
    bytes: int
    used: float  # when it was read or written last, in seconds of the epoch


def entries() -> list[Entry]:
    """Every file of the cache but the store of tuned nests."""
    root = flags().cache_dir
    return [e for kind in KINDS for e in _files(root / kind, kind)]


def _files(folder: Path, kind: str) -> Iterator[Entry]:
    try:
        with os.scandir(folder) as found:
            for f in found:
                with contextlib.suppress(FileNotFoundError):  # another process removed it
                    s = f.stat(follow_symlinks=False)
                    if f.is_file(follow_symlinks=False):
                        yield Entry(Path(f.path), kind, s.st_size, s.st_mtime)
    except (FileNotFoundError, NotADirectoryError):
        return


def touch(path: Path) -> None:
    """Say that an entry was used."""
    with contextlib.suppress(OSError):
        os.utime(path)


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


def remove(found: list[Entry]) -> tuple[int, int]:
    """Remove entries; how many files and bytes they were."""
    files = size = 0
    for e in found:
        try:
            e.path.unlink()
        except OSError:  # in use on Windows, removed by another process, or not ours
            continue
        files, size = files + 1, size + e.bytes
    return files, size


def clear_code() -> tuple[int, int]:
    """Remove all compiled code and programs; how many files and bytes they were."""
    return remove(entries())
