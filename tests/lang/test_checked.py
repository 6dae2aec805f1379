"""ts.checked(): one switch for indices, caches, bounds of loops, NaN and bounded inputs, in compiled
programs too.
"""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import tessera as ts
from tessera import op, verify
from tessera.core.errors import AxisError, NumericalError
from tessera.core.flags import flags

X = ts.tensor(np.array([1.0, 4.0, -1.0], np.float32))


@pytest.mark.parametrize("target", ["cpu", "numpy"])
def test_a_nan_in_a_result_is_an_error_of_the_op_that_made_it(target):
    f = ts.jit(lambda x: {"y": op.sqrt(x) * 2 + 1, "z": x}, target=target)
    assert np.isnan(f(X)["y"].numpy()).any()
    with ts.checked(), pytest.raises(NumericalError) as e:
        f(X)
    assert e.value.message == (
        "checked: sqrt made nan at [2] of f32[3] from operands f32[3] that have none"
    )
    assert "op.sqrt(x) * 2 + 1" in str(e.value)


def test_a_nan_that_came_with_an_argument_is_none_of_ours():
    x = ts.tensor(np.array([1.0, np.nan], np.float32))
    f = ts.jit(lambda x: x * 2 + 1)
    with ts.checked():
        assert np.isnan(f(x).numpy()[1])
        assert np.isnan((x * 2).numpy()[1])


def test_infinities_are_numbers_here():
    with ts.checked():
        assert ts.jit(lambda x: op.log(x * 0))(X).numpy()[0] == -np.inf
        assert op.max(op.log(X * 0)).numpy() == -np.inf


def test_eager_ops_are_looked_at():
    with ts.checked(), pytest.raises(NumericalError, match=r"checked: sqrt made nan at \[2\]"):
        op.sqrt(X)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "c64"])
def test_a_nan_of_every_format_is_found(dtype):
    x = ts.tensor(np.array([[1.0, 0.0], [2.0, 3.0]])).astype(dtype)
    f = ts.jit(lambda x: (x - x) / (x - x) if dtype == "c64" else op.log(-x))
    with ts.checked(), pytest.raises(NumericalError, match="made"):
        f(x)


def test_what_is_masked_away_is_no_error_in_compiled_code():
    f = ts.jit(lambda x: op.where(x > 0, op.sqrt(x), 0.0))
    with ts.checked():
        assert f(X).numpy().tolist() == [1, 2, 0]


def test_a_loop_that_its_bound_stops():
    f = ts.jit(lambda n: ts.while_loop(lambda c: c < n, lambda c: c + 1, 0 * n, bound=4))
    assert int(f(ts.tensor(9))) == 4
    with ts.checked():
        assert int(f(ts.tensor(4))) == 4
        with pytest.raises(NumericalError) as e:
            f(ts.tensor(9))
    assert e.value.message == (
        "while_loop: cond_fn still holds after 4 steps, its bound; use a larger one"
    )


def test_inputs_that_a_promise_does_not_cover():
    @verify.numerics(bounded={"x": [-10, 10], "y": [0, 1]})
    @ts.jit
    def f(x, y):
        return op.exp(x) + y

    x, y = ts.tensor(np.full((4,), 3.0, np.float32)), ts.tensor(np.full((2, 2), 0.5, np.float32))
    bad = ts.tensor(np.array([[0.5, 0.5], [2.0, 0.0]], np.float32))
    f(x, ts.tensor(0.5))
    with ts.checked():
        f(x, ts.tensor(0.5))
        with pytest.raises(NumericalError) as e:
            verify.numerics(bounded={"y": [0, 1]})(ts.jit(lambda y: y + 1))(bad)
        assert e.value.message == (
            "verify.numerics: argument 'y' f32[2,2] has 2.0 at [1, 0], outside its bounds [0, 1]; the "
            "promise holds "
            "for numbers within them"
        )
        with pytest.raises(NumericalError, match=r"argument 'x' f32\[4\] has 30.0 at \[0\]"):
            f(x * 10, ts.tensor(0.5))
    del y


def test_it_is_a_block_a_decorator_and_a_variable():
    assert not flags().checked

    @ts.checked()
    def inside() -> bool:
        return flags().checked

    assert inside()
    with ts.checked():
        assert flags().checked
        with ts.checked(False):
            assert not flags().checked
        assert flags().checked
    assert not flags().checked
    code = "import tessera as ts, numpy as np\ntry: ts.jit(lambda x, i: x[i])(ts.ones((3,)), ts.tensor(np.array([5])))\nexcept IndexError as e: print(e.message)"  # noqa: E501
    env = {**os.environ, "TESSERA_CHECKED": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert (
        done.stdout.strip()
        == "index: index 5 at [0] is out of range for axis 0 of f32[3]; use -3 to 2"
    )


def test_a_donated_argument_is_there_when_an_error_is_looked_for():
    f = ts.jit(lambda x: op.sqrt(x), donate=("x",))
    x = X + 0
    with ts.checked(), pytest.raises(NumericalError, match="sqrt made nan"):
        f(x)
    good = ts.tensor(np.ones(3, np.float32))
    with ts.checked():
        f(good)
    with pytest.raises(ts.TesseraError, match="donated"):
        good + 1


def test_a_program_that_was_prepared_without_checks_is_not_taken():
    f, i = ts.jit(lambda x, i: x[i]), ts.tensor(np.array([9]))
    for _ in range(5):
        f(X, i)
    with ts.checked():
        for _ in range(5):
            with pytest.raises(AxisError):
                f(X, i)
    for _ in range(5):
        assert f(X, i).numpy().tolist() == [-1]


def test_a_jitted_function_in_another_is_checked():
    inner = ts.jit(lambda x, i: x[i])
    outer = ts.jit(lambda x, i: inner(x, i) * 2)
    i = ts.tensor(np.array([9]))
    outer(X, i)
    with ts.checked(), pytest.raises(AxisError, match="index 9"):
        outer(X, i)


def test_gradients_are_checked():
    f = ts.jit(ts.grad(lambda x, i: op.sum(op.take(x, i))))
    i = ts.tensor(np.array([9, 0]))
    assert f(X, i).numpy().tolist() == [1, 0, 1]
    with ts.checked(), pytest.raises(AxisError, match=r"take: index 9 at \[0\]"):
        f(X, i)


def test_bounds_by_name_belong_to_the_arguments_of_a_jitted_function():
    """They were looked up by the names of buffers, and so ignored."""
    f = ts.jit(lambda x, y: op.exp(x) + y)
    x = ts.tensor(np.ones(4, np.float32))
    assert not verify.numerics(bounded={"x": [-10, 10], "y": [0, 1]})(f).report(x, x).findings
    assert verify.numerics(bounded={"x": [-100, 100], "y": [0, 1]})(f).report(x, x).findings
    with pytest.raises(ts.TesseraError) as e:
        verify.numerics(bounded={"z": [0, 1]})(f)(x, x)
    assert e.value.message == (
        "verify.numerics: bounds are given for 'z', expected names among x, y"
    )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64], ids=str)
def test_a_number_that_is_an_argument_fits_the_integers_that_it_meets(dtype):
    x, most = ts.tensor(np.array([1, 2], dtype)), int(np.iinfo(dtype).max)
    f = ts.jit(lambda x, n: op.where(x > 1, x, n))
    with ts.checked():
        assert f(x, most).tolist() == [most, 2]
        if most < 2**63 - 1:
            for wrong in (most + 1, int(np.iinfo(dtype).min) - 1):
                with pytest.raises(
                    ts.TesseraError, match=f"integer {wrong} is out of range for [iu]"
                ) as e:
                    f(x, wrong)
                assert "test_checked.py" in str(e.value)
    assert f(x, 0).tolist() == [0, 2]
