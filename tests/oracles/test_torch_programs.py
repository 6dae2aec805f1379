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


@pytest.mark.parametrize("make", ["AdamW", "SGD", "Adagrad", "NAdam", "RMSprop"])
def test_steps_of_optimisers_on_lists_of_tensors(make: str):
    """The default on GPUs: lists of results were taken for one tensor."""

    def trained(compiled: bool) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        optimiser = getattr(torch.optim, make)(model.parameters(), lr=1e-2, foreach=True)
        step = torch.compile(optimiser.step, backend="tessera") if compiled else optimiser.step
        for _ in range(3):
            optimiser.zero_grad()
            model(torch.ones(4, 6)).square().sum().backward()
            step()
        return list(model.parameters())

    torch.testing.assert_close(trained(True), trained(False), rtol=2e-5, atol=2e-5)
    assert not ts.torch.report().fallbacks


def test_ops_on_lists_of_tensors():
    def f(xs, ys):
        g = torch
        made = [
            *g._foreach_add(xs, 2), *g._foreach_add(xs, ys, alpha=3), *g._foreach_mul(xs, [2.0, 0.5]),
            *g._foreach_sub(xs, ys), *g._foreach_div(ys, xs[1][0]), *g._foreach_maximum(xs, ys),
            *g._foreach_clamp_min(xs, 0.1), *g._foreach_pow(xs, 2), *g._foreach_pow(2.0, ys),
            *g._foreach_lerp(xs, ys, 0.7), *g._foreach_lerp(xs, ys, [x * 0 + 0.2 for x in xs]),
            *g._foreach_addcmul(xs, ys, ys, 0.5),
            *g._foreach_addcdiv(xs, xs, [y.exp() for y in ys], [0.5, 2.0]),
            *g._foreach_norm(xs, 2), *g._foreach_norm(ys, float("inf")), *g._foreach_exp(xs),
            *g._foreach_neg(xs), *g._foreach_sqrt([x.abs() for x in xs]), *g._foreach_round(xs),
        ]  # fmt: skip
        g._foreach_mul_(xs, ys)
        g._foreach_copy_(ys, xs)
        return made

    args = ([drawn(3, 2), drawn(4)], [drawn(3, 2), drawn(4)])
    assert not agrees(f, args).fallbacks


def test_checkpoints_draw_their_random_numbers_again():
    """The state of the generator had no rule: dropout within a checkpoint was refused."""
    from torch.utils.checkpoint import checkpoint

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.3)) for _ in range(3)
            )

        def forward(self, x):
            for layer in self.layers:
                x = checkpoint(layer, x.T.contiguous().T, use_reentrant=False)
            return x + checkpoint(lambda v: v * torch.rand_like(v), x, use_reentrant=False)

    told = agrees(Deep, (drawn(5, 6, grad=True),), (drawn(4, 6, grad=True),))
    assert not told.fallbacks
    assert told.random


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_layer_of_an_encoder_that_pytorch_runs_whole(norm_first: bool, activation: str):
    layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, activation, 1e-3, True, norm_first).eval()
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for p, q in zip(layer.parameters(), twin.parameters(), strict=True):
            q.copy_(p.copy_(torch.randn_like(p) * 0.3))
        x = drawn(3, 5, 16)
        torch.testing.assert_close(
            torch.compile(layer, backend="tessera")(x), twin(x), rtol=1e-4, atol=1e-4
        )
    told = ts.torch.report()
    assert not told.fallbacks
    assert "aten._transformer_encoder_layer_fwd.default" in told.translated


@pytest.mark.parametrize("scale", [2, 0.5, 1.5, None])
@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bilinear to the corners"])
def test_images_are_resized_by_one_program(scale: Any, mode: str):
    named = {"mode": mode.partition(" ")[0]}
    if mode != "nearest":
        named["align_corners"] = "corners" in mode

    def f(x):
        given = {"size": (7, 12)} if scale is None else {"scale_factor": scale}
        return F.interpolate(F.max_pool2d(x, 2, padding=1), **given, **named)

    run = torch.compile(f, backend="tessera", dynamic=True)
    for b, h, w in ((2, 9, 12), (3, 12, 17), (5, 8, 11)):
        x, y = (drawn(b, 3, h, w, grad=True) for _ in range(2))
        y.data.copy_(x.data)
        torch.testing.assert_close(run(x), f(y), rtol=2e-5, atol=2e-5)
        run(x).square().sum().backward()
        f(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    fixed = ts.torch.report().fixed
    assert bool(fixed) == (scale in (0.5, 1.5)), (
        fixed
    )  # PyTorch rounds a float, which is no size of ours


def test_what_pytorch_does_not_trace_is_in_the_report():
    """A module that holds an nn.LSTM had 0 graphs without a word."""
    run = torch.compile(nn.LSTM(3, 4), backend="tessera")
    with torch.no_grad():
        run(drawn(5, 2, 3))
    told = ts.torch.report(reset=True)
    assert told.graphs == 0
    assert list(told.skipped) == [
        "Attempted to wrap RNN, GRU, or LSTM (Set torch._dynamo.config.allow_rnn=True to enable experimental "
        "support for RNN, GRU, and LSTM in Dynamo)"
    ]
    assert "left to Python x1: Attempted to wrap RNN" in str(told)
    assert not ts.torch.report().skipped


class Reader(nn.Module):
    def __init__(self, kind: Any):
        super().__init__()
        self.words, self.head = nn.Embedding(10, 4), nn.Linear(10, 3)
        self.cells = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, ids):
        return self.head(self.cells(self.words(ids))[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_run_where_pytorch_may_trace_them(kind: str):
    model, ids = Reader(getattr(nn, kind)), torch.randint(0, 10, (2, 3))
    with torch._dynamo.config.patch(allow_rnn=True):
        run = torch.compile(model, backend="tessera")
        with torch.no_grad():
            torch.testing.assert_close(run(ids), model(ids), rtol=1e-5, atol=1e-5)
        told = ts.torch.report()
        assert (told.graphs, told.fallbacks, told.skipped) == (1, {}, {})
        grads = []
        for f in (run, model):
            model.zero_grad()
            f(ids).square().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-5)
