"""The store of compiled code: in memory, then on disk, then built.

An entry is a file whose name is the SHA-256 of everything that the machine code depends on: the
LLVM IR, the machine and the version of this format.  It is written under another name and renamed,
so that processes which write at once do no harm; what is read is checked before it is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tessera.core.errors import CompileError
from tessera.core.flags import flags
from tessera.ir.target.cpu.machine import Loaded, architecture
from tessera.runtime.builder import build_all

VERSION = 2
_MAGIC = b"TESSERA\n"
_HEADER = struct.Struct("<8sI32sQ32s")  # magic, version, key, length and SHA-256 of the payload


class Source(NamedTuple):
    """A module of LLVM IR and the functions that are wanted of it."""

    name: str  # for people
    text: str
    functions: tuple[str, ...]


def key_of(text: str) -> bytes:
    """What identifies the machine code of LLVM IR on this machine."""
    return hashlib.sha256(f"{VERSION}\n{architecture()}\n{text}".encode()).digest()


class Store:
    """Compiled code in a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, key: bytes) -> Path:
        """Where an entry lies."""
        return self.folder / f"{key.hex()}.code"

    def get(self, key: bytes) -> bytes | None:
        """The machine code of an entry; None when there is none that can be trusted."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self._give_up(e)
            return None
        fault = _fault(data, key)
        if fault is None:
            return data[_HEADER.size :]
        warnings.warn(
            f"cache: entry {path} {fault}; building it again", RuntimeWarning, stacklevel=2
        )
        return None

    def put(self, key: bytes, code: bytes) -> None:
        """Write an entry, whole or not at all."""
        head = _HEADER.pack(_MAGIC, VERSION, key, len(code), hashlib.sha256(code).digest())
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
        except OSError as e:
            self._give_up(e)
            return
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(head + code)
            os.replace(temporary, self.path(key))
        except OSError as e:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            self._give_up(e)

    def _give_up(self, e: OSError) -> None:
        """Say once that this folder is of no use."""
        if self.folder in _USELESS:
            return
        _USELESS.add(self.folder)
        warnings.warn(
            f"cache: folder {self.folder} cannot be used ({e.strerror or e}); kernels are built "
            "again in every process; set TESSERA_CACHE_DIR to a writable folder",
            RuntimeWarning,
            stacklevel=3,
        )


_USELESS: set[Path] = set()


def _fault(data: bytes, key: bytes) -> str | None:
    """What is wrong with the bytes of an entry."""
    if len(data) < _HEADER.size:
        return f"is truncated to {len(data)} bytes"
    magic, version, own_key, length, digest = _HEADER.unpack_from(data)
    code = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC:
        return "is not a file of this cache"
    if version != VERSION:
        return f"has format version {version}, expected {VERSION}"
    if own_key != key:
        return "belongs to another kernel or machine"
    if len(code) != length:
        return f"has {len(code)} bytes of code, expected {length}"
    if hashlib.sha256(code).digest() != digest:
        return "is damaged"
    return None


_LOADED: dict[tuple[bytes, tuple[str, ...]], Loaded] = {}


def load_all(sources: Sequence[Source]) -> list[Loaded]:
    """The functions of each module, built side by side where the store does not have them."""
    keys = [(key_of(s.text), s.functions) for s in sources]
    missing = {k: s for k, s in zip(keys, sources, strict=True) if k not in _LOADED}
    if missing:
        _bring(missing)
    return [_LOADED[k] for k in keys]


def load(source: Source) -> Loaded:
    """The functions of one module."""
    return load_all([source])[0]


def _bring(missing: dict[tuple[bytes, tuple[str, ...]], Source]) -> None:
    store = Store(flags().cache_dir / "code")
    codes = {k: store.get(k[0]) for k in missing}
    absent = [k for k, code in codes.items() if code is None]
    built = build_all([(missing[k].text, missing[k].name) for k in absent]) if absent else []
    errors = []
    for k, made in zip(absent, built, strict=True):
        if isinstance(made, CompileError):
            errors.append(made)
        else:
            codes[k] = made
            store.put(k[0], made)
    if errors:
        raise errors[0]
    for k, code in codes.items():
        assert code is not None
        _LOADED.setdefault(k, Loaded(code, *k[1]))
