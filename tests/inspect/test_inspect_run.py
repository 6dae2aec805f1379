"""tessera inspect FILE: one page of all that a run compiles, with an overview, names of kernels and
groups of ops.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import cli, op
from tessera.inspect.page_groups import FEW, groupings
from tessera.inspect.page_labels import label_of, written_ops
from tests.inspect.test_inspect import browse

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PROGRAM = """
import numpy as np
import tessera as ts
from tessera import KTile, block, f32, kernel, op, tile

@kernel.schedule(block(8))
def scaled(x: KTile["M", "D", f32]):
    T = tile.context()
    return tile.load(x, rows=T.m, cols=T.d) * 2.0

def project(x, w):
    return op.gelu(x @ w)

@ts.jit
def layer(x, w):
    return op.softmax(project(x, w))

@ts.jit
def waves(x):
    return ts.while_loop(lambda c: op.sum(c) < 100, lambda c: c * 2 + 1, x)

if __name__ == "__main__":
    x, w = ts.ones((12, 16)), ts.ones((16, 8))
    layer(x, w)
    layer(x[:4], w)
    scaled(x)
    waves(x[0])
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    (folder / "program.py").write_text(PROGRAM)
    assert (
        cli.main(["inspect", str(folder / "program.py"), "--out", str(folder / "page.html")]) == 0
    )
    return folder / "page.html"


def data_of(page: Path) -> list[dict[str, Any]]:
    found = re.findall(
        r'<script type="application/json" id="(?:\d+\.)?data">(.*?)</script>', page.read_text()
    )
    return [json.loads(x) for x in found]


def test_every_compilation_is_listed_with_its_reason(page: Path) -> None:
    rows = data_of(page)[0]["run"]["compilations"]
    assert [(r["name"], r["why"]) for r in rows] == [
        ("layer", "first call"), ("layer", "again: x is f32[4,16] and was f32[12,16]"),
        ("scaled", "first call"), ("waves", "first call"),
    ]  # fmt: skip
    assert {r["how"] for r in rows} <= {"compiled", "from the cache", "kernel"}
    assert [r["how"] for r in rows].count("kernel") == 1
    assert all(data_of(page)[r["program"]]["name"] in (r["name"], "scaled") for r in rows)


def test_kernels_have_names_that_say_what_they_are(page: Path) -> None:
    layer = next(d for d in data_of(page) if d["name"] == "layer")
    labels = [s["label"] for s in layer["steps"]]
    assert "matmul 12x8x16 + gelu" in labels
    assert any(x.startswith("softmax 12x8") for x in labels), labels


def test_kernels_host_calls_and_loops_have_times_below_the_roof(page: Path) -> None:
    programs = data_of(page)
    for d in programs:
        own = [s for s in d["steps"] if s["kind"] != "view"]
        assert all(s["seconds"] > 0 for s in own) or d["name"] not in (
            "layer",
            "waves",
            "scaled",
        ), d["name"]
        assert all(0 <= s.get("roof", 0) <= 1 for s in own)
    assert {"layer", "waves", "scaled"} <= {d["name"] for d in programs}
    written = next(d for d in programs if d["name"] == "scaled")
    assert written["kernels"]
    assert [s["name"] for s in written["steps"]] == ["scaled"]


def test_places_know_their_functions(page: Path) -> None:
    assert {"project", "layer"} <= {x for d in data_of(page) for x in d["functions"]}


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_the_overview_is_first_and_leads_on(page: Path, tmp_path: Path) -> None:
    script = """
const out = {first: tab, groups: $$("#overview [data-group]").length, rows: $$("#overview tr[data-visit]").length, bars: $$("#overview rect[data-step]").length};
$("#overview [data-group]").dispatchEvent(new MouseEvent("click", {bubbles: true})); out.then = tab; out.picked = sel.nodes.size;
document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "o", bubbles: true})); out.again = tab;
$("#overview rect[data-step]").dispatchEvent(new MouseEvent("click", {bubbles: true})); out.step = tab; out.failures = failures; return out;"""  # noqa: E501
    number = next(i for i, d in enumerate(data_of(page)) if d["name"] == "layer")
    mark = f"#p{number}/overview"
    out = browse(page.read_text(), tmp_path, script, "--window-size=390,800", mark=mark)
    assert out["failures"] == []
    assert (out["first"], out["then"], out["again"], out["step"]) == (
        "overview",
        "levels",
        "overview",
        "steps",
    )
    assert (out["groups"], out["rows"]) == (2, 4)
    assert out["bars"] >= 2
    assert out["picked"] > 0


# Labels and groups


def test_a_label_names_what_was_written() -> None:
    g = ts.trace(lambda x, w: op.tanh(x @ w) * 2, ts.ones((4, 3)), ts.ones((3, 5)))
    assert label_of(g.nodes) == "matmul 4x5x3 + tanh + mul"
    assert label_of([]) == ""
    assert written_ops(g, g) == {}


def nodes(count: int) -> list[dict[str, Any]]:
    return [{"kind": "input", "place": -1, "in": []}] + [
        {"kind": "contraction" if i % 7 == 0 else "elementwise", "place": i // 10 % 3, "in": [i],
         "module": i // 5 % 180 + 1, "phase": 3 * i // count, "steps": [i // 8]}
        for i in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("count", [FEW, 2000, 20000])
def test_a_large_graph_is_few_groups_without_cycles(count: int) -> None:
    given = nodes(count)
    modules = ["", *(f"net.blocks.{i}.{x}" for i in range(90) for x in ("up", "down"))]
    steps = [f"step_{i}" for i in range(count // 8 + 1)]
    every = groupings(given, ["model.attention", "model.mlp", "model.norm"], modules, steps)
    assert list(every) == ["module", "function", "phase", "kernel"]
    for found in every.values():
        assert 1 <= len(found) <= 120
        assert sorted(i for g in found for i in g["nodes"]) == list(range(1, count + 1))
        assert all(m < g for g, x in enumerate(found) for m in x["in"])
        assert len({(x["x"], x["y"]) for x in found}) == len(found)
    assert [g["name"] for g in every["phase"]] == ["forward", "backward", "update"]


def test_a_small_graph_has_no_groups() -> None:
    assert groupings(nodes(FEW - 1), ["a", "b", "c"]) == {}
    assert np.asarray(ts.ones(3)).shape == (3,)
