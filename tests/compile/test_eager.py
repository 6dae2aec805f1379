"""Eager code and compiled programs are one: every op has the same bits alone, jitted, and fused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import tessera as ts
from tessera import op
from tessera.compile import compile_graph
from tessera.core.dtype import DType, bf16, f32, f64
from tessera.core.errors import FlagError, OperandError, TesseraError
from tessera.core.flags import flags, override
from tessera.ir.graph.interp import execute, settled
from tessera.ir.graph.op import REGISTRY
from tests.support.breadth import examples
from tests.support.cases.op_cases import Case, all_cases, cases
from tests.support.cases.random_graphs import LoopSteps, Program, programs, same_bits
from tests.support.runners.tolerance import assert_close, assert_same_bits

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def machine() -> Any:
    with override(target="cpu"):
        yield


def fused(case: Case) -> Any:
    """The case between neighbours that change no bit: products with a 1 that only the call knows."""

    def run(xs: Any, one: Any) -> list[Any]:
        near = [x * one.astype(x.dtype) if x.dtype.kind in "iuf" else x for x in xs]
        return [y * one.astype(y.dtype) if y.dtype.kind in "iuf" else y for y in case.run(near)]

    return ts.jit(run, target="cpu")


def first_of_each() -> list[Case]:
    """One case for every op."""
    return list({c.name: c for c in reversed(all_cases())}.values())


def check(case: Case, dtype: DType) -> None:
    xs = [ts.tensor(x) for x in case.draw(dtype)]
    try:
        with override(target="numpy"):
            want = case.run(xs)
    except TesseraError as e:
        pytest.skip(f"does not take {dtype}: {e.message}")
    got = case.run(xs)
    for alone, within, w in zip(got, fused(case)(xs, ts.tensor(1.0)), want, strict=True):
        assert alone.type is within.type
        assert_same_bits(alone, within)
        assert_close(alone, w, times=10)


@pytest.mark.filterwarnings("ignore:offload")  # a move that is not made says so
@pytest.mark.parametrize("case", cases(lambda c: c.op is not None), ids=str)
def test_an_op_alone_is_the_op_among_neighbours(case: Case) -> None:
    check(case, f32)


def with_mark(case: Case) -> Any:
    """Functions that are made of other ops are left to `make test-deep`: those ops have cases of their
    own.
    """
    composed = case.op is None or case.op.decompose is not None
    return pytest.param(case, marks=pytest.mark.deep, id=str(case)) if composed else case


@pytest.mark.filterwarnings("ignore:offload")  # a move that is not made says so
@pytest.mark.parametrize("case", [*map(with_mark, first_of_each())], ids=str)
def test_narrow_dtypes_too(case: Case) -> None:
    check(case, bf16)


SIZED = {
    "exp": (op.exp, [(0,), (1,), (521,), (3, 7, 31)]),
    "gelu": (op.gelu, [(0, 3), (1,), (521,)]),
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum(-1)), [(0, 2), (1, 1), (7, 1031), (2, 3, 521)]),
    "prod": (lambda x: op.prod(x, -1), [(1, 1), (3, 521), (2, 0)]),
    "mean": (lambda x: op.mean(x, -1), [(1, 1), (3, 521)]),
    "var": (lambda x: op.var(x, 0), [(1, 1), (523, 3)]),
    "logsumexp": (op.logsumexp, [(1,), (521,)]),
    "softmax": (op.softmax, [(0, 5), (1, 1), (3, 521), (2, 2, 17)]),
    "layernorm": (op.layernorm, [(1, 1), (3, 521)]),
    "rmsnorm": (op.rmsnorm, [(1, 1), (3, 521)]),
    "matmul": (lambda x: op.matmul(x, x.T), [(1, 1), (0, 3), (3, 0), (13, 521), (31, 17)]),
    "cumsum": (lambda x: op.cumsum(x, -1), [(1, 1), (3, 521)]),
}


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", SIZED)
def test_one_build_for_all_sizes_has_the_bits_of_each(name: str, dtype: DType) -> None:
    f, shapes = SIZED[name]
    for shape in shapes:
        x = ts.tensor(np.random.default_rng(3).normal(size=shape).astype(dtype.np))
        got, want = ts.tree.leaves(f(x)), ts.tree.leaves(ts.jit(f, target="cpu")(x))
        for a, b in zip(got, want, strict=True):
            assert_same_bits(a, b)


@examples(60)
@given(programs())
def test_random_programs_run_alike_op_by_op_and_compiled(p: Program) -> None:
    assert same_bits(execute(p.graph, p.inputs), compile_graph(p.graph, "cpu").run(p.inputs))


@examples(40)
@given(programs(steps_class=LoopSteps))
def test_random_loop_nests_run_alike_op_by_op_and_compiled(p: Program) -> None:
    assert same_bits(execute(p.graph, p.inputs), compile_graph(p.graph, "cpu").run(p.inputs))


def test_loops_run_their_bodies_as_eager_code() -> None:
    """A Python loop, a scan and a jitted scan are one."""
    w, x = (ts.tensor(np.random.default_rng(i).normal(size=(9, 9)).astype("f")) for i in range(2))

    def step(c: Any, row: Any) -> Any:
        return op.tanh(c @ w + row), op.sum(c)

    c, sums = x, []
    for i in range(9):
        c, s = step(c, x[i])
        sums.append(s)
    for run in (ts.scan, ts.jit(ts.scan, static_argnames=("f",))):
        last, out = run(step, x, x)
        assert_same_bits(last, c)
        assert_same_bits(out, op.stack(sums))


def test_derivatives_are_the_same_eager_and_jitted() -> None:
    x = ts.tensor(np.random.default_rng(0).normal(size=(5, 37)).astype("f"))

    def loss(x: Any) -> Any:
        return op.mean(op.square(op.softmax(op.gelu(x)) @ x.T))

    assert_same_bits(ts.grad(loss)(x), ts.jit(ts.grad(loss))(x))
    assert_same_bits(ts.jvp(loss, (x,), (x,))[1], ts.jit(lambda x: ts.jvp(loss, (x,), (x,))[1])(x))
    many = ts.vmap(loss)
    assert_same_bits(many(x[None]), ts.jit(many)(x[None]))


def test_a_check_for_nan_sees_the_numbers_of_the_program() -> None:
    x = ts.tensor(np.random.default_rng(0).normal(size=(5, 37)).astype("f"))
    f = ts.jit(lambda x: op.softmax(op.exp(x) @ x.T))
    want = f(x)
    with ts.debug_nans():
        assert_same_bits(f(x), want)


def test_bits_that_cannot_differ_are_left_to_numpy() -> None:
    """Decided from the record of an op and its dtypes."""

    def fixed(name: str, dtype: Any, *more: Any, **params: Any) -> bool:
        types = [op.zeros((2, 2), d).type for d in (dtype, *more)]
        o = REGISTRY[name]
        return settled(o, types, o.result_types(types, params))

    assert fixed("add", f32, f32)
    assert fixed("sqrt", bf16)
    assert fixed("transpose", f32, axes=(1, 0))
    assert fixed("max", f32, axes=(0,))
    assert fixed("sum", ts.i64, axes=(0,))
    assert fixed("sort", ts.i32, axis=0, descending=False)
    assert not fixed("sum", f32, axes=(0,))
    assert not fixed("exp", f32)
    assert not fixed("mul", ts.c64, ts.c64)
    assert not fixed("softmax", f32, axis=-1)


def test_signs_of_zero_do_not_depend_on_the_order() -> None:
    zeros = np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]], np.float32)
    for d in (f32, bf16):
        x = ts.tensor(zeros).astype(d)
        for f, want in ((op.max, [False, False, True]), (op.min, [True, True, True])):
            assert np.signbit(f(x, 1).astype(f32).numpy()).tolist() == want
            assert_same_bits(f(x, 1), ts.jit(f, static_argnames=("axis",))(x, axis=1))


def test_a_parameter_of_minus_zero_is_not_zero() -> None:
    x = ts.tensor([-1.0, 1.0])
    for slope in (0.0, -0.0, 0.0):
        y = op.leaky_relu(x, slope)
        assert np.signbit(y.numpy()[0]) == np.signbit(-slope)


# Targets and modes ----------------------------------------------------------------------------


def test_the_target_is_a_flag_for_eager_code_and_jit() -> None:
    x = ts.tensor(np.random.default_rng(1).normal(size=100_003).astype("f"))
    f = ts.jit(lambda x: op.tanh(x))
    by_machine = op.tanh(x)
    with override(target="numpy"):
        by_reference = op.tanh(x)
        assert_same_bits(by_reference, np.tanh(x.numpy()))
        assert_same_bits(f(x), by_reference)
        assert not hasattr(f.lower(x)._executable, "schedule")
    assert_same_bits(f(x), by_machine)
    assert f.compiled == 2
    assert (by_machine.numpy() != by_reference.numpy()).any()


def test_strict_refuses_what_the_host_computes() -> None:
    x = ts.tensor(np.eye(3))
    message = (
        "expm: numerics 'strict' needs the same bits on every machine, but this op runs on the host in "
        "NumPy, SciPy or LAPACK; use 'deterministic'"
    )

    def looped(x: Any) -> Any:
        return ts.fori_loop(0, 2, lambda i, c: op.expm(c) + 1.0, x)

    runs = [
        ts.jit(op.expm, numerics="strict"),
        ts.numerics("strict")(op.expm),
        ts.numerics("strict")(ts.jit(op.expm)),
        ts.jit(looped, numerics="strict"),
        ts.numerics("strict")(looped),
        ts.jit(op.expm, numerics="strict", target="numpy"),
    ]
    for run in runs:
        with pytest.raises(OperandError) as e:
            run(x)
        assert e.value.message == message
    op.expm(x)


def test_strict_keeps_the_bits_of_deterministic() -> None:
    x = ts.tensor(np.random.default_rng(0).normal(size=(5, 37)).astype("f"))

    def f(x: Any) -> Any:
        c = ts.fori_loop(0, 2, lambda i, c: op.tanh(c), x)
        return op.softmax(op.reshape(c, (37, 5)) @ x)

    want = f(x)
    for mode in ("deterministic", "strict"):
        assert_same_bits(ts.jit(f, numerics=mode)(x), want)
        with ts.numerics(mode) as inside:
            assert flags() is inside
            assert flags().numerics == mode
            assert_same_bits(f(x), want)
    with override(target="numpy"), pytest.raises(OperandError, match=r"^tanh: numerics 'strict'"):
        ts.numerics("strict")(f)(x)


def test_wrong_modes_are_refused() -> None:
    with pytest.raises(FlagError) as e, ts.numerics("loose"):
        raise AssertionError("not reached")
    assert e.value.message == "numerics is 'loose', expected one of deterministic, fast, strict"


WITHOUT = """
import sys, warnings
sys.modules["llvmlite"] = None
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name == "llvmlite" else find(name, *a)
import numpy as np, tessera as ts
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x = ts.tensor(np.ones(3, np.float32))
    print(ts.op.exp(x).sum().item() == np.exp(np.ones(3, np.float32)).sum())
    print(ts.jit(ts.op.exp)(x).shape)
print(*[w.message for w in seen])
"""


def test_without_llvmlite_references_run_and_one_warning_says_so() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "TESSERA_TARGET": "cpu"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "True",
        "(3,)",
        "llvmlite is not installed: programs run by their NumPy references, with NumPy's speed and last "
        "bits; pip install llvmlite, or set TESSERA_TARGET=numpy",
    ]
