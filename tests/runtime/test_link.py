"""The linker that keeps sections together: code reaches what it needs, and has the bits that LLVM's
linker gives.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.flags import override
from tessera.ir.target.cpu.link import Unknown
from tessera.ir.target.cpu.machine import build
from tessera.runtime import code, loaded

x86 = pytest.mark.skipif(not loaded._X86, reason="object files of x86-64")

ALL_KINDS = """
@counter = internal global i64 40
@table = internal constant [2 x double] [double 2.5, double 4.0]
declare double @fmod(double, double)
declare double @llvm.fma.f64(double, double, double)
define internal i64 @next() noinline {
  %n = load i64, ptr @counter
  %m = add i64 %n, 1
  store i64 %m, ptr @counter
  ret i64 %m
}
define double @run(i64 %i) {
  %p = getelementptr [2 x double], ptr @table, i64 0, i64 %i
  %x = load double, ptr %p
  %n = call i64 @next()
  %y = sitofp i64 %n to double
  %r = call double @fmod(double %y, double 7.0)
  %z = call double @llvm.fma.f64(double %x, double 10.0, double %r)
  ret double %z
}
"""


@x86
def test_code_reaches_constants_variables_functions_and_libraries() -> None:
    made = loaded.Loaded(build(ALL_KINDS), "run")
    run = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(made.address)
    assert [run(0), run(1), run(0)] == [25 + 41 % 7, 40 + 42 % 7, 25 + 43 % 7]


@x86
def test_programs_have_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    x = np.random.default_rng(3).standard_normal((40, 50)).astype(np.float32)

    def f(a: ts.Tensor) -> ts.Tensor:
        return op.softmax(op.sin(a) @ a.T) + op.fmod(a @ a.T, 0.7)

    want = ts.jit(f)(ts.tensor(x)).numpy()
    monkeypatch.setattr(loaded, "_X86", False)
    monkeypatch.setattr(code, "_LOADED", {})
    with override(cache_dir=tmp_path):
        got = ts.jit(f)(ts.tensor(x)).numpy()
    assert got.tobytes() == want.tobytes()


@x86
def test_a_function_that_is_nowhere_is_an_error() -> None:
    text = "declare void @nowhere_at_all()\ndefine void @run() {\n  call void @nowhere_at_all()\n  ret void\n}\n"  # noqa: E501
    with pytest.raises(RuntimeError, match="no function 'nowhere_at_all'"):
        loaded.Loaded(build(text), "run")


@x86
def test_what_it_does_not_know_is_left_to_llvm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise Unknown("no")

    monkeypatch.setattr(loaded, "Linked", refuse)
    run = loaded.Loaded(build(ALL_KINDS), "run")
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(run.address)(0) == 25 + 41 % 7


@x86
def test_code_and_constants_lie_together() -> None:
    made = loaded.Loaded(build(ALL_KINDS), "run")
    (size,) = {len(made._library._memory)}
    assert 0 <= made.address - made._library._base < size < 1 << 20
