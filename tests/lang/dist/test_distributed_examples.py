"""The programs of examples/distributed: they learn, agree with programs without a mesh, and have one hash on any ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples.distributed import context, gpt3d, mixture, spectral, stencil
from tessera.core.flags import override
from tests.runtime.test_ranks import hash_of, run

FOLDER = Path(__file__).parents[3] / "examples" / "distributed"


@pytest.mark.deep
def test_schedules_and_zero_have_one_hash():
    """What is added to what is the same in all of them: interleaving only renames the layers' places."""
    with override(target="numpy"):
        assert len({gpt3d.train(zero, "1f1b", 1) for zero in ("data", "zero2")}) == 1


@pytest.mark.deep
def test_all_schedules_have_one_loss():
    found = {
        gpt3d.train(zero, s, 2)[0]
        for zero in ("zero1", "zero3")
        for s in ("gpipe", "1f1b", "interleaved")
    }
    assert len(found) == 1


def test_the_mixture_learns():
    with override(target="numpy"):
        begin, _ = mixture.train(1)
        end, _ = mixture.train(25)
    assert end < 0.8 * begin


@pytest.mark.deep
def test_the_cut_sequence_trains():
    with override(target="numpy"):
        assert np.isfinite(context.train(1)[0])


def test_the_spectral_solver_agrees_with_one_without_a_mesh():
    with override(target="numpy"):
        found, alone = spectral.run(2).full(), spectral.run(2, None).numpy()
        # Energy is lost to viscosity alone.
        assert (found**2).mean() < (spectral.start() ** 2).mean()
    np.testing.assert_allclose(found, alone, rtol=1e-9, atol=1e-12)


def test_both_stencils_agree_with_numpy():
    u = stencil.start()
    for _ in range(3):
        wide = np.pad(u, 1)
        around = wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:]
        u = u + np.float32(0.2) * (around - 4 * u)
    with override(target="numpy"):
        for step in (stencil.by_convolution, stencil.by_hand):
            np.testing.assert_allclose(stencil.run(3, step).full(), u, rtol=1e-5, atol=1e-6)


PROGRAMS = [
    ("gpt3d.py", "--zero", "zero1", "--schedule", "1f1b"), ("gpt3d.py", "--zero", "zero3", "--schedule", "interleaved"),
    ("gpt3d.py", "--zero", "data", "--schedule", "gpipe"), ("mixture.py", "--steps", "5"), ("context.py",),
    ("spectral.py", "--steps", "5"), ("stencil.py",),
]  # fmt: skip


@pytest.mark.deep
@pytest.mark.parametrize("program", PROGRAMS, ids=" ".join)
@pytest.mark.parametrize("engine", ["local", "mpi"])
def test_one_hash_on_any_number_of_ranks(program, engine):
    if engine == "mpi":
        pytest.importorskip("mpi4py")
    name, *rest = program
    found = {hash_of(run("-n", n, "--engine", engine, FOLDER / name, *rest)) for n in (1, 2, 4)}
    assert len(found) == 1


@pytest.mark.deep
def test_the_mixture_has_one_hash_on_one_and_two_ranks():
    with override(target="numpy"):
        _, alone = mixture.train(2)
    assert hash_of(run("-n", 2, FOLDER / "mixture.py", "--steps", 2)) == alone
