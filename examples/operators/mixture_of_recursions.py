"""Mixture of recursions: every token goes through one shared operator as often as its router says.

The operator and the depths are learned together.  A token that is done keeps what it has, so that
the mean of the depths is what the recursion costs.
"""

import numpy as np

import tessera as ts
from tessera import op

MOST = 4  # steps that a token may take


def recursion(params: dict, x: ts.Tensor) -> ts.Tensor:
    """Tokens after the expected number of applications of the shared operator."""
    shared = op.dense(params["shared"])
    leave = op.sigmoid(x @ params["router"])  # the share of a token that leaves at each step
    stays, out = op.ones_like(leave), op.zeros_like(x)
    for step in range(MOST):
        gone = stays if step == MOST - 1 else stays * leave
        out, stays = out + op.expand_dims(gone, 1) * x, stays - gone
        x = (shared @ x.T).T
    return out


def main() -> None:
    rng = np.random.default_rng(0)
    width, tokens = 8, 256
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
    x = rng.normal(size=(tokens, width))
    x[:, 0] = np.where(
        np.arange(tokens) % 2, 3.0, -3.0
    )  # the first element tells how hard a token is
    hard = x[:, 0] > 0
    power = {k: np.linalg.matrix_power(turn, k) for k in (0, MOST - 1)}
    wanted = ts.tensor(np.where(hard[:, None], x @ power[MOST - 1].T, x @ power[0].T))
    inputs = ts.tensor(x)
    params = {
        "shared": ts.tensor(turn + 0.2 * rng.normal(size=(width, width))),
        "router": ts.tensor(np.zeros(width)),
    }

    @ts.jit
    def step(params: dict, rate: float) -> tuple:
        loss, g = ts.value_and_grad(lambda p: op.mean(op.square(recursion(p, inputs) - wanted)))(
            params
        )
        return loss, ts.tree.map(lambda p, d: p - rate * d, params, g)

    first, params = step(params, 0.05)
    for _ in range(400):
        loss, params = step(params, 0.05)
    leaves_early = np.asarray(op.sigmoid(inputs @ params["router"]))
    print(f"loss {float(first):.3f} -> {float(loss):.4f}")
    print(
        f"share that leaves at once: easy {leaves_early[~hard].mean():.2f}, hard "
        f"{leaves_early[hard].mean():.2f}"
    )
    assert float(loss) < float(first) / 10
    assert leaves_early[~hard].mean() > 0.8
    assert leaves_early[hard].mean() < 0.2


if __name__ == "__main__":
    main()
