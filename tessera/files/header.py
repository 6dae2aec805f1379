"""The header of a safetensors file: eight bytes of length, then JSON that says the place of each tensor.

Nothing in a file is believed before it is checked: sizes, nesting, names, dtypes, and that the tensors fill
the data without holes and overlaps.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tessera.core.errors import FileError

# Bits of an element, by the name of a dtype in the format.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
    "I64": 64,
    "U64": 64,
}  # fmt: skip
METADATA = "__metadata__"
LARGEST = 100_000_000  # bytes of a header, as other readers have it
ALIGNMENT = 64  # of the data in a file that we write: a cache line
_MOST_BYTES = 2**63 - 1  # of a file whose offsets are signed 64-bit
_LONGEST_ARRAY = 4096  # characters; 64 sizes of 20 digits are fewer
_DEEPEST = 3  # the header, a tensor in it, and its shape
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class TensorEntry(NamedTuple):
    """A tensor in a file: its dtype by the format's name, and its bytes from start to stop in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class Header(NamedTuple):
    """The tensors of a file by name, its strings, and where its data begins."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data: int


def read(where: str, file: Any, size: int) -> Header:
    """The header of an open file of so many bytes."""
    file.seek(0)
    front = file.read(8)
    if len(front) < 8:
        raise FileError(
            f"load: {where} has {size} bytes, fewer than the 8 that a safetensors file begins with; "
            "it is truncated or of another format"
        )
    length = int.from_bytes(front, "little")
    if length > LARGEST:
        raise FileError(
            f"load: {where} states a header of {length} bytes, expected at most {LARGEST}; it is no "
            "safetensors file"
        )
    if length > size - 8:
        raise FileError(
            f"load: {where} states a header of {length} bytes but has {size} bytes in all; it is truncated"
        )
    text = file.read(length)
    if len(text) < length:
        raise FileError(f"load: {where} ends inside of its header; it is truncated")
    return _checked(where, text, size - 8 - length, 8 + length)


def _checked(where: str, text: bytes, room: int, data: int) -> Header:
    fields = parse_json(where, text)
    metadata = _metadata(where, fields.pop(METADATA, {}))
    entries = {name: _entry(where, name, x) for name, x in fields.items()}
    _check_text(where, [*entries, *metadata, *metadata.values()])
    end = 0
    for e in sorted(entries.values(), key=lambda e: (e.start, e.stop)):
        if e.start != end:
            what = "overlaps the tensor before it" if e.start < end else "leaves a hole before it"
            raise FileError(
                f"load: {where}: tensor {e.name!r} begins at {e.start}, expected {end}: it {what}; the file "
                "is damaged"
            )
        end = e.stop
    if end != room:
        what = "is truncated" if room < end else "has more bytes than its tensors"
        raise FileError(f"load: {where} has {room} bytes of data, expected {end}; it {what}")
    return Header(entries, metadata, data)


def parse_json(where: str, text: bytes) -> dict[str, Any]:
    """A header as a dict: flat, without names that stand twice."""
    if not text.startswith(b"{"):
        raise FileError(f"load: {where} has no JSON header; it is no safetensors file")
    skeleton = _STRING.sub(b"", text)
    if re.search(rb"\[[^\]]{%d}" % _LONGEST_ARRAY, skeleton):
        raise FileError(f"load: {where}: an array in the header is too long; the file is damaged")
    brackets = skeleton.translate(None, _NOT_BRACKETS)
    for _ in range(_DEEPEST):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    if brackets:
        raise FileError(f"load: {where}: the header is nested too deep or does not end")
    found = strict_json(where, text)
    assert isinstance(found, dict), "text that begins with a brace"
    return found


def strict_json(where: str, text: bytes | str) -> Any:
    """JSON without names that stand twice, and without numbers that are not in JSON."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        said = str(e) if isinstance(e, ValueError) else "it is nested too deep"
        reason = said.partition("\n")[0][:200]
    raise FileError(f"load: {where}: the JSON in it cannot be read: {reason}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:60]!r} stands twice")
    return made


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _metadata(where: str, found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise FileError(f"load: {where}: {METADATA} is not a table of strings")
    return found


def _entry(where: str, name: str, x: Any) -> TensorEntry:
    if not isinstance(x, dict) or set(x) != {"dtype", "shape", "data_offsets"}:
        raise FileError(
            f"load: {where}: tensor {name!r:.80} is not described by dtype, shape and data_offsets"
        )
    shape, offsets, dtype = x["shape"], x["data_offsets"], x["dtype"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise FileError(f"load: {where}: tensor {name!r:.80} has the unknown dtype {dtype!r:.40}")
    if not _are_sizes(shape) or len(shape) > 64:
        raise FileError(f"load: {where}: the shape of tensor {name!r:.80} is {shape!r:.80}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FileError(f"load: {where}: the offsets of tensor {name!r:.80} are {offsets!r:.80}")
    bits = math.prod(shape) * BITS[dtype]
    start, stop = offsets
    reach = (
        math.prod(n for n in shape if n) * BITS[dtype]
    )  # strides count, though there is no element
    if bits != (stop - start) * 8 or reach > _MOST_BYTES:
        raise FileError(
            f"load: {where}: tensor {name!r:.80} of {dtype}{shape} has {stop - start} bytes, expected "
            f"{bits / 8 if reach < 2**60 else 'far more':.15}"
        )
    return TensorEntry(name, dtype, tuple(shape), start, stop)


def _check_text(where: str, words: list[str]) -> None:
    """Refuse half of a surrogate pair, which no other reader takes."""
    try:
        "".join(words).encode()
    except UnicodeEncodeError:
        pass
    else:
        return
    raise FileError(f"load: {where}: the header holds text that is no Unicode; the file is damaged")


def _are_sizes(x: Any) -> bool:
    return isinstance(x, list) and all(type(n) is int and 0 <= n <= _MOST_BYTES for n in x)


def write(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]], metadata: Mapping[str, str]
) -> bytes:
    """The first bytes of a file for tensors (name, dtype, shape, bytes) in the order of their data."""
    table: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape, size in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    if len(text) > LARGEST:
        raise FileError(
            f"save: the header has {len(text)} bytes, more than the {LARGEST} that readers take; save fewer "
            "tensors"
        )
    return len(text).to_bytes(8, "little") + text
