"""tessera run --timeline: when the ranks of a run computed and exchanged, as they measured it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tessera import cli
from tests.inspect.test_inspect import browse

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PROGRAM = """
import numpy as np
import tessera as ts
from tessera import dist, op

mesh = dist.Mesh(axes=["dp"], shape=(2,))
x = dist.tensor(np.ones((8, 4), np.float32), dist.ShardSpec((0,), ("dp",)), mesh)
w = ts.ones((4, 2))

@ts.jit
def step(x, w):
    return w - 0.1 * ts.grad(lambda w: op.mean(op.square(x @ w)))(w)

for _ in range(3):
    w = step(x, w)
"""


def run(folder: Path, text: str, *options: str) -> tuple[int, str]:
    (folder / "two.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "run", *options, str(folder / "two.py")],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    out = folder / "ranks.html"
    status, said = run(folder, PROGRAM, "-n", "2", "--timeline", str(out))
    assert (status, said) == (0, f"{out} shows the ranks\n")
    return out


def test_each_rank_has_its_programs_and_exchanges_on_one_clock(page: Path) -> None:
    data = data_of(page)
    assert data["title"] == "two.py"
    assert [r["rank"] for r in data["ranks"]] == [0, 1]
    for r in data["ranks"]:
        assert [s[0] for s in r["programs"]] == ["step"] * 3
        assert len(r["exchanges"]) >= 3
        assert all(s[0].startswith("all_reduce") and s[3] > 0 and s[4] == 2 for s in r["exchanges"])
        assert any(s[0].startswith("compile") for s in r["builds"])
        assert r["left"] == 0
        spans = [*r["programs"], *r["exchanges"], *r["builds"]]
        assert all(0 <= r["begin"] <= s[1] <= s[2] <= r["end"] for s in spans)
        for _, begin, end, *_ in r["exchanges"]:  # inside of the program that exchanges
            assert any(p[1] <= begin and end <= p[2] for p in r["programs"])
    # Both ranks take part in each exchange: none ends before the other has begun it.
    for one, other in zip(*(r["exchanges"] for r in data["ranks"]), strict=True):
        assert one[1] <= other[2]
        assert other[1] <= one[2]


def test_a_run_that_fails_shows_what_it_did(tmp_path: Path) -> None:
    out = tmp_path / "ranks.html"
    status, said = run(tmp_path, PROGRAM + "\nraise ValueError('mine')\n", "-n", "2", "--timeline",
        str(out))  # fmt: skip
    assert status != 0
    assert "mine" in said
    assert len(data_of(out)["ranks"][0]["programs"]) == 3


def test_wrong_options_say_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    for options in (["-n", "1"], ["-n", "2", "--engine", "mpi"], ["-n", "2", "--restart"]):
        assert cli.main(["run", "--timeline", "x.html", *options, "--", "a.py"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "--timeline shows the ranks of one run on this machine: give -n 2 or more" in said
    assert cli.main(["run", "-n", "2", "--timeline", "/nowhere/x.html", "a.py"]) == 1
    assert "there is no folder /nowhere" in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_the_ranks_are_drawn(page: Path, tmp_path: Path) -> None:
    script = """
const out = {failures, spans: document.querySelectorAll(".span").length, labels: [...document.querySelectorAll("#line > text")].map(e => e.textContent).filter(x => x.startsWith("rank")), rows: document.querySelectorAll("#ranks tr").length, kinds: document.querySelector("#kinds").textContent};
const wide = b - a; zoom(4); out.zoomed = (b - a) / wide; pan(-30); out.inside = a >= from && b <= wall; document.querySelector("[data-zoom='0']").click(); out.whole = b - a === wide;
const theme = document.documentElement.dataset.theme; document.querySelector("#theme").click(); out.flipped = theme !== document.documentElement.dataset.theme; out.wide = document.documentElement.scrollWidth <= innerWidth; return out;"""  # noqa: E501
    out = browse(page.read_text(), tmp_path, script, "--window-size=500,900")
    assert out["failures"] == []
    assert out["labels"] == ["rank 0", "rank 1"]
    assert out["spans"] >= 4
    assert out["rows"] == 3
    assert "all_reduce" in out["kinds"]
    assert out["zoomed"] == pytest.approx(0.25)
    assert out["inside"]
    assert out["whole"]
    assert out["flipped"]
    assert out["wide"]
