"""What the site of the documentation adds to the pages of docs/ when MkDocs builds it.

References are generated from the code: a page says `<!-- commands -->` where the command line stands.
The ops of the
records stand in the page itself, between `<!-- ops -->` and `<!-- /ops -->`, for those who read it
without the site;
`python -m tools.docs_site` writes them.  Pages that the navigation does not name stand at its end.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import Any

from tessera.cli.arguments import parser
from tessera.cli.ops import OpRow, op_rows
from tools import tsol_guide
from tools.api_reference import reference

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Code comes first, so that nothing in it is taken for a link.
LINK = re.compile(r"^```.*?^```$|`[^`\n]+`|\[([^\]\n]*)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)


def op_reference() -> str:
    """Every op by the module that defines it, as Markdown."""
    rows = sorted(op_rows(), key=lambda r: (r.family, r.name))
    out = []
    for family, found in itertools.groupby(rows, key=lambda r: r.family):
        out += [f"## {family.replace('_', ' ')}", "", "| op | what it is | axes | meaning | rules | dtypes |",
                "|---|---|---|---|---|---|", *map(_op_line, found), ""]  # fmt: skip
    return "\n".join(out)


def _op_line(r: OpRow) -> str:
    call = f"`{_cell(r.call or r.name)}`"
    if f"{r.name}(" not in call and r.call:
        call += f" (`{r.name}` in Graph IR)"
    axes = f"`{_cell(r.axes)}`" if "->" in r.axes else r.axes
    return f"| {call} | {_cell(r.doc)} | {axes} | {r.meaning} | {' '.join(r.rules)} | {r.dtypes} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def command_reference() -> str:
    """What every command prints for `--help`, as Markdown."""
    out = []
    for name, p in commands().items():
        out += [f"### tessera {name}", "", "```none", p.format_help().rstrip(), "```", ""]
    return "\n".join(out)


def commands() -> dict[str, argparse.ArgumentParser]:
    """The commands by name, `cache trim` among them."""
    return _below("", parser())


def _below(prefix: str, p: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    out: dict[str, argparse.ArgumentParser] = {}
    for a in p._actions:
        if isinstance(a, argparse._SubParsersAction):
            for name, inner in a.choices.items():
                out |= {f"{prefix}{name}": inner} | _below(f"{prefix}{name} ", inner)
    return out


# Lines of the records that the README shows: what a reader would look for first.
_ON_CPU = ("softmax 4096x4096", "matmul 1024", "matmul+bias+gelu 2048x1024x4096",
    "causal attention 1x8x1024x64",
           "conv2d 8x64x56x56 3x3", "FFT convolution 1024x1024", "GPT of 4 layers", "add of 8")  # fmt: skip


def benchmark_table() -> str:
    """Milliseconds of the record on two x86 cores, ours and others', as Markdown."""
    record = json.loads((ROOT / "benchmarks/records/cpu-x86-2.json").read_text())
    peers = {
        "tessera": "Tessera",
        "numpy": "NumPy",
        "torch": "PyTorch",
        "compile": "torch.compile",
        "jax": "jax.jit",
    }
    lines = [f"| milliseconds | {' | '.join(peers.values())} |", f"|---|{'---:|' * len(peers)}"]
    for name in _ON_CPU:
        times = record["rows"][name]["ms"]
        cells = (f"{times[k]:.3g}" if k in times else "" for k in peers)
        lines.append(f"| {name.replace('x86', '')} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


GENERATED = {"<!-- commands -->": command_reference, "<!-- api -->": reference}
_BENCHMARKS = re.compile(r"<!-- benchmarks -->\n.*<!-- /benchmarks -->\n", re.DOTALL)


def with_benchmarks(text: str) -> str:
    """The README with the table of the record."""
    return _BENCHMARKS.sub(
        lambda m: f"<!-- benchmarks -->\n{benchmark_table()}<!-- /benchmarks -->\n", text
    )


_OPS = re.compile(r"<!-- ops -->\n.*<!-- /ops -->\n", re.DOTALL)


def with_ops(text: str) -> str:
    """The page of ops with its tables as the records have them now."""
    return _OPS.sub(lambda m: f"<!-- ops -->\n{op_reference()}<!-- /ops -->\n", text)


def rendered(text: str, page: Path) -> str:
    """A page with what is generated in it; files that are no pages are named, not linked."""
    for mark, make in GENERATED.items():
        if mark in text:
            text = text.replace(mark, make())

    return LINK.sub(lambda m: m[0] if m[2] is None else _link(m[1], m[2], page), text)


def _link(text: str, target: str, page: Path) -> str:
    """A link of the site: a page that is linked by its file is shown by its title."""
    if not _is_on_site(target, page):
        return f"`{text.strip('`')}`"
    if text == target and text.endswith(".md"):
        text = _title(page.parent / target)
    return f"[{text}]({target})"


def _is_on_site(target: str, page: Path) -> bool:
    if "://" in target or target.startswith("#"):
        return True
    where = (page.parent / target.partition("#")[0]).resolve()
    return where.is_file() and where.is_relative_to(DOCS)


def pages(nav: Any) -> list[str]:
    """The pages that a navigation names, in order."""
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [p for x in inner for p in pages(x)]


def completed(nav: list[Any]) -> list[Any]:
    """The navigation with the decisions, and with pages that it does not name yet."""
    there = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")} - set(pages(nav))
    decisions = sorted(p for p in there if p.startswith("decisions/"))
    more = sorted(there - set(decisions))
    out = [*nav, {"Decisions": [{_title(DOCS / p): p} for p in decisions]}]
    return [*out, {"More": [{_title(DOCS / p): p} for p in more]}] if more else out


def _title(page: Path) -> str:
    return page.read_text().partition("\n")[0].lstrip("# ")


# What MkDocs calls


def on_config(config: Any) -> Any:
    """Complete the navigation."""
    config.nav = completed(config.nav)
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Complete a page."""
    return rendered(markdown, DOCS / page.file.src_uri)


def on_post_build(config: Any, **_: Any) -> None:
    """Make the search one that pages on disk can do."""
    search_from_disk(Path(config.site_dir))


def search_from_disk(site: Path) -> None:
    """Replace the worker, which browsers refuse to pages on disk, by a script with the index as another."""
    folder = site / "search"
    found = json.loads((folder / "search_index.json").read_text())["docs"]
    (folder / "index.js").write_text(f"window.searchIndex = {json.dumps(found)};\n")
    (folder / "main.js").write_text((ROOT / "tools" / "site_search.js").read_text())
    for name in ("lunr.js", "worker.js", "search_index.json"):
        (folder / name).unlink()


if __name__ == "__main__":
    page = DOCS / "ops.md"
    page.write_text(with_ops(page.read_text()))
    tsol_guide.PAGE.write_text(tsol_guide.with_families(tsol_guide.PAGE.read_text()))
    readme = ROOT / "README.md"
    readme.write_text(with_benchmarks(readme.read_text()))
