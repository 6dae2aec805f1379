"""Old names of modules are errors that say the new ones."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from tessera.core.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_says_the_new_one(old: str) -> None:
    new = MOVED[old]
    with pytest.raises(
        ModuleNotFoundError, match=f"^tessera.{old} is tessera.{new} now; import that$"
    ):
        importlib.import_module(f"tessera.{old}")
    assert importlib.util.find_spec(f"tessera.{new}") is not None


def test_every_module_of_the_old_layout_is_there_or_says_its_new_name() -> None:
    """old_modules.txt has the modules before there was one compiler (commit 37b9a6b)."""
    names = Path(__file__).with_name("old_modules.txt").read_text().split()
    assert len(names) > 500
    for name in names:
        parts = name.removeprefix("tessera.").split(".")
        above = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
        if not above & MOVED.keys():
            assert importlib.util.find_spec(name) is not None, name


def test_what_was_in_a_folder_says_where_the_folder_is() -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"tessera\.accelerator is tessera\.compile\.gpu now"
    ):
        importlib.import_module("tessera.accelerator.kept")


def test_other_names_are_missing_as_ever() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named .tessera\.abacus."):
        importlib.import_module("tessera.abacus")


def test_a_file_whose_name_is_a_folder_now_says_where_its_functions_are() -> None:
    with pytest.raises(
        ImportError,
        match=r"^tessera\.ir\.schedule\.passes\.by_pass is tessera\.ir\.schedule\.sweeps\.by_pass now",
    ):
        exec("from tessera.ir.schedule.passes import by_pass")


def test_a_module_that_is_imported_from_its_package_says_its_new_name() -> None:
    with pytest.raises(
        ImportError, match=r"^tessera\.ir\.tile\.fft is tessera\.ir\.tile\.cpu\.fft now"
    ):
        exec("from tessera.ir.tile import fft")
