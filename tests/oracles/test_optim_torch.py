"""Optimisers, schedules and losses beside PyTorch's in f64, with random options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import f64, op
from tests.support.cases.optimizers import OPTIMIZERS, pytorch, tessera

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
RUNS_ON = "numpy"
O, T = ts.optim, torch.optim


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)  # PyTorch keeps scalars of states in this dtype
    yield
    torch.set_default_dtype(torch.float32)


def compare(name: str, seed: int, count: int = 8) -> None:
    for mine, theirs in zip(tessera(name, seed, count), pytorch(name, seed, count), strict=True):
        for p, q in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(p, q, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers(name):
    for seed in range(3):
        compare(name, seed)


@pytest.mark.deep
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimisers_over_many_options(name):
    for seed in range(3, 12):
        compare(name, seed, 20)


def test_muon_in_the_precision_of_theirs():
    """PyTorch orthogonalises in bf16, so that singular values differ in the third digit."""
    rng = np.random.default_rng(0)
    x, g = rng.normal(size=(2, 6, 9))
    p = torch.tensor(x, requires_grad=True)
    opt = T.Muon([p], lr=0.1, weight_decay=0.2, momentum=0.9)
    ours = O.muon(0.1, 0.9, True, 0.2)
    p.grad = torch.tensor(g)
    opt.step()
    got, _ = ours.update(ts.tensor(g), ours.init(ts.tensor(x)), ts.tensor(x))
    np.testing.assert_allclose(got, p.detach().numpy(), atol=0.1 * 0.03)


def rates(make: Any, count: int, lr: float = 0.5) -> list[float]:
    opt = T.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = make(opt)
    found = []
    for _ in range(count):
        found.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step()
    return found


L = torch.optim.lr_scheduler
SCHEDULES = {
    "cosine": (O.cosine(0.5, 20, 0.1), lambda o: L.CosineAnnealingLR(o, 20, 0.1), 20),
    "cosine_restarts": (O.cosine_restarts(0.5, 7, 0.1),
    lambda o: L.CosineAnnealingWarmRestarts(o, 7, eta_min=0.1), 25),
    "linear": (O.linear(0.1, 0.5, 8), lambda o: L.LinearLR(o, 0.2, 1.0, 8), 15),
    "exponential": (O.exponential(0.5, 0.9), lambda o: L.ExponentialLR(o, 0.9), 10),
    "staircase": (O.staircase(0.5, 0.3, 4), lambda o: L.StepLR(o, 4, 0.3), 15),
    "milestones": (O.milestones(0.5, {3: 0.1, 8: 0.1}), lambda o: L.MultiStepLR(o, [3, 8], 0.1), 15),
    "polynomial": (O.polynomial(0.5, 10, 2.0), lambda o: L.PolynomialLR(o, 10, 2.0), 15),
    "one_cycle": (O.one_cycle(0.5, 20), lambda o: L.OneCycleLR(o, 0.5, 20), 20),
    "join": (
        O.join([O.constant(0.1), O.exponential(0.5, 0.8)], [5]),
        lambda o: L.SequentialLR(o, [L.ConstantLR(o, 0.2, 100), L.ExponentialLR(o, 0.8)], [5]), 12,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    ours, theirs, count = SCHEDULES[name]
    got = [ours(ts.tensor(float(i), f64)).item() for i in range(count)]
    np.testing.assert_allclose(got, rates(theirs, count), rtol=1e-7, atol=1e-9)


F = torch.nn.functional


def losses(rng: Any) -> dict[str, tuple[Any, Any, Any]]:
    x, y = rng.normal(size=(2, 4, 5))
    ids, sign = rng.integers(0, 5, 4), np.sign(rng.normal(size=4))
    logs, p = (
        F.log_softmax(torch.tensor(x), -1).numpy(),
        np.abs(y) / np.abs(y).sum(-1, keepdims=True),
    )
    z = rng.normal(size=(4, 5))
    ti, tsign, ty, tp = torch.tensor(ids), torch.tensor(sign), torch.tensor(y), torch.tensor(p)
    tz, hot = torch.tensor(z), torch.tensor((y > 0).astype(float))
    return {
        "cross_entropy": (x, lambda x: op.cross_entropy(x, ids, label_smoothing=0.1),
        lambda x: F.cross_entropy(x, ti, label_smoothing=0.1)),
        "nll": (logs, lambda x: op.nll_loss(x, ids), lambda x: F.nll_loss(x, ti)),
        "bce_with_logits": (x, lambda x: op.binary_cross_entropy(x, hot.numpy()),
        lambda x: F.binary_cross_entropy_with_logits(x, hot)),
        "huber": (x, lambda x: op.huber(x, y, 0.7), lambda x: F.huber_loss(x, ty, delta=0.7)),
        "smooth_l1": (x, lambda x: op.smooth_l1(x, y, 0.7), lambda x: F.smooth_l1_loss(x, ty, beta=0.7)),
        "kl_div": (logs, lambda x: op.kl_div(x, p), lambda x: F.kl_div(x, tp)),
        "mse": (x, lambda x: op.mse(x, y), lambda x: F.mse_loss(x, ty)),
        "l1": (x, lambda x: op.l1_loss(x, y), lambda x: F.l1_loss(x, ty)),
        "cosine_embedding": (x, lambda x: op.cosine_embedding(x, y, sign, 0.1),
        lambda x: F.cosine_embedding_loss(x, ty, tsign, 0.1)),
        "margin_ranking": (x, lambda x: op.margin_ranking(x, y, np.sign(z), 0.2),
        lambda x: F.margin_ranking_loss(x, ty, tz.sign(), 0.2)),
        "triplet": (x, lambda x: op.triplet_margin(x, y, z, 0.8),
        lambda x: F.triplet_margin_loss(x, ty, tz, 0.8)),
        "poisson_nll": (x, lambda x: op.poisson_nll(x, p), lambda x: F.poisson_nll_loss(x, tp)),
        "gaussian_nll": (x, lambda x: op.gaussian_nll(x, y, np.abs(z)),
        lambda x: F.gaussian_nll_loss(x, ty, tz.abs())),
        "soft_margin": (x, lambda x: op.soft_margin(x, np.sign(y)),
        lambda x: F.soft_margin_loss(x, ty.sign())),
        "multi_margin": (x, lambda x: op.multi_margin(x, ids), lambda x: F.multi_margin_loss(x, ti)),
        "hinge_embedding": (x, lambda x: op.hinge_embedding(x, np.sign(y)),
        lambda x: F.hinge_embedding_loss(x, ty.sign())),
    }  # fmt: skip


NAMES = sorted(losses(np.random.default_rng(0)))


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", NAMES)
def test_losses(name):
    for seed in range(3):
        x, ours, theirs = losses(np.random.default_rng(seed))[name]
        t = torch.tensor(x, requires_grad=True)
        want = theirs(t)
        want.backward()
        value, g = ts.value_and_grad(ours)(ts.tensor(x))
        np.testing.assert_allclose(value, want.item(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(g, t.grad.numpy(), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_ctc(reduction):
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(3, 7, 5))  # batch, time, classes
        labels = rng.integers(1, 5, (3, 3))
        labels[0, 1] = labels[0, 0]  # a repeated label needs a blank between
        lengths, sizes = np.array([7, 6, 4]), np.array([3, 2, 1])
        t = torch.tensor(x, requires_grad=True)
        want = F.ctc_loss(
            t.log_softmax(-1).transpose(0, 1), torch.tensor(labels), torch.tensor(lengths),
            torch.tensor(sizes), reduction=reduction,
        )  # fmt: skip
        want.sum().backward()

        def ours(x: Any, labels: Any = labels, lengths: Any = lengths, sizes: Any = sizes) -> Any:
            return op.ctc_loss(op.log_softmax(x), labels, lengths, sizes, reduction=reduction)

        np.testing.assert_allclose(ours(ts.tensor(x)), want.detach().numpy(), rtol=1e-9)
        g = ts.grad(lambda x, f=ours: op.sum(f(x)))(ts.tensor(x))
        np.testing.assert_allclose(g, t.grad.numpy(), rtol=1e-7, atol=1e-10)
