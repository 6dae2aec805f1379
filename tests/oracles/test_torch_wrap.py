"""ts.torch.wrap: functions of ours inside PyTorch's autograd."""

from __future__ import annotations

import re

import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import OperandError, TraceError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle


def _doubles(*shapes: tuple[int, ...]) -> list[object]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    return [x.requires_grad_() for x in made]


def test_gradients_and_their_gradients_are_those_of_finite_differences():
    f = ts.torch.wrap(lambda x, y: op.sin(x) * y**2 + op.sum(x * y))
    x, y = _doubles((5,), (5,))
    assert torch.autograd.gradcheck(f, (x, y))
    assert torch.autograd.gradgradcheck(f, (x, y))


def test_complex_gradients_follow_pytorch():
    f = ts.torch.wrap(lambda z: z * z * op.conj(z) + op.exp(z))
    z = torch.randn(4, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(f, (z,))
    assert torch.autograd.gradgradcheck(f, (z,))


def test_trees_numbers_and_integers_cross():
    f = ts.torch.wrap(lambda d, k: {"y": op.take(d["x"], d["i"]) * k, "n": op.argmax(d["x"])})
    (x,) = _doubles((4,))
    i = torch.tensor([1, 1, 3])
    found = f({"x": x, "i": i}, 2.0)
    assert not found["n"].requires_grad
    assert found["n"] == x.argmax()
    found["y"].sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([0.0, 4, 0, 2], dtype=torch.float64))


def test_inputs_without_gradient_get_none():
    f = ts.torch.wrap(lambda x, y: x * y)
    x, y = _doubles((3,), (3,))
    out = f(x.detach(), y)
    out.sum().backward()
    assert x.grad is None
    torch.testing.assert_close(y.grad, x.detach())
    with torch.no_grad():
        assert not f(x, y).requires_grad


def test_memory_is_shared_and_results_own_theirs():
    x = torch.arange(6.0).reshape(2, 3)
    v = ts.torch.from_torch(x)
    x[0, 0] = 7
    assert float(v[0, 0]) == 7
    back = ts.torch.to_torch(v)
    assert back.data_ptr() == x.data_ptr()
    y = ts.torch.wrap(lambda x: (x, x, op.reshape(x, (3, 2))))(x)
    y[0].zero_()
    assert float(y[1][0, 0]) == float(y[2][0, 0]) == 7 == float(x[0, 0])


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e5m2", "int16", "bool"])
def test_every_dtype_crosses(name):
    x = torch.tensor([0.0, 1.0, 1.0]).to(getattr(torch, name))
    y = ts.torch.wrap(lambda x: x)(x)
    assert y.dtype is x.dtype
    assert (y.float() == x.float()).all()


def test_strided_inputs():
    x = torch.arange(12.0).reshape(3, 4)
    f = ts.torch.wrap(lambda x: x + 1)
    for view in (x.T, x[:, ::2], x[0].expand(3, 4), x.flip(0), torch.zeros(0, 3)):
        torch.testing.assert_close(f(view), view + 1)


def test_a_tensor_of_ours_is_named():
    f = ts.torch.wrap(lambda x: x)
    with pytest.raises(
        OperandError, match=r"got a tensor of Tessera f32\[2\], expected tensors of PyTorch"
    ):
        f(ts.zeros(2))


def test_what_is_no_tensor_is_refused_as_a_result():
    def g(x):
        return "text"

    text = "g returned str 'text', expected tensors in tuples, lists or dicts"
    with pytest.raises(TraceError, match=re.escape(text)) as error:
        ts.torch.wrap(g)(torch.zeros(2))
    assert __file__ in str(error.value)  # the user's line, not PyTorch's


def test_a_sparse_tensor_is_refused():
    with pytest.raises(
        OperandError, match=r"layout torch.sparse_coo cannot cross; make it dense: x.to_dense\(\)"
    ):
        ts.torch.wrap(lambda x: x)(torch.eye(2).to_sparse())


class _Scale(torch.nn.Module):
    """A module whose forward is a function of ours."""

    def __init__(self):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(4))
        self.run = ts.torch.wrap(lambda x, gain: op.rmsnorm(x) * gain)

    def forward(self, x):
        return self.run(x, self.gain)


def test_a_wrapped_op_inside_a_model_trains():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), _Scale(), torch.nn.Linear(4, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(16, 4)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
