"""The prose of pages and module docstrings: no words that read as translated, and short sentences."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
# Records of decisions are of their day and are not rewritten.
PAGES = [p for p in sorted(DOCS.rglob("*.md")) if p.parent.name != "decisions"]
# What reads as translated, and what to write.
WORDS = {
    r"\bnobody\b": "no one, or the passive", r"\bsomebody\b": "someone, or the user",
    r"\bdear(?:er|est)?\b": "expensive",
    r"(?<![Tt]here )\b(?:is|are|was|were) no\b(?! longer)": "is not a",
    r"\bas \w+ ha(?:s|ve) (?:it|them)\b": "as in",
    r"\b(?:lie|lies|lying)\b": "is, starts, falls", r"\btold\b": "said, reported",
}  # fmt: skip
LONGEST = 35  # words of a sentence, on average over a page
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|^(?: {4}|\t).*$|<!--.*?-->", re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    """A page without code."""
    return CODE.sub("x", text)


def sentences(text: str) -> list[str]:
    """The sentences of a page, outside of tables, headings and code."""
    lines = [x for x in prose(text).splitlines() if not x.startswith(("|", "#", "<"))]
    joined = re.sub(r"\n(?=[-*\d]|\n)", ". ", "\n".join(lines))
    return [s for s in re.split(r"(?<=[.:;!?])\s+", joined) if len(s.split()) > 2]


def page_id(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_a_page_has_none_of_the_words(page: Path) -> None:
    text = prose(page.read_text())
    found = {m[0]: better for word, better in WORDS.items() for m in re.finditer(word, text)}
    assert not found, f"{page.name}: write {found}"


PACKAGE = DOCS.parent / "tessera"


@pytest.mark.parametrize(
    "folder", sorted(p for p in PACKAGE.iterdir() if p.is_dir()), ids=lambda p: p.name
)
def test_what_a_module_says_of_itself_has_none_of_the_words(folder: Path) -> None:
    found = {}
    for path in sorted(folder.rglob("*.py")):
        text = prose(ast.get_docstring(ast.parse(path.read_text())) or "")
        wrong = [m[0] for word in WORDS for m in re.finditer(word, text, re.IGNORECASE)]
        if wrong:
            found[path.relative_to(PACKAGE).as_posix()] = wrong
    assert found == {}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_sentences_are_short_on_average(page: Path) -> None:
    found = sentences(page.read_text())
    counts = [len(s.split()) for s in found]
    assert sum(counts) < LONGEST * max(len(counts), 1), page.name


PLAIN = re.compile(r"\]\([^)]*\)|https?://\S+")
KNOWN = Path(__file__).with_name(
    "words.txt"
)  # terms of the field, and spellings of British English


def words(text: str) -> set[str]:
    """The words of a page in small letters: names begin with large ones, or have some."""
    found = re.findall(r"(?<![\w'])[a-z][a-z']+(?![\w'])", PLAIN.sub(" ", CODE.sub(" ", text)))
    return {x.rstrip("'").removesuffix("'s") for x in found}


def test_words_are_spelled_as_in_a_dictionary() -> None:
    """Where the package pyspellchecker is installed."""
    checker = pytest.importorskip("spellchecker").SpellChecker()
    known = set(KNOWN.read_text().split())
    wrong = {page_id(p): checker.unknown(words(p.read_text()) - known) for p in PAGES}
    assert {k: v for k, v in wrong.items() if v} == {}
    assert checker.unknown(words("A sentense with `nobodi` and Tessera.")) == {"sentense"}


def test_the_check_finds_what_it_looks_for() -> None:
    wrong = "Nobody knows.\nIt is no error, as NumPy has it; the buffer lies there and somebody was told that it is dear."  # noqa: E501
    found = [w for w in WORDS if re.search(w, prose(wrong), re.IGNORECASE)]
    assert len(found) == len(WORDS)
    assert not [
        w for w in WORDS if re.search(w, prose("There is no `nobody` here.\n```text\nlies\n```\n"))
    ]
    assert len(sentences("One two three four. Five six seven eight.\n")) == 2
