"""Arrays of PyTorch and JAX as arguments: inputs of jitted functions, never constants; decisions in
derivatives as in JAX.
"""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
pytestmark = pytest.mark.oracle


def test_a_fresh_array_does_not_compile_anew():
    f = ts.jit(lambda x, y: x * y + 1)
    for k in range(3):
        got = f(torch.full((3,), float(k)), jax.numpy.ones(3))
        np.testing.assert_array_equal(got, np.full(3, k + 1.0))
    assert f.compiled == 1


def test_a_torch_tensor_that_is_written_to_is_read_anew():
    f, t = ts.jit(lambda x: op.reshape(x, (1, 100))), torch.ones(100)
    before = f(t)
    t.add_(1)
    assert f(t).tolist()[0][0] == 2
    assert before.tolist()[0][0] == 1


def test_a_tensor_that_wants_gradients_is_refused_with_torch_s_advice():
    with pytest.raises(OperandError, match=r"jit: cannot read the data of Tensor: .*detach"):
        ts.jit(lambda x: x)(torch.ones(2, requires_grad=True))


def test_what_jax_sees_of_a_tensor_is_its_own():
    x = ts.tensor([1.0, 2.0])
    np.testing.assert_array_equal(jax.numpy.from_dlpack(x), x)
    np.testing.assert_array_equal(torch.from_dlpack(x), x)


@pytest.mark.parametrize("at", [0.5, -0.5, 3.0])
def test_decisions_take_the_branch_that_they_take_in_jax(at):
    def f(x):
        y = x
        while abs(y) < 2:
            y = y * 2 if y > 0 else y * 3
        return y * y if y > 0 else y

    np.testing.assert_allclose(ts.grad(f)(ts.tensor(at)), jax.grad(f)(at), rtol=1e-6)
    np.testing.assert_allclose(ts.jacfwd(f)(ts.tensor(at)), jax.jacfwd(f)(at), rtol=1e-6)
