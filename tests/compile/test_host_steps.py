"""No op joins those that the host runs inside programs, and one that leaves them does not come back."""

from __future__ import annotations

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tests.support import host_steps


def test_what_the_host_runs_is_what_the_record_says() -> None:
    """`python tools/host_steps.py --update` writes a record that has shrunk."""
    assert host_steps.survey() == host_steps.recorded()


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_the_law_of_a_wave_has_kernels_alone(dtype: type) -> None:
    def energy(psi: ts.Tensor, k: ts.Tensor) -> ts.Tensor:
        turned = op.ifft(op.fft(psi) * op.exp(-0.5j * k * k))
        return op.sum(op.abs(turned) ** 2) + op.real(op.prod(op.conj(psi)))

    psi = np.linspace(1, 2, 16).astype(dtype) * (1 + 1j)
    k = np.linspace(0, 1, 16).astype(psi.real.dtype)
    for f in (energy, ts.grad(lambda k, psi: energy(psi, k))):
        given = (psi, k) if f is energy else (k, psi)
        lowered = ts.jit(f).lower(*map(ts.tensor, given))
        assert not lowered.host_steps
