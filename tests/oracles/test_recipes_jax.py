"""The recipes beside JAX: the same numbers in, values, gradients and states after a step agree.

Each recipe's mathematics is written again with jax.numpy, from the formulas; parameters and data are the
recipe's own, in f64 so that what is compared is meaning and not rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tessera as ts
from examples.recipes import (
    cart_pole,
    ddpm,
    fno,
    gan,
    gaussian_process,
    graph_network,
    hmc,
    kalman,
    kernel_ridge,
    lora,
    maml,
    mixture_of_experts,
    neural_ode,
    pinn,
    poisson,
    sinkhorn,
    vae,
)
from tessera import c64, c128, f32, f64

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.oracle
WIDE = {f32: f64, c64: c128}


@pytest.fixture(autouse=True)
def _double_precision() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def wide(tree: Any) -> Any:
    """Floats in double precision."""
    return ts.tree.map(lambda x: x.astype(WIDE.get(x.dtype, x.dtype)), tree)


def theirs(tree: Any) -> Any:
    """The same tree with arrays of JAX."""
    leaves, structure = ts.tree.flatten(tree)
    return ts.tree.unflatten(structure, [jnp.asarray(np.asarray(x)) for x in leaves])


def doubles(*arrays: Any) -> tuple[Any, ...]:
    """Arrays as tensors, floats in double precision."""
    return tuple(wide(ts.asarray(a)) for a in arrays)


def agree(got: Any, want: Any, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    """Two trees of the same structure."""
    ours, others = ts.tree.leaves(got), jax.tree.leaves(want)
    assert len(ours) == len(others) > 0
    for a, b in zip(ours, others, strict=True):
        scale = max(1.0, float(np.max(np.abs(np.asarray(b)), initial=0.0)))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol * scale)


def same_gradients(
    ours: Any, others: Any, params: Any, *args: Any, rtol: float = 1e-9, atol: float = 1e-10
) -> None:
    """Values and gradients in the first argument, jitted on both sides."""
    got = ts.jit(ts.value_and_grad(ours))(params, *args)
    want = jax.jit(jax.value_and_grad(others))(theirs(params), *map(theirs, args))
    agree(got, want, rtol, atol)


def adam(params: Any, grads: Any, lr: float, b1: float = 0.9) -> Any:
    """The first step of Adam."""
    m = jax.tree.map(lambda g: (1 - b1) * g / (1 - b1), grads)
    return jax.tree.map(lambda p, m: p - lr * m / (jnp.abs(m) + 1e-8), params, m)


def layers(params: Any, x: Any, activation: Any) -> Any:
    for w, b in params[:-1]:
        x = activation(x @ w + b)
    w, b = params[-1]
    return x @ w + b


# Generative models --------------------------------------------------------------------------------


def jax_noise(p: Any, x: Any, t: Any) -> Any:
    angles = t[:, None] * jnp.array([1, 0.5, 0.25, 0.125]) * (2 * math.pi / ddpm.STEPS)
    h = jax.nn.silu(jnp.concatenate([x, jnp.sin(angles), jnp.cos(angles)], -1) @ p["in"])
    h = h + jax.nn.silu(h @ p["mid"])
    return h @ p["out"]


def test_ddpm():
    params = wide(ddpm.init(ts.key(0)))
    draw = rng()
    x, noise = doubles(ddpm.spiral(draw, 16), draw.normal(size=(16, 2)))
    t = ts.tensor(draw.integers(0, ddpm.STEPS, 16))
    kept = jnp.asarray(ddpm.KEPT)

    def loss(p: Any, x: Any, t: Any, noise: Any) -> Any:
        k = kept[t][:, None]
        noisy = jnp.sqrt(k) * x + jnp.sqrt(1 - k) * noise
        return jnp.mean((jax_noise(p, noisy, t) - noise) ** 2)

    same_gradients(
        ddpm.loss, loss, params, x, t, noise, rtol=1e-5, atol=1e-7
    )  # steps and variances are f32


def test_ddpm_sampling():
    params, draw = wide(ddpm.init(ts.key(0))), rng()
    start, noise = doubles(draw.normal(size=(8, 2)), draw.normal(size=(ddpm.STEPS, 8, 2)))
    x = jnp.asarray(start.numpy())
    for t in reversed(range(ddpm.STEPS)):
        beta, kept = float(ddpm.BETAS[t]), float(ddpm.KEPT[t])
        guess = jax_noise(theirs(params), x, jnp.full(8, t))
        x = (x - beta / math.sqrt(1 - kept) * guess) / math.sqrt(1 - beta)
        x = x + (math.sqrt(beta) if t else 0.0) * noise.numpy()[t]
    agree(ddpm.sample(params, start, noise), x, rtol=1e-4, atol=1e-5)


def test_vae():
    params, draw = wide(vae.init(ts.key(0))), rng()
    x, noise = doubles(vae.bars(draw, 8), draw.normal(size=(8, vae.LATENT)))

    def loss(p: Any, x: Any, noise: Any) -> Any:
        dense = lambda name, x: x @ p[name]["w"] + p[name]["b"]  # noqa: E731
        moments = dense("moments", jnp.tanh(dense("encode", x)))
        mean, log_var = moments[:, : vae.LATENT], moments[:, vae.LATENT :]
        code = mean + jnp.exp(log_var / 2) * noise
        pixels = dense("pixels", jnp.tanh(dense("decode", code)))
        bits = jnp.sum(jnp.logaddexp(0.0, pixels) - x * pixels)
        return (bits + 0.5 * jnp.sum(jnp.exp(log_var) + mean**2 - 1 - log_var)) / x.shape[0]

    same_gradients(vae.loss, loss, params, x, noise)


def test_gan():
    nets, draw = wide(gan.init(ts.key(0))), rng()
    real, noise = doubles(gan.ring(draw, 16), draw.normal(size=(16, gan.NOISE)))
    leaky = lambda x: jnp.where(x > 0, x, 0.2 * x)  # noqa: E731
    soft = lambda x: jnp.mean(jnp.logaddexp(0.0, x))  # noqa: E731

    def critic(c: Any, real: Any, fake: Any) -> Any:
        return soft(-layers(c, real, leaky)) + soft(layers(c, fake, leaky))

    def generator(g: Any, c: Any, noise: Any) -> Any:
        return soft(-layers(c, layers(g, noise, leaky), leaky))

    fake = gan.mlp(nets["generator"], noise)
    same_gradients(gan.critic_loss, critic, nets["critic"], real, fake)
    same_gradients(gan.generator_loss, generator, nets["generator"], nets["critic"], noise)


# Networks -----------------------------------------------------------------------------------------


def test_lora_and_its_step():
    frozen, adapters = wide(lora.init(ts.key(0))), wide(lora.init_adapters(ts.key(1)))
    adapters = ts.tree.map(lambda x: x + 0.01, adapters)
    x, y = lora.task(0, 40)
    x = wide(x)

    def loss(q: Any, p: Any, x: Any, y: Any) -> Any:
        for i, (a, b) in enumerate(zip(p, q, strict=True)):
            x = x @ (a["w"] + lora.ALPHA / lora.RANK * b["a"] @ b["b"]) + a["b"]
            x = jax.nn.relu(x) if i + 1 < len(p) else x
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[:, None], -1))

    same_gradients(lora.loss, loss, adapters, frozen, x, y)
    value, new, _ = lora.finetune(adapters, ts.optim.adam(1e-2).init(adapters), frozen, x, y)
    value_, grads = jax.value_and_grad(loss)(*map(theirs, (adapters, frozen, x, y)))
    agree((value, new), (value_, adam(theirs(adapters), grads, 1e-2)), rtol=1e-7, atol=1e-8)


def test_maml():
    params = wide(maml.init(ts.key(0)))
    tasks = doubles(*maml.waves(rng(), 3))

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((layers(p, x, jnp.tanh) - y) ** 2)

    def meta(p: Any, *tasks: Any) -> Any:
        def one(x: Any, y: Any, u: Any, v: Any) -> Any:
            moved = jax.tree.map(lambda a, g: a - maml.RATE * g, p, jax.grad(loss)(p, x, y))
            return loss(moved, u, v)

        return jnp.mean(jax.vmap(one)(*tasks))

    same_gradients(maml.meta_loss, meta, params, *tasks)


def test_graph_network():
    params = wide(graph_network.init(ts.key(0)))
    senders, receivers, half = graph_network.friendships(rng())
    known = np.arange(graph_network.KNOWN)

    def loss(p: Any, senders: Any, receivers: Any, known: Any, labels: Any) -> Any:
        h = p["people"]
        for w in p["layers"]:
            total = jax.ops.segment_sum(h[senders], receivers, h.shape[0])
            degree = jnp.maximum(jnp.bincount(receivers, length=h.shape[0]), 1)
            h = h + jax.nn.relu(total / degree[:, None] @ w)
            centred = h - h.mean(-1, keepdims=True)
            h = centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5)
        chances = jax.nn.log_softmax((h @ p["out"])[known])
        return -jnp.mean(jnp.take_along_axis(chances, labels[:, None], -1))

    data = doubles(senders, receivers, known, half[known])
    same_gradients(graph_network.loss, loss, params, *data)


def test_mixture_of_experts():
    params = wide(mixture_of_experts.init(ts.key(0)))
    x, y = doubles(*mixture_of_experts.tasks(rng(), 64))
    e, k = mixture_of_experts.EXPERTS, mixture_of_experts.CHOSEN

    def loss(p: Any, x: Any, y: Any) -> Any:
        chances = jax.nn.softmax(x @ p["router"])
        weights, experts = jax.lax.top_k(chances, k)
        weights = weights / weights.sum(-1, keepdims=True)
        h = jax.nn.relu(jnp.einsum("tw,tkwh->tkh", x, p["up"][experts]))
        out = jnp.sum(weights[..., None] * jnp.einsum("tkh,tkhw->tkw", h, p["down"][experts]), 1)
        load = jnp.mean(jax.nn.one_hot(experts[:, 0], e), 0)
        return jnp.mean((out - y) ** 2) + 0.01 * e * jnp.sum(load * chances.mean(0))

    same_gradients(lambda p, x, y: mixture_of_experts.loss(p, x, y)[0], loss, params, x, y)


# Equations ----------------------------------------------------------------------------------------


def test_neural_ode():
    params = wide(neural_ode.init(ts.key(0)))
    start = ts.tensor(rng().uniform(-1, 1, (4, 2)))
    path = neural_ode.odeint(
        lambda _, x: x**3 @ ts.tensor([[0.0, 1.0], [-1.0, 0.0]], f64), None, start
    )

    def field(p: Any, x: Any) -> Any:
        return jnp.tanh(x**3 @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]

    def loss(p: Any, x: Any, path: Any) -> Any:
        dt = neural_ode.DT

        def body(x: Any, want: Any) -> Any:
            k1 = field(p, x)
            k2 = field(p, x + dt / 2 * k1)
            k3 = field(p, x + dt / 2 * k2)
            k4 = field(p, x + dt * k3)
            x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            return x, jnp.sum(jnp.abs(x - want))

        return jnp.sum(jax.lax.scan(body, x, path)[1]) / path.size

    same_gradients(neural_ode.loss, loss, params, start, path)


def test_pinn():
    params = wide(pinn.init(ts.key(0)))
    x, t = doubles(*rng().uniform(size=(2, 10)))

    def u(p: Any, x: Any, t: Any) -> Any:
        bump = x * (1 - x) * t * layers(p, jnp.stack([x, t]), jnp.tanh)[0]
        return jnp.sin(math.pi * x) + bump

    def loss(p: Any, x: Any, t: Any) -> Any:
        def residual(x: Any, t: Any) -> Any:
            u_xx = jax.grad(jax.grad(u, 1), 1)(p, x, t)
            return jax.grad(u, 2)(p, x, t) - pinn.DIFFUSION * u_xx

        return jnp.mean(jax.vmap(residual)(x, t) ** 2)

    same_gradients(pinn.loss, loss, params, x, t)


def jax_fno(p: Any, u: Any) -> Any:
    n = u.shape[1]
    h = jnp.stack([u, jnp.broadcast_to(jnp.arange(n) / n, u.shape)], -1) @ p["lift"]
    for i, b in enumerate(p["blocks"]):
        low = jnp.fft.rfft(h, axis=1)[:, : fno.MODES]
        full = jnp.zeros((u.shape[0], n // 2 + 1, h.shape[2]), complex)
        full = full.at[:, : fno.MODES].set(jnp.einsum("bmi,mio->bmo", low, b["modes"]))
        h = jnp.fft.irfft(full, n, axis=1) + h @ b["local"]
        h = jax.nn.gelu(h, approximate=False) if i + 1 < fno.LAYERS else h
    return (h @ p["out"])[..., 0]


def test_fno_with_gradients_of_complex_parameters():
    params = wide(fno.init(ts.key(0)))
    u, v = doubles(*fno.burgers(rng(), 3, 64, steps=50))

    def loss(p: Any, u: Any, v: Any) -> Any:
        gap = jnp.linalg.norm(jax_fno(p, u) - v, axis=-1)
        return jnp.mean(gap / jnp.linalg.norm(v, axis=-1))

    same_gradients(fno.relative_error, loss, params, u, v, rtol=1e-6)  # places are f32


def test_poisson_and_the_gradient_by_its_coefficient():
    side, h = poisson.SIDE, poisson.SPACING
    a, f = doubles(poisson.faces(poisson.wall), rng().normal(size=side**2))

    def energy(a: Any, f: Any) -> Any:
        down, across = a[: (side + 1) * side].reshape(side + 1, side), a[(side + 1) * side :]
        across = across.reshape(side, side + 1)

        def apply(u: Any) -> Any:
            u = jnp.pad(u.reshape(side, side), 1)
            flow = down * jnp.diff(u, axis=0)[:, 1:-1], across * jnp.diff(u, axis=1)[1:-1]
            return -(jnp.diff(flow[0], axis=0) + jnp.diff(flow[1], axis=1)).reshape(-1) / h**2

        u, _ = jax.scipy.sparse.linalg.cg(apply, f, tol=1e-12, maxiter=4000)
        return jnp.sum(f * u)

    def ours(a: Any, f: Any) -> Any:
        solved = ts.op.cg(poisson.diffusion(a), f, tol=1e-12, precondition=poisson.laplace_solver())
        return ts.op.sum(f * solved[0])

    same_gradients(ours, energy, a, f, rtol=1e-6)


# Statistics ---------------------------------------------------------------------------------------


def test_gaussian_process():
    y = gaussian_process.data(rng())[0]

    def matern(gap: Any, length: Any) -> Any:
        r = jnp.abs(gap) * math.sqrt(3) / length
        return (1 + r) * jnp.exp(-r)

    def evidence(logs: Any, y: Any) -> Any:
        gaps = [g[:, None] - g for g in (gaussian_process.SPACE, gaussian_process.TIME)]
        parts = [matern(g, jnp.exp(logs[k])) for g, k in zip(gaps, ("space", "time"), strict=True)]
        k = jnp.exp(logs["scale"]) * jnp.kron(*parts) + jnp.exp(logs["noise"]) * jnp.eye(y.size)
        root = jnp.linalg.cholesky(k)
        white = jax.scipy.linalg.solve_triangular(root, y, lower=True)
        return 0.5 * jnp.sum(white**2) + jnp.sum(jnp.log(jnp.diag(root)))

    same_gradients(
        gaussian_process.evidence, evidence, gaussian_process.start(), ts.tensor(y), rtol=1e-7
    )


def test_kalman():
    _, readings = kalman.drive(rng(), 40)
    a, c = kalman.MOVE, kalman.SEE

    def loss(logs: Any, readings: Any) -> Any:
        q, r = jnp.exp(logs["push"]) * kalman.PUSH, jnp.exp(logs["sensor"])

        def body(carry: Any, z: Any) -> Any:
            mean, cov = a @ carry[0], a @ carry[1] @ a.T + q
            s = (c @ cov @ c.T)[0, 0] + r
            gap, gain = (z - c @ mean)[0], (cov @ c.T)[:, 0] / s
            cov = cov - jnp.outer(gain, gain) * s
            return (mean + gain * gap, cov), 0.5 * (gap**2 / s + jnp.log(2 * math.pi * s))

        return jnp.sum(jax.lax.scan(body, (jnp.zeros(2), 10 * jnp.eye(2)), readings)[1])

    same_gradients(kalman.loss, loss, kalman.start(), ts.tensor(readings))


def test_hmc_chains():
    x, y = hmc.data(rng(), 50)
    draw = rng()
    start, momenta = draw.normal(size=3), draw.normal(size=(20, 3))
    chances = draw.uniform(size=20)

    def log_p(w: Any) -> Any:
        return -jnp.sum(jnp.logaddexp(0.0, -y * (x @ w))) - 0.5 * jnp.sum(w**2)

    def body(q: Any, drawn: Any) -> Any:
        p, chance = drawn
        new, moved = q, p
        for _ in range(hmc.LEAPS):
            moved = moved + hmc.SIZE / 2 * jax.grad(log_p)(new)
            new = new + hmc.SIZE * moved
            moved = moved + hmc.SIZE / 2 * jax.grad(log_p)(new)
        change = log_p(new) - log_p(q) + 0.5 * (jnp.sum(p**2) - jnp.sum(moved**2))
        taken = jnp.log(chance) < change
        q = jnp.where(taken, new, q)
        return q, (q, taken)

    want = jax.lax.scan(body, jnp.asarray(start), (momenta, chances))[1]
    ours = ts.jit(lambda s, m, c: hmc.hmc(lambda w: hmc.log_posterior(w, *doubles(x, y)), s, m, c))
    agree(ours(*doubles(start, momenta, chances)), want)


def test_kernel_ridge():
    x, y = doubles(*kernel_ridge.data(rng(), 40))

    def loss(logs: Any, x: Any, y: Any) -> Any:
        gaps = jnp.sum((x[:, None] - x) ** 2, -1)
        k = jnp.exp(-gaps / (2 * jnp.exp(2 * logs["width"])))
        inverse = jnp.linalg.inv(k + jnp.exp(logs["ridge"]) * jnp.eye(40))
        return jnp.mean((inverse @ y / jnp.diag(inverse)) ** 2)

    same_gradients(kernel_ridge.leave_one_out, loss, kernel_ridge.start(), x, y, rtol=1e-8)


def test_sinkhorn_and_its_gradient():
    x, y = doubles(*sinkhorn.clouds(rng(), 15))
    eps = 0.2

    def cost_of(x: Any, y: Any) -> Any:
        c = 0.5 * jnp.sum((x[:, None] - y) ** 2, -1)
        soft = jax.scipy.special.logsumexp

        def body(f: Any, _: Any) -> Any:
            g = -eps * (soft((f[:, None] - c) / eps, axis=0) - math.log(15))
            return -eps * (soft((g - c) / eps, axis=1) - math.log(15)), g

        f, gs = jax.lax.scan(body, jnp.zeros(15), length=400)
        g = gs[-1]
        return jnp.mean(f) + jnp.mean(g)

    def ours(x: Any, y: Any) -> Any:
        f, g, _ = sinkhorn.potentials(sinkhorn.costs(x, y), eps)
        return ts.op.mean(f) + ts.op.mean(g)

    want, slope = jax.jit(jax.value_and_grad(cost_of))(*map(theirs, (x, y)))
    agree(ours(x, y), want, rtol=1e-5)
    cost = sinkhorn.costs(x, y)
    f, g, _ = sinkhorn.potentials(cost, eps)
    moved = sinkhorn.plan(cost, f, g, eps)
    by_plan = ts.vjp(lambda x: sinkhorn.costs(x, y), x)[1](moved)[0]
    agree(by_plan, slope, rtol=1e-4, atol=1e-5)


def test_cart_pole():
    """One episode step by step, and the gradient of the surrogate, in JAX's own loop."""
    params, draw = wide(cart_pole.init(ts.key(0))), rng()
    starts, chances = doubles(draw.uniform(-0.05, 0.05, (5, 4)), draw.uniform(size=(5, 60)))
    seen = ts.vmap(cart_pole.episode, in_axes=(None, 0, 0))(params, starts, chances)
    p = theirs(params)

    def logit(p: Any, s: Any) -> Any:
        return jnp.tanh(s @ p["w1"] + p["b1"]) @ p["w2"]

    def move(s: Any, push: Any) -> Any:
        _x, v, a, w = s
        force = (10 * push + 0.05 * w**2 * jnp.sin(a)) / 1.1
        spin = (9.8 * jnp.sin(a) - jnp.cos(a) * force) / (
            0.5 * (4 / 3 - 0.1 * jnp.cos(a) ** 2 / 1.1)
        )
        return s + 0.02 * jnp.stack([v, force - 0.05 * spin * jnp.cos(a) / 1.1, w, spin])

    def stands(s: Any) -> Any:
        return (jnp.abs(s[0]) < 2.4) & (jnp.abs(s[2]) < 0.21)

    def body(carry: Any, chance: Any) -> Any:
        s, alive = carry
        push = jnp.where(chance < jax.nn.sigmoid(logit(p, s)), 1.0, -1.0)
        new = jnp.where(alive, move(s, push), s)
        return (new, alive & stands(new)), (s, push, alive)

    run = lambda s, c: jax.lax.scan(body, (s, stands(s)), c)[1]  # noqa: E731
    want = jax.vmap(run)(*map(theirs, (starts, chances)))
    agree(seen, want)

    def surrogate(p: Any, states: Any, pushes: Any, alive: Any) -> Any:
        g, later = [], 0.0
        for t in reversed(range(60)):
            later = alive[:, t] + cart_pole.DISCOUNT * later
            g.append(later)
        g = jnp.stack(g[::-1], 1)
        better = (g - g.mean(0)) / (g.std() + 1e-6)
        chosen = jax.nn.log_sigmoid(pushes * logit(p, states))
        return -jnp.sum(jnp.where(alive, chosen * better, 0.0)) / cart_pole.EPISODES

    same_gradients(cart_pole.surrogate, surrogate, params, *seen, rtol=1e-5)  # rewards are f32
