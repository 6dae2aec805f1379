"""A registry of bundles: a folder, or the same folder behind any HTTP server.

    index.json             {"format": 1, "names": {name: [digest, ...]}}, the newest last
    heads/DIGEST           header and table of a bundle
    blobs/SHA256           a section; bundles with the same weights share them

A bundle is taken apart at its sections and put together again byte for byte, since its layout follows from
its table. What is read is compared with its digest before it is given out.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import json
import os
import re
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tessera.core.errors import FileError, OperandError
from tessera.core.regular import Readable, open_regular, pieces
from tessera.deploy import ed25519
from tessera.deploy.container import (
    ENTRY_BYTES,
    HEADER_BYTES,
    PAGE,
    Container,
    Section,
    is_signed,
    signed,
    table_of,
)
from tessera.files.atomic import replacing

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_INDEX = 64 << 20  # bytes of an index: more is refused before it is read
_SECONDS = 60  # that a server may take to answer


class RegistryRow(NamedTuple):
    """A bundle in a registry."""

    name: str
    digest: str
    bytes: int
    newest: bool


class Registry:
    """Bundles by name and digest."""

    def __init__(self, where: str | os.PathLike[str]):
        text = str(where)
        self.url = text.rstrip("/") if re.match(r"https?://", text) else None
        self.folder = Path(text)

    # Reading

    def _pieces(self, path: str, most: int) -> Iterator[bytes]:
        """A file of the registry in pieces, of so many bytes at most; what is promised takes no memory."""
        total = 0
        try:
            with self._opened(path) as f:
                for data in pieces(f, most):
                    total += len(data)
                    if total > most:
                        break
                    yield data
        except (OSError, http.client.HTTPException) as e:
            raise FileError(f"registry: {self._shown(path)} cannot be read ({e})") from None
        if total > most:
            raise FileError(f"registry: {self._shown(path)} has more bytes than it should have")

    def _opened(self, path: str) -> contextlib.AbstractContextManager[Readable]:
        if self.url is None:
            return open_regular(self.folder / path)
        return contextlib.closing(urllib.request.urlopen(f"{self.url}/{path}", timeout=_SECONDS))

    def _read(self, path: str, most: int) -> bytes:
        return b"".join(self._pieces(path, most))

    def _blob(self, s: Section) -> Iterator[bytes]:
        """The bytes of a section in pieces; an error at their end when they are not those of its digest."""
        path = f"blobs/{s.digest.hex()}"
        found, total = hashlib.sha256(), 0
        for data in self._pieces(path, s.size):
            found.update(data)
            total += len(data)
            yield data
        if total != s.size or found.digest() != s.digest:
            raise FileError(f"registry: {self._shown(path)} is damaged")

    def _shown(self, path: str) -> str:
        return f"{self.url or self.folder}/{path}"

    def names(self) -> dict[str, list[str]]:
        """The digests of every name, the newest last."""
        if self.url is None and not (self.folder / "index.json").exists():
            return {}
        try:
            found = json.loads(self._read("index.json", _MOST_INDEX))
            names: dict[str, list[str]] = found["names"]
            fits = found["format"] == 1 and all(
                _NAME.fullmatch(n) and ds and all(_DIGEST.fullmatch(d) for d in ds)
                for n, ds in names.items()
            )
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
            if isinstance(e, FileError):
                raise
            fits = False
        if not fits:
            raise FileError(f"registry: {self._shown('index.json')} is no index of format 1")
        return names

    def rows(self) -> list[RegistryRow]:
        """Every bundle of every name."""
        return [
            RegistryRow(n, d, self._size(d), d == ds[-1])
            for n, ds in sorted(self.names().items())
            for d in ds
        ]

    def _head(self, digest: str) -> bytes:
        head = self._read(f"heads/{digest}", HEADER_BYTES + ENTRY_BYTES * 4096)
        found = hashlib.sha256(head[:32] + head[HEADER_BYTES:]).hexdigest()
        if found != digest or len(head) < HEADER_BYTES:
            raise FileError(f"registry: {self._shown('heads/' + digest)} is damaged")
        return head

    def _size(self, digest: str) -> int:
        return int.from_bytes(self._head(digest)[16:24], "little")

    def digest_of(self, name: str) -> str:
        """The digest that a name, NAME@DIGEST or the beginning of a digest stands for."""
        names = self.names()
        base, _, prefix = name.partition("@")
        if base in names:
            found = [d for d in names[base] if d.startswith(prefix)]
            if found:
                return found[-1]
        every = {d for ds in names.values() for d in ds if len(name) >= 8 and d.startswith(name)}
        if len(every) != 1:
            known = ", ".join(sorted(names)) or "nothing"
            raise OperandError(
                f"registry: there is no bundle {name!r} in {self.url or self.folder}; it has {known}"
            )
        return every.pop()

    def get(self, name: str, path: str | os.PathLike[str]) -> str:
        """Write a bundle to a file; its digest."""
        digest = self.digest_of(name)
        head = self._head(digest)
        with replacing(Path(path)) as f:
            f.write(head)
            for s in table_of(head, digest):
                f.write(bytes(s.offset - f.tell()))
                for data in self._blob(s):
                    f.write(data)
            f.write(bytes(-f.tell() % PAGE))
        return digest

    def verify(self) -> list[str]:
        """What is wrong, one line each."""
        faults = []
        for d in sorted({d for ds in self.names().values() for d in ds}):
            try:
                for s in table_of(self._head(d), d):
                    for _ in self._blob(s):
                        pass
            except FileError as e:
                faults.append(f"{d[:12]}: {e.message}")
        return faults

    # Writing

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if self.url is not None:
            raise OperandError(
                f"registry: {self.url} can only be read; write to its folder on the server"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield

    def _write(self, path: str, data: bytes) -> None:
        whole = self.folder / path
        whole.parent.mkdir(parents=True, exist_ok=True)
        with replacing(whole) as f:
            f.write(data)

    def _write_index(self, names: dict[str, list[str]]) -> None:
        text = json.dumps({"format": 1, "names": names}, sort_keys=True, indent=1)
        self._write("index.json", text.encode())

    def put(self, path: str | os.PathLike[str], name: str, trusted: Sequence[bytes] = ()) -> str:
        """Take a bundle over under a name; its digest."""
        if not _NAME.fullmatch(name):
            raise OperandError(
                f"registry: the name {name!r} is not made of letters, digits, dots, dashes and underscores"
            )
        c = Container(path)
        if trusted:
            c.check_signature(trusted)
        digest = c.digest.hex()
        with self._locked():
            for s in c.sections:
                if not self._has(s):
                    self._write(f"blobs/{s.digest.hex()}", c.read(s.name))
            head = bytes(c.data[: HEADER_BYTES + ENTRY_BYTES * len(c.sections)])
            if is_signed(head) or not self._is_whole(digest):
                self._write(f"heads/{digest}", head)
            names = self.names()
            names[name] = [*(d for d in names.get(name, []) if d != digest), digest]
            self._write_index(names)
        return digest

    def _has(self, s: Section) -> bool:
        """Whether the section is there and whole."""
        try:
            return all(True for _ in self._blob(s))
        except FileError:
            return False

    def _is_whole(self, digest: str) -> bool:
        try:
            return bool(self._head(digest))
        except FileError:
            return False

    def sign(self, name: str, key: bytes) -> str:
        """Sign a bundle with 32 secret bytes, after its bytes are compared with its digest; its digest."""
        if not ed25519.is_key(key):
            raise OperandError(
                f"registry: a secret key is 32 bytes, got {type(key).__name__} of {len(key)}"
            )
        with self._locked():
            digest = self.digest_of(name)
            head = self._head(digest)
            for s in table_of(head, digest):
                for _ in self._blob(s):
                    pass
            self._write(f"heads/{digest}", signed(head, key))
        return digest

    def gc(self, keep: int = 1) -> tuple[int, int]:
        """Forget all but the newest `keep` bundles of each name and remove what no bundle needs; files and
        bytes.
        """
        if keep < 1:
            raise OperandError(f"registry: keep is {keep}, expected at least 1")
        with self._locked():
            names = {n: ds[-keep:] for n, ds in self.names().items()}
            heads = {d for ds in names.values() for d in ds}
            blobs = {s.digest.hex() for d in heads for s in table_of(self._head(d), d)}
            self._write_index(names)
            removed = size = 0
            for folder, wanted in (("heads", heads), ("blobs", blobs)):
                for f in (self.folder / folder).glob("*"):
                    if f.name not in wanted:
                        removed, size = removed + 1, size + f.stat().st_size
                        f.unlink()
        return removed, size
