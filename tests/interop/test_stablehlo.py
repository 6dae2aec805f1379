"""ts.stablehlo.export: the text of a module, and what it cannot say.  What XLA makes of it: oracles/test_stablehlo.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, bf16, f32, op
from tessera.core.dtype import saturate

X = np.ones((2, 3), np.float32)

WANTED = """\
"builtin.module"() <{sym_name = "f"}> ({
  "func.func"() <{function_type = (tensor<2x3xf32>) -> (tensor<2x3xf32>), sym_name = "main", sym_visibility = "public"}> ({
  ^bb0(%1: tensor<2x3xf32>):
    %2 = "stablehlo.multiply"(%1, %1) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    "func.return"(%2) : (tensor<2x3xf32>) -> ()
  }) : () -> ()
}) {stablehlo.version = "1.4.0"} : () -> ()\
"""


def test_the_text_of_a_module() -> None:
    def f(x: Any) -> Any:
        return x * x

    assert ts.stablehlo.export(f, X) == WANTED
    assert ts.stablehlo.export(ts.jit(f), Tensor[2, 3, f32]) == WANTED


def test_a_loop_is_a_while_and_a_branch_a_case() -> None:
    text = ts.stablehlo.export(lambda x: ts.scan(lambda c, r: (c + r, c), op.zeros(3), x), X)
    assert text.count('"stablehlo.while"') == 1
    text = ts.stablehlo.export(lambda x: ts.cond(op.sum(x) > 0, lambda: x, lambda: -x), X)
    assert text.count('"stablehlo.case"') == 1


def test_large_constants_are_hexadecimal_and_equal_ones_written_once() -> None:
    w = np.arange(100, dtype=np.float32).reshape(50, 2)
    text = ts.stablehlo.export(
        lambda x: x @ ts.tensor(w) + x @ ts.tensor(w), np.ones((2, 50), np.float32)
    )
    assert f'dense<"0x{w.tobytes().hex().upper()}"> : tensor<50x2xf32>' in text
    assert text.count("tensor<50x2xf32>}>") == 1


@pytest.mark.parametrize(
    ("f", "x", "message"),
    [
        (lambda x: op.eig(x)[0], np.eye(3), "stablehlo: eig has no StableHLO form"),
        (
            lambda x: x.astype(bf16 @ saturate) + 1, X,
            "stablehlo: cast computes in bf16 @ saturate, but StableHLO has no rounding nor clamping of its own; cast "
            "to bf16 first",
        ),
        (
            lambda x: x + 1, Tensor["N", f32],
            "stablehlo: <lambda> has symbolic sizes; export it on arrays or on types with known sizes",
        ),
    ],
    ids=["op", "policy", "sizes"],
)  # fmt: skip
def test_what_stablehlo_cannot_say_is_an_error(f: Any, x: Any, message: str) -> None:
    with pytest.raises(ts.stablehlo.StableHloError) as e:
        ts.stablehlo.export(f, x)
    assert e.value.message == message
