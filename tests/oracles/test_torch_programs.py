"""Programs as users of PyTorch write them, with torch.compile(backend="tessera") beside eager: values,
gradients, what they write to, and which ops PyTorch still runs.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import tessera as ts

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.oracle
nn, F = torch.nn, torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    ts.torch.report(reset=True)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of its own internals
        yield


def leaves(x: Any) -> list[Any]:
    return [v for v in torch.utils._pytree.tree_leaves(x) if isinstance(v, torch.Tensor)]


def fresh(x: Any) -> Any:
    """Copies of tensors that want gradients where the tensors do."""

    def one(v: Any) -> Any:
        if not isinstance(v, torch.Tensor):
            return v
        return v.detach().clone().requires_grad_(v.requires_grad)

    return torch.utils._pytree.tree_map(one, x)


def ran(f: Any, args: Any) -> list[Any]:
    """What f returns, the gradients of its arguments and parameters, and the arguments and buffers after."""
    args = fresh(args)
    torch.manual_seed(7)
    out = leaves(f(*args))
    moved = [x for x in out if x.requires_grad]
    weights = [torch.linspace(1, 2, x.numel()).reshape(x.shape).to(x.dtype) for x in moved]
    loss = sum((x * w).abs().sum().float() for x, w in zip(moved, weights, strict=True))
    inner = [*f.parameters(), *f.buffers()] if isinstance(f, nn.Module) else []
    if moved:
        loss.backward()
    kept = [x for x in leaves(args) + inner if x.requires_grad]
    grads = [x.grad for x in kept]
    for x in inner:
        x.grad = None
    return [*out, *grads, *leaves(args), *inner]


def agrees(make: Any, *calls: Any, rel: float = 2e-5) -> Any:
    """The report of a program that gives what eager PyTorch gives, call after call."""
    eager = make() if isinstance(make, type) else make
    ours = copy.deepcopy(eager)
    run = torch.compile(ours, backend="tessera")
    for args in calls:
        for want, got in zip(ran(eager, args), ran(run, args), strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want, rtol=rel, atol=rel, equal_nan=True)
    return ts.torch.report()


def drawn(*shape: int, grad: bool = False) -> Any:
    return torch.randn(*shape).requires_grad_(grad)


def test_ops_with_effects_in_training():
    """A factorisation checks what it found: an effect, which a token orders."""

    def f(x, b):
        a = x @ x.T + 4 * torch.eye(4)
        low = torch.linalg.cholesky(a)
        return low, torch.linalg.solve(a, b), torch.linalg.inv(a).sum(), torch.logdet(a)

    agrees(f, (drawn(4, 4, grad=True), drawn(4, 2)), (drawn(4, 4), drawn(4, 2)))


def test_an_effect_raises_what_pytorch_raises():
    f = torch.compile(torch.linalg.cholesky, backend="tessera")
    for grad in (False, True):
        with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
            f((-torch.eye(3)).requires_grad_(grad))


def test_effects_beside_sizes_that_change():
    def f(x):
        return torch.linalg.cholesky(x @ x.mT + torch.eye(x.shape[-1])), x.sum(0)

    run = torch.compile(f, backend="tessera", dynamic=True)
    for n in (3, 5, 4):
        x = drawn(n, n, grad=True)
        for got, want in zip(run(x), f(x), strict=True):
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


def test_running_extremes_and_where_they_are():
    x = drawn(4, 7)
    x[0, 2], x[1, 3], x[2], x[3, 0] = float("nan"), x[1, 0], 1.0, float("inf")

    def f(x):
        return [g(x, d) for g in (torch.cummax, torch.cummin) for d in (0, 1, -1)]

    for dtype in (
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.bool,
    ):
        given = x if dtype.is_floating_point else x.nan_to_num(0, 2, 2).abs() * 3
        assert not agrees(f, (given.to(dtype),)).fallbacks
    assert not agrees(f, (drawn(3, 5, grad=True),)).fallbacks


def test_means_of_what_is_scattered():
    at = torch.tensor([[0, 2, 2], [1, 1, 1]])

    def f(x, y):
        return [x.scatter_reduce(1, at, y, "mean", include_self=own) for own in (True, False)]

    assert not agrees(f, (drawn(2, 4, grad=True), drawn(2, 3, grad=True))).fallbacks
    assert not agrees(f, (torch.randint(-9, 9, (2, 4)), torch.randint(-9, 9, (2, 3)))).fallbacks


def test_shifts_and_divisors_of_whole_numbers():
    def f(x, y):
        return x << 2, x >> 1, x >> y.abs(), torch.gcd(x, y), torch.lcm(x, y), x << 70

    for dtype in (torch.int64, torch.int32, torch.int8):
        x, y = (torch.randint(-20, 20, (30,)).to(dtype) for _ in range(2))
        assert not agrees(f, (x, y)).fallbacks


def test_special_functions():
    special = torch.special

    def f(x):
        p = x.abs() + 0.1
        return (
            torch.i0(x), special.i0e(x), special.i1(x), special.i1e(x), special.ndtri(torch.sigmoid(x)),
            special.erfcx(x), special.log_ndtr(x), torch.sinc(x), special.gammainc(p, p.flip(0)),
            special.gammaincc(p, p.flip(0)), special.zeta(p + 1, p), torch.polygamma(2, p),
            torch.ldexp(x, torch.tensor([3])),
        )  # fmt: skip

    for dtype in (torch.float32, torch.float64):
        x = torch.cat([drawn(20), torch.tensor([0.0, -0.0, 30.0, -3.5])]).to(dtype)
        rel = 2e-5 if dtype is torch.float32 else 1e-10
        assert not agrees(f, (x,), rel=rel).fallbacks


class Ring(nn.Module):
    """The last four means of what went through, and a counter, in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 3))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            self.seen[self.at % 4] = x.mean(0)
            self.at += 1
        return self.linear(x) + self.seen.sum(0)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LSTMCell(4, 8), nn.GRUCell(8, 6)

    def forward(self, x):
        h = x.new_zeros(x.size(1), 8)
        c, u, out = torch.zeros_like(h), None, []
        for t in x:
            h, c = self.first(t, (h, c))
            u = self.second(h, u)
            out.append(u)
        return torch.stack(out)


def test_state_in_buffers_and_cells_in_loops():
    agrees(Ring, *[(drawn(5, 3),)] * 3)
    agrees(Cells, (drawn(3, 3, 4),))


def test_writes_through_views():
    def f(x):
        y = x * 2
        y[:, ::2] += 1
        y[1] = y[0].clone() * 3
        z = y.view(2, 12)
        z[0].clamp_(min=0)
        y.t()[2].mul_(5)
        return y, z

    def of_the_argument(x):
        x.add_(1)
        x[0] = 0
        x[:, 1:3].copy_(torch.ones(4, 2) * 7)
        return x.sum()

    assert not agrees(f, (drawn(4, 6, grad=True),)).fallbacks
    assert not agrees(of_the_argument, (drawn(4, 6),)).fallbacks


def test_functions_of_functions():
    def f(x, w):
        g = lambda w, x: torch.tanh(w @ x).sum()  # noqa: E731
        func = torch.func
        return (
            func.vmap(func.grad(g), in_dims=(None, 0))(w, x),
            func.hessian(lambda x: g(w, x))(x[0]),
            func.jacrev(lambda x: torch.tanh(w @ x))(x[0]),
            func.jvp(lambda x: g(w, x), (x[0],), (x[1],)),
        )

    agrees(f, (drawn(5, 3), drawn(3, 3)))
