"""A linker of object files into one position-independent image, which a loader copies, completes and runs.

The image is code and constants of all object files, then a jump for each function from outside, then the
table of their addresses, which is all that a loader fills in.  What cannot be so is refused here, where the
bundle is made: data that is written, addresses inside of constants, functions that no runtime has.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tessera.core.errors import CompileError

# What a kernel may call.  A runtime has all of them; the order is the numbering in the file.
IMPORTS = ("memcpy", "memset", "memmove", "fmodf", "fmod")
_HEADER = struct.Struct("<16xHH20xQ10xHHH")  # kind, machine, sections, their size, number, names
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_PROGBITS, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_WRITE, _ALLOC = 1, 2
_X86, _ARM = 62, 183
_FUNCTION_ALIGN, _LINE = 16, 64


class LinkedImage(NamedTuple):
    """Code as bytes, where each function begins, and where the address of each import goes."""

    code: bytes
    functions: Mapping[str, int]
    imports: Mapping[str, int]


class _ObjectSection(NamedTuple):
    name: str
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Object:
    """An object file taken apart."""

    def __init__(self, name: str, code: bytes):
        self.name, self.code = name, code
        _, self.machine, start, size, count, names = _HEADER.unpack_from(code)
        raw = [_SECTION.unpack_from(code, start + i * size) for i in range(count)]
        strings = raw[names][4]
        self.sections = [
            _ObjectSection(
                self._text(strings + r[0]), r[1], r[2], r[4], r[5], r[6], r[7], r[8], r[9]
            )
            for r in raw
        ]
        table = next(s for s in self.sections if s.kind == _SYMBOLS)
        base = self.sections[table.link].offset
        self.symbols = []
        for i in range(table.size // table.entry):
            at, _, _, section, value, _ = _SYMBOL.unpack_from(
                code, table.offset + i * table.entry
            )  # fmt: skip
            self.symbols.append((self._text(base + at), section, value))

    def _text(self, at: int) -> str:
        return self.code[at : self.code.index(b"\0", at)].decode()

    def kept(self) -> list[int]:
        """The sections that go into the image; tables for unwinding do not."""
        found = []
        for i, s in enumerate(self.sections):
            if not s.flags & _ALLOC or not s.size or s.name.startswith(".eh_frame"):
                continue
            if s.flags & _WRITE or s.kind != _PROGBITS:
                raise CompileError(
                    f"bundle: the code of kernel {self.name!r} has a section {s.name} that is written, "
                    "which a bundle "
                    "cannot hold; please report it"
                )
            found.append(i)
        return found

    def relocations(self, kept: Sequence[int]) -> list[tuple[int, int, int, int, int]]:
        """Section, place in it, kind, symbol and addend of each."""
        out = []
        for s in self.sections:
            if s.kind == _RELOCATIONS and s.info in kept:
                for i in range(s.size // s.entry):
                    at, info, addend = _RELOCATION.unpack_from(self.code, s.offset + i * s.entry)
                    out.append((s.info, at, info & 0xFFFFFFFF, info >> 32, addend))
        return out


def link(objects: Mapping[str, tuple[bytes, Sequence[str]]]) -> LinkedImage:
    """One image of object files by name, each with the functions that are wanted of it; named
    NAME/FUNCTION.
    """
    return _ImageLinker(objects).image()


class _ImageLinker:
    def __init__(self, objects: Mapping[str, tuple[bytes, Sequence[str]]]):
        self.objects = [_Object(n, code) for n, (code, _) in objects.items()]
        self.wanted = [names for _, names in objects.values()]
        self.memory = bytearray()
        self.places: list[dict[int, int]] = []
        for o in self.objects:
            self.places.append({i: self._put(o, i) for i in o.kept()})
        self.machine = self.objects[0].machine if self.objects else _X86
        self.stubs: dict[str, int] = {}
        self.slots: dict[str, int] = {}

    def _put(self, o: _Object, i: int) -> int:
        s = o.sections[i]
        align = max(s.align, _LINE if s.flags & 4 else _FUNCTION_ALIGN)
        self.memory += bytes(-len(self.memory) % align)
        at = len(self.memory)
        self.memory += o.code[s.offset : s.offset + s.size]
        return at

    def image(self) -> LinkedImage:
        self._add_imports()
        functions: dict[str, int] = {}
        for k, o in enumerate(self.objects):
            for section, at, kind, symbol, addend in o.relocations(list(self.places[k])):
                target = self._target(k, symbol)
                self._relocate(o.name, self.places[k][section] + at, kind, target, addend)
            named = {text: i for i, (text, section, _) in enumerate(o.symbols) if section}
            functions |= {f"{o.name}/{n}": self._target(k, named[n]) for n in self.wanted[k]}
        return LinkedImage(bytes(self.memory), functions, self.slots)

    def _add_imports(self) -> None:
        """A jump and a word in the table for each function from outside."""
        names = set()
        for k, o in enumerate(self.objects):
            for _, _, _, symbol, _ in o.relocations(list(self.places[k])):
                text, section, _ = o.symbols[symbol]
                if not section:
                    names.add(text)
                    if text not in IMPORTS:
                        raise CompileError(
                            f"bundle: the code of kernel {o.name!r} calls {text!r}, which the runtime of "
                            "bundles does "
                            "not have; please report it"
                        )
        self.memory += bytes(-len(self.memory) % _LINE)
        first = len(self.memory)
        ordered = sorted(names)
        self.slots = {n: first + 16 * len(ordered) + 8 * i for i, n in enumerate(ordered)}
        for i, n in enumerate(ordered):
            self.stubs[n] = first + 16 * i
            self.memory += _STUBS[self.machine](first + 16 * i, self.slots[n])
        self.memory += bytes(8 * len(ordered))

    def _target(self, k: int, symbol: int) -> int:
        text, section, value = self.objects[k].symbols[symbol]
        return self.stubs[text] if not section else self.places[k][section] + value

    def _relocate(self, name: str, at: int, kind: int, target: int, addend: int) -> None:
        apply = _KINDS[self.machine].get(kind)
        if apply is None:
            raise CompileError(
                f"bundle: the code of kernel {name!r} has a relocation of kind {kind}, which a bundle "
                "cannot hold; "
                "please report it"
            )
        (before,) = struct.unpack_from("<I", self.memory, at)
        struct.pack_into("<I", self.memory, at, apply(before, at, target + addend) & 0xFFFFFFFF)


# Kinds of relocations: the word that was there, where it is, and what it shall reach -> the word.
_Apply = Callable[[int, int, int], int]


def _signed(x: int, bits: int) -> int:
    if not -(1 << bits - 1) <= x < 1 << bits - 1:
        raise CompileError(f"bundle: code is {x} bytes apart, too far for one image")
    return x


def _relative(word: int, at: int, target: int) -> int:
    return _signed(target - at, 32)


def _branch(word: int, at: int, target: int) -> int:
    return word & 0xFC000000 | _signed(target - at, 28) >> 2 & 0x03FFFFFF


def _page(word: int, at: int, target: int) -> int:
    pages = _signed((target >> 12) - (at >> 12), 21)
    return word & 0x9F00001F | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5


def _low(scale: int) -> _Apply:
    """The low 12 bits of an address in an instruction for words of 1 << scale bytes."""

    def apply(word: int, at: int, target: int) -> int:
        return word & ~(0xFFF << 10) | (target & 0xFFF) >> scale << 10

    return apply


_KINDS: dict[int, dict[int, _Apply]] = {
    _X86: {2: _relative, 4: _relative},  # PC32, PLT32
    _ARM: {
        261: _relative,  # PREL32
        274: lambda word, at, target: (  # ADR_PREL_LO21
            word & 0x9F00001F | (_signed(target - at, 21) & 3) << 29 | (target - at >> 2 & 0x7FFFF) << 5
        ),
        275: _page,  # ADR_PREL_PG_HI21
        277: _low(0),  # ADD_ABS_LO12_NC
        278: _low(0),  # LDST8
        282: _branch,  # JUMP26
        283: _branch,  # CALL26
        284: _low(1),
        285: _low(2),
        286: _low(3),
        299: _low(4),
    },
}  # fmt: skip


def _x86_stub(at: int, slot: int) -> bytes:
    """jmp through the slot."""
    return b"\xff\x25" + struct.pack("<i", slot - at - 6) + b"\xcc" * 10


def _arm_stub(at: int, slot: int) -> bytes:
    """adrp x16, slot; ldr x16, [x16, slot]; br x16."""
    words = (_page(0x90000010, at, slot), _low(3)(0xF9400210, at, slot), 0xD61F0200, 0xD503201F)
    return struct.pack("<4I", *words)


_STUBS: dict[int, Callable[[int, int], bytes]] = {_X86: _x86_stub, _ARM: _arm_stub}
