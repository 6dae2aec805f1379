"""Writes tessera/native/include/tessera/ops.hpp: every op of the catalogue as a function of C++17.

`python -m tools.ops_header --check` fails where it is out of date, and so does a test.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tessera.cli.ops import OpRow, op_rows
from tessera.native import INCLUDE

PATH = INCLUDE / "tessera" / "ops.hpp"
FRONT = INCLUDE / "tessera" / "tensor.hpp"
KEYWORDS = frozenset(
    ["and", "bool", "case", "const", "default", "delete", "double", "float", "int", "new", "not", "or",
    "switch", "union", "xor"]
)  # fmt: skip


def function(r: OpRow) -> str:
    """The function of an op, with its sentence."""
    name = f"{r.name}_" if r.name in KEYWORDS else r.name
    doc = re.sub(r"\s+", " ", r.doc).replace("*/", "* /").replace("\\", "")
    call = re.sub(r"\s+", " ", r.call).replace("*/", "* /").replace("\\", "")
    return (
        f"/** {doc}  Python: {call} */\n"
        f"template <class... A> Result {name}(const A &...given) {{ "
        f'return detail::call("{r.name}", given...); }}'
    )


def header() -> str:
    """The whole header."""
    rows = {r.name: r for r in op_rows() if r.name.isidentifier()}
    lines = [
        "/* ops.hpp: every op of Tessera as a function of C++17, over the C interface.",
        " *",
        " * Written by tools/ops_header.py from the records of the ops; do not edit.  Machine code comes "
        "from a library of",
        " * ops, a bundle that `tessera bundle tsol` writes; docs/tsol.md says how.",
        " */",
        "#ifndef TESSERA_OPS_HPP",
        "#define TESSERA_OPS_HPP",
        "",
        '#include "tessera/tensor.hpp"',
        "",
        "namespace tessera {",
        "namespace op {",
        *(function(rows[n]) for n in sorted(rows)),
        "}  // namespace op",
        "}  // namespace tessera",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        fresh = PATH.exists() and PATH.read_text() == header()
        if not fresh:
            print(f"{PATH.name} is out of date: python -m tools.ops_header")
        return int(not fresh)
    Path(PATH).write_text(header())
    return 0


if __name__ == "__main__":
    sys.exit(main())
