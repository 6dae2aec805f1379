"""Programs with loops as users write them: recurrences, dynamic programs, solvers, grids, samples."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import tessera as ts
from beside_jax.case import Case, Function, normal
from tessera import op


class Library:
    """The functions of a library, under one set of names."""

    def __init__(self, names: Any, **others: Any):
        self._names = names
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._names, name)


OURS = Library(op, fft=op.fft, ifft=op.ifft, solve=op.solve, sigmoid=op.sigmoid, grad=ts.grad)
THEIRS = Library(
    jnp, scan=lax.scan, while_loop=lax.while_loop, cond=lax.cond, concat=jnp.concatenate, grad=jax.grad,
    fft=jnp.fft.fft, ifft=jnp.fft.ifft, solve=jnp.linalg.solve, sigmoid=jax.nn.sigmoid,
)  # fmt: skip
F = np.float32


def rnn(p: Any, w: Any, xs: Any) -> Any:
    return p.scan(lambda h, x: (p.tanh(h @ w + x),) * 2, xs[0] * 0, xs)


def gru(p: Any, xs: Any, wx: Any, wh: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        a, b = x @ wx, h @ wh
        z, r = p.sigmoid(a[:16] + b[:16]), p.sigmoid(a[16:32] + b[16:32])
        h = (1 - z) * p.tanh(a[32:] + r * b[32:]) + z * h
        return h, h

    return p.scan(step, xs[0] * 0, xs)


def wave(p: Any, u: Any) -> Any:
    """Leapfrog steps on a torus."""

    def step(c: Any, _: Any) -> Any:
        u, before = c
        bend = p.roll(u, 1, 0) + p.roll(u, -1, 0) + p.roll(u, 1, 1) + p.roll(u, -1, 1) - 4 * u
        return (2 * u - before + 0.1 * bend, u), None

    return p.scan(step, (u, u), None, length=200)[0]


def fields(p: Any, ez: Any, hx: Any, hy: Any) -> Any:
    """Maxwell's equations on a grid (FDTD) with a source."""

    def step(c: Any, t: Any) -> Any:
        ez, hx, hy = c
        hx = hx.at[:, :-1].add(-0.5 * (ez[:, 1:] - ez[:, :-1]))
        hy = hy.at[:-1, :].add(0.5 * (ez[1:] - ez[:-1]))
        across = hy[1:-1, 1:-1] - hy[:-2, 1:-1] - hx[1:-1, 1:-1] + hx[1:-1, :-2]
        ez = ez.at[1:-1, 1:-1].add(0.5 * across)
        return (ez.at[20, 20].add(p.sin(0.1 * t)), hx, hy), None

    return p.scan(step, (ez, hx, hy), np.arange(200, dtype=F))[0]


def life(p: Any, x: Any) -> Any:
    def step(x: Any, _: Any) -> Any:
        n = p.roll(x, 1, 0) + p.roll(x, -1, 0) + x
        n = n + p.roll(n, 1, 1) + p.roll(n, -1, 1) - x
        return p.where(n == 3, 1, p.where(n == 2, x, 0)).astype("int32"), None

    return p.scan(step, x, None, length=300)[0]


def lattice_boltzmann(p: Any, f: Any) -> Any:
    cx, cy = (0, 1, 0, -1, 0, 1, -1, -1, 1), (0, 0, 1, 0, -1, 1, 1, -1, -1)
    weights = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4

    def step(f: Any, _: Any) -> Any:
        f = p.stack([p.roll(f[i], (cx[i], cy[i]), (0, 1)) for i in range(9)])
        rho = p.sum(f, axis=0)
        ux = sum(cx[i] * f[i] for i in range(9)) / rho
        uy = sum(cy[i] * f[i] for i in range(9)) / rho
        along = [cx[i] * ux + cy[i] * uy for i in range(9)]
        size = 1 - 1.5 * (ux * ux + uy * uy)
        calm = p.stack(
            [w * rho * (size + 3 * a + 4.5 * a**2) for w, a in zip(weights, along, strict=True)]
        )
        return f - 0.6 * (f - calm), None

    return p.scan(step, f, None, length=100)[0]


def ising(p: Any, s: Any, us: Any) -> Any:
    """A chain of checkerboard Metropolis steps."""
    black = (np.indices((32, 32)).sum(0) % 2).astype(bool)

    def step(s: Any, u: Any) -> Any:
        for color, mask in enumerate((black, ~black)):
            n = p.roll(s, 1, 0) + p.roll(s, -1, 0) + p.roll(s, 1, 1) + p.roll(s, -1, 1)
            s = p.where((u[color] < p.exp(-2 * 0.44 * s * n)) & mask, -s, s)
        return s, p.mean(s)

    return p.scan(step, s, us)


def bodies(p: Any, x: Any) -> Any:
    def pull(x: Any) -> Any:
        d = x[None] - x[:, None]
        s = p.sum(d * d, axis=2) + 0.1
        return p.sum(d / (s * p.sqrt(s))[:, :, None], axis=1)

    def step(c: Any, _: Any) -> Any:
        x, v = c
        v = v + 0.01 * pull(x)
        return (x + 0.01 * v, v), p.sum(v * v)

    return p.scan(step, (x, x * 0), None, length=100)


def shortest_paths(p: Any, d: Any) -> Any:
    def step(d: Any, k: Any) -> Any:
        return p.minimum(d, d[:, k][:, None] + d[k][None]), None

    return p.scan(step, d, np.arange(100))[0]


def warping(p: Any, costs: Any) -> Any:
    """Dynamic time warping, a loop in a loop."""

    def row(before: Any, cost: Any) -> Any:
        def cell(left: Any, x: Any) -> Any:
            up, corner, c = x
            best = c + p.minimum(left, p.minimum(up, corner))
            return best, best

        corners = p.concat([before[:1] * 0 + 1e9, before[:-1]])
        return p.scan(cell, before[0] * 0 + 1e9, (before, corners, cost))[1], None

    return p.scan(row, costs[0] * 0, costs**2)[0]


def viterbi(p: Any, emissions: Any, moves: Any) -> Any:
    def step(a: Any, e: Any) -> Any:
        s = a[:, None] + moves
        return p.max(s, axis=0) + e, p.argmax(s, axis=0)

    return p.scan(step, emissions[0], emissions[1:])


def runge_kutta(p: Any, y: Any) -> Any:
    def slope(y: Any) -> Any:
        return p.roll(y, 1) * y * 0.1 - 0.1 * y

    def step(y: Any, _: Any) -> Any:
        a = slope(y)
        b = slope(y + 0.05 * a)
        c = slope(y + 0.05 * b)
        y = y + 0.1 / 6 * (a + 2 * b + 2 * c + slope(y + 0.1 * c))
        return p.cond(p.max(y) > 100, lambda: y * 0.5, lambda: y), y

    return p.scan(step, y, None, length=400)


def implicit_euler(p: Any, b: Any) -> Any:
    """Newton's method inside of each step."""

    def step(y: Any, x: Any) -> Any:
        def miss(z: Any) -> Any:
            return z**3 + z - x * b - y

        z, _ = p.while_loop(
            lambda s: (s[1] < 20) & (p.max(p.abs(miss(s[0]))) > 1e-5),
            lambda s: (s[0] - miss(s[0]) / (3 * s[0] * s[0] + 1), s[1] + 1),
            (y, 0),
        )
        return z, p.sum(z)

    return p.scan(step, b * 0, np.linspace(0, 1, 60).astype(F))


def conjugate_gradients(p: Any, a: Any, b: Any) -> Any:
    def step(s: Any) -> Any:
        x, r, d, rr, i = s
        ad = a @ d
        far = rr / p.sum(d * ad)
        r = r - far * ad
        n = p.sum(r * r)
        return x + far * d, r, r + n / rr * d, n, i + 1

    start = (b * 0, b, b, p.sum(b * b), 0)
    return p.while_loop(lambda s: (s[4] < 100) & (s[3] > 1e-8), step, start)[0]


def power_iteration(p: Any, a: Any) -> Any:
    def step(s: Any) -> Any:
        w = a @ s[0]
        n = p.sqrt(p.sum(w * w))
        return w / n, n, p.abs(n - s[1]) / n

    zero = p.sum(a[0]) * 0
    return p.while_loop(lambda s: s[2] > 1e-6, step, (a[0] * 0 + 1, zero, zero + 1))[1]


def lanczos(p: Any, a: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        v, before, b = c
        w = a @ v - b * before
        d = p.sum(w * v)
        w = w - d * v
        b = p.sqrt(p.sum(w * w))
        return (w / b, v, b), (d, b)

    v = a[0] * 0 + 0.125
    return p.scan(step, (v, v * 0, v[0] * 0), None, length=10)[1]


def k_means(p: Any, x: Any, c: Any) -> Any:
    def step(c: Any, _: Any) -> Any:
        d = p.sum((x[:, None] - c[None]) ** 2, axis=2)
        mine = (p.argmin(d, axis=1)[:, None] == np.arange(4)[None]).astype("float32")
        return (mine.T @ x) / (p.sum(mine, axis=0)[:, None] + 1e-6), p.sum(p.min(d, axis=1))

    return p.scan(step, c, None, length=30)


def kalman(p: Any, zs: Any, f: Any, h: Any) -> Any:
    q, r = np.eye(5, dtype=F) * F(0.1), np.eye(2, dtype=F) * F(0.5)

    def step(c: Any, z: Any) -> Any:
        m, s = c
        m, s = f @ m, f @ s @ f.T + q
        gain = p.solve(h @ s @ h.T + r, h @ s).T
        m = m + gain @ (z[:2] - h @ m)
        return (m, s - gain @ (h @ s)), m

    return p.scan(step, (zs[0] * 0, q * 10), zs)[1]


def xorshift(p: Any, x: Any) -> Any:
    def step(x: Any, _: Any) -> Any:
        x = x ^ (x << 13)
        x = x ^ (x >> 17)
        x = x ^ (x << 5)
        return x, x

    return p.scan(step, x, None, length=200)


def split_steps(p: Any, u: Any) -> Any:
    decay = np.exp(-(np.fft.fftfreq(64) ** 2)).astype(np.complex64)

    def step(u: Any, _: Any) -> Any:
        u = p.real(p.ifft(p.fft(u) * decay))
        return u + 0.01 * u**2, None

    return p.scan(step, u, None, length=100)[0]


def slope_of_steps(p: Any, y: Any) -> Any:
    a = normal(1, 5, 5) * F(0.3)

    def loss(y: Any) -> Any:
        def step(y: Any, _: Any) -> Any:
            y = y + 0.1 * p.tanh(a @ y)
            return y, p.sum(y * y)

        return p.sum(p.scan(step, y, None, length=100)[1])

    return p.grad(loss)(y)


def updates(p: Any, x: Any, places: Any) -> Any:
    def step(c: Any, k: Any) -> Any:
        return c.at[k].set(c[k] * 0.5 + c[(k + 1) % 100]), None

    return p.scan(step, x, places)[0]


def cases() -> list[Case]:
    """All programs with their arrays."""
    draw = np.random.default_rng(0)
    grids = [normal(20 + i, 40, 40) for i in range(3)]
    square = normal(30, 50, 50)
    spd = (square @ square.T + 50 * np.eye(50)).astype(F)
    symmetric = normal(31, 64, 64)
    near = normal(32, 100, 100) ** 2
    found: list[tuple[Function, tuple[Any, ...]]] = [
        (rnn, (normal(1, 64, 64) * F(0.1), normal(2, 32, 64, 64))),
        (gru, (normal(3, 200, 16), normal(4, 16, 48) * F(0.3), normal(5, 16, 48) * F(0.3))),
        (wave, (normal(6, 128, 128),)),
        (fields, tuple(grids)),
        (life, ((draw.random((64, 64)) < 0.3).astype(np.int32),)),
        (lattice_boltzmann, (normal(7, 9, 32, 32) * F(0.01) + 1,)),
        (ising, (np.sign(normal(8, 32, 32)), draw.random((60, 2, 32, 32)).astype(F))),
        (bodies, (normal(9, 40, 3),)),
        (shortest_paths, (near,)),
        (warping, (normal(10, 200, 50),)),
        (viterbi, (normal(11, 300, 8), normal(12, 8, 8) * F(0.3))),
        (runge_kutta, (normal(13, 64),)),
        (implicit_euler, (normal(14, 50),)),
        (conjugate_gradients, (spd, normal(15, 50))),
        (power_iteration, (spd,)),
        (lanczos, (symmetric + symmetric.T,)),
        (k_means, (normal(16, 500, 3), normal(17, 4, 3))),
        (kalman, (normal(18, 60, 5), normal(19, 5, 5) * F(0.3), normal(20, 2, 5))),
        (xorshift, (np.arange(64, dtype=np.uint32) * 26544357 + 1,)),
        (split_steps, (normal(21, 64),)),
        (slope_of_steps, (normal(22, 5),)),
        (updates, (normal(23, 100), np.arange(100)[::-1].copy())),
    ]
    return [
        Case(f.__name__, lambda *x, f=f: f(OURS, *x), lambda *x, f=f: f(THEIRS, *x), x)
        for f, x in found
    ]
