"""Builds in child processes: whatever LLVM does, this process lives and says what happened."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tessera.core.errors import CompileError
from tessera.core.flags import override
from tessera.ir.target.cpu.machine import build
from tessera.runtime import builder, code
from tessera.runtime.builder import build_all, build_safely, start
from tessera.runtime.code import LlvmSource, Store, key_of, load_all
from tessera.runtime.loaded import Loaded

ROOT = Path(__file__).parents[2]
GOOD = """
define i64 @answer() {
  ret i64 42
}
"""
# An instruction of another processor: every back-end but NVIDIA's aborts.
ABORTS = """
declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()
define i32 @f() {
  %r = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  ret i32 %r
}
"""
# FACTS: an intrinsic declared with wrong types passes the parser and the verifier.
WRONG_TYPES = """
declare float @llvm.masked.load.v16f32.p0(ptr, i32, <4 x i1>, float)
define float @f(ptr %p, <4 x i1> %m) {
  %r = call float @llvm.masked.load.v16f32.p0(ptr %p, i32 4, <4 x i1> %m, float 0.0)
  ret float %r
}
"""
REFUSED = """
define i64 @f() {
  ret i32 1
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path):
    with override(cache_dir=tmp_path):
        yield tmp_path


def test_starting_ahead_starts_what_is_missing():
    start()
    assert len(builder._WORKERS.all) >= 1
    start(2)
    n = min(2, builder.MOST)
    assert len(builder._WORKERS.all) >= n
    assert len(builder._WORKERS.idle) == len(builder._WORKERS.all)


def test_a_child_builds_what_this_process_would():
    assert build_safely(GOOD, "answer") == build(GOOD)
    assert Loaded(build_safely(GOOD, "answer"), "answer").address


def test_an_abort_of_llvm_is_an_error_with_the_name_and_the_ir(cache):
    with pytest.raises(CompileError) as e:
        build_safely(ABORTS, "my kernel/1")
    (kept,) = (cache / "failed").iterdir()
    assert re.fullmatch(r"my_kernel_1-[0-9a-f]{16}\.ll", kept.name)
    assert e.value.message == (
        "compile: LLVM could not build kernel 'my kernel/1' (SIGABRT: LLVM ERROR: Cannot select: "
        f"intrinsic %llvm.nvvm.read.ptx.sreg.tid.x); its LLVM IR is kept in {kept}, please report "
        "it with that file"
    )
    assert kept.read_text() == ABORTS
    assert build_safely(GOOD, "answer") == build(GOOD)


def test_an_intrinsic_with_wrong_types_does_not_end_this_process():
    with pytest.raises(CompileError, match="kernel 'wrong types'"):
        build_safely(WRONG_TYPES, "wrong types")
    assert build_safely(GOOD, "answer") == build(GOOD)


def test_ir_that_llvm_refuses_is_an_error_and_the_child_stays(cache):
    start()
    before = [w.process.pid for w in builder._WORKERS.all]
    with pytest.raises(CompileError) as e:
        build_safely(REFUSED, "f")
    (kept,) = (cache / "failed").iterdir()
    text = e.value.message
    assert text.startswith("compile: LLVM refused kernel 'f' (LLVM IR parsing error <string>:3:7: ")
    assert text.endswith(f"; its LLVM IR is kept in {kept}, please report it with that file")
    assert "\n" not in text
    assert [w.process.pid for w in builder._WORKERS.all] == before


def test_ir_is_kept_elsewhere_when_the_cache_cannot_be_written(cache):
    (cache / "file").touch()
    with override(cache_dir=cache / "file"), pytest.raises(CompileError) as e:
        build_safely(ABORTS, "f")
    path = Path(re.search(r"is kept in (\S+),", e.value.message)[1])
    assert path.read_text() == ABORTS
    path.unlink()
    path.parent.rmdir()


def test_several_kernels_are_built_side_by_side_and_errors_stay_apart():
    texts = [GOOD.replace("42", str(n)) for n in range(8)]
    modules = [(t, "answer") for t in texts]
    modules[3] = (ABORTS, "bad")
    modules[6] = (REFUSED, "refused")
    made = build_all(modules)
    assert [i for i, m in enumerate(made) if isinstance(m, CompileError)] == [3, 6]
    assert "'bad'" in made[3].message
    assert "'refused'" in made[6].message
    assert [m for m in made if isinstance(m, bytes)] == [
        build(t) for i, t in enumerate(texts) if i not in (3, 6)
    ]


def test_what_could_be_built_is_stored_although_another_kernel_failed(cache, monkeypatch):
    monkeypatch.setattr(code, "_LOADED", {})
    with pytest.raises(CompileError, match="'bad'"):
        load_all([LlvmSource("answer", GOOD, ("answer",)), LlvmSource("bad", ABORTS, ("f",))])
    assert Store(cache / "code").get(key_of(GOOD)) == build(GOOD)


@pytest.mark.skipif(sys.platform == "win32", reason="no signals there")
def test_a_child_that_died_while_idle_is_replaced():
    build_safely(GOOD, "answer")
    for w in builder._WORKERS.idle:
        os.kill(w.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, w.process.pid, os.WEXITED | os.WNOWAIT)
    assert build_safely(GOOD, "answer") == build(GOOD)


EXITS = {
    "with an idle child": "build_safely(GOOD, 'answer')",
    "with a child that is starting": "start(2)",
    "after a crash": """
try:
    build_safely(BAD, 'f')
except CompileError:
    pass
""",
    "after a fork that built too": """
build_safely(GOOD, 'answer')
if os.fork() == 0:
    code = build_safely(GOOD, 'answer')
    sys.exit(0 if code else 1)
assert os.wait()[1] == 0
build_safely(GOOD, 'answer')
""",
    "while a daemon thread builds": """
def forever():
    while True:
        build_safely(GOOD, 'answer')
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.3)
""",
}


@pytest.mark.parametrize("how", EXITS)
def test_a_process_ends(how, tmp_path):
    if "fork" in EXITS[how] and not hasattr(os, "fork"):
        pytest.skip("no fork here")
    code_ = (
        "import os, sys, threading, time\n"
        "from tessera.core.errors import CompileError\n"
        "from tessera.runtime.builder import build_safely, start\n"
        f"GOOD, BAD = {GOOD!r}, {ABORTS!r}\n{EXITS[how]}\nprint('done')"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code_], timeout=120, check=False, text=True,
        env={"PYTHONPATH": str(ROOT), "TESSERA_CACHE_DIR": str(tmp_path)}, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
