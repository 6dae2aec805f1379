"""Pages of the inspector to look at, measure and check: seven programs in light, in dark and on a phone.

    python -m tools.gallery build/gallery [--only heat] [--axe axe.min.js] [--pictures] [--record record.json]

Every view of every page is opened in Chromium.  The record has the console's errors, what axe-core finds
(serious and critical rules; the file is that of the npm package axe-core, or of a Python package that
carries it), whether anything is wider than a phone, and the browser's counters: elements, layouts, and
processor seconds of the tab until the page was ready and for a frame.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.browser import Browser, Page

ROOT = Path(__file__).parent.parent
HEAD = "import numpy as np\nimport tessera as ts\nfrom tessera import KTile, block, dist, f32, kernel, nn, op, tile\n"  # noqa: E501
LARGE = """
rng = np.random.default_rng(0)

def weights(*shape):
    return ts.tensor(rng.normal(size=shape).astype(np.float32) / 4)

def attention(x, p):
    return op.softmax(x @ p["q"] @ x.mT) @ x

def mlp(x, p):
    return op.gelu(x @ p["u"]) @ p["d"]

def model(ps, x):
    for p in ps:
        x = x + attention(op.layernorm(x), p)
        x = x + mlp(op.layernorm(x), p)
    return op.mean(x * x)

if __name__ == "__main__":
    ps = [{"q": weights(8, 8), "u": weights(8, 16), "d": weights(16, 8)} for _ in range(175)]
    ts.jit(ts.value_and_grad(model)).inspect(ps, weights(4, 8), path=PATH)
"""
KERNEL = """
@kernel.schedule(block(8))
def geglu_norm(x: KTile["M", "D"], a: KTile["M", "D"], b: KTile["M", "D"], gain: KTile["D"]):
    t = tile.load(a)
    z = tile.load(x) + 0.5 * t * (1 + tile.erf(t * 0.70710678)) * tile.load(b)
    rate = tile.rsqrt(tile.mean(z * z, axis=1) + 1e-6)
    return z * rate[:, None] * tile.load(gain)

if __name__ == "__main__":
    r = np.random.default_rng(0)
    x, a, b = r.normal(size=(3, 1024, 256)).astype(np.float32)
    geglu_norm(x, a, b, np.ones(256, np.float32))
"""
HEAT = """
N, DT = 128, 0.2

def laplacian(u):
    return op.roll(u, 1, 0) + op.roll(u, -1, 0) + op.roll(u, 1, 1) + op.roll(u, -1, 1) - 4 * u

@ts.jit
def solve(u):
    def going(c):
        u, change, turns = c
        return (change > 1e-4) & (turns < 200)

    def turn(c):
        u, _, turns = c
        new = u + DT * laplacian(u)
        return new, op.max(op.abs(new - u)), turns + 1

    return ts.while_loop(going, turn, (u, ts.tensor(1.0), ts.tensor(0)))

@ts.jit
def steady(f):
    blur = op.circulant(f)
    return (blur + 0.5 * op.eye(N)).solve(f)

if __name__ == "__main__":
    x = np.linspace(0, 1, N, dtype=np.float32)
    u = ts.watch(ts.tensor(np.exp(-40 * ((x[:, None] - 0.5) ** 2 + (x[None] - 0.5) ** 2))), "start")
    ts.watch(solve(u)[0], "end")
    steady(ts.tensor(np.exp(-x)))
"""
LAYER = """
@ts.jit
def layer(x: ts.Tensor[4096, 1024, ts.bf16], w: ts.Tensor[1024, 4096, ts.bf16], v: ts.Tensor[4096, 1024, ts.bf16]):
    return op.softmax(op.gelu(x @ w) @ v)
"""  # noqa: E501
RANKS = """
mesh = dist.Mesh(axes=["dp"], shape=(2,))
rng = np.random.default_rng(0)
x = dist.tensor(rng.normal(size=(256, 128)).astype(np.float32), dist.ShardSpec((0,), ("dp",)), mesh)
w = ts.tensor(rng.normal(size=(128, 64)).astype(np.float32))

@ts.jit
def step(x, w):
    return w - 0.1 * ts.grad(lambda w: op.mean(op.square(op.tanh(x @ w))))(w)

for _ in range(12):
    w = step(x, w)
"""
# By name: the program, and the command that makes its page; demo is the one of `make demo`.
PROGRAMS = {
    "demo": ("", ["inspect", str(ROOT / "examples/gpt.py"), "--out", "{page}", "--", "--steps", "3",
    "--sample", "8"]),
    "large": (LARGE, []),
    "kernel": (KERNEL, ["inspect", "{file}", "--out", "{page}"]),
    "heat": (HEAT, ["inspect", "{file}", "--out", "{page}"]),
    "gpu": (LAYER, ["inspect", "{file}:layer", "--gpu", "sm_90", "--out", "{page}"]),
    "ranks": (RANKS, ["run", "-n", "2", "--timeline", "{page}", "{file}"]),
    "comparison": (HEAT, ["inspect", "{file}", "--compare", "{before}", "--out", "{page}"]),
}  # fmt: skip


def make(name: str, folder: Path) -> Path:
    """The page of a program; one that is there already is kept."""
    text, command = PROGRAMS[name]
    page, file, before = (folder / f"{name}{end}" for end in (".html", ".py", "_before.py"))
    if page.exists():
        return page
    where = {"page": str(page), "file": str(file), "before": str(before)}
    file.write_text(HEAD + text.replace("PATH", repr(str(page))))
    before.write_text(HEAD + text.replace("laplacian(u)\n        return new",
        "laplacian(op.cumsum(u, 0))\n        return new"))  # fmt: skip
    argv = ["-m", "tessera.cli", *(x.format(**where) for x in command)] if command else [str(file)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *argv], cwd=folder, env=env, check=True)
    return page


AXE = """(async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  return found.violations.filter(x => /serious|critical/.test(x.impact)).map(x => `${x.id}: ${x.nodes.length} times, ${x.nodes[0].html.slice(0, 120)}`);
})()"""  # noqa: E501
VIEWS = """typeof views === "undefined" ? [""] : Object.keys(views)"""
# What somebody does with a large graph: from a group to all ops, from afar to near, along it, and a
# selection.
MOVES = {
    "open the graph": 'show("picture")',
    "open a group": '$$("#picture [data-group]")[3] && picture.open(3)',
    "all ops": 'picture.use("all")',
    **{f"zoom out {i}": "picture.zoom(.5)" for i in range(1, 11)},
    **{f"zoom in {i}": "picture.zoom(2)" for i in range(1, 11)},
    **{f"drag {i}": "picture.tx -= 200; picture.ty -= 300; picture.draw()" for i in range(1, 6)},
    "select": "select(ofNode(NODES.length - 1))",
    "search": 'search.value = "mat"; find()',
    "levels": 'show("levels")',
    "steps": 'show("steps")',
    "memory": 'show("memory")',
    "zoom memory": "memory.zoom(2)",
    "timeline": 'show("timeline")',
    "zoom timeline": "timeline.zoom(2)",
    "roofline": 'show("roofline")',
    "kernel": 'show("kernel")',
    "next op": "step(1)",
}  # fmt: skip


def opened(p: Page) -> dict[str, float]:
    """The work of opening a page: the browser's counters, and its own clock for the first paint."""
    c = p.counters()
    paint = p.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1")
    ready = p.evaluate("+document.documentElement.dataset.ready || performance.now()")
    return {"nodes": c["Nodes"], "layouts": c["LayoutCount"], "cpu_ms": 1e3 * c["ThreadTime"],
        "script_ms": 1e3 * c["ScriptDuration"],
            "layout_ms": 1e3 * (c["LayoutDuration"] + c["RecalcStyleDuration"]), "first_paint_ms": paint,
            "ready_ms": ready}  # fmt: skip


def moved(p: Page) -> dict[str, dict[str, float]]:
    """The work of each move until its frame was drawn: processor time of the tab's thread, layouts and
    elements.
    """
    out = {}
    for name, script in MOVES.items():
        a = p.counters()
        p.evaluate(f"{{{script}}}")
        p.frame()
        b = p.counters()
        out[name] = {"cpu_ms": round(1e3 * (b["ThreadTime"] - a["ThreadTime"]), 1),
            "layouts": b["LayoutCount"] - a["LayoutCount"],
                     "elements": p.evaluate("document.querySelectorAll('*').length")}  # fmt: skip
    return out


def looked_at(b: Browser, page: Path, axe: str, pictures: bool) -> dict[str, Any]:
    """What is wrong with a page in light, in dark and on a phone, view by view."""
    found: dict[str, Any] = {"console": [], "axe": [], "wide": []}
    for kind, width, height, dark in (("light", 1400, 900, False), ("dark", 1400, 900, True),
        ("phone", 390, 844, False)):  # fmt: skip
        with b.page(page, width, height, dark) as p:
            if kind == "light":
                found["open"] = opened(p)
            if axe:
                p.evaluate(axe + "; 0")
            for view in p.evaluate(VIEWS):
                if view:
                    p.evaluate(f"show({view!r})")
                    p.frame()
                wide = p.evaluate("document.documentElement.scrollWidth - innerWidth")
                if wide > 0:
                    found["wide"].append(f"{kind} {view}: {wide}")
                if pictures:
                    p.screenshot(page.with_name(f"{page.stem}-{view or 'page'}-{kind}.png"))
                if axe:
                    found["axe"] += [f"{kind} {view}: {x}" for x in p.evaluate(AXE)]
            found["console"] += [f"{kind}: {x}" for x in p.console]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=PROGRAMS)
    parser.add_argument("--axe", type=Path, help="axe.min.js")
    parser.add_argument("--pictures", action="store_true", help="write a PNG of every view")
    parser.add_argument("--record", type=Path, help="write what was found as JSON")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    axe = given.axe.read_text() if given.axe else ""
    found = {}
    with Browser() as b:
        for name in given.only or PROGRAMS:
            page = make(name, given.folder.absolute())
            found[name] = {"bytes": page.stat().st_size} | looked_at(b, page, axe, given.pictures)
            if name == "large":
                with b.page(page) as p:
                    found[name]["moves"] = moved(p)
            print(name, json.dumps(found[name], indent=1), flush=True)
    if given.record:
        given.record.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
