"""TensorBoard's event file: records of protocol buffers, each between checksums.

A record is the length (u64), its checksum, an Event, and its checksum; checksums are CRC-32C, rotated and
shifted.  Of an Event we write wall_time (field 1), step (2), file_version (3) and summary (5) with tag and
simple_value.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tessera.core.blame import constructor_blames_arguments
from tessera.core.public import public
from tessera.files.atomic import replacing
from tessera.train.metrics import LOGGER_INSTEAD

_POLYNOMIAL = 0x82F63B78  # CRC-32C, bits reversed
_MASK = 0xFFFFFFFF  # a word


def _table() -> list[int]:
    made = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (_POLYNOMIAL if n & 1 else 0)
        made.append(n)
    return made


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The checksum of Castagnoli's polynomial."""
    crc = _MASK
    for b in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ b) & 255]
    return crc ^ _MASK


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & _MASK)


def record(data: bytes) -> bytes:
    """A record with its length and checksums."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def records(data: bytes) -> Iterator[bytes]:
    """The records of a file, until one is damaged or cut off."""
    at = 0
    while at + 12 <= len(data):
        head = data[at : at + 8]
        size = int(struct.unpack("<Q", head)[0])
        body, end = data[at + 12 : at + 12 + size], at + 16 + size
        if (
            _masked(head) != data[at + 8 : at + 12]
            or end > len(data)
            or _masked(body) != data[end - 4 : end]
        ):
            return
        yield body
        at = end


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes((*out, n))


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def event(when: float, step: int, values: Mapping[str, float] | None = None) -> bytes:
    """An Event with the values of a step, or the one that a file begins with."""
    front = b"\x09" + struct.pack("<d", when) + b"\x10" + _varint(step)
    if values is None:
        return front + _bytes(3, b"brain.Event:2")
    each = (
        _bytes(1, k.encode()) + b"\x15" + struct.pack("<f", v) for k, v in sorted(values.items())
    )
    return front + _bytes(5, b"".join(_bytes(1, v) for v in each))


def step_of(data: bytes) -> int:
    """The step of an Event that we wrote."""
    n, shift, at = 0, 0, 10
    while True:
        b = data[at]
        n |= (b & 127) << shift
        if b < 128:
            return n
        shift, at = shift + 7, at + 1


@public("a logger", LOGGER_INSTEAD)
@constructor_blames_arguments
class TensorBoard:
    """An event file in a folder, which `tensorboard --logdir folder` shows."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.path = Path(folder) / "events.out.tfevents.0.tessera"
        self._file: Any = None

    def open(self, step: int) -> None:
        """Begin after this many steps; events of later ones go."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        found = list(records(self.path.read_bytes())) if step and self.path.exists() else []
        kept = [e for e in found if step_of(e) <= step] or [event(time.time(), 0)]
        with replacing(self.path) as f:
            f.write(b"".join(map(record, kept)))
        self._file = open(self.path, "ab")  # noqa: SIM115  open until `close`

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the event of a step."""
        self._file.write(record(event(time.time(), step, values)))

    def flush(self) -> None:
        """Have all events on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Write no more events."""
        self._file.close()
