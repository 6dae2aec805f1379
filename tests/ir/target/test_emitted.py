"""The LLVM IR that kernels become has nothing that LLVM would have to find out, at the user's cost."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import f32
from tessera.core.processor import assume
from tessera.core.types import TensorType
from tessera.deploy.targets import PROCESSORS
from tessera.ir.schedule.lower import lower
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.machine import SIMPLE, assembly
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.ir import Builder, Kernel
from tessera.runtime.kernel import CompiledKernel
from tests.support.runners.levels import expanded, prepared

AVX512 = frozenset(["avx512f", "avx512dq", "avx512vl"])
ARM = ("aarch64-linux-gnu", "neoverse-n1")


def kernel_of(f: Any, *shapes: tuple[int, ...]) -> Kernel:
    xs = [ts.tensor(np.zeros(s, np.float32)) for s in shapes]
    ((launch,),) = (e.launches for e in expanded(lower(prepared(ts.trace(f, *xs)))))
    return launch.kernel


def loops(text: str) -> int:
    return len(re.findall(r"(?m)^head\d+:", text))


@pytest.mark.parametrize(("first", "kept"), [(2, 0), (1, 1), (0, 1)])
def test_loops_without_a_step_in_any_instance_are_left_out(first: int, kept: int) -> None:
    """What the loop would have carried is what it was given; one instance with a step keeps it for all."""
    b = Builder("k")
    y = b.parameter("y", TensorType(f32, (2,)), writable=True)
    i = b.program(2)
    with b.loop(first, i + 1, 1, [b.full(f32, (1,), 5)]) as c:
        c.carry(b.apply("add", c.carried[0], b.full(f32, (1,), 1)))
    b.store(y, c.results[0], (i,), (1,))
    kernel, out = b.finish(), np.zeros(2, np.float32)
    assert loops(emit(kernel)) == kept
    CompiledKernel(program(kernel)).run([out])
    assert out.tolist() == [5 + max(i + 1 - first, 0) for i in range(2)]


def test_a_block_has_no_instruction_twice() -> None:
    text = emit(kernel_of(op.softmax, (70, 600)), AVX512)
    for block in re.split(r"(?m)^\w+:$", text):
        said = re.findall(
            r"(?m)^  %v\d+ = ((?:add|mul|getelementptr|icmp|shufflevector) .*)$", block
        )
        assert len(said) == len(set(said))


def test_kernels_of_packed_products_are_simple() -> None:
    with assume(PROCESSORS["x86-64-v4"]):
        assert f'"{SIMPLE}"' in emit(kernel_of(lambda a, b: a @ b, (120, 64), (64, 64)), AVX512)
        assert f'"{SIMPLE}"' not in emit(kernel_of(op.softmax, (70, 600)), AVX512)


_LOADS_AGAIN = """define i32 @f(ptr noalias %p, ptr noalias %q, i1 %c) ATTRIBUTES {
  br i1 %c, label %one, label %other
one:
  store volatile i32 1, ptr %q
  %x = load i32, ptr %p
  store volatile i32 %x, ptr %q
  br label %both
other:
  %y = load i32, ptr %p
  %z = mul i32 %y, %y
  store volatile i32 %z, ptr %q
  br label %both
both:
  %again = load i32, ptr %p
  ret i32 %again
}"""


@pytest.mark.parametrize("others", ["", '"frame-pointer"="reserved"', "nounwind"])
def test_simple_functions_get_the_first_level_whatever_else_they_are(others: str) -> None:
    """Only the second level sees that a place was read before on both ways, so the code is another."""

    def code(kind: str) -> str:
        return assembly(_LOADS_AGAIN.replace("ATTRIBUTES", f"{kind} {others}"), *ARM)

    assert code("") == code('"other"') != code(f'"{SIMPLE}"')
