"""A Kalman filter and smoother by `ts.scan`, whose noises are learnt by gradient through the filter.

    python examples/recipes/kalman.py

A cart moves along a line with random pushes; a poor sensor tells where it is.  The likelihood of the
readings is a by-product of the filter, and its gradient finds the size of pushes and readings' errors.
"""

import numpy as np

import tessera as ts
from tessera import f64, op

DT = 0.1
MOVE = np.array([[1.0, DT], [0.0, 1.0]])  # (place, speed) after one step
PUSH = np.array([[DT**3 / 3, DT**2 / 2], [DT**2 / 2, DT]])  # covariance of a unit of white noise
SEE = np.array([[1.0, 0.0]])  # the sensor tells the place
optimizer = ts.optim.adam(0.1)


def model(logs):
    """The matrices of the model for logarithms of the variances of pushes and readings."""
    push = op.exp(logs["push"]) * ts.asarray(PUSH)
    return ts.asarray(MOVE), push, ts.asarray(SEE), op.exp(logs["sensor"]) * ts.eye(1, dtype=f64)


def kalman_filter(logs, readings):
    """Filtered and predicted means and covariances, and the log likelihood of readings (n, 1)."""
    a, q, c, r = model(logs)

    def body(carry, z):
        mean, cov = carry
        mean, cov = a @ mean, a @ cov @ a.T + q
        predicted = (mean, cov)
        s = c @ cov @ c.T + r
        surprise = z - c @ mean
        gain = op.solve(s, c @ cov).T
        mean, cov = mean + gain @ surprise, cov - gain @ c @ cov
        log_p = -0.5 * (surprise @ op.solve(s, surprise) + op.slogdet(s)[1] + np.log(2 * np.pi))
        return (mean, cov), (mean, cov, *predicted, log_p)

    start = (op.zeros((2,), f64), 10 * ts.eye(2, dtype=f64))
    *moments, log_p = ts.scan(body, start, readings)[1]
    return moments, op.sum(log_p)


def smoother(logs, moments):
    """Means given all readings, later ones too (Rauch, Tung and Striebel): a scan backwards."""
    a = ts.asarray(MOVE)
    means, covs, next_means, next_covs = moments

    def body(later, now):
        mean, cov, next_mean, next_cov = now
        gain = op.solve(next_cov, a @ cov).T
        mean = mean + gain @ (later - next_mean)
        return mean, mean

    now = (means[:-1], covs[:-1], next_means[1:], next_covs[1:])
    last = means[-1]
    return op.concat([ts.scan(body, last, now, reverse=True)[1], last[None]])


def loss(logs, readings):
    return -kalman_filter(logs, readings)[1]


@ts.jit
def step(logs, state, readings):
    value, grads = ts.value_and_grad(loss)(logs, readings)
    logs, state = optimizer.update(grads, state, logs)
    return value, logs, state


def drive(rng, n, push=0.5, sensor=0.3):
    """The states of a cart, and readings of its place with errors of standard deviation `sensor`."""
    root, state, states = np.linalg.cholesky(push * PUSH), np.zeros(2), []
    for _ in range(n):
        state = MOVE @ state + root @ rng.normal(size=2)
        states.append(state)
    states = np.array(states)
    return states, states[:, :1] + sensor * rng.normal(size=(n, 1))


def start():
    return {"push": op.zeros((), f64), "sensor": op.zeros((), f64)}


def fit(readings, steps):
    """The logarithms of both variances, and the loss at every step."""
    logs, values = start(), []
    state = optimizer.init(logs)
    for _ in range(steps):
        value, logs, state = step(logs, state, readings)
        values.append(value.item())
    return logs, values


def main():
    states, readings = drive(np.random.default_rng(0), 200)
    logs, values = fit(readings, 50)
    for i in range(0, 50, 10):
        print(f"step {i:2d}  -log likelihood {values[i]:8.2f}")
    print(f"variance of pushes {np.exp(logs['push'].item()):.2f} (0.50), "
          f"of the sensor {np.exp(logs['sensor'].item()):.3f} (0.090)")  # fmt: skip
    moments, _ = kalman_filter(logs, ts.tensor(readings))
    for name, places in (
        ("readings", readings[:, 0]),
        ("filter", moments[0][:, 0]),
        ("smoother", smoother(logs, moments)[:, 0]),
    ):
        print(
            f"error of the {name:8s} {np.sqrt(np.mean((np.asarray(places) - states[:, 0]) ** 2)):.3f}"
        )


if __name__ == "__main__":
    main()
