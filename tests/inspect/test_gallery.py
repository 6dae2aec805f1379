"""Pages in Chromium over DevTools: its console stays empty, and the work of a page of 20,000 ops is
bounded, by counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inspect.test_inspect_run import page  # noqa: F401
from tests.inspect.test_page_large import large
from tools.browser import BROWSER, Browser
from tools.gallery import MOVES, PROGRAMS, looked_at, make, moved, opened

AXE = Path(os.environ.get("TESSERA_AXE", "node_modules/axe-core/axe.min.js"))
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as b:
        yield b


def test_a_page_says_nothing_to_the_console_in_any_view(page: Path, browser: Browser) -> None:  # noqa: F811
    axe = AXE.read_text() if AXE.is_file() else ""
    found = looked_at(browser, page, axe, pictures=False)
    assert (found["console"], found["wide"], found["axe"]) == ([], [], [])


def test_the_work_of_a_large_page_is_bounded(tmp_path: Path, browser: Browser) -> None:
    """Elements and layouts, which no other load changes: they are what a frame takes its time for."""
    path = tmp_path / "large.html"
    path.write_text(large(tmp_path, steps=3000))
    with browser.page(path) as p:
        first = opened(p)
        assert first["nodes"] < 20_000
        assert first["layouts"] < 12
        found = moved(p)
        assert p.console == []
    assert list(found) == list(MOVES)
    for name, x in found.items():
        assert x["elements"] < 8_000, name
        assert x["layouts"] <= 16, name


def test_pictures_of_the_graph_can_be_saved(page: Path, browser: Browser) -> None:  # noqa: F811
    with browser.page(page) as p:
        p.evaluate('show("picture")')
        text = p.evaluate("picture.exported()")
        assert text.startswith("<svg xmlns=")
        assert text.count("<rect") > p.evaluate("picture.N.length")
        assert p.evaluate("picture.png()") > 1000  # bytes of the PNG
        assert p.console == []


@pytest.mark.deep
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_pages_of_the_gallery(name: str, tmp_path: Path, browser: Browser) -> None:
    axe = AXE.read_text() if AXE.is_file() else ""
    found = looked_at(browser, make(name, tmp_path), axe, pictures=False)
    assert (found["console"], found["wide"], found["axe"]) == ([], [], [])
