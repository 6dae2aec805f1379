"""The inspector's page of the demo transformer, in a real browser without a window."""

import runpy
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tests.inspect.test_inspect import BROWSER, browse

GPT = Path(__file__).parents[2] / "examples" / "gpt.py"
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")

FOLLOW = """
const wait = () => { LEVELS.forEach(k => panes[k].paint()); views[tab].paint?.(); views[tab].lines?.paint(); };
const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const text = (pane, c) => $$(`#pane-${pane} .${c}`).map(e => e.textContent), out = {};
search.value = "sigmoid("; find(); out.hits = results.length; search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"})); wait();
out.found = sel.label; for (const p of ["source", "graph", "schedule"]) out[p] = text(p, "hit"); out.tile = text("tile", "near").length + text("tile", "hit").length; out.target = text("target", "near").length + text("target", "hit").length;
out.kernel = sel.steps.has(KERNELS[chosen.kernel].step);
press("3"); wait(); out.passes = $$("#passes [data-pass]").map(r => { r.click(); wait(); return $$("#passes .add, #passes .del").length; });
press("5"); wait(); const span = memory.b - memory.a; press("+"); press("+"); wait(); out.zoomed = (memory.b - memory.a) / span; press("0"); wait(); out.fitted = memory.b - memory.a === span; out.buffers = $$("#memory [data-buffer]").length;
press("6"); wait(); out.circles = $$("#roofline circle").length; press("7"); out.algebra = $("#algebra .wrap").textContent.includes("No operator was simplified");
out.themes = [0, 1].map(() => { press("t"); const s = getComputedStyle(document.body); return [document.documentElement.dataset.theme, s.color, s.backgroundColor]; });
out.kernels = KERNELS.length; out.failures = failures; return out;
"""  # noqa: E501


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    gpt = runpy.run_path(str(GPT), run_name="gpt")
    params = gpt["init"](ts.key(0), 20, 16, 16, 1)
    loss = ts.jit(lambda p, x: ts.op.mean(gpt["model"](p, x, heads=2)))
    tokens = ts.tensor(np.zeros((2, 16), np.int64))
    path = tmp_path_factory.mktemp("demo") / "gpt.html"
    return loss.inspect(params, tokens, path=path).read_text()


def test_the_demo_is_followed_through_four_levels(page, tmp_path):
    out = browse(page, tmp_path, FOLLOW, "--window-size=1400,900")
    assert out["failures"] == []
    assert out["hits"] >= 1
    assert out["found"].startswith("sigmoid(")
    assert len(out["source"]) == 1
    assert "op.gelu" in out["source"][0]
    assert ["sigmoid(" in x for x in out["graph"]] == [True]
    assert "sigmoid(" in "".join(out["schedule"])
    assert out["kernel"]
    assert min(out["tile"], out["target"]) > 10
    assert max(out["passes"]) > 10
    assert (out["zoomed"] < 1, out["fitted"], out["algebra"]) == (True, True, True)
    assert out["buffers"] >= 10
    assert out["circles"] == out["kernels"] > 5
    (one, ink, ground), (other, other_ink, other_ground) = out["themes"]
    assert {one, other} == {"light", "dark"}
    assert len({ink, ground}) == len({other_ink, other_ground}) == 2
    assert ground != other_ground


def test_nothing_overflows_on_a_phone(page, tmp_path):
    script = """return Object.keys(views).map(v => { show(v); return document.documentElement.scrollWidth <= innerWidth; }).concat(failures)"""  # noqa: E501
    assert browse(page, tmp_path, script, "--window-size=390,844") == [True] * 10
