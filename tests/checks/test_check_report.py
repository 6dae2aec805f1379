"""ts.check and `tessera check`: shared memory banks, registers, roofline, scratch, and the report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.checks.banks import BankLayout, Swizzle, check_banks
from tessera.checks.initial import check_initial
from tessera.checks.kernel import TOOLS, check_kernel
from tessera.checks.registers import check_registers, pressure
from tessera.checks.roofline import MACHINES, RooflineMachine, check_roofline, work
from tessera.checks.specialise import specialise
from tessera.cli import main
from tessera.core.dtype import DType, f16, f32, f64, i8
from tessera.core.errors import OperandError
from tessera.core.processor import SETS
from tessera.core.source import Location
from tessera.ir.tile.ir import Builder, Kernel
from tessera.ir.tile.verify import verify
from tests.support.cases.check_kernels import (
    GLOBAL,
    SHARED,
    M,
    N,
    blocks_2d,
    copy,
    pipelined,
    product,
    staged,
    start,
    tensor,
    turned_in_shared,
)

# Banks ----------------------------------------------------------------------------------------------


def columns(rows: int, width: int, dtype: DType = f32) -> Kernel:
    """Shared memory that is written by rows and read by columns."""
    b = Builder("columns", Location("user.py", 3))
    x = b.parameter("x", tensor(rows, 8, dtype=dtype))
    y = b.parameter("y", tensor(8, rows, dtype=dtype), writable=True)
    s = b.alloc(dtype, (rows, width), "shared")
    b.store(s, b.load(x, (0, 0), (rows, 8)), (0, 0), (rows, 8), axes=(0, 1))
    b.barrier()
    b.store(y, b.load(s, (0, 0), (rows, 8), axes=(1, 0)), (0, 0), (8, rows))
    return b.finish()


# Threads of a column are `width` words apart, so that gcd(width, 32) of them share a bank.
WORDS = [
    8,
    10,
    12,
    14,
    16,
    18,
    20,
    22,
    24,
    26,
    28,
    30,
    32,
    34,
    36,
    38,
    40,
    44,
    48,
    52,
    56,
    60,
    64,
    72,
    80,
    96,
    128,
]


@pytest.mark.parametrize("width", WORDS)
def test_the_conflicts_of_a_column_are_found(width: int) -> None:
    found = check_banks(columns(32, width)).findings
    loads = [f for f in found if f.operation.startswith("load")]
    assert [f.witness["degree"] for f in loads] == [math.gcd(width, 32)]
    assert loads[0].location == Location("user.py", 3)
    assert "swizzle" in loads[0].suggestion


@pytest.mark.parametrize("width", [9, 11, 17, 33, 65])
def test_padded_rows_have_no_conflicts_in_columns(width: int) -> None:
    found = check_banks(columns(32, width)).findings
    assert not [f for f in found if f.operation.startswith("load")]


def test_there_are_many_conflicts() -> None:
    assert len(WORDS) >= 25


def test_a_swizzle_removes_conflicts() -> None:
    kernel = columns(8, 32)
    plain = check_banks(kernel, layouts=BankLayout(vector=4)).findings
    assert [f.witness["degree"] for f in plain if f.operation.startswith("load")] == [8]
    found = check_banks(
        kernel, layouts={"s1": BankLayout(Swizzle(bits=3, chunk=4), vector=4)}
    ).findings
    assert not [f for f in found if f.operation.startswith("load")]


@pytest.mark.parametrize(
    ("dtype", "width", "degree"),
    [(f16, 64, 32), (f16, 66, 1), (f64, 16, 16), (f64, 17, 1), (i8, 128, 32), (i8, 132, 1), (f32, 64, 32)],
    ids=lambda x: str(x),
)  # fmt: skip
def test_the_width_of_elements_counts(dtype: DType, width: int, degree: int) -> None:
    found = check_banks(columns(32, width, dtype)).findings
    loads = [f.witness["degree"] for f in found if f.operation.startswith("load")]
    assert loads == ([degree] if degree > 1 else [])


def test_vectors_are_taken_in_turns() -> None:
    """16 bytes a thread: 8 threads at once, whose words are all different."""
    b, x, y = start("rows", x=tensor(32, 32), y=tensor(32, 32))
    s = b.alloc(f32, (32, 32), "shared")
    b.store(s, b.load(x, (0, 0), (32, 32)), (0, 0), (32, 32))
    b.barrier()
    b.store(y, b.load(s, (0, 0), (32, 32)), (0, 0), (32, 32))
    kernel = b.finish()
    assert check_banks(kernel).ok
    assert check_banks(kernel, layouts=BankLayout(vector=4)).ok


# Scratch --------------------------------------------------------------------------------------------


def running(before: bool = True, start_at: int = 0, rest: bool = True) -> Kernel:
    """Sums in scratch; it is filled in two parts."""
    b, x, y = start("running", x=tensor(M, 8), y=tensor(M, 8))
    p = b.program(M)
    s = b.alloc(f32, (8,))
    if before:
        b.store(s, b.full(f32, (4,), 0), (start_at,), (4,))
    if rest:
        b.store(s, b.full(f32, (4,), 0), (4,), (4,))
    total = b.apply("add", b.load(s, (0,), (8,)), b.load(x, (p, 0), (1, 8), axes=(1,)))
    b.store(y, total, (p, 0), (1, 8), axes=(1,))
    return b.finish()


def test_scratch_that_is_read_before_it_is_written_is_found() -> None:
    assert check_initial(running()).ok
    for broken in (running(before=False), running(start_at=1), running(rest=False)):
        (found,) = check_initial(broken).findings
        assert found.confirmed
        assert "which nothing has written, and a result depends on it" in found.message
    (found,) = check_initial(running(rest=False)).findings
    assert found.witness == {"M": 1, "instance": (0,), "element": [4]}


def test_scratch_that_a_loop_fills_is_proved() -> None:
    b, x, y = start("swept", x=tensor(M, N), y=tensor(M, N))
    p = b.program(M)
    s = b.alloc(f32, (N,))
    with b.loop(0, N, 8) as c:
        t = b.load(x, (p, c.variable), (1, 8), axes=(1,), masked=(1,))
        b.store(s, t, (c.variable,), (8,), masked=(0,))
    with b.loop(0, N, 4) as c:
        t = b.load(s, (c.variable,), (4,), masked=(0,))
        b.store(y, t, (p, c.variable), (1, 4), axes=(1,), masked=(1,))
    assert check_initial(b.finish()).is_proof


def test_garbage_that_no_result_depends_on_is_fine() -> None:
    b, x, y = start("masked", x=tensor(M, 8), y=tensor(M, 8))
    p = b.program(M)
    s = b.alloc(f32, (16,))
    b.store(s, b.load(x, (p, 0), (1, 8), axes=(1,)), (0,), (8,))
    b.store(y, b.load(s, (0,), (16,)), (p, 0), (1, 16), axes=(1,), masked=(1,))
    assert check_initial(b.finish()).ok


# Registers and roofline -----------------------------------------------------------------------------


def test_registers_are_those_of_live_tiles() -> None:
    b, x, y = start("live", x=tensor(64, 64), y=tensor(64, 64))
    a, c = (b.load(x, (i, 0), (16, 64)) for i in (0, 16))
    b.store(y, b.apply("add", a, c), (0, 0), (16, 64))
    b.store(y, a, (16, 0), (16, 64))
    p = pressure(b.finish(), warps=4)
    assert p.bytes == 2 * 16 * 64 * 4
    assert p.vectors(SETS["avx2"]) == p.bytes // 32
    assert p.per_thread == p.bytes // 4 // 128 + 16


def test_what_a_loop_reads_stays_alive_in_it() -> None:
    b, x, y = start("loop", x=tensor(64, 64), y=tensor(64, 64))
    kept = b.load(x, (0, 0), (8, 64))
    with b.loop(0, 8, 1, [b.full(f32, (8, 64), 0)]) as c:
        c.carry(b.apply("add", c.carried[0], kept))
    b.store(y, c.results[0], (0, 0), (8, 64))
    assert pressure(b.finish()).bytes == 2 * 8 * 64 * 4


def test_too_many_registers_are_a_hint() -> None:
    b, x, y = start("large", x=tensor(256, 256), y=tensor(256, 256))
    b.store(y, b.apply("exp", b.load(x, (0, 0), (256, 256))), (0, 0), (256, 256))
    kernel = b.finish()
    v = check_registers(kernel, warps=4)
    assert [f.level for f in v.findings] == ["hint"]
    assert v.ok
    assert not check_registers(kernel, warps=32).findings


def test_the_roofline_of_a_product_and_of_a_copy() -> None:
    small = RooflineMachine("small", flops=1e12, bandwidth=1e11)
    sizes = {"M": 256, "N": 256, "K": 256}
    w = work(product(), sizes)
    assert w.flops == 2 * 256**3
    assert w.bytes == 3 * 256 * 256 * 4
    note = check_roofline(product(), sizes, small).note
    assert "bound by arithmetic, 100% of the peak of small" in note
    note = check_roofline(copy(), {"N": 1 << 20}, small).note
    assert "bound by memory, 0% of the peak" in note
    assert "83.9 us" in note
    assert check_roofline(product(), sizes, "h200").note.count("h200") == 1
    assert set(MACHINES) >= {"h200", "mi300x"}


def test_a_kernel_that_loads_the_same_again_gets_a_hint() -> None:
    v = check_roofline(product(), dict.fromkeys("MNK", 4096), RooflineMachine("m", 1e13, 1e11))
    assert [f.level for f in v.findings] == ["hint"]
    assert "larger tiles" in v.findings[0].suggestion


# The report -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [*GLOBAL, *(f for f, _ in SHARED.values())], ids=lambda f: f.__name__
)
def test_nothing_is_found_in_correct_kernels(make) -> None:
    report = ts.check(make(), machine="h200")
    findings = [f for f in report.findings if f.tool != "banks"]
    assert findings == []
    assert tuple(v.tool for v in report) == TOOLS


def test_a_report_has_lines_findings_and_json() -> None:
    report = ts.check(staged(0), machine="h200")
    assert not report.ok
    assert {f.tool for f in report.findings} == {"barriers"}
    assert "error: barriers: staged: store and then load" in str(report)
    assert "try: barrier() before the load" in str(report)
    (verdict,) = report.of("barriers")
    data = json.loads(json.dumps(report.json(), default=str))
    assert [d["tool"] for d in data] == list(TOOLS)
    assert data[1]["findings"][0]["confirmed"] is True
    assert str(verdict) in str(report)


def test_tools_are_chosen_by_name() -> None:
    assert [v.tool for v in ts.check(copy(), tools=("bounds",))] == ["bounds"]
    with pytest.raises(OperandError, match="there is no tool 'colour'"):
        ts.check(copy(), tools=("colour",))
    with pytest.raises(OperandError, match="got int, expected a kernel"):
        ts.check(3)


def test_sizes_of_arguments_can_be_the_only_ones() -> None:
    b, x, y = start("even", x=tensor(N), y=tensor(N))
    at = b.program((N + 3) // 4) * 4
    b.store(y, b.load(x, (at,), (4,)), (at,), (4,))
    kernel = b.finish()
    eight = np.zeros(8, np.float32)
    assert not ts.check(kernel, eight, eight, tools=("bounds",)).ok
    assert ts.check(kernel, eight, eight, tools=("bounds",), fixed=True).ok
    special = specialise(blocks_2d(), {"M": 3})
    verify(special)
    assert special.sizes == ("N",)


def test_jitted_functions_are_checked_kernel_by_kernel() -> None:
    f = ts.jit(lambda x: op.softmax(x, axis=-1), target="cpu")
    report = ts.check(f, ts.zeros((3, 20)), machine="h200")
    assert report.ok
    assert len(report) == len(TOOLS) * len(f.lower(ts.zeros((3, 20))).tile)


def test_kernels_of_the_kernel_language_are_checked(tmp_path) -> None:
    f = _language_kernel(tmp_path)
    report = ts.check(f, np.zeros((5, 7), np.float32), machine="h200")
    assert report.ok, report
    assert report.of("bounds")[0].is_proof


SOURCE = """
from tessera import KTile, f32, kernel, tile


@kernel
def double(x: KTile["M", "N", f32]):
    return tile.load(x) * 2.0
"""


def _language_kernel(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)
    space: dict = {}
    exec(compile(SOURCE, str(path), "exec"), space)
    return space["double"]


def test_pipelines_are_fine() -> None:
    assert check_kernel(pipelined(), machine="h200", tools=("barriers", "bounds", "races")).ok
    assert check_kernel(turned_in_shared(), tools=("barriers",)).ok


# The command line -----------------------------------------------------------------------------------


def test_the_command_checks_a_file(tmp_path, capsys) -> None:
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE)
    assert main(["check", str(path), "--machine", "h200"]) == 0
    out = capsys.readouterr().out
    assert "bounds: double: proved (2 of 2 facts proved)" in out
    summary, *lines = out.splitlines()
    assert summary == "1 kernel, 10 checks: nothing found, 4 of 4 facts proved"
    assert [line.split(":")[0] for line in lines] == list(TOOLS)


def test_findings_give_status_1_and_json_has_them(tmp_path, capsys) -> None:
    path = tmp_path / "broken.tile"
    path.write_text(staged(0).text)
    assert main(["check", str(path), "--json", "--machine", "h200"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [d["tool"] for d in data if not d["ok"]] == ["barriers"]


def test_the_command_says_what_it_cannot_check(tmp_path, capsys) -> None:
    path = tmp_path / "nothing.py"
    path.write_text("x = 1\n")
    assert main(["check", str(path)]) == 2
    assert "has no kernel and no jitted function" in capsys.readouterr().err
    assert main(["check", str(path), "--machine", "z80"]) == 2
    assert "--machine is 'z80'" in capsys.readouterr().err
    path.write_text(SOURCE.replace(': KTile["M", "N", f32]', ""))
    assert main(["check", str(path)]) == 2
    assert "has a parameter without an annotation: x" in capsys.readouterr().err


def test_promises_are_checked_by_the_command(tmp_path, capsys) -> None:
    path = tmp_path / "promise.py"
    path.write_text(
        "import tessera as ts\nfrom tessera import Tensor, f32, op, verify\n\n\n"
        "@verify.numerics(bounded=[-100, 100])\n@ts.jit(target='cpu')\n"
        "def f(x: Tensor['B', 'N', f32]):\n    return op.exp(x)\n"
    )
    assert main(["check", str(path), "--size", "B=2", "--size", "N=20", "--machine", "h200"]) == 1
    assert "exp in f32 overflows to infinity for inputs within bounds" in capsys.readouterr().out
