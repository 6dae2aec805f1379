"""One call of the main jitted function of every recipe, on small data: what tests run eager, jitted and
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

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

Call = tuple[Callable[..., Any], tuple[Any, ...]]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def arrays(*xs: Any) -> tuple[ts.Tensor, ...]:
    return tuple(ts.asarray(x) for x in xs)


def trained(recipe: Any, *data: Any) -> Call:
    """The step of a recipe with parameters, an optimiser's state and data."""
    params = recipe.init(ts.key(0))
    return recipe.step, (params, recipe.optimizer.init(params), *data)


def gan_step() -> Call:
    nets = gan.init(ts.key(0))
    states = {k: gan.optimizer.init(v) for k, v in nets.items()}
    return gan.step, (nets, states, ts.key(1), *arrays(gan.ring(rng(), 256)))


def lora_step() -> Call:
    adapters = lora.init_adapters(ts.key(1))
    state = ts.optim.adam(1e-2).init(adapters)
    return lora.finetune, (adapters, state, lora.init(ts.key(0)), *lora.task(0, 100))


def cnn_step() -> Call:
    params, running = cnn.init(ts.key(0))
    return cnn.step, (params, running, cnn.optimizer.init(params), *arrays(*cnn.digits(rng(), 32)))


def logs_step(recipe: Any, logs: Any, *data: Any) -> Call:
    return recipe.step, (logs, recipe.optimizer.init(logs), *arrays(*data))


def ode_step() -> Call:
    start = op.random.uniform(ts.key(1), (8, 2), -1.5, 1.5)
    path = neural_ode.odeint(neural_ode.true_field, None, start)
    return trained(neural_ode, start, path)


def graph_step() -> Call:
    senders, receivers, half = graph_network.friendships(rng())
    known = np.arange(graph_network.KNOWN)
    return trained(graph_network, *arrays(senders, receivers, known, half[known]))


def mixed_step() -> Call:
    params = mixed_precision.init(ts.key(0))
    optimizer, step = mixed_precision.trainer("f16 with loss scale")
    return step, (params, optimizer.init(params), *arrays(*mixed_precision.data(rng(), 128)))


def poisson_solve() -> Call:
    def solve(a: Any, f: Any) -> Any:
        return op.cg(poisson.diffusion(a), f, tol=1e-9, precondition=poisson.laplace_solver())[0]

    f = ts.tensor(rng().normal(size=poisson.SIDE**2))
    return ts.jit(solve), (ts.asarray(poisson.faces(poisson.wall)), f)


CASES: dict[str, Callable[[], Call]] = {
    "cart_pole": lambda: trained(cart_pole, ts.key(1)),
    "cnn": cnn_step,
    "ddpm": lambda: trained(ddpm, ts.key(1), *arrays(ddpm.spiral(rng(), 256))),
    "decoding": lambda: trained(decoding, *arrays(decoding.patterns(rng(), 8))),
    "fno": lambda: trained(fno, *arrays(*fno.burgers(rng(), 16, 64, steps=50))),
    "gan": gan_step,
    "gaussian_process": lambda: logs_step(
        gaussian_process, gaussian_process.start(), gaussian_process.data(rng())[0]
    ),
    "graph_network": graph_step,
    "hmc": lambda: (hmc.chains, (ts.key(0), *arrays(*hmc.data(rng(), 40)))),
    "image_filters": lambda: (
        image_filters.wiener,
        (ts.asarray(image_filters.picture()), ts.tensor(1e-3)),
    ),
    "kalman": lambda: logs_step(kalman, kalman.start(), kalman.drive(rng(), 30)[1]),
    "kernel_ridge": lambda: logs_step(
        kernel_ridge, kernel_ridge.start(), *kernel_ridge.data(rng(), 120)
    ),
    "lora": lora_step,
    "lstm": lambda: trained(lstm, *arrays(*lstm.adding_problem(rng(), 32))),
    "maml": lambda: trained(maml, *arrays(*maml.waves(rng(), 16))),
    "mixed_precision": mixed_step,
    "mixture_of_experts": lambda: trained(
        mixture_of_experts, *arrays(*mixture_of_experts.tasks(rng(), mixture_of_experts.TOKENS))
    ),
    "neural_ode": ode_step,
    "pinn": lambda: trained(pinn, ts.key(1)),
    "poisson": poisson_solve,
    "sinkhorn": lambda: (
        sinkhorn.step,
        (*arrays(*sinkhorn.clouds(rng(), 40)), ts.tensor(0.5, f64)),
    ),
    "vae": lambda: trained(vae, ts.key(1), *arrays(vae.bars(rng(), 128))),
    "vit": lambda: trained(vit, *arrays(*vit.digits(rng(), 32))),
}
