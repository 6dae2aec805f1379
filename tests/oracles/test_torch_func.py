"""ts.torch.wrap inside torch.func: maps, gradients of samples, Jacobians and forward mode, nested too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tessera as ts
from tessera import op

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.oracle,
    # PyTorch's own forward mode uses what it deprecates.
    pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning"),
]
F = torch.func


def ours(x: Any, w: Any) -> Any:
    return op.sum(op.tanh(x @ w) ** 3)


def theirs(x: Any, w: Any) -> Any:
    return (torch.tanh(x @ w) ** 3).sum()


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "vmap": lambda f: lambda x, w: F.vmap(f, (0, None))(x, w),
    "vmap of another axis": lambda f: lambda x, w: F.vmap(f, (None, 2))(x, torch.stack([w, 2 * w], 2)),
    "vmap of vmap": lambda f: lambda x, w: F.vmap(F.vmap(f, (0, None)), (None, 0))(
        x, torch.stack([w, 2 * w])
    ),
    "grad": lambda f: F.grad(f, 1),
    "grad of grad": lambda f: lambda x, w: F.grad(lambda v: (F.grad(f, 1)(x, v) ** 2).sum())(w),
    "gradients of samples": lambda f: lambda x, w: F.vmap(F.grad(f, 1), (0, None))(x, w),
    "jacrev": lambda f: F.jacrev(f),
    "jacfwd": lambda f: F.jacfwd(f, 1),
    "hessian": lambda f: F.hessian(f, 1),
    "jvp": lambda f: lambda x, w: F.jvp(f, (x, w), (w.sum() * x, w)),
    "vjp": lambda f: lambda x, w: F.vjp(f, x, w)[1](torch.tensor(2.0, dtype=w.dtype)),
    "one input alone": lambda f: lambda x, w: F.jvp(lambda v: f(x, v), (w,), (w,)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_those_of_pytorch(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, dtype=torch.float64, generator=g)
    w = torch.randn(3, 5, dtype=torch.float64, generator=g)
    apply = TRANSFORMS[name]
    torch.testing.assert_close(apply(ts.torch.wrap(ours))(x, w), apply(theirs)(x, w))


def test_trees_of_results_and_integers_are_mapped() -> None:
    f = ts.torch.wrap(lambda x: {"y": op.exp(x), "at": (op.argmax(x), op.sum(x))})
    x = torch.arange(12.0).reshape(3, 4)
    got = F.vmap(f)(x)
    torch.testing.assert_close(got["y"], torch.exp(x))
    torch.testing.assert_close(got["at"][0], torch.argmax(x, 1))
    torch.testing.assert_close(got["at"][1], x.sum(1))


def test_forward_mode_without_torch_func() -> None:
    x, w = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((4, 3), (3, 5)))
    assert torch.autograd.gradcheck(ts.torch.wrap(ours), (x, w), check_forward_ad=True)
    dual = torch.autograd.forward_ad
    with dual.dual_level():
        v = dual.make_dual(w.detach(), torch.ones_like(w))
        got, want = (
            dual.unpack_dual(f(x.detach(), v)).tangent for f in (ts.torch.wrap(ours), theirs)
        )
    torch.testing.assert_close(got, want)


def test_complex_tangents_are_those_of_pytorch() -> None:
    z = torch.randn(6, dtype=torch.complex128)
    f = ts.torch.wrap(lambda z: op.abs(op.fft(z)) ** 2)
    want = F.jvp(lambda z: torch.fft.fft(z).abs() ** 2, (z,), (1j * z + 1,))
    torch.testing.assert_close(F.jvp(f, (z,), (1j * z + 1,)), want)


def test_parameters_of_a_module_go_through() -> None:
    m, f = torch.nn.Linear(3, 5), ts.torch.wrap(ours)
    x, given = torch.randn(2, 3), dict(m.named_parameters())

    def loss(run: Any) -> Callable[[Any], Any]:
        return lambda p: run(torch.ones(1, 5), F.functional_call(m, p, (x,)).T)

    got, want = F.grad(loss(f))(given), F.grad(loss(theirs))(given)
    torch.testing.assert_close(got, want)
