"""Waves of complex numbers and mixtures of Gaussians in C: the bits of Python's results, and its errors."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.deploy.container import Container
from tessera.deploy.targets import usable
from tests.deploy.test_bundle_c import COMPILER, build, record
from tests.deploy.test_bundle_orders import runs

pytestmark = pytest.mark.skipif(
    not (COMPILER and usable()), reason="no C compiler for this processor"
)
RNG = np.random.default_rng(3)


def wave(psi: Tensor[64, ts.c64], v: Tensor[64, ts.f32], k: Tensor[64, ts.f32]) -> Any:
    """Steps of Schroedinger's equation, half of them in space and half in momentum."""
    turn, move = op.exp(-0.05j * v), op.exp(-0.05j * k * k)
    psi = op.fori_loop(0, 5, lambda i, p: op.ifft(op.fft(p * turn) * move) * turn, psi)
    return psi, op.sum(op.abs(psi) ** 2), op.where(op.real(psi) > 0, op.log(psi), 1j)


def escapes(c: Tensor["n", ts.c64]) -> Any:
    def step(i: Any, s: Any) -> Any:
        z, n = s
        z = op.where(op.abs(z) < 2, z * z + c, z)
        return z, n + op.cast(op.abs(z) < 2, "i32")

    return op.fori_loop(0, 20, step, (c * 0, op.zeros(c.shape, dtype="i32")))


def densities(x: Tensor["n", 3, ts.f32], s: Tensor["k", 3, 3, ts.f32]) -> Any:
    y = op.triangular_solve(op.cholesky(s), op.transpose(x, (1, 0)))
    return op.sum(y * y, 1) + op.slogdet(s)[1][:, None], op.inv(s)


def definite(count: int) -> Any:
    x = RNG.normal(size=(count, 3, 3)).astype(np.float32)
    return x @ np.swapaxes(x, -1, -2) + np.eye(3, dtype=np.float32)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("science") / "run", "run.c", "-O1")


def test_waves_and_sets(program: Path, tmp_path: Path):
    psi = (RNG.normal(size=64) + 1j * RNG.normal(size=64)).astype(np.complex64)
    v, k = (RNG.normal(size=64).astype(np.float32) for _ in range(2))
    given = tuple(map(ts.tensor, (psi, v, k)))
    c = ts.tensor(np.linspace(-2, 1, 30).astype(np.complex64) * (1 + 0.3j))
    ts.bundle.save({"wave": (wave, *given), "escapes": (escapes, c)}, tmp_path / "f.tess")
    runs(program, tmp_path, "wave", given, ts.jit(wave)(*given))
    runs(program, tmp_path, "escapes", [c], ts.jit(escapes)(c))


def test_mixtures_and_a_matrix_without_a_factor(program: Path, tmp_path: Path):
    x, s = ts.tensor(RNG.normal(size=(7, 3)).astype(np.float32)), ts.tensor(definite(5))
    f = ts.jit(densities)
    ts.bundle.save(
        {"f": (densities, Tensor["n", 3, ts.f32], Tensor["k", 3, 3, ts.f32])}, tmp_path / "f.tess"
    )
    plan = Container(tmp_path / "f.tess").read(f"plan/f/cpu:{usable()[0]}")
    assert plan[4] == 4
    runs(program, tmp_path, "f", [x, s], f(x, s))
    bad = ts.tensor(-definite(5))
    record(tmp_path / "record", [x, bad, *f(x, s)])
    at = [str(tmp_path / "f.tess"), str(tmp_path / "record"), "f", "2", "2"]
    done = subprocess.run([str(program), *at], capture_output=True, text=True, check=False)
    assert done.returncode
    assert "cholesky: f32[k,3,3] is not positive definite" in done.stderr
