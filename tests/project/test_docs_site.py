"""The site of the documentation: its navigation, what is generated from code, and that it needs no
network.
"""

import argparse
import importlib
import inspect
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import tessera as ts
from tessera import op, tile
from tessera.algebra.laws.table import LAWS
from tessera.core import errors
from tessera.ir.graph.op import REGISTRY
from tools import docs_site, pictures
from tools.browser import BROWSER, Browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIG = (ROOT / "mkdocs.yml").read_text()
NAV = re.findall(r"^ +- [^:]+: (\S+\.md)$", CONFIG.partition("\nnav:")[2], re.MULTILINE)
MKDOCS = next((str(p) for p in (ROOT / ".venv-docs/bin/mkdocs",) if p.exists()), None) or (
    shutil.which("mkdocs")
)
# Names that a page tells the reader to make, or that stand for any.
MADE_UP = {"op.md", "op.square_distances"}


def test_the_navigation_names_every_page_once():
    assert len(NAV) == len(set(NAV)) > 30
    assert [p for p in NAV if not (DOCS / p).is_file()] == []
    decisions = {p.relative_to(DOCS).as_posix() for p in (DOCS / "decisions").glob("*.md")}
    there = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")}
    whole = docs_site.pages(docs_site.completed([{"all": NAV}]))
    assert sorted(whole) == sorted(there)
    assert decisions <= set(whole)


def test_pages_without_a_place_stand_at_the_end():
    nav = docs_site.completed([{"First": "index.md"}])
    assert [next(iter(x)) for x in nav] == ["First", "Decisions", "More"]
    assert {"A tour of Tessera": "tour.md"} in nav[-1]["More"]


def test_the_index_leads_to_every_page():
    linked = set(re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text()))
    assert [p for p in NAV if p not in linked and p != "index.md"] == []


def test_the_reference_of_ops_has_every_record():
    text = docs_site.op_reference()
    named = set(re.findall(r"`(?:op\.)?([\w.]+)[`(]", text))
    assert set(REGISTRY) - named == set()
    assert "| `op.matmul(" in text
    for line in text.splitlines():
        assert not line.startswith("|") or len(re.findall(r"(?<!\\)\|", line)) == 7, line


def test_the_page_of_ops_has_the_tables_of_the_records():
    """It is read on code hosts too, where nothing is generated: python -m tools.docs_site writes it."""
    text = (DOCS / "ops.md").read_text()
    assert docs_site.with_ops(text) == text
    assert text.count("| `op.") > 300


def test_the_reference_of_commands_has_every_option():
    text, page = docs_site.command_reference(), (DOCS / "cli.md").read_text()
    for name, p in docs_site.commands().items():
        assert f"### tessera {name}\n" in text
        assert f"`tessera {name}" in page or f"`{name.split()[-1]}`" in page
        for action in p._actions:
            if action.help == argparse.SUPPRESS:  # said by Tessera to itself
                continue
            assert all(o in text for o in action.option_strings)


def test_the_reference_of_errors_is_that_of_the_code():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    told = {name: re.findall(r"`(\w+)`", also) for name, also in rows}
    classes = {
        n: [b.__name__ for b in c.__bases__ if b is not errors.TesseraError]
        for n, c in inspect.getmembers(errors, inspect.isclass)
        if issubclass(c, errors.TesseraError)
    }
    assert told == classes


def test_code_is_no_link_and_files_that_are_no_pages_are_named():
    page = DOCS / "tour.md"
    text = "[tour.md](tour.md) [x](shapes.md#a) [e](../examples/gpt.py) `[a](b)`\n```python\nf[0](x)\n```\n"
    assert docs_site.rendered(text, page) == (
        "[A tour of Tessera](tour.md) [x](shapes.md#a) `e` `[a](b)`\n```python\nf[0](x)\n```\n"
    )


@pytest.mark.parametrize("page", NAV)
def test_functions_that_a_page_names_are_there(page):
    roots = {"op": op, "ts": ts, "tile": tile}
    for m in re.finditer(
        r'(?<![\w./"-])(op|ts|tile)((?:\.[A-Za-z_]\w*)+)', (DOCS / page).read_text()
    ):
        if m[0] in MADE_UP:
            continue
        found = roots[m[1]]
        if m[2][1:].split(".")[0] in ("jax", "torch"):
            pytest.importorskip(m[2][1:].split(".")[0])
        for name in m[2][1:].split("."):
            assert hasattr(found, name), f"{page}: {m[0]}"
            found = getattr(found, name)


@pytest.mark.parametrize("page", [p for p in NAV if p != "ops.md"])
def test_commands_that_a_page_names_are_there(page):
    known = docs_site.commands()
    for first, rest in re.findall(r"(?:^|`)tessera ([a-z]+)\b(.*)", (DOCS / page).read_text()):
        assert first in known, f"{page}: tessera {first}"
        second = re.match(r" ([a-z]+)\b", rest)
        both = f"{first} {second[1]}" if second else first
        name = both if both in known else first
        for option in re.findall(
            r"(?<!\S)(--[a-z-]+)", rest.partition("`")[0].partition(" -- ")[0]
        ):
            assert option in known[name].format_help(), f"{page}: tessera {name} {option}"


# What pages claim


def names_of(text, *roots):
    """Names like jnp.foo and jax.lax.foo of a text, by what they begin with."""
    found = re.findall(rf"`((?:{'|'.join(map(re.escape, roots))})\.[\w.]+)", text)
    return sorted(set(found))


def test_the_readme_states_the_number_of_laws():
    stated = re.findall(r"(\d+) laws", (ROOT / "README.md").read_text())
    assert stated == [str(len(LAWS))]


def test_functions_that_from_jax_says_are_not_there_are_not():
    text = (DOCS / "from-jax.md").read_text().partition("Not there:")[2].partition("##")[0]
    missing = set(re.findall(r"`(\w+)`", text))
    assert missing
    assert {n for n in missing if hasattr(op, n)} == set()


@pytest.mark.oracle
def test_functions_that_from_jax_translates_are_in_jax():
    jax = pytest.importorskip("jax")
    jnp = importlib.import_module("jax.numpy")
    names = names_of((DOCS / "from-jax.md").read_text(), "jnp", "jax.lax", "jax.nn", "jax.random")
    assert len(names) > 30
    for name in names:
        found = {"jnp": jnp, "jax": jax}[name.partition(".")[0]]
        for part in name.split(".")[1:]:
            assert hasattr(found, part), name
            found = getattr(found, part)


@pytest.mark.oracle
def test_functions_that_from_pytorch_translates_are_in_torch():
    torch = pytest.importorskip("torch")
    text = (DOCS / "from-pytorch.md").read_text()
    first = "\n".join(line.split("|")[1] for line in text.split("\n") if line.startswith("| `"))
    names = names_of(first, "torch", "F", "nn")
    assert len(names) > 15
    roots = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    for name in names:
        found = roots[name.partition(".")[0]]
        for part in name.split(".")[1:]:
            assert hasattr(found, part), name
            found = getattr(found, part)


def test_the_targets_that_the_index_names_are_those_of_the_code():
    row = re.search(r"^\| Target IR .*$", (DOCS / "index.md").read_text(), re.MULTILINE)[0]
    assert {"LLVM", "Triton", "Gluon"} <= set(re.findall(r"\w+", row))
    folders = {p.name for p in (ROOT / "tessera" / "ir" / "target").iterdir() if p.is_dir()}
    assert folders - {"__pycache__"} == {"cpu", "triton", "gluon"}


def test_decisions_that_the_index_lists_have_their_titles():
    text = (DOCS / "index.md").read_text()
    for title, path in re.findall(r"^- \[(.*)\]\((decisions/.*)\)$", text, re.MULTILINE):
        first = (DOCS / path).read_text().partition("\n")[0]
        assert first.startswith(f"# {title}"), path


@pytest.mark.skipif(MKDOCS is None, reason="MkDocs is not installed: make docs installs it")
def test_the_site_is_built_and_needs_no_network(tmp_path):
    done = subprocess.run(
        [MKDOCS, "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for page in NAV:
        made = tmp_path / "site" / Path(page).with_suffix(".html")
        text = made.read_text()
        assert not re.search(r'(?:src|srcset)="(?:https?:)?//|<link[^>]+href="(?:https?:)?//', text)
        assert "<!-- commands -->" not in text
    for style in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"@import|url\([\"']?(?:https?:)?//", style.read_text())
    assert "op.softmax(" in (tmp_path / "site" / "ops.html").read_text()


def test_the_pictures_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/images is written by tools/pictures.py from live programs."""
    assert pictures.main(["--check"]) == 0, capsys.readouterr().out


def test_the_table_of_the_readme_is_that_of_the_record() -> None:
    text = (ROOT / "README.md").read_text()
    assert docs_site.benchmark_table() in text
    assert docs_site.with_benchmarks(text) == text, "run python -m tools.docs_site"


SECTIONS = [
    {
        "location": "a.html",
        "title": "Caches",
        "text": "A cache holds keys. <b>Nothing</b> is lost.",
    },
    {"location": "b.html#gelu", "title": "op.gelu", "text": "x times its probability"},
    {
        "location": "c.html",
        "title": "Far",
        "text": "word " * 100 + "gelu, and a cache of keys" + " end" * 100,
    },
]
SEARCH = """<!DOCTYPE html><meta charset="utf-8">
<input id="mkdocs-search-query"><div id="mkdocs-search-results"></div>
<script>var base_url = ".";</script><script src="search/main.js"></script>"""
ANSWER = """(q) => { const i = document.getElementById("mkdocs-search-query"); i.value = q;
  i.dispatchEvent(new Event("input")); const r = document.getElementById("mkdocs-search-results");
  return [r.firstChild.textContent, ...[...r.querySelectorAll("article")].map(a =>
    [a.querySelector("a").getAttribute("href"), a.querySelector("p").textContent,
     [...a.querySelectorAll("mark")].map(m => m.textContent)])]; }"""


def search_site(folder: Path) -> Path:
    (folder / "search").mkdir()
    for name in ("main.js", "lunr.js", "worker.js"):
        (folder / "search" / name).write_text("new Worker('worker.js')")
    (folder / "search/search_index.json").write_text(json.dumps({"docs": SECTIONS}))
    docs_site.search_from_disk(folder)
    (folder / "search.html").write_text(SEARCH)
    return folder / "search.html"


def test_the_search_is_two_scripts_and_no_worker(tmp_path):
    """Browsers refuse workers and requests to pages that are read from disk: it searched for ever."""
    search_site(tmp_path)
    scripts = {p.name: p.read_text() for p in (tmp_path / "search").iterdir()}
    assert scripts.keys() == {"index.js", "main.js"}
    index = scripts["index.js"].removeprefix("window.searchIndex = ").removesuffix(";\n")
    assert json.loads(index) == SECTIONS
    assert not re.search(r"Worker|XMLHttpRequest|fetch\(", scripts["main.js"])


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_search_finds_from_disk(tmp_path):
    page = search_site(tmp_path)
    with Browser() as b, b.page(page, 800, 600) as p:
        p.evaluate(
            "new Promise(r => { const t = () => window.searchIndex ? r() : setTimeout(t, 20); t(); })"
        )

        def answer(query):
            return p.evaluate(f"({ANSWER})({json.dumps(query)})")

        assert answer("") == [""]
        assert answer("nowhere") == ["No results"]
        [said, (where, text, marked)] = answer("CACHE nothing")
        assert (said, where) == ("1 result", "./a.html")
        assert text == SECTIONS[0]["text"]  # as text: nothing of it is taken for HTML
        assert marked == ["cache", "Nothing"]
        said, named, far = answer("gelu")
        assert [said, named[0], far[0]] == ["2 results", "./b.html#gelu", "./c.html"]
        assert re.fullmatch("… .*gelu, and a cache.* …", far[1])
        assert p.console == []
