"""Files that others wrote: regular ones alone, read no further than they may reach."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import BinaryIO, Protocol

PIECE = 1 << 20  # bytes of a read: bounds memory


class Readable(Protocol):
    """What gives bytes, such as a file or a reply of a server."""

    def read(self, n: int, /) -> bytes:
        """At most so many bytes; none at the end."""


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A file to read; an OSError for folders, pipes and devices, which might never end or never begin."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


def pieces(f: Readable, most: int) -> Iterator[bytes]:
    """The bytes of a file in pieces, at most so many and one more, whatever was promised."""
    left = most + 1
    while left > 0 and (data := f.read(min(left, PIECE))):
        left -= len(data)
        yield data
