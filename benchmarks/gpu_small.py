"""Complex programs, small matrices and results whose size is data, on a GPU beside torch.

    python benchmarks/gpu_small.py [--only cholesky unique] [--record FILE]

A row is the best time of a call in microseconds, ours and torch's in turn, from tensors on the device to
results that are finished there, and torch's time over ours.  Results are compared.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tessera as ts
from tessera import op

CALLS, ROUNDS = 30, 6
RNG = np.random.default_rng(0)
Row = tuple[str, Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def chain(z: Any) -> Any:
    return op.exp(z) / (1 + z * z)


def split_step(c: Any, p: Any) -> Any:
    """A step of a nonlinear Schroedinger equation."""
    return op.ifft2(op.fft2(c * op.exp(-0.01j * op.abs(c) ** 2)) * p)


def torch_split_step(c: Any, p: Any) -> Any:
    return torch.fft.ifft2(torch.fft.fft2(c * torch.exp(-0.01j * c.abs() ** 2)) * p)


def mandelbrot(c: Any) -> Any:
    """How many of 50 steps stay near 0."""

    def step(carry: Any, _: Any) -> Any:
        z, n = carry
        near = op.abs(z) < 2
        return (op.where(near, z * z + c, z), n + op.cast(near, ts.i32)), None

    start = c * 0, op.cast(op.real(c) * 0, ts.i32)
    return op.scan(step, start, op.iota(50, 0, ts.f32))[0][1]


def torch_mandelbrot(c: Any) -> Any:
    z, n = torch.zeros_like(c), torch.zeros(c.shape, dtype=torch.int32, device=c.device)
    for _ in range(50):
        near = z.abs() < 2
        n = n + near.int()
        z = torch.where(near, z * z + c, z)
    return n


def complexes() -> Iterator[Row]:
    z = (RNG.normal(size=(2048, 2048)) + 1j * RNG.normal(size=(2048, 2048))).astype(np.complex64)
    k = np.fft.fftfreq(1024)
    phase = np.exp(-0.5j * (k[:, None] ** 2 + k[None] ** 2)).astype(np.complex64)
    yield "exp(z) / (1 + z z) 2048x2048", ts.jit(chain), lambda z: torch.exp(z) / (1 + z * z), (z,)
    yield "split step 1024x1024", ts.jit(split_step), torch_split_step, (z[:1024, :1024], phase)
    yield "mandelbrot 50 of 2048x2048", ts.jit(mandelbrot), torch_mandelbrot, (z,)


def matrices() -> Iterator[Row]:
    for count, n in ((4096, 16), (10_000, 4), (2048, 32), (1, 32)):
        a = RNG.normal(size=(count, n, n)).astype(np.float32)
        a = a @ a.swapaxes(-1, -2) + n * np.eye(n, dtype=np.float32)
        b = RNG.normal(size=(count, n, 8)).astype(np.float32)
        name = f"{count}x{n}x{n}"
        yield f"cholesky {name}", ts.jit(op.cholesky), torch.linalg.cholesky, (a,)
        yield f"inv {name}", ts.jit(op.inv), torch.linalg.inv, (a,)
        yield f"det {name}", ts.jit(op.det), torch.linalg.det, (a,)
        yield f"solve {name}", ts.jit(op.solve), torch.linalg.solve, (a, b)
        yield (
            f"triangular solve {name}", ts.jit(lambda a, b: op.triangular_solve(op.tril(a), b)),
            lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False), (a, b),
        )  # fmt: skip


def found() -> Iterator[Row]:
    i = RNG.integers(0, 5000, 1 << 20)
    yield "unique 1048576 i64", op.unique, torch.unique, (i,)
    yield "unique_all 1048576 i64", lambda x: op.unique_all(x)[0], lambda x: torch.unique(
        x, return_inverse=True, return_counts=True)[0], (i,)  # fmt: skip
    yield "nonzero 1048576 i64", lambda x: op.nonzero(x)[0], lambda x: torch.nonzero(x)[:, 0], (i,)


def clock(f: Callable[[], Any]) -> float:
    """Seconds of a call of many in a row."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        f()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / CALLS


def measured(row: Row) -> dict[str, float]:
    _, ours, theirs, given = row
    xs = [ts.tensor(np.ascontiguousarray(x)).to("cuda") for x in given]
    ys = [torch.tensor(np.ascontiguousarray(x), device="cuda") for x in given]
    got, want = ours(*xs).numpy(), theirs(*ys).cpu().numpy()
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4 * (np.abs(want).max() + 1e-30))
    pairs = [(clock(lambda: ours(*xs)), clock(lambda: theirs(*ys))) for _ in range(ROUNDS)]
    a, b = (1e6 * min(t) for t in zip(*pairs, strict=True))
    return {"tessera": round(a, 1), "torch": round(b, 1), "ratio": round(b / a, 3)}


def main() -> None:
    """Measure the rows that were asked for."""
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    p.add_argument("--only", nargs="+", default=[""], help="rows whose name has one of these")
    p.add_argument("--record", type=Path)
    options = p.parse_args()
    out: dict[str, Any] = {}
    for row in (*complexes(), *matrices(), *found()):
        if any(x in row[0] for x in options.only):
            out[row[0]] = measured(row)
            print(row[0], out[row[0]], flush=True)
    if options.record:
        options.record.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
