"""Hamiltonian Monte Carlo samples the posterior of a logistic regression, many chains at a time.

    python examples/recipes/hmc.py

A chain is a `ts.scan` of proposals, a proposal a `ts.fori_loop` of leapfrog steps, the force a
`ts.grad`, and the chains are a `ts.vmap`: all of it one compiled program.
"""

import numpy as np

import tessera as ts
from tessera import f64, op

CHAINS, SAMPLES, LEAPS, SIZE = 8, 400, 12, 0.12


def log_posterior(w, x, y):
    """Of the weights of a logistic regression with labels -1 and 1 and a normal prior."""
    return op.sum(op.log_sigmoid(y * (x @ w))) - 0.5 * op.sum(w**2)


def leapfrog(force, q, p, size, leaps):
    """Follow the dynamics of a unit mass for some steps."""

    def body(_, state):
        q, p = state
        p = p + 0.5 * size * force(q)
        q = q + size * p
        return q, p + 0.5 * size * force(q)

    return ts.fori_loop(0, leaps, body, (q, p))


def hmc(log_p, start, momenta, chances):
    """Samples (n, ...) and how many proposals were taken, for drawn momenta and uniform numbers."""

    def energy(q, p):
        return 0.5 * op.sum(p**2) - log_p(q)

    def body(q, drawn):
        p, chance = drawn
        new_q, new_p = leapfrog(ts.grad(log_p), q, p, SIZE, LEAPS)
        taken = op.log(chance) < energy(q, p) - energy(new_q, new_p)
        q = op.where(taken, new_q, q)
        return q, (q, taken)

    return ts.scan(body, start, (momenta, chances))[1]


@ts.jit
def chains(key, x, y):
    """Independent chains: samples (chains, n, features) and the share of proposals taken."""
    a, b, c = ts.split(key, 3)
    d = x.shape[1]
    starts = op.random.normal(a, (CHAINS, d), dtype=f64)
    momenta = op.random.normal(b, (CHAINS, SAMPLES, d), dtype=f64)
    chances = op.random.uniform(c, (CHAINS, SAMPLES), dtype=f64)

    def run(start, momenta, chances):
        return hmc(lambda w: log_posterior(w, x, y), start, momenta, chances)

    samples, taken = ts.vmap(run)(starts, momenta, chances)
    return samples, op.mean(taken)


def r_hat(samples):
    """How much chains disagree (Gelman and Rubin): 1 when they do not."""
    n = samples.shape[1]
    within = op.mean(op.var(samples, axis=1, correction=1), axis=0)
    between = op.var(op.mean(samples, axis=1), axis=0, correction=1)
    return op.sqrt((n - 1) / n + between / within)


def data(rng, n=200):
    """Two features and a constant, labels from known weights."""
    x = np.concatenate([rng.normal(size=(n, 2)), np.ones((n, 1))], axis=1)
    y = np.where(rng.uniform(size=n) < 1 / (1 + np.exp(-x @ [1.5, -1.0, 0.5])), 1.0, -1.0)
    return x, y


def main():
    x, y = data(np.random.default_rng(0))
    samples, taken = chains(ts.key(0), x, y)
    kept = samples[:, SAMPLES // 4 :]
    print(f"{CHAINS} chains of {SAMPLES}: {100 * taken.item():.0f}% of proposals taken, "
          f"R-hat {np.asarray(r_hat(kept)).round(3)}")  # fmt: skip
    flat = np.asarray(kept).reshape(-1, 3)
    print(f"weights {flat.mean(0).round(2)} +- {flat.std(0).round(2)}, drawn with [1.5 -1.0 0.5]")


if __name__ == "__main__":
    main()
