"""What the zip reader raises for a file that is damaged, encrypted or packed in a way it does not know."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib

ZIP_ERRORS: tuple[type[Exception], ...] = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, NotImplementedError,
    OSError, MemoryError, ValueError, KeyError, OverflowError,
)  # fmt: skip
