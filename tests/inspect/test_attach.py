"""A running process is looked at from outside, and the timeline of a profile has threads, streams,
devices and copies.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tessera as ts
from tessera import cli, op
from tessera.core.errors import OperandError
from tessera.inspect.attach import attachable, attached
from tessera.inspect.page_compare import programs_in
from tessera.inspect.profile import profile
from tessera.inspect.profile_rows import TimeSpan
from tessera.inspect.profile_tracks import tracks_of, tracks_page
from tools.browser import BROWSER, Browser

ROOT = Path(__file__).parents[2]
# It compiles, says so, and goes on until it is told to end.
RUNNING = """
import sys
import tessera as ts
from tessera import op

@ts.jit
def layer(x):
    return op.softmax(x @ x)

layer(ts.ones((8, 8)))
print("compiled", flush=True)
sys.stdin.readline()
print("ended", float(layer(ts.ones((8, 8)))[0, 0]), flush=True)
"""


def test_a_process_that_runs_is_looked_at(tmp_path: Path,
    capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    (tmp_path / "running.py").write_text(RUNNING)
    with subprocess.Popen(
        [sys.executable, "-m", "tessera.cli", "run", "--inspect", "0", str(tmp_path / "running.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stdin
        assert running.stdout
        assert running.stderr
        try:
            said = re.match(r"http://127.0.0.1:(\d+)/ shows what", running.stderr.readline())
            assert said
            assert running.stdout.readline() == "compiled\n"
            out = tmp_path / "attached.html"
            assert cli.main(["inspect", "--attach", said[1], "--out", str(out)]) == 0
            again, *_ = programs_in(attached(int(said[1])), "again")
        finally:
            rest, _ = running.communicate("\n", timeout=120)
    assert rest.startswith("ended 0.125")
    assert capsys.readouterr().out.strip() == str(out)
    (data, _), *_ = programs_in(out.read_text(), "attached")
    assert [(c["name"], c["why"]) for c in data["run"]["compilations"]] == [("layer", "first call")]
    assert again[0]["steps"][0]["label"] == data["steps"][0]["label"]


def test_what_cannot_be_attached_to_says_so(tmp_path: Path) -> None:
    with attachable(0, "here") as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(OperandError, match="here compiled nothing for this machine"):
            attached(port)
        with (
            pytest.raises(OperandError, match=f"port {port} of 127.0.0.1 cannot be had"),
            attachable(port, "twice"),
        ):
            pass
    with pytest.raises(OperandError, match=f"no process listens at port {port}; start it as"):
        attached(port)
    assert cli.main(["inspect", "--attach", "1", "file.py"]) == 2
    assert cli.main(["inspect"]) == 2
    assert cli.main(["run", "-n", "2", "--inspect", "0", "file.py"]) == 2


# The timeline


def test_tracks_are_threads_streams_and_devices_with_copies() -> None:
    spans = [
        TimeSpan("call", "step", 0, 100, 0, ()), TimeSpan("program", "step", 10, 90, 0, ()),
        TimeSpan("kernel", "a", 10, 40, 0, ()),
        TimeSpan("kernel", "b", 40, 80, 0, ()), TimeSpan("program", "other", 5, 60, 1, ()),
        TimeSpan("kernel", "step_0", 20, 50, 2, (), device="cuda:0"),
        TimeSpan("copy", "x", 25, 45, 3, (), device="cuda:0 to device"),
    ]  # fmt: skip
    tracks, left = tracks_of(spans)
    assert [t["name"] for t in tracks] == ["main", "thread 1", "cuda:0", "cuda:0 to device"]
    assert [s[4] for s in tracks[0]["spans"]] == [0, 1, 2, 2]
    assert tracks[3]["spans"] == [["copy", "x", 25, 45, 0]]
    assert left == 0
    assert "</script><b>" not in tracks_page([TimeSpan("call", "</script><b>", 0, 1, 0, ())], "<b>")


def test_streams_have_tracks_of_their_own() -> None:
    f = ts.jit(lambda x: op.softmax(x @ x))
    x = ts.ones((16, 16))
    f(x)
    with profile() as p:
        with ts.Stream() as s:
            y = f(x)
        f(x)
        s.synchronize()
        assert y.shape == (16, 16)
    tracks, _ = tracks_of(p.spans)
    busy = [t["name"] for t in tracks if any(s[0] == "program" for s in t["spans"])]
    assert "main" in busy
    assert len(busy) == 2


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_timeline_opens_in_a_browser(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text(RUNNING.replace("sys.stdin.readline()", ""))
    out = tmp_path / "timeline.html"
    assert cli.main(["profile", str(tmp_path / "f.py"), "--timeline", str(out)]) == 0
    for width in (1200, 390):
        with Browser() as b, b.page(out, width) as p:
            # How wide a span is depends on the clock: a thin one is part of a path.
            assert p.evaluate("T.flatMap(t => t.spans).length") > 3
            assert p.evaluate("document.querySelectorAll('#line g, #line path[fill]').length") > 0
            p.evaluate("zoom(4)")
            assert p.evaluate("b - a < wall / 3")
            assert p.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert p.console == []
