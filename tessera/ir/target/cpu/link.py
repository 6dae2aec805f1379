"""A linker for one x86-64 object file, which puts all of its sections into one piece of memory.

LLVM's own asks for memory section by section, and aborts the process when what it gets is further
apart than an instruction reaches.  That happens beside a GPU's driver or other large libraries, which leave
small holes all over the address space.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

_MAGIC = b"\x7fELF"
_HEADER = struct.Struct("<40xQ10xHHH")  # where sections are described, their size, number, names
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_WRITE, _ALLOC = 1, 2
_ABSOLUTE, _FAR = 0xFFF1, (1,)
_NEAR, _THROUGH_TABLE = (2, 4), (9, 41, 42)
_STUB = b"\xff\x25\x00\x00\x00\x00"  # jmp to the address that follows
_STUB_BYTES = 16  # six of the jump, eight of the address, aligned
_PAGE = mmap.PAGESIZE


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class Unknown(Exception):
    """Something in an object file that this linker does not know."""


class MalformedError(Exception):
    """Bytes that are no object file with the functions that were asked for."""


# What reading and copying raise where an object file is cut short, or is none.
_BROKEN = (struct.error, LookupError, ValueError, ArithmeticError, StopIteration, BufferError)
_MOST_MEMORY = 1 << 32  # bytes of sections: more is no kernel


class Linked:
    """Machine code in memory, and the address of each function that was asked for."""

    def __init__(self, code: bytes, names: Sequence[str], outside: Callable[[str], int]):
        self._code, self._outside = code, outside
        if code[: len(_MAGIC)] != _MAGIC:
            raise MalformedError("no object file")
        try:
            self._read()
            self._lay_out()
            self._fill()
            self.addresses = {n: self._address(self._named[n]) for n in names}
        except _BROKEN as e:
            raise MalformedError(f"object file that cannot be linked: {e!r}") from e

    def _read(self) -> None:
        start, size, count, _ = _HEADER.unpack_from(self._code)
        self._sections = [
            _Section(*_SECTION.unpack_from(self._code, start + i * size)) for i in range(count)
        ]
        table = next(s for s in self._sections if s.kind == _SYMBOLS)
        strings = self._sections[table.link].offset
        self._symbols = []
        self._named: dict[str, int] = {}
        for i in range(table.size // table.entry):
            name, _, _, section, value, _ = _SYMBOL.unpack_from(
                self._code, table.offset + i * table.entry
            )
            begin = strings + name
            text = self._code[begin : self._code.index(b"\0", begin)].decode()
            self._symbols.append((text, section, value))
            if section:
                self._named[text] = i

    def _relocations(self) -> list[tuple[int, int, int, int, int]]:
        """Section, place in it, kind, symbol and addend of each."""
        out = []
        for s in self._sections:
            if s.kind == _RELOCATIONS and s.info in self._places:
                for i in range(s.size // s.entry):
                    place, info, addend = _RELOCATION.unpack_from(
                        self._code, s.offset + i * s.entry
                    )
                    out.append((s.info, place, info & 0xFFFFFFFF, info >> 32, addend))
        return out

    def _lay_out(self) -> None:
        """Code and constants, stubs for functions from outside, and on pages of their own what is written
        to.
        """
        self._places: dict[int, int] = {}
        at = 0
        wanted = [i for i, s in enumerate(self._sections) if s.flags & _ALLOC and s.size]
        for i in [i for i in wanted if not self._sections[i].flags & _WRITE]:
            at = _up(at, self._sections[i].align)
            self._places[i] = at
            at += self._sections[i].size
        self._stubs = _up(at, _STUB_BYTES)
        strangers = [i for i, (_, section, _) in enumerate(self._symbols) if not section]
        self._stub_of = {i: self._stubs + k * _STUB_BYTES for k, i in enumerate(strangers)}
        used = {x for s in self._sections if s.kind == _RELOCATIONS for x in self._uses(s)}
        slots = self._stubs + len(strangers) * _STUB_BYTES
        self._slot_of = {i: slots + 8 * k for k, i in enumerate(sorted(used))}
        self._fixed = _up(slots + 8 * len(used), _PAGE)
        at = self._fixed
        for i in [i for i in wanted if self._sections[i].flags & _WRITE]:
            at = _up(at, self._sections[i].align)
            self._places[i] = at
            at += self._sections[i].size
        if at > _MOST_MEMORY:
            raise ValueError(f"sections of {at} bytes")
        self._memory = mmap.mmap(-1, max(_up(at, _PAGE), _PAGE))
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def _uses(self, s: _Section) -> list[int]:
        """The symbols that are reached through a table of addresses."""
        entries = (
            _RELOCATION.unpack_from(self._code, s.offset + i * s.entry)
            for i in range(s.size // s.entry)
        )
        return [info >> 32 for _, info, _ in entries if info & 0xFFFFFFFF in _THROUGH_TABLE]

    def _address(self, symbol: int) -> int:
        name, section, value = self._symbols[symbol]
        if not section:
            return self._outside(name)
        at: int = value if section == _ABSOLUTE else self._base + self._places[section] + value
        return at

    def _fill(self) -> None:
        for i, at in self._places.items():
            s = self._sections[i]
            if s.kind != _NO_BITS:
                self._memory[at : at + s.size] = self._code[s.offset : s.offset + s.size]
        for i, at in self._stub_of.items():
            if self._symbols[i][0]:
                self._memory[at : at + 14] = _STUB + struct.pack("<Q", self._address(i))
        for i, at in self._slot_of.items():
            self._memory[at : at + 8] = struct.pack("<Q", self._address(i))
        for section, place, kind, symbol, addend in self._relocations():
            self._relocate(self._places[section] + place, kind, symbol, addend)
        library = ctypes.CDLL(None, use_errno=True)
        base, size = ctypes.c_void_p(self._base), ctypes.c_size_t(self._fixed)
        if library.mprotect(base, size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "memory cannot be made executable")

    def _relocate(self, at: int, kind: int, symbol: int, addend: int) -> None:
        if kind in _FAR:
            self._memory[at : at + 8] = struct.pack("<Q", self._address(symbol) + addend)
            return
        here = self._base + at
        if kind in _THROUGH_TABLE:
            target = self._base + self._slot_of[symbol]
        elif kind in _NEAR:
            inside = self._symbols[symbol][1]
            target = self._address(symbol) if inside else self._base + self._stub_of[symbol]
        else:
            raise Unknown(f"object file with a relocation of kind {kind}")
        self._memory[at : at + 4] = struct.pack("<i", target + addend - here)


def _up(n: int, step: int) -> int:
    return -(-n // max(step, 1)) * max(step, 1)
