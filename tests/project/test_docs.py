"""Every ```python block of the README and of docs/ runs, in order, one module per file.

What a block prints must equal the ```text block that follows it, if one does.
"""

import contextlib
import io
import itertools
import linecache
import re
import sys
import types
from pathlib import Path

import pytest

from tessera.ir.graph.op import REGISTRY
from tessera.ops.define import FUNCTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """(first line, code, expected output or None) of every Python block."""
    found = list(BLOCK.finditer(text))
    for m, after in itertools.zip_longest(found, found[1:]):
        if m[1] != "python":
            continue
        follows = after is not None and after[1] == "text"
        adjacent = follows and not text[m.end() : after.start()].strip()
        line = text[: m.start()].count("\n") + 2
        yield line, m[2], after[2] if adjacent else None


def run(name, text):
    """Run the blocks of a page as one module whose lines are those of the page."""
    module = types.ModuleType("page_" + re.sub(r"\W", "_", name))
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    sys.modules[module.__name__] = module
    for line, code, expected in blocks(text):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * (line - 1) + code, name, "exec"), module.__dict__)
        if expected is not None:
            assert out.getvalue() == expected, f"{name}, line {line}"


@pytest.fixture(autouse=True)
def _own_ops():
    """Ops that a page defines are gone after it."""
    ops, functions, modules = dict(REGISTRY), dict(FUNCTIONS), set(sys.modules)
    yield
    for table, before in ((REGISTRY, ops), (FUNCTIONS, functions)):
        table.clear()
        table.update(before)
    for name in set(sys.modules) - modules:
        if name.startswith("page_"):
            del sys.modules[name]


every_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
with_blocks = [p for p in PAGES if list(blocks(p.read_text()))]


@pytest.mark.parametrize("page", with_blocks, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_block_runs_and_prints_what_the_page_says(page):
    run(str(page.relative_to(ROOT)), page.read_text())


def test_the_pages_that_teach_have_blocks():
    for name in (
        "README.md",
        "docs/tour.md",
        "docs/shapes.md",
        "docs/numerics.md",
        "docs/adding-an-op.md",
    ):
        assert len(list(blocks((ROOT / name).read_text()))) >= 3, name


def test_a_block_that_prints_something_else_fails():
    page = "```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n"
    with pytest.raises(AssertionError, match=r"some\.md, line 2"):
        run("some.md", page)


def test_text_further_down_is_no_expected_output():
    page = "```python\nx = 1\n```\n\nLater:\n\n```text\n3\n```\n"
    assert list(blocks(page)) == [(2, "x = 1\n", None)]


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page}: {target}"
