"""The recipes learn or solve what they say, within a short run, and eagerly as well as jitted.

Values and gradients beside PyTorch and JAX are in tests/oracles/test_recipes_*.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.ndimage

import tessera as ts
from examples.recipes import (
    cart_pole,
    cnn,
    ddpm,
    decoding,
    fno,
    gan,
    gaussian_process,
    graph_network,
    hmc,
    image_filters,
    kalman,
    kernel_ridge,
    lora,
    lstm,
    maml,
    mixed_precision,
    mixture_of_experts,
    neural_ode,
    pinn,
    poisson,
    sinkhorn,
    vae,
    vit,
)
from tessera import f64, op
from tests.support.cases.recipe_cases import CASES, rng
from tests.support.runners.tolerance import (
    DIFFERENCE,
    DIFFERENCE_STEP,
    assert_close,
    assert_same_bits,
)

FOLDER = Path(cnn.__file__).parent
RECIPES = sorted(FOLDER.glob("*.py"))
# Eagerly these are hundreds of ops, each compiled for itself; they run beside the oracles.
LONG = {"cart_pole", "cnn", "decoding", "gaussian_process", "maml", "mixed_precision", "vit"}
DEEP = {"ddpm", "fno", "gan", "hmc", "lora", "mixture_of_experts", "pinn", "sinkhorn"}


def slope(f: Any, x: Any, along: Any) -> float:
    """The derivative of f at a tree along a direction, by central differences in f64."""
    at = lambda h: ts.tree.map(lambda p, d: p + h * d, x, along)  # noqa: E731
    return (f(at(DIFFERENCE_STEP)).item() - f(at(-DIFFERENCE_STEP)).item()) / (2 * DIFFERENCE_STEP)


def dot(a: Any, b: Any) -> float:
    return sum(
        op.sum(x * y).item() for x, y in zip(ts.tree.leaves(a), ts.tree.leaves(b), strict=True)
    )


def doubled(tree: Any) -> Any:
    return ts.tree.map(lambda x: x.astype(f64), tree)


def normal_like(tree: Any) -> Any:
    draw = np.random.default_rng(1)
    return ts.tree.map(lambda x: ts.tensor(draw.normal(size=x.shape)), tree)


def check_gradient(f: Any, x: Any) -> None:
    """The gradient of f at a tree of f64 tensors against a difference in a random direction."""
    along = normal_like(x)
    want = slope(f, x, along)
    assert_close(dot(ts.grad(f)(x), along), want, DIFFERENCE, times=max(1.0, abs(want)))


# All of them --------------------------------------------------------------------------------------


def test_every_recipe_is_here_and_in_the_table():
    names = {p.stem for p in RECIPES}
    assert names == set(CASES)
    table = (FOLDER / "README.md").read_text()
    lines = dict(re.findall(r"^\| \[(\w+)\.py\].*\| (\d+) \|$", table, re.MULTILINE))
    assert lines == {p.stem: str(p.read_text().count("\n")) for p in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_is_short_and_says_how_to_run_it(path):
    text = path.read_text()
    assert 40 <= sum(bool(line.strip()) for line in text.splitlines()) <= 100
    assert f"    python examples/recipes/{path.name}\n" in text


def with_mark(name: str) -> Any:
    if name in LONG:
        return pytest.param(name, marks=pytest.mark.oracle)
    return pytest.param(name, marks=pytest.mark.deep) if name in DEEP else name


@pytest.mark.parametrize("name", [with_mark(name) for name in sorted(CASES)])
def test_eager_and_jitted_have_the_same_bits(name, monkeypatch):
    monkeypatch.setattr(hmc, "SAMPLES", 5)
    monkeypatch.setattr(cart_pole, "LENGTH", 20)
    f, args = CASES[name]()
    jitted, eager = ts.jit(f.__wrapped__)(*args), f.__wrapped__(*args)
    for a, b in zip(ts.tree.leaves(jitted), ts.tree.leaves(eager), strict=True):
        assert_same_bits(a, b)


# Generative models --------------------------------------------------------------------------------


def test_ddpm_samples_lie_near_the_spiral():
    params, losses = ddpm.train(ts.key(0), 300)
    assert np.mean(losses[-50:]) < 0.45 < losses[0]
    start, noise = (
        op.random.normal(k, s)
        for k, s in zip(ts.split(ts.key(1)), [(200, 2), (50, 200, 2)], strict=True)
    )
    data = ts.tensor(ddpm.spiral(rng(), 1000))
    after = ddpm.distance_to(ddpm.sample(params, start, noise), data)
    assert after.item() < 0.75 * ddpm.distance_to(start, data).item()


def test_vae_reads_and_draws_bars():
    params, losses = vae.train(ts.key(0), 300)
    assert np.mean(losses[-20:]) < 25
    assert losses[0] > 80
    x = vae.bars(rng(), 50)
    again = op.sigmoid(vae.decode(params, vae.encode(params, ts.asarray(x))[0]))
    assert np.mean((np.asarray(again) > 0.5) == (x > 0.5)) > 0.95


def test_the_gan_finds_several_points_of_the_ring():
    nets, losses = gan.train(ts.key(0), 300)
    points = gan.mlp(nets["generator"], op.random.normal(ts.key(1), (1000, gan.NOISE)))
    modes, gap = gan.coverage(points)
    assert modes >= 3
    assert gap < 0.5
    assert np.all(np.isfinite(losses))


# Networks -----------------------------------------------------------------------------------------


def test_lora_starts_at_the_frozen_network_and_merges_into_it():
    frozen, adapters = lora.init(ts.key(0)), lora.init_adapters(ts.key(1))
    x, y = lora.task(0, 100)
    assert_same_bits(
        lora.forward(frozen, adapters, x), lora.forward(frozen, lora.none_like(frozen), x)
    )
    state = ts.optim.adam(1e-2).init(adapters)
    before = lora.loss(adapters, frozen, x, y).item()
    after, adapters = lora.fit(lora.finetune, adapters, state, frozen, x, y, steps=30)
    assert after < 0.5 * before
    merged = lora.merge(frozen, adapters)
    assert_close(
        lora.forward(frozen, adapters, x), lora.forward(merged, lora.none_like(frozen), x), times=20
    )


def test_cnn_learns_digits_and_reads_each_picture_by_itself():
    params, running, losses = cnn.train(ts.key(0), 150, batch=32)
    x, labels = cnn.digits(np.random.default_rng(1), 300)
    assert cnn.accuracy(params, running, x, labels).item() > 0.8
    assert losses[-1] < 0.5 * losses[0]
    scores = cnn.forward(params, running, ts.asarray(x))[0]
    assert_same_bits(cnn.forward(params, running, ts.asarray(x[7:8]))[0], scores[7:8])


def test_lstm_of_a_batch_is_the_lstm_of_each_sequence():
    params = lstm.init(ts.key(0))
    xs, _ = lstm.adding_problem(rng(), 6)
    batch = lstm.lstm(params, ts.asarray(xs))
    each = ts.vmap(lambda x: lstm.lstm(params, x[:, None])[:, 0], in_axes=1, out_axes=1)
    assert_same_bits(each(ts.asarray(xs)), batch)
    _, losses = lstm.train(ts.key(0), 60, batch=32)
    assert np.mean(losses[-10:]) < 0.22 < losses[0]


def test_vit_learns_digits():
    params, losses = vit.train(ts.key(0), 150, batch=32)
    x, labels = vit.digits(np.random.default_rng(1), 300)
    assert losses[-1] < 0.75 * losses[0]
    assert vit.accuracy(params, x, labels).item() > 0.4
    grid = vit.patches(ts.asarray(x[:1]))[0]
    assert_same_bits(grid[5].reshape(3, 3), ts.asarray(x[0, 3:6, 3:6]))


def test_experts_with_room_equal_all_experts_at_once():
    params = mixture_of_experts.init(ts.key(0))
    x, _ = mixture_of_experts.tasks(rng(), 60)
    sparse, _, kept = mixture_of_experts.moe(params, ts.asarray(x))
    assert kept.item() == 1
    assert_close(sparse, mixture_of_experts.dense_moe(params, ts.asarray(x)))


def test_experts_drop_what_has_no_room(monkeypatch):
    monkeypatch.setattr(mixture_of_experts, "CAPACITY", 3)
    params = mixture_of_experts.init(ts.key(0))
    x, _ = mixture_of_experts.tasks(rng(), 60)
    experts = np.asarray(mixture_of_experts.route(params, ts.asarray(x))[0])
    kept = mixture_of_experts.moe(params, ts.asarray(x))[2].item()
    assert kept == np.float32(np.minimum(np.bincount(experts.reshape(-1)), 3).sum() / experts.size)


def test_experts_learn_and_share_the_load():
    _, record = mixture_of_experts.train(ts.key(0), 100)
    assert record[-1][0] < 0.15 * record[0][0]
    assert record[-1][1] > 0.95


def test_decoding_by_the_cache_equals_decoding_anew():
    params, losses = decoding.train(ts.key(0), 40, batch=8)
    assert losses[-1] < losses[0] - 0.2
    prompt = ts.asarray(decoding.patterns(rng(), 2, 10))
    tokens = decoding.generate(params, prompt, 8)
    whole = op.concat([prompt, tokens], axis=1)
    scores, _ = decoding.forward(params, decoding.empty_caches(2), whole)
    assert_same_bits(op.argmax(scores[:, 9:-1], axis=-1), tokens)


def test_a_prompt_in_two_parts_has_the_bits_of_the_whole():
    params, prompt = decoding.init(ts.key(0)), ts.asarray(decoding.patterns(rng(), 2, 12))
    whole, _ = decoding.forward(params, decoding.empty_caches(2), prompt)
    _, caches = decoding.forward(params, decoding.empty_caches(2), prompt[:, :7])
    rest, caches = decoding.forward(params, caches, prompt[:, 7:])
    assert_same_bits(rest, whole[:, 7:])
    assert caches[0].length.item() == 12


def test_f16_alone_learns_nothing_and_a_loss_scale_mends_it():
    _, _, plain = mixed_precision.train("f16", 60)
    params, state, scaled = mixed_precision.train("f16 with loss scale", 60)
    assert np.mean(plain[-10:]) > 0.9 * np.mean(plain[:10])
    assert np.mean(scaled[-10:]) < 0.3 * scaled[0]
    assert state["scale"].item() >= 2.0**10
    assert {p.dtype for p in ts.tree.leaves(params)} == {ts.f32}


def test_maml_is_a_gradient_of_a_gradient():
    tasks = tuple(ts.tensor(a.astype(np.float64)) for a in maml.waves(rng(), 2))
    check_gradient(lambda p: maml.meta_loss(p, *tasks), doubled(maml.init(ts.key(0))))
    _, losses = maml.train(ts.key(0), 200)
    assert np.mean(losses[-20:]) < 0.7 * np.mean(losses[:20])


def test_message_passing_is_a_product_with_the_adjacency_matrix():
    senders, receivers, _ = graph_network.friendships(rng())
    n = graph_network.PEOPLE
    adjacency = np.zeros((n, n))
    adjacency[receivers, senders] = 1
    h = rng().normal(size=(n, 5))
    want = adjacency @ h / np.maximum(adjacency.sum(1, keepdims=True), 1)
    assert_close(
        graph_network.aggregate(ts.tensor(h), *map(ts.asarray, (senders, receivers))), want
    )


def test_the_graph_network_finds_the_halves():
    _, record = graph_network.train(ts.key(0), 50)
    assert record[-1][0] < 0.1
    assert record[-1][1] > 0.85


def test_the_policy_learns_to_balance():
    _, lengths = cart_pole.train(ts.key(0), 40)
    assert np.mean(lengths[:3]) < 50
    assert np.mean(lengths[-5:]) > 100


def test_mapped_episodes_are_those_of_a_loop():
    params = cart_pole.init(ts.key(0))
    starts = op.random.uniform(ts.key(1), (3, 4), -0.05, 0.05)
    chances = op.random.uniform(ts.key(2), (3, 40))
    mapped = ts.vmap(cart_pole.episode, in_axes=(None, 0, 0))(params, starts, chances)
    for i in range(3):
        for many, one in zip(mapped, cart_pole.episode(params, starts[i], chances[i]), strict=True):
            assert_same_bits(many[i], one)


# Equations ----------------------------------------------------------------------------------------


def test_runge_kutta_follows_the_exponential():
    a = np.array([[-0.2, 1.0], [-1.0, -0.2]])
    start = ts.tensor([[1.0, 0.5]], f64)
    path = neural_ode.odeint(lambda a, x: x @ a, ts.tensor(a), start, steps=40, dt=0.05)
    assert_close(path[-1], start.numpy() @ scipy.linalg.expm(2 * a), times=2e6)


def test_the_neural_ode_learns_and_its_checkpoints_change_no_bit(monkeypatch):
    _f, args = CASES["neural_ode"]()
    params, _, start, path = args
    grads = ts.grad(neural_ode.loss)(params, start, path)
    monkeypatch.setattr(ts, "checkpoint", lambda f: f)
    plain = ts.grad(neural_ode.loss)(params, start, path)
    for a, b in zip(ts.tree.leaves(grads), ts.tree.leaves(plain), strict=True):
        assert_same_bits(a, b)
    monkeypatch.undo()
    _, losses = neural_ode.train(ts.key(0), 60, starts=8)
    assert losses[-1] < 0.6 * losses[0]


def test_pinn_derivatives_are_those_of_a_known_function():
    params = doubled(pinn.init(ts.key(0)))
    x, t = ts.tensor(0.3, f64), ts.tensor(0.7, f64)
    h = 1e-4
    at = lambda dx, dt: pinn.u(params, x + dx, t + dt).item()  # noqa: E731
    u_t = (at(0, h) - at(0, -h)) / (2 * h)
    u_xx = (at(h, 0) - 2 * at(0, 0) + at(-h, 0)) / h**2
    assert abs(pinn.residual(params, x, t).item() - (u_t - pinn.DIFFUSION * u_xx)) < 1e-5
    assert abs(at(-0.3, 0)) < 1e-12
    assert abs(at(0, -0.7) - np.sin(0.3 * np.pi)) < 1e-12


def test_pinn_solves_the_heat_equation():
    params, losses = pinn.train(ts.key(0), 150)
    assert losses[-1] < 0.02 * losses[0]
    assert pinn.error(params) < 0.05


def test_the_fourier_operator_does_not_depend_on_the_grid():
    params = doubled_modes(fno.init(ts.key(0)))
    coarse, fine = np.arange(48) / 48, np.arange(96) / 96
    wave = lambda x: np.sin(2 * np.pi * x)[None] + 0.3 * np.cos(6 * np.pi * x)[None]  # noqa: E731
    weights, lift = params["blocks"][0]["modes"], params["lift"][:1]
    low = fno.spectral_conv(weights, ts.tensor(wave(coarse))[..., None] @ lift)
    high = fno.spectral_conv(weights, ts.tensor(wave(fine))[..., None] @ lift)
    assert_close(low, high[:, ::2], times=10)


def doubled_modes(params: Any) -> Any:
    wide = lambda x: x.astype(ts.c128 if x.dtype is ts.c64 else f64)  # noqa: E731
    return ts.tree.map(wide, params)


def test_the_fourier_operator_learns():
    _, losses = fno.train(ts.key(0), 60, samples=64, batch=16)
    assert np.mean(losses[-5:]) < 0.4 * losses[0]


def test_poisson_by_operators_equals_the_sparse_matrix():
    a = poisson.faces(poisson.wall)
    operator, matrix = poisson.diffusion(ts.asarray(a)), poisson.as_sparse(a)
    f = rng().normal(size=poisson.SIDE**2)
    assert_close(operator @ f, matrix @ f, times=1e4)
    want = scipy.sparse.linalg.spsolve(matrix.tocsc(), f)
    preconditioned = op.cg(operator, f, tol=1e-11, precondition=poisson.laplace_solver())
    for u, _info in (preconditioned, op.cg(op.sparse(matrix), f, tol=1e-11)):
        np.testing.assert_allclose(u, want, rtol=1e-6, atol=1e-9 * np.abs(want).max())
    assert preconditioned[1].iterations.item() < 30


def test_the_gradient_through_the_poisson_solver():
    f = ts.tensor(rng().normal(size=poisson.SIDE**2))

    def energy(log_a):
        k = poisson.diffusion(op.exp(log_a))
        return op.sum(f * op.cg(k, f, tol=1e-12, precondition=poisson.laplace_solver())[0])

    check_gradient(energy, op.log(ts.asarray(poisson.faces(poisson.wall))))


# Statistics ---------------------------------------------------------------------------------------


def test_the_evidence_is_that_of_the_dense_matrix():
    y = gaussian_process.data(rng())[0]
    logs = gaussian_process.start()
    k = np.asarray(gaussian_process.noisy(logs).todense())
    want = 0.5 * (y @ np.linalg.solve(k, y) + np.linalg.slogdet(k)[1])
    assert_close(gaussian_process.evidence(logs, ts.tensor(y)), want, times=100)
    check_gradient(lambda logs: gaussian_process.evidence(logs, ts.tensor(y)), logs)
    prior = np.asarray(gaussian_process.prior(logs).todense())
    mean, _ = gaussian_process.posterior_mean(logs, ts.tensor(y))
    np.testing.assert_allclose(mean, prior @ np.linalg.solve(k, y), atol=1e-6)


def test_the_process_denoises():
    y, clean = gaussian_process.data(rng())
    logs, values = gaussian_process.fit(ts.tensor(y), 12)
    assert values[-1] < values[0] - 100
    mean, _ = gaussian_process.posterior_mean(logs, ts.tensor(y))
    assert np.std(np.asarray(mean) - clean) < 0.6 * np.std(y - clean)


def test_the_kalman_filter_conditions_a_gaussian():
    """Its likelihood and its last mean are those of the joint Gaussian of all states and readings."""
    n, logs = 12, {"push": ts.tensor(-0.5, f64), "sensor": ts.tensor(-1.0, f64)}
    _, readings = kalman.drive(rng(), n)
    a, q, c, r = (np.asarray(m) for m in kalman.model(logs))
    cov, blocks = 10 * np.eye(2), []
    for _ in range(n):
        cov = a @ cov @ a.T + q
        blocks.append(cov)
    joint = np.block([[_between(a, blocks, i, j) for j in range(n)] for i in range(n)])
    see = np.kron(np.eye(n), c)
    s = see @ joint @ see.T + np.kron(np.eye(n), r)
    z = readings[:, 0]
    want = -0.5 * (z @ np.linalg.solve(s, z) + np.linalg.slogdet(s)[1] + n * np.log(2 * np.pi))
    moments, log_p = kalman.kalman_filter(logs, ts.tensor(readings))
    assert_close(log_p, want, times=100)
    means = (joint @ see.T @ np.linalg.solve(s, z)).reshape(n, 2)
    assert_close(moments[0][-1], means[-1], times=1000)
    assert_close(kalman.smoother(logs, moments), means, times=1000)


def _between(a: Any, blocks: Any, i: int, j: int) -> Any:
    """The covariance of the states after steps i and j."""
    if i < j:
        return _between(a, blocks, j, i).T
    return np.linalg.matrix_power(a, i - j) @ blocks[j]


def test_the_gradient_through_the_kalman_filter():
    _, readings = kalman.drive(rng(), 30)
    check_gradient(lambda logs: kalman.loss(logs, ts.tensor(readings)), kalman.start())
    _, values = kalman.fit(readings, 15)
    assert values[-1] < values[0]


def test_many_series_are_filtered_as_one_by_one():
    series = ts.tensor(np.stack([kalman.drive(np.random.default_rng(i), 10)[1] for i in range(3)]))
    many = ts.vmap(lambda z: kalman.loss(kalman.start(), z))(series)
    assert_same_bits(many, op.stack([kalman.loss(kalman.start(), z) for z in series]))


def test_leapfrog_goes_back_where_it_came_from():
    q, p = ts.tensor([0.3, -0.4], f64), ts.tensor([1.0, 0.2], f64)
    force = ts.grad(lambda q: -op.sum(q**4))
    there = hmc.leapfrog(force, q, p, 0.05, 20)
    back = hmc.leapfrog(force, there[0], -there[1], 0.05, 20)
    assert_close(back[0], q)
    assert_close(-back[1], p)


def test_hmc_samples_a_gaussian():
    scale = np.array([0.5, 1.0])
    log_p = lambda q: -0.5 * op.sum((q / ts.asarray(scale)) ** 2)  # noqa: E731
    draw = rng()
    momenta, chances = draw.normal(size=(1500, 2)), draw.uniform(size=1500)
    run = ts.jit(lambda m, c: hmc.hmc(log_p, op.zeros((2,), f64), m, c))
    samples, taken = run(momenta, chances)
    assert np.asarray(taken).mean() > 0.9
    np.testing.assert_allclose(np.asarray(samples).std(0), scale, rtol=0.1)
    assert np.abs(np.asarray(samples).mean(0)).max() < 0.15


def test_leaving_points_out_has_a_closed_form():
    x, y = kernel_ridge.data(rng(), 25)
    width, ridge = ts.tensor(0.8, f64), ts.tensor(0.3, f64)
    errors = []
    for i in range(25):
        rest = np.arange(25) != i
        a = kernel_ridge.fit(ts.tensor(x[rest]), ts.tensor(y[rest]), width, ridge)
        guess = kernel_ridge.predict(ts.tensor(x[i : i + 1]), ts.tensor(x[rest]), a, width)
        errors.append((guess.item() - y[i]) ** 2)
    logs = {"width": op.log(width), "ridge": op.log(ridge)}
    loss = lambda logs: kernel_ridge.leave_one_out(logs, ts.tensor(x), ts.tensor(y))  # noqa: E731
    assert_close(loss(logs), np.mean(errors), times=100)
    check_gradient(loss, logs)


def test_kernel_ridge_chooses_its_width():
    x, y = (ts.tensor(a) for a in kernel_ridge.data(rng(), 120))
    logs, values = kernel_ridge.choose(x, y, 25)
    assert values[-1] < 0.25 * values[0]
    width, ridge = op.exp(logs["width"]), op.exp(logs["ridge"])
    exact = kernel_ridge.predict(x, x, kernel_ridge.fit(x, y, width, ridge), width)
    sketch = kernel_ridge.random_features(ts.key(0), x, x, y, width, ridge)
    assert np.std(np.asarray(exact - sketch)) < 0.15


# Pictures and transport ---------------------------------------------------------------------------


def test_three_ways_to_blur_agree_with_scipy():
    image = image_filters.picture(40)
    g = np.asarray(image_filters.gaussian()).astype(np.float64)
    want = scipy.ndimage.correlate(image.astype(np.float64), np.outer(g, g), mode="constant")
    for blur in (
        image_filters.blur_direct,
        image_filters.blur_separable,
        image_filters.blur_fourier,
    ):
        assert_close(blur(image), want.astype(np.float32))
    sobel = np.hypot(*(scipy.ndimage.sobel(image, axis=k, mode="constant") for k in (0, 1))) / 8
    assert_close(image_filters.edges(image), sobel)


def test_wieners_filter_undoes_a_blur():
    image = ts.asarray(image_filters.picture(64))
    h = image_filters.transfer((64, 64))
    blurred = op.irfftn(op.rfftn(image) * h, s=(64, 64))
    restored = image_filters.wiener(blurred, 1e-5)
    assert op.mse(restored, image).item() < 0.3 * op.mse(blurred, image).item()


def test_a_transport_plan_has_the_right_sums_and_gradient():
    x, y = (ts.tensor(a) for a in sinkhorn.clouds(rng(), 12))
    cost = sinkhorn.costs(x, y)
    f, g, _ = sinkhorn.potentials(cost)
    moved = np.asarray(sinkhorn.plan(cost, f, g))
    np.testing.assert_allclose(moved.sum(1), 1 / 12, rtol=1e-10)
    np.testing.assert_allclose(moved.sum(0), 1 / 12, rtol=1e-4)
    check = lambda x: sinkhorn.transport(sinkhorn.costs(x, y))  # noqa: E731
    along = normal_like(x)
    assert abs(slope(check, x, along) - dot(ts.grad(check)(x), along)) < 1e-4


def test_points_move_onto_the_ring():
    x, y = (ts.tensor(a) for a in sinkhorn.clouds(rng(), 40))
    values = []
    for _ in range(5):
        value, x = sinkhorn.step(x, y, ts.tensor(0.5, f64))
        values.append(value.item())
    assert values[-1] < 0.05 * values[0]
    assert abs(op.mean(op.vector_norm(x, axis=1)).item() - 1) < 0.1
