"""TSOL: a library of ops that a C++ program calls by name, with the bits of Python's results."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera.cli.ops import op_rows
from tessera.core.errors import OperandError
from tessera.deploy import tsol
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE
from tools import ops_header, tsol_guide

COMPILER = shutil.which("g++")
C_COMPILER = shutil.which("gcc")
needs_compiler = pytest.mark.skipif(
    not (COMPILER and C_COMPILER and usable()), reason="no C++ compiler for this processor"
)
RNG = np.random.default_rng(9)
SIZES = {"n": 6, "m": 5, "k": 4, "b": 2, "h": 2, "s": 7}


def test_the_header_is_what_the_ops_say():
    assert ops_header.PATH.read_text() == ops_header.header(), "python -m tools.ops_header"


def test_calls_are_read_and_have_keys():
    c = tsol.parse_call("softmax( f32[n, m], axis=-1 )")
    assert c.key == "softmax(f32[2],axis=-1)"
    assert c.entry == "op_" + c.entry[3:]
    assert tsol.parse_call("transpose(f32[n,m], axes=(1, 0))").key == "transpose(f32[2],axes=(1,0))"
    assert tsol.parse_call("where(bool[n], f32[n], f32[n])").key == "where(bool[1],f32[1],f32[1])"
    with pytest.raises(OperandError, match=r"'softmax' is no call of an op; write it as softmax\("):
        tsol.parse_call("softmax")
    with pytest.raises(OperandError, match="no op is named 'sofmax'"):
        tsol.parse_call("sofmax(f32[n])")
    with pytest.raises(OperandError, match="is no call of an op"):
        tsol.parse_call("softmax(f32[n], 3)")


def arrays_of(c: tsol.OpCall) -> list[Any]:
    """Operands of a call; those that work element by element get two axes."""
    out = []
    for dtype, shape in c.operands:
        sizes = (3, 4) if c.each else tuple(SIZES.get(str(n), n) for n in shape)
        if dtype == "bool":
            out.append(RNG.integers(0, 2, sizes).astype(np.bool_))
        elif dtype == "i32":
            out.append(RNG.integers(0, 4, sizes).astype(np.int32))
        else:
            out.append(RNG.uniform(-0.9, 0.9, sizes).astype(np.float32))
    return out


CPP = {"bool": "bool", "i32": "int32_t", "f32": "float"}


def program(calls: Sequence[tsol.OpCall]) -> str:
    """A C++ program that makes these calls and compares their results with a record."""
    lines = [
        '#include "tessera/ops.hpp"', "#include <fstream>", "#include <iostream>", "using namespace tessera;",
        "static std::ifstream file;",
        "template <class T> static Tensor in() {",
        "  int64_t rank = 0, shape[8];",
        "  file.read(reinterpret_cast<char *>(&rank), 8), file.read(reinterpret_cast<char *>(shape), 8 * "
        "rank);",
        "  Tensor x = Tensor::empty(detail::dtype_of<T>::code, std::vector<int64_t>(shape, shape + rank));",
        "  file.read(static_cast<char *>(x.data()), static_cast<std::streamsize>(x.bytes()));",
        "  return x;",
        "}",
        "static int bad = 0, good = 0;",
        "static void same(const char *key, const Result &made) {",
        "  const Tensor &x = made;",
        "  int64_t rank = 0, shape[8];",
        "  file.read(reinterpret_cast<char *>(&rank), 8), file.read(reinterpret_cast<char *>(shape), 8 * "
        "rank);",
        "  std::vector<char> want(x.bytes());",
        "  file.read(want.data(), static_cast<std::streamsize>(want.size()));",
        "  bool equal = x.shape() == std::vector<int64_t>(shape, shape + rank) && !std::memcmp(want.data(), "
        "x.data(), x.bytes());",
        '  if (equal) good++; else bad++, std::cout << key << ": OTHER BITS\\n";',
        "}",
        "int main(int, char **argv) try {",
        "  Library library(argv[1]);",
        "  file.open(argv[2], std::ios::binary);",
    ]  # fmt: skip
    for i, c in enumerate(calls):
        given = [f"x{i}_{j}" for j in range(len(c.operands))]
        lines += [
            f"  Tensor {x} = in<{CPP[d]}>();" for x, (d, _) in zip(given, c.operands, strict=True)
        ]
        given += [f'arg("{n}") = {literal(v)}' for n, v in c.params]
        lines.append(f'  same("{c.key}", op::{c.name}({", ".join(given)}));')
    lines += [
        "  try {",
        "    op::softmax(Tensor({2}, {1.f, 2.f}), arg(\"axis\") = 7);",
        "  } catch (const Error &e) {",
        "    std::cout << e.status << ' ' << e.what() << '\\n';",
        "  }",
        "  std::cout << good << \" ok, \" << bad << \" bad\\n\";",
        "  return bad != 0;",
        "} catch (const std::exception &e) {",
        "  std::cout << e.what() << '\\n';",
        "  return 1;",
        "}",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def literal(x: Any) -> str:
    if isinstance(x, bool):
        return str(x).lower()
    return "{" + ", ".join(map(str, x)) + "}" if isinstance(x, tuple) else str(x)


def write(f: Any, x: Any) -> None:
    f.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + np.ascontiguousarray(x).tobytes())


def run_calls(calls: Sequence[tsol.OpCall], folder: Path) -> str:
    tsol.save(folder / "ops.tess", calls)
    with (folder / "record").open("wb") as f:
        for c in calls:
            xs = arrays_of(c)
            for x in xs:
                write(f, x)
            write(f, np.asarray(tsol.function_of(c)(*map(ts.tensor, xs))))
    (folder / "program.cpp").write_text(program(calls))
    front = ["-Wall", "-Wextra", "-Werror", "-I", str(INCLUDE)]
    subprocess.run(
        [str(C_COMPILER), "-O0", "-I", str(INCLUDE), "-c", str(SOURCE), "-o", str(folder / "c.o")], check=True
    )  # fmt: skip
    files = [
        str(folder / "program.cpp"),
        str(folder / "c.o"),
        "-pthread",
        "-o",
        str(folder / "run"),
    ]
    subprocess.run([str(COMPILER), "-std=c++17", "-O0", *front, *files], check=True)
    run = [str(folder / "run"), str(folder / "ops.tess"), str(folder / "record")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


MISSING = (
    "5 softmax(f32[1],axis=7): the library has no such call; add it with `tessera bundle tsol --op`"
)


@needs_compiler
def test_a_program_of_cpp_calls_ops_by_name(tmp_path: Path):
    texts = (
        "*exp(f32[n])", "*add(f32[n], f32[n])", "softmax(f32[n,m], axis=-1)", "matmul(f32[m,k], f32[k,n])",
        "take(f32[n,m], i32[k], axis=0)", "transpose(f32[n,m], axes=(1, 0))",
    )  # fmt: skip
    said = run_calls([tsol.parse_call(t) for t in texts], tmp_path)
    assert said.splitlines() == [MISSING, "6 ok, 0 bad"]


@needs_compiler
@pytest.mark.deep
def test_a_program_of_cpp_uses_a_hundred_ops(tmp_path: Path):
    calls = tsol.usual_calls()
    assert len({c.name for c in calls}) >= 100
    said = run_calls(calls, tmp_path)
    assert said.splitlines() == [MISSING, f"{len(calls)} ok, 0 bad"]


def test_the_guide_has_every_family_as_the_records_have_it_now():
    """python -m tools.docs_site writes it."""
    text = tsol_guide.PAGE.read_text()
    assert tsol_guide.with_families(text) == text
    named = [m for f in tsol_guide.FAMILIES for m in tsol_guide.modules(f)]
    assert len(named) == len(set(named))
    assert {r.family for r in op_rows()} == set(named)
    for word in ("Ops", "Dtypes", "Determinism", "Gradient", "Targets"):
        assert text.count(f"- **{word}**") == len(tsol_guide.FAMILIES)


def test_a_library_has_the_calls_that_it_was_asked_for(tmp_path: Path):
    wanted = [tsol.parse_call("sin(f32[n])"), tsol.parse_call("sum(f32[n,m], axis=0)")]
    assert tsol.save(tmp_path / "some.tsol", wanted) == wanted
    assert tsol.save(tmp_path / "none.tsol", []) == []


def test_a_library_knows_how_many_operands_go_element_by_element():
    assert [tsol.operands_each(n) for n in ("sin", "add", "sum", "no such op")] == [1, 2, 0, 0]
