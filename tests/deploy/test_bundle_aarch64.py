"""Bundles for aarch64, made on any machine, run by qemu-user with the bits of recorded runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tools import on_aarch64

pytestmark = pytest.mark.skipif(
    on_aarch64.emulator() is None or on_aarch64.compiler() is None,
    reason="no qemu-user, or no C compiler for aarch64",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C program, built for aarch64."""
    return on_aarch64.build(tmp_path_factory.mktemp("aarch64") / "run", "run.c", "-O1")


def check(cases: list[on_aarch64.Case], program: Path) -> None:
    assert cases
    for case in cases:
        for threads in (1, 3):
            wrong = on_aarch64.runs_with_its_bits(case, program, threads)
            assert not wrong, (case.name, threads, wrong)


def test_committed_bundles_run_on_aarch64(program: Path):
    check(list(on_aarch64.kept()), program)


def test_an_operator_runs_on_aarch64(program: Path, tmp_path: Path):
    check(list(on_aarch64.of_tests(tmp_path, "kronecker")), program)


@pytest.mark.deep
def test_every_program_runs_on_aarch64(program: Path, tmp_path: Path):
    check([*on_aarch64.of_tests(tmp_path), *on_aarch64.of_digests(tmp_path)], program)


@pytest.mark.deep
def test_wrong_calls_are_explained_on_aarch64(tmp_path: Path):
    """The messages of the runtime, which are the same on every processor."""
    cases = {c.name: c for c in on_aarch64.of_tests(tmp_path, "views", "cnn")}
    wrong = on_aarch64.build(tmp_path / "wrong", "wrong.c", "-O1")
    done = on_aarch64.run(wrong, cases["views"].bundle, cases["cnn"].bundle)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 16
    shutil.copy(cases["views"].bundle, tmp_path / "spoilt.tess")
    changed = on_aarch64.build(tmp_path / "changed", "changed.c", "-O1")
    done = on_aarch64.run(changed, tmp_path / "spoilt.tess", cases["views"].bundle)
    assert done.returncode == 0, (done.returncode, done.stderr)
