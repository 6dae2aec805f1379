"""Bundles for aarch64, made on any machine, run by qemu-user with the bits of the run that is recorded
here.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import tessera as ts
from tessera.native import INCLUDE, SOURCE
from tests.deploy.test_bundle_c import HERE, OTHER, PROGRAMS, record

QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
COMPILER = shutil.which("aarch64-linux-gnu-gcc")
pytestmark = pytest.mark.skipif(
    not (QEMU and COMPILER), reason="no qemu-user, or no C compiler for aarch64"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, built for aarch64."""
    out = tmp_path_factory.mktemp("aarch64") / "run"
    front = [str(COMPILER), "-std=c99", "-O1", "-D_GNU_SOURCE", "-pthread", "-static", "-w"]
    files = [str(HERE / "run.c"), str(SOURCE), "-I", str(INCLUDE)]
    subprocess.run([*front, *files, "-o", str(out)], check=True, stderr=subprocess.DEVNULL)
    return out


def runs_there(name: str, program: Path, folder: Path) -> None:
    f, args, weights = PROGRAMS[name]
    bundle = folder / f"{name}.tess"
    ts.bundle.save({name: (f, *args)}, bundle, targets=["cpu:aarch64"], weights=weights)
    given = OTHER.get(name, args)
    held = () if weights is None else (weights,)
    outs = ts.jit(f)(*held, *given)
    record(folder / "record", [*ts.tree.leaves(given), *ts.tree.leaves(outs)])
    for threads in ("1", "3"):
        run = [str(QEMU), str(program), str(bundle), str(folder / "record"), name, threads]
        done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "cpu:aarch64: the same bits" in done.stderr


def test_an_operator_runs_on_aarch64(program: Path, tmp_path: Path):
    runs_there("kronecker", program, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_runs_on_aarch64(name: str, program: Path, tmp_path: Path):
    runs_there(name, program, tmp_path)
