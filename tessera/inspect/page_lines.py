"""Which operation of Tile IR a line of LLVM IR was written for, and which line an instruction comes from.

The LLVM IR of a kernel is written again, operation by operation.  Its assembly is made from a copy in which
every line has its number as a debug location, which LLVM keeps down to the instructions, all the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tessera.ir.target.cpu.emit import Emitter
from tessera.ir.target.cpu.machine import assembly
from tessera.ir.target.cpu.tiles import usable_features
from tessera.ir.tile.ir import Kernel, Operation

_FIRST = 100000  # number of our metadata: above those of any kernel
_DEFINE = re.compile(r"^define .*\{$")
_LOC = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")
_ASIDE = (".cfi_", ".file", ".ident", ".addrsig")  # what only the linker reads
_OURS = re.compile(r"\.L(tmp|func_begin|func_end|sec_end|line_table)|\.Lfunc|Ltmp")


class _Text(str):
    """A line of LLVM IR and the operation that it was written for."""

    __slots__ = ("operation",)
    operation: Operation


class _Recorder(Emitter):
    """Notes for each line which operation it was written for, the innermost where there are several."""

    def one(self, op: Any) -> None:
        begin = len(self.lines)
        super().one(op)
        own = _operation(op)
        for i in range(begin, len(self.lines)):
            if own is not None and not isinstance(self.lines[i], _Text):
                self.lines[i] = _Text(self.lines[i])
                self.lines[i].operation = own  # type: ignore[attr-defined]


def _operation(x: Any) -> Operation | None:
    """The operation, or the first one of those that are written together."""
    if isinstance(x, Operation):
        return x
    parts = x if isinstance(x, tuple | list) else ()
    return next((y for y in map(_operation, parts) if y is not None), None)


def written_for(kernel: Kernel, text: str) -> list[Operation | None]:
    """The operation of each line of LLVM IR; none where the text is not what the kernel becomes."""
    writer = _Recorder(kernel, usable_features())
    lines = text.split("\n")
    if writer.module() != text:
        return [None] * len(lines)
    begin = next(i for i, x in enumerate(lines) if x == "entry:") + 1
    body = [getattr(x, "operation", None) for x in writer.lines]
    # A text of several lines is one entry.
    spread = [o for x, o in zip(writer.lines, body, strict=True) for _ in x.split("\n")]
    return [*[None] * begin, *spread, *[None] * (len(lines) - begin - len(spread))]


def located_assembly(text: str) -> tuple[list[str], list[int]]:
    """The assembly of LLVM IR, and the line of it that each instruction comes from; -1: not known."""
    code, places, at = [], [], -1
    for line in assembly(_with_locations(text)).split("\n"):
        x = line.strip()
        if x.startswith(".section") and ".debug" in x:  # nothing but tables from here on
            break
        found = _LOC.match(line)
        if found is not None:
            at = int(found[1]) - 1
        elif x and not x.startswith(_ASIDE) and not _OURS.match(x):
            code.append(line.replace("\t", "    ").rstrip())
            places.append(-1 if x.endswith(":") or x.startswith(".") else at)
    return code, places


def _with_locations(text: str) -> str:
    """LLVM IR whose lines have their numbers as debug locations."""
    out, numbers, inside = [], [], False
    for i, line in enumerate(text.split("\n")):
        if _DEFINE.match(line):
            inside = True
            out.append(f"{line[:-1]}!dbg !{_FIRST + 3} {{")
        elif line == "}":
            inside = False
            out.append(line)
        elif inside and line.startswith("  "):
            numbers.append(i + 1)
            out.append(f"{line}, !dbg !{_FIRST + 5 + len(numbers)}")
        else:
            out.append(line)
    f = _FIRST
    unit = (
        f'language: DW_LANG_C, file: !{f + 2}, producer: "", isOptimized: true, runtimeVersion: 0'
    )
    head = [
        f"!llvm.dbg.cu = !{{!{f}}}",
        f"!llvm.module.flags = !{{!{f + 1}}}",
        f"!{f} = distinct !DICompileUnit({unit}, emissionKind: LineTablesOnly)",
        f'!{f + 1} = !{{i32 2, !"Debug Info Version", i32 3}}',
        f'!{f + 2} = !DIFile(filename: "kernel", directory: "")',
        f'!{f + 3} = distinct !DISubprogram(name: "kernel", file: !{f + 2}, line: 1, type: !{f + 4}, '
        f"unit: !{f}, spFlags: DISPFlagDefinition)",
        f"!{f + 4} = !DISubroutineType(types: !{f + 5})",
        f"!{f + 5} = !{{null}}",
    ]
    scope = f"column: 1, scope: !{f + 3}"
    places = [f"!{f + 6 + k} = !DILocation(line: {n}, {scope})" for k, n in enumerate(numbers)]
    return "\n".join([*out, *head, *places, ""])


def tile_numbers(operations: Sequence[Operation | None], lines: Sequence[Any]) -> list[int]:
    """The number of the line of Tile IR for the operation of each line; -1: none."""
    known = {id(x.operation): i for i, x in enumerate(lines) if x.operation is not None}
    return [-1 if o is None else known.get(id(o), -1) for o in operations]
