"""The file of a bundle: a fixed header, a table of sections with their digests, and the sections
(docs/abi.md).

    0     header, 256 bytes: magic, version, number of sections, bytes of the file, digest, signature
    256   the table: 128 bytes a section
    ...   sections, each at a multiple of 4096

Digests make a chain: the header has the SHA-256 of its first 32 bytes and the table, the table that of each
section. A reader believes nothing before it is checked; every size and offset is compared with the file.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.core.errors import FileError, MissingFileError, OperandError
from tessera.core.regular import open_regular
from tessera.deploy import ed25519
from tessera.files.atomic import replacing

MAGIC = b"TESSERAB"
VERSION = 1  # of the container (docs/abi.md)
HEADER_BYTES, ENTRY_BYTES, PAGE = 256, 128, 4096
MOST_SECTIONS, LONGEST_NAME = 4096, 71
_FRONT = struct.Struct("<8sIIQQ")  # magic, version, sections, bytes of the file, where the table is
_SIGNED = struct.Struct("<II32s64s")  # kind of signature, 0, public key, signature
_ENTRY = struct.Struct("<IIQQ32s72s")  # kind, flags, offset, size, SHA-256, name
DIGEST_AT, SIGNATURE_AT = 32, 64
ED25519 = 1  # the number of the kind of signature
_SAID = b"tessera bundle 1\n"  # before the digest that is signed

KINDS = ("manifest", "graph", "image", "plan", "code", "weights", "device")


@dataclass(frozen=True)
class Section:
    """A part of a bundle: what kind it is, its name, and where its bytes lie."""

    kind: str
    name: str
    offset: int
    size: int
    digest: bytes


def write(
    path: Path, sections: Sequence[tuple[str, str, bytes]], key: bytes | None = None
) -> bytes:
    """Write sections (kind, name, bytes) in order; the digest of the bundle.  `key` signs it: 32 secret
    bytes.
    """
    if len(sections) > MOST_SECTIONS:
        raise OperandError(
            f"bundle: it would have {len(sections)} sections, at most {MOST_SECTIONS} fit; make several "
            "bundles, or name fewer targets"
        )
    at = _up(HEADER_BYTES + ENTRY_BYTES * len(sections))
    table = b""
    for kind, name, data in sections:
        text = name.encode()
        assert len(text) <= LONGEST_NAME, name
        digest = hashlib.sha256(data).digest()
        table += _ENTRY.pack(KINDS.index(kind) + 1, 0, at, len(data), digest, text)
        at = _up(at + len(data))
    front = _FRONT.pack(MAGIC, VERSION, len(sections), at, HEADER_BYTES)
    digest = hashlib.sha256(front + table).digest()
    header = (front + digest + _signature(digest, key)).ljust(HEADER_BYTES, b"\0")
    with replacing(path) as f:
        f.write(header + table)
        for _, _, data in sections:
            f.write(bytes(-f.tell() % PAGE))
            f.write(data)
        f.write(bytes(-f.tell() % PAGE))
    return digest


def _signature(digest: bytes, key: bytes | None) -> bytes:
    if key is None:
        return b""
    return _SIGNED.pack(ED25519, 0, ed25519.public(key), ed25519.sign(key, _SAID + digest))


class Container:
    """An open bundle: its sections by name, mapped.

    A mapped file may still change, so that what is read of a verified one is a copy that is verified again.
    """

    verified = False

    def __init__(self, path: str | os.PathLike[str], verify: bool = True):
        self.path = Path(path)
        self.data = _mapped(self.path)
        self._read()
        if verify:
            self.verify()

    def _fail(self, why: str) -> FileError:
        return FileError(f"bundle: {self.path} {why}")

    def _read(self) -> None:
        size = len(self.data)
        if size < HEADER_BYTES or self.data[:8] != MAGIC:
            raise self._fail("is no bundle")
        stated = _FRONT.unpack_from(self.data)[3]
        if self._version() and stated != size:
            raise self._fail(
                f"has {size} bytes, its header states {stated}; it is truncated or damaged"
            )
        self._read_table(size)

    def _version(self) -> int:
        version: int = _FRONT.unpack_from(self.data)[1]
        if version != VERSION:
            raise self._fail(
                f"has format version {version}, expected {VERSION}; read it with a Tessera that writes that "
                "version"
            )
        return version

    def _read_table(self, size: int) -> None:
        """Read the table of a bundle of so many bytes."""
        _, _, count, _, table = _FRONT.unpack_from(self.data)
        end = HEADER_BYTES + count * ENTRY_BYTES
        if count > MOST_SECTIONS or table != HEADER_BYTES or end > min(size, len(self.data)):
            raise self._fail("has a table of sections that does not fit; it is damaged")
        self.digest = bytes(self.data[DIGEST_AT : DIGEST_AT + 32])
        self.sections = [self._entry(table + i * ENTRY_BYTES) for i in range(count)]
        self.named: Mapping[str, Section] = {s.name: s for s in self.sections}
        if len(self.named) < count:
            raise self._fail("has two sections of one name; it is damaged")
        end = _up(end)
        for s in self.sections:
            if s.offset != end or s.offset + s.size > size:
                raise self._fail(f"has a section {s.name!r} that does not fit; it is damaged")
            end = _up(s.offset + s.size)

    def _entry(self, at: int) -> Section:
        kind, flags, offset, size, digest, raw = _ENTRY.unpack_from(self.data, at)
        name, _, rest = raw.partition(b"\0")
        if not 1 <= kind <= len(KINDS) or flags or rest.strip(b"\0") or not name.isascii():
            raise self._fail("has a section of an unknown kind; it is damaged")
        return Section(KINDS[kind - 1], name.decode("ascii"), offset, size, digest)

    def verify(self) -> None:
        """Raise unless every byte is what the digests say."""
        table = HEADER_BYTES + ENTRY_BYTES * len(self.sections)
        front = self.data[: _FRONT.size] + self.data[HEADER_BYTES:table]
        if hashlib.sha256(front).digest() != self.digest:
            raise self._fail("has a header whose digest is wrong; it is damaged or was changed")
        view = memoryview(self.data)
        for s in self.sections:
            if hashlib.sha256(view[s.offset : s.offset + s.size]).digest() != s.digest:
                raise self._fail(
                    f"has a section {s.name!r} whose digest is wrong; it is damaged or was changed"
                )
        if self.signer is None:
            kept = self.data[SIGNATURE_AT:HEADER_BYTES]
        else:
            kept = self.data[SIGNATURE_AT + _SIGNED.size : HEADER_BYTES]
        if kept.strip(b"\0"):
            raise self._fail("has bytes behind its signature, or without one; it was changed")
        used = [(0, table), *((s.offset, s.offset + s.size) for s in self.sections)]
        for (_, end), (start, _) in zip(used, [*used[1:], (len(self.data), 0)], strict=True):
            if self.data[end:start].strip(b"\0"):
                raise self._fail("has bytes outside of its sections; it was changed")
        self.verified = True

    @property
    def signer(self) -> bytes | None:
        """The public key that the bundle states; None: it is not signed."""
        kind, zero, key, _ = _SIGNED.unpack_from(self.data, SIGNATURE_AT)
        if kind == 0:
            return None
        if kind != ED25519 or zero:
            raise self._fail("has a signature of an unknown kind")
        return bytes(key)

    def check_signature(self, trusted: Sequence[bytes]) -> None:
        """Raise unless one of these keys has signed the bundle."""
        if not all(map(ed25519.is_key, trusted)):
            raise OperandError(
                "bundle: trusted is expected to be a list of public keys of 32 bytes, such as "
                "[bytes.fromhex(...)]"
            )
        signer = self.signer
        if signer is None:
            raise self._fail("is not signed, but a signature is asked for")
        if signer not in trusted:
            raise self._fail(
                f"is signed by {signer.hex()}, which is none of the keys that are trusted"
            )
        signature = bytes(_SIGNED.unpack_from(self.data, SIGNATURE_AT)[3])
        if not ed25519.verify(signer, _SAID + self.digest, signature):
            raise self._fail("has a signature that is wrong; it was changed")

    def read(self, name: str) -> bytes:
        """The bytes of a section."""
        s = self.named.get(name)
        if s is None:
            raise self._fail(f"has no section {name!r}")
        found = bytes(self.data[s.offset : s.offset + s.size])
        if self.verified and hashlib.sha256(found).digest() != s.digest:
            raise self._fail(
                f"was changed after it was opened: section {name!r} has another digest"
            )
        return found


def signed(head: bytes, key: bytes) -> bytes:
    """A header and its table with the signature of a secret key."""
    digest = head[DIGEST_AT : DIGEST_AT + 32]
    front = head[:SIGNATURE_AT] + _signature(digest, key)
    return front.ljust(HEADER_BYTES, b"\0") + head[HEADER_BYTES:]


def is_signed(head: bytes) -> bool:
    """Whether a header has a signature."""
    return head[SIGNATURE_AT:HEADER_BYTES].strip(b"\0") != b""


def table_of(head: bytes, where: str) -> list[Section]:
    """The sections that a header and its table tell of, without the bundle."""
    c = Container.__new__(Container)
    c.path, c.data = Path(where), head
    c._read_table(int.from_bytes(head[16:24], "little"))
    return c.sections


def _mapped(path: Path) -> Any:
    try:
        with open_regular(path) as f:
            if not os.fstat(f.fileno()).st_size:
                raise FileError(f"bundle: {path} is empty")
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise MissingFileError(f"bundle: there is no file {path}") from None
    except (OSError, ValueError) as e:
        raise FileError(
            f"bundle: {path} cannot be read ({getattr(e, 'strerror', None) or e})"
        ) from None


def _up(n: int) -> int:
    return -(-n // PAGE) * PAGE
