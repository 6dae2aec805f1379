"""ts.log and the dashboard: curves of bounded length, throughput, memory, samples; terminal, page and
files.
"""

from __future__ import annotations

import json
import math
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import cli, op, train
from tessera.core.errors import OperandError
from tessera.train import history
from tessera.train.board_page import Board
from tessera.train.dashboard import _OPEN, _step
from tessera.train.history import POINTS, Curve, History
from tessera.train.screen import line, plotted, screen, size, span
from tests.inspect.test_inspect import browse

RUNS_ON = "numpy"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def board(**options: Any) -> train.Dashboard:
    return train.Dashboard("test", **{"terminal": False, "clock": Clock(), **options})


@pytest.mark.parametrize("count", [1, POINTS, POINTS + 1, 5 * POINTS + 7])
def test_a_long_curve_keeps_its_mean_and_its_extremes(count: int) -> None:
    rng, curve = np.random.default_rng(count), Curve()
    values = rng.normal(size=count)
    for i, v in enumerate(values):
        curve.add(i, float(i), float(v))
    points = curve.points
    assert len(points) <= POINTS
    assert sum(p.count for p in points) == count
    assert sum(p.total for p in points) == pytest.approx(values.sum())
    assert (min(p.low for p in points), max(p.high for p in points)) == (values.min(), values.max())
    assert [p.step for p in points] == sorted({p.step for p in points})
    assert points[-1].step == count - 1
    assert curve.best == (values.min(), int(values.argmin()))


def test_values_that_are_not_finite_are_told_and_not_drawn() -> None:
    curve = Curve()
    for i, v in enumerate((1.0, math.nan, math.inf, 2.0)):
        curve.add(i, 0.0, v)
    assert (curve.broken, [p.mean for p in curve.points], curve.last) == (1, [1.0, 2.0], 2.0)
    curve.add(4, 0.0, math.nan)
    assert curve.data()["last"] == "nan"
    assert json.loads(json.dumps(curve.data(), allow_nan=False))["broken"] == 1


def test_a_step_ends_when_a_name_comes_again() -> None:
    with board() as b:
        for i in range(3):
            ts.log(loss=1.0 / (i + 1))
            ts.log({"accuracy": i}, text=f"sample {i}")
        ts.log(step=10, loss=0)
    data = b.history.data()
    assert [p[0] for p in data["curves"]["loss"]["points"]] == [1, 2, 3, 10]
    assert [p[0] for p in data["curves"]["accuracy"]["points"]] == [1, 2, 3]
    assert [s["step"] for s in data["samples"]["text"]] == [1, 2, 3]
    assert (data["step"], data["ended"]) == (10, True)


def test_throughput_and_memory_are_measured_twice_a_second() -> None:
    clock = Clock()
    with board(clock=clock, steps=100) as b:
        for _ in range(20):
            clock.now += 0.1
            ts.log(loss=1.0, items=64)
    steps, items = b.history.machine["steps"], b.history.machine["items"]
    assert [p.mean for p in steps.points] == pytest.approx([10.0] * len(steps.points))
    assert [p.mean for p in items.points] == pytest.approx([640.0] * len(items.points))
    assert len(steps.points) in (3, 4)  # 2 seconds in halves, but for the last bit of each sum
    assert b.history.machine["memory of the process"].last > 1e6


def test_what_can_be_logged() -> None:
    narrow = ts.tensor([0.5], dtype=ts.bf16)[0]
    with board() as b:
        ts.log(
            a=1,
            b=2.5,
            c=np.float32(3),
            d=ts.tensor(4.0),
            e=True,
            f=narrow,
            g=op.mean(ts.ones((3,))),
        )
        ts.log(grey=np.eye(4), colour=ts.ones((2, 3, 3)), text="<b>", step=1)
    assert {k: c.last for k, c in b.history.curves.items()} == {
        "a": 1, "b": 2.5, "c": 3, "d": 4, "e": 1, "f": 0.5, "g": 1,
    }  # fmt: skip
    samples = {k: v[0] for k, v in b.history.samples.items()}
    assert samples["grey"].image.startswith("data:image/png;base64,iVBORw0KGgo")
    assert samples["colour"].image.startswith("data:image/png;base64,iVBORw0KGgo")
    assert samples["text"].text == "<b>"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ts.log(), "log: nothing is given; write ts.log(loss=loss)"),
        (lambda: ts.log(3.0), "log: got float 3.0, expected names with values, as in ts.log(loss=loss) or "
                              "ts.log({'loss': loss})"),
        (lambda: ts.log({3: 1.0}), "log: 3 is no name, expected a string such as 'loss'"),
        (lambda: ts.log(loss=ts.ones((8,))),
        "log: loss is of shape (8,), expected a number (op.mean(x) makes one), a text, or an image of "
        "(rows, columns) or (rows, columns, 3)"),
        (lambda: ts.log(loss=None),
        "log: loss is NoneType None, expected a number (op.mean(x) makes one), a text, or an image of "
        "(rows, columns) or (rows, columns, 3)"),
        (lambda: ts.log(loss=[[1.0], 2.0]),
        "log: loss is list [[1.0], 2.0], expected a number (op.mean(x) makes one), a text, or an image of "
        "(rows, columns) or (rows, columns, 3)"),
        (lambda: ts.log(x=np.ones((2000, 2))),
        "log: x is an image of 2000 x 2, expected 1 to 1024 on each side"),
        (lambda: ts.log(loss=1.0, step=-1), "log: step is -1, expected an integer of 0 or more"),
        (lambda: ts.log(loss=1.0, step=1), "log: step is 1 after step 5; steps go up"),
        (lambda: ts.log(loss=1.0, items=2.5),
        "log: items is 2.5, expected how many examples or tokens the step took"),
        (lambda: train.Dashboard(port=70000),
        "Dashboard: port is 70000, expected 0 to 65535 (0 takes any that is free), or None for no page"),
        (lambda: train.Dashboard(steps=-1), "Dashboard: steps is -1, expected how many there will be"),
        (lambda: train.Dashboard(3), "Dashboard: name is int, expected a string"),
        (lambda: train.Dashboard(file="x.csv"),
        "Dashboard: file is 'x.csv', expected a name that ends in .html; train.CSV and train.JSONLines "
        "write tables"),
        (lambda: _OPEN[-1].open(0), "Dashboard: it is open already; make one for each run"),
        (lambda: train.Dashboard(prot=1),
        "Dashboard: got an unexpected keyword argument 'prot'; use 'port'; it takes (name='', port=None, "
        "file=None, terminal=None, steps=None, clock=monotonic)"),
    ],
)  # fmt: skip
def test_wrong_calls_say_what_to_write(call: Any, message: str) -> None:
    with board() as b:
        ts.log(step=5, before=1.0)
        with pytest.raises(OperandError) as e:
            call()
        assert e.value.message == message
        assert e.value.location is not None
        assert e.value.location.file == __file__
    assert set(b.history.curves) == {"before"}
    with pytest.raises(OperandError, match="it was closed; make one for each run"):
        b.open(0)


def test_inside_jit_values_are_logged_each_time_the_program_runs() -> None:
    @ts.jit
    def f(x: Any) -> Any:
        y = op.sum(x * x)
        ts.log(norm=y.astype(ts.bf16))
        return y

    with board() as b:
        for i in range(1, 4):
            f(ts.full((2,), float(i)))
    assert [(p.step, p.mean) for p in b.history.curves["norm"].points] == [(1, 2.0), (2, 8.0),
        (3, 18.0)]  # fmt: skip


def test_fit_writes_to_a_dashboard_and_so_does_ts_log_in_its_step(tmp_path: Path) -> None:
    def step(state: Any, batch: Any, key: Any) -> Any:
        ts.log(step=state + 1, inner=float(batch))
        return state + 1, {"loss": 1.0 / (state + 1)}

    b = board(file=tmp_path / "page.html")
    train.fit(step, 0, float, 4, loggers=[b], progress=True)
    assert [p.step for p in b.history.curves["loss"].points] == [1, 2, 3, 4]
    assert [p.mean for p in b.history.curves["inner"].points] == [0.0, 1.0, 2.0, 3.0]
    assert (b.history.total, b.history.ended) == (4, True)
    assert '"name":"test"' in (tmp_path / "page.html").read_text()
    assert _OPEN == []


def test_the_terminal_shows_progress_curves_and_samples() -> None:
    clock = Clock()
    run = History("gpt", clock)
    run.total = 200
    for i in range(1, 101):
        clock.now += 0.25
        run.add(i, {"loss": 1.0 / i}, {})
    lines = screen(run, 60).splitlines()
    assert lines[0].startswith("gpt  100/200 ━━━━━━━━────────  50%  4 steps/s  25s left")
    assert lines[1].startswith("loss 0.01 ")
    assert lines[2].startswith("min 0.01 ")
    assert len(lines) == 5
    assert all(len(x) <= 60 for x in lines)
    assert line(run).endswith("loss 0.01")
    run.add(101, {"loss": math.nan}, {})
    assert "not finite at 101" in screen(run, 80)
    assert (size(999), size(3 << 20), span(59), span(61), span(3700)) == (
        "999 B", "3 MiB", "59s", "1m01s", "1h01m",
    )  # fmt: skip


def test_dots_go_from_the_bottom_to_the_top() -> None:
    up = Curve()
    for i in range(8):
        up.add(i, 0.0, float(i))
    assert plotted(up, 4, 2) == ["⠀⠀⡠⠊", "⡠⠊⠀⠀"]
    assert plotted(Curve(), 4, 2) == ["", ""]


def test_without_a_terminal_a_line_is_written_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with board(terminal=None, clock=clock):
        for i in range(25):
            clock.now = i
            ts.log(loss=float(i))
    lines = capsys.readouterr().err.splitlines()
    assert [x.split()[1] for x in lines] == ["step"] * len(lines)
    assert [x.split()[2] for x in lines] == ["11", "21", "25"]


def get(address: str, **headers: str) -> str:
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_the_page_is_served_to_this_machine_and_told_of_news(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with board(port=0) as b:
        assert b.address is not None
        ts.log(loss=0.5)
        assert '"live":true' in get(b.address)
        assert "connect-src 'self'" in get(b.address)
        with urllib.request.urlopen(b.address + "events", timeout=60) as stream:
            assert stream.readline().startswith(b"data: ")
            ts.log(loss=0.25)
            told = [stream.readline() for _ in range(2)]
            assert told[1].startswith(b"data: ")
        assert json.loads(get(b.address + "data"))[0]["curves"]["loss"]["last"] == 0.25
        for path, headers, status in (("x", {}, "404"), ("", {"Host": "evil.example:80"}, "403")):
            with pytest.raises(urllib.error.HTTPError, match=status):
                get(b.address + path, **headers)
    with pytest.raises(OSError, match="refused"):
        get(b.address or "")
    assert capsys.readouterr().err == f"{b.address} shows the run\n"


def test_news_are_told_at_once_and_so_is_the_end() -> None:
    """No wait here ends by its time: it has an hour, and is given up after a minute."""
    run = History("run", Clock())
    b = Board(lambda: [run], 0)

    def told(than: int, then: Callable[[], object]) -> int | None:
        found: list[int | None] = []
        waiting = threading.Thread(target=lambda: found.append(b.newer(than, 3600)), daemon=True)
        waiting.start()
        then()
        waiting.join(60)
        assert found, f"nothing was told after version {than}"
        return found[0]

    assert told(-1, lambda: None) == run.version
    assert told(run.version, lambda: run.add(1, {"loss": 0.5}, {})) == run.version
    b._ended.set()
    assert told(run.version, lambda: None) is None
    b._server.server_close()


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            OperandError, match=f"Dashboard: port {port} of 127.0.0.1 cannot be had"
        ):
            board(port=port).open(0)
    assert _OPEN == []


def test_loggers_that_were_opened_are_closed_when_another_fails(tmp_path: Path) -> None:
    b, table = board(), train.CSV(tmp_path / "folder" / "x.csv")
    (tmp_path / "folder").write_text("a file")
    with pytest.raises(OSError, match="folder"):
        train.fit(lambda s, b, k: (s, {}), 0, float, 1, loggers=[b, table])
    assert _OPEN == []


# Files of runs --------------------------------------------------------------------------------------


def test_the_command_shows_files_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, lines = train.CSV(tmp_path / "a.csv"), train.JSONLines(tmp_path / "b.jsonl")
    for logger in (table, lines):
        logger.open(0)
        for i in range(1, 6):
            logger.write(i, {"loss": 1.0 / i if i < 5 else math.inf})
        logger.close()
    with (tmp_path / "b.jsonl").open("a") as f:
        f.write('{"step": 6, "lo')  # a line that is being written
    out = tmp_path / "page.html"
    argv = ["dashboard", str(tmp_path / "a.csv"), str(tmp_path / "b.jsonl"), "--out", str(out)]
    assert cli.main(argv) == 0
    text = out.read_text().split('id="data">')[1].split("</script>")[0]
    runs = json.loads(text)["runs"]
    assert [r["name"] for r in runs] == ["a.csv", "b.jsonl"]
    assert all(
        [p[2] for p in r["curves"]["loss"]["points"]] == [1, 1 / 2, 1 / 3, 1 / 4] for r in runs
    )
    assert all(r["curves"]["loss"]["broken"] == 5 for r in runs)
    (tmp_path / "c.csv").write_text("step,loss\nx,1\n")
    capsys.readouterr()
    for files, status, message in (
        (["nowhere.csv"], 1, "dashboard: cannot read nowhere.csv: No such file or directory"),
        (["x.txt"], 2, "x.txt is no file of metrics, expected one that ends in .csv (train.CSV) or .jsonl"),
        (["a.csv", "a.csv"], 2, "a.csv is given twice"),
        ([str(tmp_path / "c.csv")], 1, "c.csv is {'step': 'x', 'loss': '1'}, expected a step and numbers"),
    ):  # fmt: skip
        assert cli.main(["dashboard", *files]) == status
        assert message in " ".join(capsys.readouterr().err.split())


# In a browser ---------------------------------------------------------------------------------------

LOOK = """
const out = {failures, title: document.title, state: $("#state").textContent};
out.cards = $$(".card h2").map(e => e.textContent); out.lines = $$(".line").length; out.images = $$(".sample img").length;
out.text = $(".sample pre").textContent; out.broken = $$(".bad").map(e => e.textContent); out.figures = $("#figures").textContent;
const e = $(".card svg"), box = e.getBoundingClientRect(); e.dispatchEvent(new PointerEvent("pointermove", {clientX: box.right - 9, bubbles: true})); out.at = $(".at").textContent;
$("#log").checked = true; $("#log").onchange({target: $("#log")}); out.logarithmic = $$(".linear").length;
$("#across").value = "1"; $("#across").onchange({target: $("#across")}); $("#smooth").value = "0.9"; $("#smooth").oninput({target: $("#smooth")}); out.again = $$("path.line").length;
const theme = document.documentElement.dataset.theme; $("#theme").click(); out.flipped = theme !== document.documentElement.dataset.theme;
out.wide = document.documentElement.scrollWidth <= innerWidth; return out;"""  # noqa: E501


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_in_a_browser_the_saved_page_shows_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "memory_in_use", dict)  # fakes of other tests may hold a device
    clock = Clock()
    with board(clock=clock, steps=100, file=tmp_path / "page.html"):
        for i in range(1, 51):
            clock.now += 0.2
            ts.log(loss=1.0 / i, change=math.nan if i == 9 else math.sin(i), items=32)
        ts.log(picture=np.eye(8), text="<script>told</script>", step=50)
    out = browse((tmp_path / "page.html").read_text(), tmp_path, LOOK, "--window-size=500,900")
    assert out["failures"] == []
    assert (out["title"], out["state"]) == ("test · Tessera dashboard", "ended")
    assert out["cards"] == ["loss", "change", "steps", "items", "memory of the process", "picture",
        "text"]  # fmt: skip
    assert (out["lines"], out["images"], out["again"]) == (5, 1, 5)
    assert out["text"] == "<script>told</script>"
    assert out["broken"] == ["not finite since step 9"]
    assert "step 50 of 100" in out["figures"]
    assert "5 steps/s" in out["figures"]
    assert out["at"].startswith("step 50")
    assert "0.02" in out["at"]
    assert out["logarithmic"] == 1  # sines are not positive
    assert out["flipped"]
    assert out["wide"]


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_follows_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    asked, come = [], threading.Event()
    told = Board.data

    def data(self: Board) -> Any:
        found = told(self)
        asked.append(found[0]["step"])
        come.set()
        return found

    monkeypatch.setattr(Board, "data", data)
    with board(port=0) as b:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--remote-debugging-port=0"]  # fmt: skip
        browser = subprocess.Popen(
            [str(BROWSER), *flags, f"--user-data-dir={tmp_path / 'profile'}", str(b.address)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for i in (1, 2, 3):
                while i - 1 not in asked:
                    come.clear()
                    assert i - 1 in asked or come.wait(60)
                ts.log(loss=1.0, step=i)
            while 3 not in asked:
                come.clear()
                assert 3 in asked or come.wait(60)
        finally:
            browser.terminate()
            browser.wait(60)


def test_values_are_of_the_next_step_when_one_of_their_names_comes_again():
    run = History("run", lambda: 0.0)
    at = []
    for given in (
        {"a": 1.0},
        {"b": 2.0},
        {"a": 3.0, "c": 1.0},
        {"b": 1.0, "d": 2.0},
        {"d": 5.0, "e": 1.0},
    ):
        step = _step(run, given, None)
        run.add(step, given, {})
        at.append(step)
    first = at[0]
    assert at == [first, first, first + 1, first + 1, first + 2]
