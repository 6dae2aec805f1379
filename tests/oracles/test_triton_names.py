"""docs/from-triton.md says of every name of Triton's language what it is here."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.oracle

tl = pytest.importorskip("triton.language")
PAGE = Path(__file__).parents[2] / "docs" / "from-triton.md"


def test_every_name_of_the_language_is_on_the_page():
    written = set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", PAGE.read_text(encoding="utf-8")))
    assert len(tl.__all__) > 100
    assert sorted(set(tl.__all__) - written) == []
