"""The lowering inspector: what its page holds, that it needs nothing else, and how it behaves in a
browser.
"""

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, cli, f32, jit, op
from tessera.algebra.laws.log import rewrites
from tessera.core.errors import OperandError
from tessera.inspect.page import programs_of, render
from tessera.inspect.page_data import difference
from tessera.inspect.page_labels import written_ops
from tessera.inspect.page_layout import GAP, layered
from tessera.inspect.page_text import graph_lines
from tessera.inspect.profile import profile

BROWSER = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
VOID = {"meta", "link", "input", "br"}


@jit
def block(x: Tensor["B", 64, f32], w: Tensor[64, 64, f32], g: Tensor[64, f32]):
    h = op.relu(x @ w)
    n = h - op.mean(h, 1, keepdims=True)
    y = op.softmax(n * g)
    return y + x, op.cumsum(y, 1)


ARRAYS = [np.ones(s, np.float32) for s in ((8, 64), (64, 64), (64,))]


@pytest.fixture(scope="module")
def lowered():
    return jit(block.__wrapped__, target="cpu").lower(*map(ts.tensor, ARRAYS))


@pytest.fixture(scope="module")
def shown(lowered):
    (found,) = programs_of(lowered._executable, ARRAYS)
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("inspect") / "block.html"
    assert block.inspect(*map(ts.tensor, ARRAYS), path=path) == path
    return path


class Tags(HTMLParser):
    """Checks that tags are closed in order, and keeps scripts and addresses."""

    def __init__(self):
        super().__init__()
        self.open, self.scripts, self.addresses = [], {}, []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.addresses += [v for k, v in found.items() if k in ("src", "href", "action", "srcset")]
        if tag not in VOID:
            self.open.append((tag, found.get("id")))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, self.getpos()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            self.scripts[self.open[-1][1]] = data


def test_the_page_is_whole_and_needs_no_network(page):
    tags = Tags()
    tags.feed(page.read_text())
    assert tags.open == []
    assert all(a.startswith(("data:", "#")) for a in tags.addresses)
    program = tags.scripts.pop(None)
    assert not re.search(r"https?:|\bfetch\(|XMLHttpRequest|\bimport\(|url\(", program)
    assert all(json.loads(text) for text in tags.scripts.values())
    assert {"data", "pass0", "tile0", "target0"} <= tags.scripts.keys()


def test_every_op_kernel_and_pass_is_on_the_page(lowered, shown):
    data, texts = shown
    graphs = [s for s in lowered.record if s.level == "graph"]
    g = graphs[-1].graph
    assert [n["op"] for n in data["nodes"]] == [*g.input_names, *(n.op.name for n in g.nodes)]
    assert [k["name"] for k in data["kernels"]] == list(lowered.tile)
    assert [p["name"] for p in data["passes"]] == [s.name for s in graphs]
    below = [s.name for s in lowered.record if s.level != "graph"]
    assert [p["name"] for p in data["lower"]] == [*below, "assembly"]
    assert data["schedule"]["lines"] == lowered.schedule.readable.split("\n")
    for k in data["kernels"]:
        target = texts[f"target{k['target']}"]
        assert target["lines"] == lowered.target[k["name"]].rstrip().split("\n")
        assert target["assembly"]
        assert len(target["touch"]) == len(target["lines"])
    assert data["memory"]["peak"] == lowered.memory.peak
    assert [s["nests"][0]["nest"] != "" for s in data["steps"][:2]] == [True, True]


def test_an_op_is_linked_through_all_levels(shown):
    data, texts = shown
    stages = {x for names in data["schedule"]["names"] for x in names}
    for n in data["nodes"]:
        assert n["steps"], n
        assert set(n["names"]) <= stages
    (i,) = [i for i, n in enumerate(data["nodes"]) if n["op"] == "exp"]
    n = data["nodes"][i]
    file, line = data["places"][n["place"]]
    assert "softmax" in data["files"][file]["lines"][line - 1]
    assert i in texts[f"pass{len(data['passes']) - 1}"]["nodes"]
    at = [j for j, names in enumerate(data["schedule"]["names"]) if names == n["names"]]
    assert "exp(" in data["schedule"]["lines"][at[-1]]
    (k,) = [k for k in data["kernels"] if k["step"] == n["steps"][0]]
    touched = {k["buffers"][t] for t in texts[f"target{k['target']}"]["touch"] if t >= 0}
    assert touched == set(k["buffers"])


def test_a_difference_turns_one_text_into_the_other(lowered):
    texts = [graph_lines(s.graph) for s in lowered.record if s.level == "graph"]
    changed = 0
    for before, after in pairwise(texts):
        ends = (0, 0)
        for what, i, j, k, m in difference(before, after):
            assert (i, k) == ends
            assert what != "e" or [x.location for x in before[i:j]] == [
                x.location for x in after[k:m]
            ]
            changed += what != "e"
            ends = (j, m)
        assert ends == (len(before), len(after))
    assert changed


def test_nodes_stand_below_what_they_read_and_beside_each_other():
    rng = random.Random(0)
    operands = [[rng.randrange(max(0, i - 40), i) for _ in range(rng.randrange(3))] if i else []
                for i in range(2000)]  # fmt: skip
    widths = [rng.uniform(20, 90) for _ in operands]
    spots = layered(operands, widths, [rng.random() < 0.3 for _ in operands])
    rows = {}
    for n, (x, layer) in enumerate(spots):
        assert all(spots[m][1] < layer for m in operands[n])
        rows.setdefault(layer, []).append((x - widths[n] / 2, x + widths[n] / 2))
    for row in rows.values():
        row.sort()
        assert all(a[1] + GAP <= b[0] + 1e-6 for a, b in pairwise(row))


def test_the_body_of_a_loop_is_a_program_of_its_own():
    def total(x):
        return op.scan(lambda c, row: (op.tanh(c + row), c * row), x[0], x)

    x = np.ones((3, 4), np.float32)
    e = jit(total, target="cpu").lower(ts.tensor(x))._executable
    (whole, _), *inner = programs_of(e, [x])
    assert inner
    (loop,) = [s for s in whole["steps"] if s["regions"]]
    assert loop["name"] == "scan"
    for i in loop["regions"]:
        body, texts = inner[i - 1]
        assert "tanh" in {n["op"] for n in body["nodes"]}
        assert "tanh(" in "".join(body["schedule"]["lines"])
        assert body["kernels"]
        assert f"target{body['kernels'][0]['target']}" in texts


def test_the_rewrites_of_operators_are_on_the_page(tmp_path):
    def f(a, b, c, x):
        A, B, C = map(op.dense, (a, b, c))
        return ts.simplify(A @ B + A @ C) @ x

    matrices = [ts.tensor(np.random.default_rng(i).normal(size=(8, 8))) for i in range(3)]
    page = jit(f).inspect(*matrices, ts.ones((8,)), path=tmp_path / "f.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    (r,) = data["rewrites"]
    file, line = data["places"][r["place"]]
    assert "ts.simplify(A @ B + A @ C)" in data["files"][file]["lines"][line - 1]
    A, B, C = map(op.dense, matrices)
    with rewrites() as log:
        ts.simplify(A @ B + A @ C)
    told = str(log[0].derive()).split("\n")
    assert [x["law"] for x in r["rows"]] == ["", "common left factor"]
    for x in r["rows"]:
        assert any(x["term"] in t and f"{x['flops']:.4g} flops" in t for t in told)
    assert r["rows"][1]["flops"] < r["rows"][0]["flops"]
    with rewrites() as inner:
        pass
    ts.simplify(op.dense(matrices[0]))
    assert inner == []


def test_text_cannot_end_a_script():
    text = render([({"name": "</title><b>"}, {"pass0": {"lines": ["</script><script>alert(1)"]}})])
    assert "</script><script>alert" not in text
    assert "<title>&lt;/title&gt;&lt;b&gt; · Tessera inspector</title>" in text


def test_what_cannot_be_written_is_said_before_the_work(tmp_path):
    x = ts.ones((2,))
    f = jit(lambda x: x + 1)
    for path, message in (
        (tmp_path / "no" / "page.html", f"inspect: there is no folder {tmp_path / 'no'} for page.html"),
        (tmp_path, f"inspect: {tmp_path} is a folder; name a file in it, like {tmp_path}/page.html"),
        (Path("/dev/full"), "inspect: /dev/full cannot be written (No space left on device)"),
    ):  # fmt: skip
        with pytest.raises(OperandError) as e:
            f.inspect(x, path=path)
        assert str(e.value).startswith(message)


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    page, full = tmp_path / "f.html", OSError(errno.ENOSPC, "No space left on device")
    page.write_text("old")

    def fails(*_):
        raise full

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OperandError, match=r"f.html cannot be written \(No space left on device\)"):
        jit(lambda x: x + 1).inspect(ts.ones((2,)), path=page)
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]
    with profile() as p:
        pass
    for write in (p.save, p.trace, p.flame):
        with pytest.raises(OperandError, match=r"profile: .* cannot be written"):
            write(page)
    assert page.read_text() == "old"
    assert list(tmp_path.iterdir()) == [page]


def test_an_interrupt_leaves_no_page(tmp_path):
    """Wherever it comes: while modules load, while the function is compiled, while the page is made."""
    (tmp_path / "program.py").write_text(
        "import os, signal, threading\nfrom tessera import Tensor, f32, jit, op\n"
        "@jit\ndef f(x: Tensor['B', 64, f32]):\n    os.kill(os.getpid(), signal.SIGINT)\n    return "
        "op.softmax(x)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "inspect", "program.py"], cwd=tmp_path, capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
    assert [p.name for p in tmp_path.iterdir()] == ["program.py"]


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(
        "from tessera import Tensor, f32, jit, op\n@jit\ndef layer(x: Tensor['B', f32]):\n    return "
        "op.exp(x) + 1\n"
    )
    assert cli.main(["inspect", str(program), "--size", "B=5"]) == 0
    assert capsys.readouterr().out == "layer.html\n"
    assert '"sizes":{"B":5}' in (tmp_path / "layer.html").read_text()
    for argv, status, message in (
        (["nowhere.py"], 2, "there is no file nowhere.py"),
        ([f"{program}:none"], 2, f"{program} defines no 'none'; it has layer"),
        ([str(program), "--gpu", "sm_1"], 2, "--gpu is 'sm_1', expected one of sm_80, sm_90"),
        ([str(program), "--out", "no/x.html"], 1, f"inspect: there is no folder {tmp_path}/no for x.html"),
    ):  # fmt: skip
        assert cli.main(["inspect", *argv]) == status
        assert message in capsys.readouterr().err


# In a browser ---------------------------------------------------------------------------------


def browse(text, tmp_path, script, *options, mark=""):
    """What a script on a page finds out, in a browser without a window."""
    watch = "<script>window.failures = []; onerror = m => failures.push(m)</script>"
    tell = (
        "const told = document.createElement('pre'); told.id = 'told'; document.body.append(told);"
    )
    act = f"<script>(() => {{ {tell} try {{ told.textContent = JSON.stringify((() => {{ {script} }})()) }} catch (e) {{ told.textContent = JSON.stringify('' + e) }} }})()</script>"  # noqa: E501
    path = tmp_path / "browsed.html"
    path.write_text(
        text.replace("<head>", "<head>" + watch, 1).replace("</body>", act + "</body>", 1)
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom"]
    flags += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    made = subprocess.run(
        [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", *options, path.as_uri() + mark],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    found = re.search(r'<pre id="told">(.*?)</pre>', made.stdout, re.DOTALL)
    assert found, made.stderr[-2000:]
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


ACTIONS = """
const wait = () => { LEVELS.forEach(k => panes[k].paint()); views[tab].paint?.(); views[tab].lines?.paint(); };
const press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
const text = (pane, c) => $$(`#pane-${pane} .${c}`).map(e => e.textContent), out = {};
out.first = tab; out.groups = $$("#overview [data-group]").length; out.bars = $$("#overview rect[data-step]").length; press("1");
wait();
$$("#pane-graph .line").find(e => e.textContent.includes("exp(")).click(); wait();
for (const p of ["source", "graph", "schedule"]) out[p] = text(p, "hit");
out.tile = text("tile", "near").length; out.target = text("target", "near").length; out.kernel = KERNELS[chosen.kernel].name;
press("a"); wait(); out.assembly = targetText()[chosen.target].join(" "); out.instructions = text("target", "near").length;
search.value = "cumsum"; find(); search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"})); wait();
out.found = sel.label; press("k"); wait(); out.before = sel.label;
$("nav [data-tab=passes]").click(); $(`#passes [data-pass='${D.passes.findIndex(p => p.changes === Math.max(...D.passes.map(q => q.changes)))}']`).click(); out.pass = D.passes[passes.at].name; wait();
out.added = $$("#passes .add").length; out.removed = $$("#passes .del").length;
press("5"); wait(); const span = memory.b - memory.a; press("+"); wait(); out.zoomed = (memory.b - memory.a) / span; out.buffers = $$("#memory [data-buffer]").length;
press("6"); wait(); out.circles = $$("#roofline circle").length;
press("2"); press("0"); wait(); out.nodes = $$("#picture .node").length; $$("#picture .node").find(e => e.textContent.startsWith("matmul")).dispatchEvent(new MouseEvent("click", {bubbles: true})); wait(); out.picked = sel.label; out.marked = $$("#picture .node.hit").length;
const theme = document.documentElement.dataset.theme; press("t"); out.flipped = document.documentElement.dataset.theme !== theme;
out.ink = getComputedStyle(document.body).color !== getComputedStyle(document.body).backgroundColor;
out.wide = document.documentElement.scrollWidth <= innerWidth; out.failures = failures; return out;
"""  # noqa: E501


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_an_op_is_followed(page, tmp_path):
    out = browse(page.read_text(), tmp_path, ACTIONS, "--window-size=500,900")  # fmt: skip
    assert out["failures"] == []
    assert ["softmax" in x for x in out["source"]] == [True]
    assert ["exp(" in x for x in out["graph"]] == [True]
    assert ["exp(" in x for x in out["schedule"]] == [True]
    assert out["kernel"] == "block_1"
    assert out["tile"] > 10
    assert out["target"] > 10
    assert "ret" in out["assembly"]
    assert out["instructions"] > 10
    assert out["found"].startswith("cumsum(")
    assert out["before"].startswith("add(")
    assert out["first"] == "overview"
    assert out["groups"] > 0
    assert (out["added"], out["removed"]) == (14, 2), out["pass"]
    assert out["zoomed"] < 1
    assert out["buffers"] >= 3
    assert out["circles"] == 3
    assert out["nodes"] == 26
    assert out["picked"].startswith("matmul(")
    assert (out["marked"], out["flipped"], out["ink"], out["wide"]) == (1, True, True, True)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_two_thousand_nodes_are_painted_at_once(shown, tmp_path):
    data, texts = dict(shown[0]), shown[1]
    n = len(data["nodes"])
    data["nodes"] = [
        {**x, "in": [j + n * i for j in x["in"]], "y": x["y"] + 20 * i}
        for i in range(2000 // n + 1) for x in data["nodes"]
    ]  # fmt: skip
    script = 'show("picture"); $("#folded").checked = false; picture.use("all"); picture.fit(true); picture.paint(); const far = $$("#picture .far").length; picture.fit(); picture.paint(); return [far, $$("#picture .node").length, picture.N.length, failures]'  # noqa: E501
    far, near, held, failures = browse(render([(data, texts)]), tmp_path, script)
    assert failures == []
    assert held == len(data["nodes"]) > 2000
    assert far > 0  # the whole of it as dots
    assert near > 10


def test_ops_that_are_still_there_are_not_taken_for_parts_of_others():
    def f(x):
        return op.softmax(x) * op.exp(x)  # both have an exp and a mul or a div

    graphs = [s.graph for s in ts.jit(f).lower(op.zeros((3, 4))).record if s.level == "graph"]
    found = written_ops(graphs[0], graphs[-1])
    kept = {n.op.name for n in graphs[0].nodes} & {n.op.name for n in graphs[-1].nodes}
    assert kept >= {"mul", "exp"}
    ((parts, label),) = found.values()
    assert label == "softmax"
    assert not {x.name for x in parts} & kept
    assert "sub" in {x.name for x in parts}
