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
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tessera.core.errors import CompileError
from tessera.core.flags import carried, flags
from tessera.ir.target.cpu.machine import architecture
from tessera.runtime.builder import MOST, build_safely
from tessera.runtime.folder import keep_within_limit, touch
from tessera.runtime.loaded import Loaded

VERSION = 4
_TRIMS = 4  # of 256 entries that are written look at the size of the whole folder
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
    """Entries in a folder, each of them what was made of something."""

    def __init__(self, folder: Path, what: str = "kernel"):
        self.folder, self.what = folder, what

    def path(self, key: bytes) -> Path:
        """Where an entry lies."""
        return self.folder / f"{key.hex()}.code"

    def get(self, key: bytes) -> bytes | None:
        """The bytes of an entry; None when there is none that can be trusted."""
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as e:
            self._give_up(e)
            return None
        fault = fault_of(data, key, self.what)
        if fault is None:
            touch(path)
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
            temporary = ""
        except OSError as e:
            self._give_up(e)
        finally:
            if temporary:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
        if key[0] < _TRIMS:
            keep_within_limit()

    def _give_up(self, e: OSError) -> None:
        """Say once that this folder is of no use."""
        if self.folder in _USELESS:
            return
        _USELESS.add(self.folder)
        warnings.warn(
            f"cache: folder {self.folder} cannot be used ({e.strerror or e}); {self.what}s are built "
            "again in every process; set TESSERA_CACHE_DIR to a writable folder",
            RuntimeWarning,
            stacklevel=3,
        )


_USELESS: set[Path] = set()


def fault_of(data: bytes, key: bytes, what: str) -> str | None:
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
        return f"belongs to another {what} or machine"
    if len(code) != length:
        return f"has {len(code)} bytes of code, expected {length}"
    if hashlib.sha256(code).digest() != digest:
        return "is damaged"
    return None


Key = tuple[bytes, tuple[str, ...]]  # of a module, and the functions that are wanted of it
_LOADED: dict[Key, Loaded] = {}


def code_store() -> Store:
    """The store of machine code."""
    return Store(flags().cache_dir / "code")


class Loading:
    """Modules on their way into memory.

    What the store does not have is built by a worker while the caller writes the next module.
    """

    def __init__(self) -> None:
        self._store = code_store()
        self._coming: dict[Key, bytes | Future[bytes]] = {}
        self._threads = ThreadPoolExecutor(MOST)

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, *error: Any) -> None:
        self._threads.shutdown(cancel_futures=True)

    def add(self, source: Source) -> Key:
        """Look a module up, or begin to build it."""
        key = (key_of(source.text), source.functions)
        if key not in _LOADED and key not in self._coming:
            self._coming[key] = self._store.get(key[0]) or self._build(source)
        return key

    def _build(self, source: Source) -> Future[bytes]:
        try:
            return self._threads.submit(carried(build_safely), source.text, source.name)
        except RuntimeError:  # at exit no thread can be started
            done: Future[bytes] = Future()
            done.set_result(build_safely(source.text, source.name))
            return done

    def finish(self) -> None:
        """Wait for what is being built, keep it and load everything."""
        errors = []
        for key, coming in self._coming.items():
            try:
                code = coming if isinstance(coming, bytes) else coming.result()
            except CompileError as e:
                errors.append(e)
                continue
            if code is not coming:
                self._store.put(key[0], code)
            _LOADED.setdefault(key, Loaded(code, *key[1]))
        if errors:
            raise errors[0]


def loaded(keys: Sequence[Key]) -> list[Loaded] | None:
    """Modules that are in memory or in the store; None when one is missing."""
    store = code_store()
    for key in keys:
        if key not in _LOADED:
            code = store.get(key[0])
            if code is None:
                return None
            _LOADED.setdefault(key, Loaded(code, *key[1]))
    return [_LOADED[key] for key in keys]


def load_all(sources: Sequence[Source]) -> list[Loaded]:
    """The functions of each module, built side by side where the store does not have them."""
    with Loading() as loading:
        keys = [loading.add(s) for s in sources]
        loading.finish()
    return [_LOADED[k] for k in keys]


def load(source: Source) -> Loaded:
    """The functions of one module."""
    return load_all([source])[0]
