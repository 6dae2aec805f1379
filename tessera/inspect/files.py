"""Files that are written whole or not at all: a full disk leaves what was there before."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file; raises OSError when that cannot be done, and then nothing has changed."""
    data = content.encode() if isinstance(content, str) else content
    where = Path(path)
    if where.exists() and not where.is_file():  # a device or a pipe stays what it is
        where.write_bytes(data)
        return
    handle, temporary = tempfile.mkstemp(dir=where.absolute().parent, prefix=f".{where.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, where)
    finally:  # gone when it has taken its place; after an error or Ctrl-C it is removed
        with contextlib.suppress(OSError):
            os.unlink(temporary)
