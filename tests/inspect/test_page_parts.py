"""What the page reads from texts: the mix of instructions, and the functions that lines belong to."""

from __future__ import annotations

import linecache
from pathlib import Path

from tessera.inspect.page_data import functions_in
from tessera.inspect.page_mix import mix_of

PTX = [
    "add.f32 %f1, %f2, %f3;",
    "ld.global.f32 %f4, [%rd1];",
    "st.global.f32 [%rd1], %f4;",
    "bra $L__BB0_2;",
    "ret;",
]
ARM = ["fadd v0.4s, v1.4s, v2.4s", "ldr q0, [x0]", "str q0, [x1]", "b .LBB0_1", "ret"]


def test_a_predicate_does_not_change_the_class_of_an_instruction() -> None:
    for line in PTX:
        plain, guarded = mix_of([line]), mix_of([f"@%p1 {line}"])
        assert plain["counts"] == guarded["counts"], line
    assert len({str(mix_of([line])["counts"]) for line in PTX}) > 2


def test_a_mix_is_the_sum_of_its_lines_and_only_frames_have_bytes() -> None:
    for lines in (PTX, ARM):
        whole = mix_of(lines)
        assert sum(whole["counts"].values()) == len(lines)
        for kind, count in whole["counts"].items():
            assert count == sum(mix_of([line])["counts"].get(kind, 0) for line in lines)
        assert whole["frame"] == 0
        assert mix_of([*lines, "sub sp, sp, #48", "subq $16, %rsp"])["frame"] == 64


def test_a_line_belongs_to_the_innermost_function_around_it(tmp_path: Path) -> None:
    text = "x = 1\ndef f():\n    def g():\n        return 2\n    return g\ny = 3\nclass A:\n    def h(self):\n        return 4\nz = 5\n"  # noqa: E501
    file = tmp_path / "some.py"
    file.write_text(text)
    linecache.checkcache()
    want = {2: "f", 3: "f.g", 4: "f.g", 5: "f", 7: "A", 8: "A.h", 9: "A.h"}
    assert functions_in(str(file)) == want
