"""Decaying two-dimensional turbulence on a periodic square, by Fourier transforms on a mesh of four shards.

    python examples/distributed/spectral.py
    tessera run -n 4 examples/distributed/spectral.py

The vorticity is cut along its rows.  Each transform is one along whole rows, an all_to_all, and one along
whole columns; the compiler finds this from the layout.
"""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

import numpy as np

import tessera as ts
from tessera import dist, op

MESH = dist.Mesh(["x"], shape=(4,))
SIZE, VISCOSITY, STEP = 32, 1e-3, 0.05


def waves(size: int) -> tuple[Any, Any]:
    """Wave numbers along both axes."""
    k = np.fft.fftfreq(size, 1 / size)
    return k[:, None], k[None, :]


def rate(w: ts.Tensor) -> ts.Tensor:
    """The rate of change of the vorticity: it is carried by the flow that it makes, and diffuses."""
    kx, ky = waves(w.shape[0])
    square = kx**2 + ky**2
    spectrum = op.fft2(w)
    stream = spectrum / np.where(square == 0, 1, square)

    def physical(f: Any) -> ts.Tensor:
        return op.real(op.ifft2(f))

    u, v = physical(1j * ky * stream), physical(-1j * kx * stream)
    carried = u * physical(1j * kx * spectrum) + v * physical(1j * ky * spectrum)
    return physical(-VISCOSITY * square * spectrum) - carried


@ts.jit
def advance(w: ts.Tensor) -> ts.Tensor:
    """A step of the method of Heun."""
    first = rate(w)
    return w + 0.5 * STEP * (first + rate(w + STEP * first))


def start(size: int = SIZE) -> Any:
    """A few random vortices."""
    rng = np.random.default_rng(0)
    kx, ky = waves(size)
    noise = np.fft.fft2(rng.normal(size=(size, size))) * np.exp(-((kx**2 + ky**2) / 18))
    w = np.fft.ifft2(noise).real
    return w / np.abs(w).max()


def run(steps: int, mesh: dist.Mesh | None = MESH) -> Any:
    """The vorticity after some steps, on a mesh or without one."""
    w = start()
    w = ts.tensor(w) if mesh is None else dist.tensor(w, dist.ShardSpec((0,), ("x",)), mesh)
    for _ in range(steps):
        w = advance(w)
    return w


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    w = run(parser.parse_args().steps).numpy()
    if dist.rank() == 0:
        text = hashlib.sha256(np.ascontiguousarray(w).tobytes()).hexdigest()
        print(f"spectral on {dist.size()} ranks: enstrophy {(w**2).mean():.8f}, sha256 {text}")
