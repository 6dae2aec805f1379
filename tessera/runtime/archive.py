"""The cache as one file: a zip archive of compiled code, programs and tuned nests.

Entries name what they were made of and for by their keys, and say so again in their heads with the SHA-256
of what they hold: one that is damaged is left out, one of another machine is never looked up.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import zipfile
from pathlib import Path

from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError
from tessera.core.flags import flags
from tessera.core.zip_errors import ZIP_ERRORS
from tessera.runtime import tuned
from tessera.runtime.code import fault_of
from tessera.runtime.folder import entries, private, read_trusted, write_whole

_NAME = re.compile(r"(code|gpu|programs)/([0-9a-f]{64})\.code")
_TUNED = "tuned.json"
_MOST = 1 << 30  # bytes of an entry, unpacked


@blames_arguments
def export_all(file: str | os.PathLike[str]) -> int:
    """Write all that is kept to a file; how many entries there are."""
    out = Path(file).absolute()
    if out.exists() and not out.is_file():  # a device would be replaced by a file
        raise OperandError(f"cache: {out} is there already, and no file")
    kept = [e for e in entries() if _NAME.fullmatch(f"{e.kind}/{e.path.name}")]
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        whole, nests = Path(folder) / "whole", Path(folder) / _TUNED
        count = tuned.export(nests)
        with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.write(nests, _TUNED)
            for e in kept:
                with contextlib.suppress(OSError):  # removed by another process, or not ours
                    archive.writestr(f"{e.kind}/{e.path.name}", read_trusted(e.path, e.bytes))
                    count += 1
        os.replace(whole, out)
    return count


@blames_arguments
def load_all(file: str | os.PathLike[str]) -> tuple[int, int]:
    """Add the entries of such a file; how many there are, and how many were left out as damaged."""
    if Path(file).exists() and not Path(file).is_file():  # a pipe might never end
        raise OperandError(f"cache: {file} is no file that the cache has exported")
    try:
        archive = zipfile.ZipFile(file)
    except OSError as e:
        raise OperandError(f"cache: {file} cannot be read ({e.strerror})") from None
    except ZIP_ERRORS:
        raise OperandError(f"cache: {file} is no file that the cache has exported") from None
    with archive:
        names = archive.namelist()
        if _TUNED not in names:
            raise OperandError(f"cache: {file} is no file that the cache has exported")
        taken = damaged = 0
        for m in filter(None, map(_NAME.fullmatch, names)):
            if _take(archive, m[0], m[1], bytes.fromhex(m[2])):
                taken += 1
            else:
                damaged += 1
        return taken + _take_nests(archive), damaged


def _unpacked(archive: zipfile.ZipFile, name: str) -> bytes:
    """A part of the archive, unless it is larger than any that the cache exports."""
    size = archive.getinfo(name).file_size
    if size > _MOST:
        raise zipfile.BadZipFile(f"{name} has {size} bytes, expected at most {_MOST}")
    return archive.read(name)


def _take(archive: zipfile.ZipFile, name: str, kind: str, key: bytes) -> bool:
    """Put one entry in its place; False when it is damaged."""
    try:
        data = _unpacked(archive, name)
    except ZIP_ERRORS:
        return False
    if fault_of(data, key, kind) is not None:
        return False
    try:
        write_whole(private(flags().cache_dir / kind) / f"{key.hex()}.code", data)
    except OSError as e:
        raise OperandError(
            f"cache: {flags().cache_dir / kind} cannot be written ({e.strerror or e})"
        ) from None
    return True


def _take_nests(archive: zipfile.ZipFile) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / _TUNED
        try:
            data = _unpacked(archive, _TUNED)
        except ZIP_ERRORS:
            return 0
        path.write_bytes(data)
        return tuned.load(path)
