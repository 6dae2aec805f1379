"""A fault of the compiler on a hand-written kernel is a warning, and the Tile interpreter runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KTile, block, f32, kernel, tile
from tessera.cli import main
from tessera.core import matrix_units
from tessera.core.errors import CompilerFault
from tessera.core.flags import override
from tessera.lang.kernel import launch, plan


def made() -> Any:
    """A kernel that no test has compiled before."""

    @kernel.schedule(block(16))
    def twice(x: KTile["N", f32]):
        return 2 * tile.load(x)

    return twice


@pytest.fixture
def lenient(tmp_path: Path) -> Iterator[Path]:
    with override(strict=False, verify=False, cache_dir=tmp_path):
        yield tmp_path


def broken(kernel: Any) -> Any:
    raise AttributeError("no such register")


X = ts.tensor(np.arange(37, dtype=np.float32))


def test_a_fault_on_a_kernel_is_a_warning_and_the_result_is_the_same(lenient, monkeypatch):
    monkeypatch.setattr(launch, "prepared", broken)
    twice = made()
    with pytest.warns(ts.CompilerFaultWarning) as caught:
        got = twice(X)
    np.testing.assert_array_equal(got, 2 * X.numpy())
    (file,) = (lenient / "faults").iterdir()
    text = str(caught[0].message)
    assert text.startswith("twice: the compiler failed in ")
    assert "AttributeError: no such register; the program runs by the Tile interpreter" in text
    assert text.endswith(f"please report it with {file}, which `tessera replay` runs")
    np.testing.assert_array_equal(twice(X), got)  # and is told once


def test_strict_makes_a_fault_on_a_kernel_an_error(lenient, monkeypatch):
    monkeypatch.setattr(launch, "prepared", broken)
    with override(strict=True), pytest.raises(CompilerFault, match="no such register"):
        made()(X)


def test_replay_runs_the_kernel_of_a_fault(lenient, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(launch, "prepared", broken)
        with pytest.warns(ts.CompilerFaultWarning):
            made()(X)
        (file,) = (lenient / "faults").iterdir()
        assert main(["replay", str(file)]) == 1
        assert "AttributeError: no such register" in capsys.readouterr().err
    assert main(["replay", str(file)]) == 0
    assert capsys.readouterr().out.startswith("twice: compiles for cpu")


def test_the_units_that_may_be_used_are_part_of_what_is_compiled(lenient, monkeypatch):
    """A kernel that was compiled with matrix registers is not run where they are switched off."""
    monkeypatch.setattr(matrix_units, "found_units", lambda: frozenset(["bf16"]))
    monkeypatch.setattr(matrix_units, "may_use_tiles", lambda: True)
    seen = []
    usual = launch.machine_code
    monkeypatch.setattr(
        launch, "machine_code", lambda k: seen.append(matrix_units.matrix_units()) or usual(k)
    )
    twice = made()
    for on in (True, False, True, False):
        with override(matrix_units=on):
            twice(X)
    assert seen == [frozenset(["bf16"]), frozenset()]
    assert len({plan.token((X,), {}, frozenset()), _token_without_units()}) == 2


def _token_without_units() -> Any:
    with override(matrix_units=False):
        return plan.token((X,), {}, frozenset())
