"""A name that a module or object has not is an error with a name that is there, and never a private one."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

import tessera as ts
from tessera.core.counterparts import lacking
from tessera.core.library_names import ANSWERS
from tessera.lang.habits import absent


@pytest.mark.parametrize("module", [ts.optim, ts.op, ts.nn, ts.dist], ids=lambda m: m.__name__)
def test_a_name_that_is_written_wrong_is_answered_with_the_right_one(module: Any) -> None:
    with pytest.raises(AttributeError) as e:
        module.no_such_name_at_all  # noqa: B018
    assert isinstance(e.value, ts.TesseraError)
    assert "no_such_name_at_all" in str(e.value)


def test_advice_is_never_a_private_name() -> None:
    def said(there: list[str]) -> str:
        return str(absent("it", "portion", there)).partition("\n")[0]

    assert "did you mean" not in said(["_portion", "_portions"])
    assert "did you mean 'portions'?" in said(["_portion", "portions"])


def test_families_of_names_by_dimensions_are_whole() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name in ANSWERS:
        made = re.fullmatch(r"(.*\D)([123])d(.*)", name)
        if made:
            found[made[1] + "*d" + made[3]].add(made[2])
    assert found
    for family, sizes in found.items():
        assert sizes in ({"1", "2", "3"}, {"2", "3"}, {"1"}, {"2"}, {"1", "2"}), family


@pytest.mark.parametrize("module", [ts.op, ts.nn, ts.optim], ids=lambda m: m.__name__)
def test_a_name_in_other_letters_is_the_name(module: Any) -> None:
    """Capitals and underlines are no other words, however many of them there are."""
    names = [n for n in dir(module) if not n.startswith("_") and len(n) > 2]
    count = 0
    for n in names[:: max(1, len(names) // 60)]:
        for other in (n.upper(), n.lower(), n.replace("_", ""), n.title().replace("_", "")):
            if other in names or hasattr(module, other):
                continue
            lower = other.replace("_", "").lower()
            same = [m for m in names if m.replace("_", "").lower() == lower]
            found = str(lacking(f"{module.__name__.split('.')[-1]}", other, names)).partition("\n")[
                0
            ]
            if "did you mean" in found:
                assert any(f".{m}?" in found for m in same), (other, found)
                count += 1
    assert count > 20
