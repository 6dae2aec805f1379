"""The store of compiled code: in memory, then on disk, then built.

An entry is a file whose name is the SHA-256 of everything that the machine code depends on: the
LLVM IR, the machine and the version of this format.  It is written under another name and renamed,
so that processes which write at once do no harm; what is read is checked before it is loaded.
"""

from __future__ import annotations

import hashlib
import struct
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tessera.core.errors import CompileError
from tessera.core.flags import carried, flags
from tessera.ir.target.cpu.machine import architecture
from tessera.runtime.builder import MOST, build_safely
from tessera.runtime.folder import (
    UntrustedError,
    keep_within_limit,
    private,
    read_trusted,
    touch,
    write_whole,
)
from tessera.runtime.loaded import Loaded, MalformedError

VERSION = 4  # of the store's entries
_LARGEST = 1 << 30  # bytes of an entry: more is no kernel of ours, and need not be read
_TRIMS = 4  # of 256 entries that are written look at the size of the whole folder
_MAGIC = b"TESSERA\n"
_HEADER = struct.Struct("<8sI32sQ32s")  # magic, version, key, length and SHA-256 of the payload


class LlvmSource(NamedTuple):
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
            data = read_trusted(path, _LARGEST)
            fault = fault_of(data, key, self.what)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except UntrustedError as e:
            fault = e.strerror
        except OSError as e:
            self._give_up(e)
            return None
        if fault is None:
            touch(path)
            return data[_HEADER.size :]
        self.distrust(key, fault)
        return None

    def distrust(self, key: bytes, fault: str) -> None:
        """Say that an entry is built again, and why."""
        warnings.warn(
            f"cache: entry {self.path(key)} {fault}; building it again",
            RuntimeWarning,
            stacklevel=3,
        )

    def put(self, key: bytes, code: bytes) -> None:
        """Write an entry, whole or not at all."""
        head = _HEADER.pack(_MAGIC, VERSION, key, len(code), hashlib.sha256(code).digest())
        try:
            private(self.folder)
            write_whole(self.path(key), head + code)
        except OSError as e:
            self._give_up(e)
            return
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


class ModuleBuilder(Protocol):
    """Takes modules to be built, and tells by which key their code will be known."""

    def add(self, source: LlvmSource) -> Key:
        """Take a module."""


class Loading:
    """Modules on their way into memory.

    What the store does not have is built by a worker while the caller writes the next module.
    """

    def __init__(self) -> None:
        self._store = code_store()
        self._coming: dict[Key, Future[bytes]] = {}
        self._threads = ThreadPoolExecutor(MOST)

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, *error: Any) -> None:
        self._threads.shutdown(cancel_futures=True)

    def add(self, source: LlvmSource) -> Key:
        """Look a module up, or begin to build it."""
        key = (key_of(source.text), source.functions)
        if key not in _LOADED and key not in self._coming:
            if not _is_stored(self._store, key):
                self._coming[key] = self._build(source)
        return key

    def _build(self, source: LlvmSource) -> Future[bytes]:
        try:
            return self._threads.submit(carried(build_safely), source.text, source.name)
        except RuntimeError:  # at exit no thread can be started
            done: Future[bytes] = Future()
            done.set_result(build_safely(source.text, source.name))
            return done

    def finish(self) -> None:
        """Wait for what is being built, keep it and load it."""
        errors = []
        for key, coming in self._coming.items():
            try:
                code = coming.result()
            except CompileError as e:
                errors.append(e)
                continue
            self._store.put(key[0], code)
            _LOADED.setdefault(key, Loaded(code, *key[1]))
        if errors:
            raise errors[0]


def loaded(keys: Sequence[Key]) -> list[Loaded] | None:
    """Modules that are in memory or in the store; None when one is missing."""
    store = code_store()
    for key in keys:
        if key not in _LOADED and not _is_stored(store, key):
            return None
    return [_LOADED[key] for key in keys]


def _is_stored(store: Store, key: Key) -> bool:
    """Whether the store has a module that can be loaded, which is then in memory."""
    code = store.get(key[0])
    if code is None:
        return False
    try:
        _LOADED.setdefault(key, Loaded(code, *key[1]))
    except MalformedError:
        store.distrust(key[0], "holds no machine code of its kernel")
        return False
    return True


def load_all(sources: Sequence[LlvmSource]) -> list[Loaded]:
    """The functions of each module, built side by side where the store does not have them."""
    with Loading() as loading:
        keys = [loading.add(s) for s in sources]
        loading.finish()
    return [_LOADED[k] for k in keys]


def load(source: LlvmSource) -> Loaded:
    """The functions of one module."""
    return load_all([source])[0]
