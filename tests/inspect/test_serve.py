"""The page that is served: made again on a change, told to browsers, ended by Ctrl-C without a trace."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from tessera import cli
from tessera.core.errors import OperandError
from tessera.inspect.serve import HOST, Live, PageError

ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PAGE = """<!DOCTYPE html><head><meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'"></head><body>%s</body>"""  # noqa: E501


class Source:
    """What a page shows: a text that can be changed, and be wrong."""

    def __init__(self):
        self.text, self.asked = "one", 0

    def make(self):
        if self.text == "wrong":
            raise PageError("error: <wrong>")
        return PAGE % self.text

    def state(self):
        return self.text


@contextmanager
def served(source):
    live, stop = Live(source.make, source.state, 0), threading.Event()
    made = threading.Semaphore(0)
    thread = threading.Thread(target=live.run, args=(made.release, stop))
    thread.start()
    assert made.acquire(timeout=60)
    try:
        yield live, made
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def get(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


def test_a_name_that_is_made_to_lead_here_is_refused():
    with served(Source()) as (live, _):
        request = urllib.request.Request(live.address, headers={"Host": "evil.example:80"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=60)


def test_a_browser_is_told_what_it_gets():
    with served(Source()) as (live, _):
        with urllib.request.urlopen(live.address, timeout=60) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert answer.headers["Cache-Control"] == "no-store"
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            get(live.address + "other")
        with caught.value as refused:
            assert refused.headers["Content-Type"] == "text/plain"


def test_a_change_is_told_and_errors_are_shown_until_they_are_gone(capsys):
    source = Source()
    with served(source) as (live, made):
        assert "<body>one<script>" in get(live.address)
        assert "default-src 'none'; connect-src 'self';" in get(live.address)
        with urllib.request.urlopen(live.address + "changes", timeout=60) as stream:
            assert stream.headers["Content-Type"] == "text/event-stream"
            assert stream.readline() == b"data: 1\n"
            source.text = "wrong"
            assert made.acquire(timeout=60)
            assert [stream.readline(), stream.readline()] == [b"\n", b"data: 2\n"]
        assert "&lt;wrong&gt;" in get(live.address)
        assert 'data !== "2"' in get(live.address)
        source.text = "two"
        assert made.acquire(timeout=60)
        assert "<body>two<script>" in get(live.address)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(live.address + "other")
    assert capsys.readouterr().err == "error: <wrong>\n"
    with pytest.raises(OSError, match="refused"):
        get(live.address)


def test_a_browser_that_is_closed_is_no_error(capfd):
    source = Source()
    with served(source) as (live, made):
        port = live.server.server_address[1]
        for _ in range(3):
            with socket.create_connection((HOST, port)) as s:
                s.sendall(b"GET /changes HTTP/1.0\r\n\r\n")
                s.recv(100)
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        for text in ("two", "three", "four"):
            source.text = text
            assert made.acquire(timeout=60)
        assert "<body>four" in get(live.address)
    assert capfd.readouterr().err == ""


def test_a_port_that_cannot_be_had():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OperandError) as e:
            Live(lambda: "", lambda: 0, port)
        assert e.value.message == (
            f"inspect: port {port} of {HOST} cannot be had (Address already in use); "
            "name another with --port, or 0 for any that is free"
        )
    with pytest.raises(OperandError, match="inspect: 99999 is no port, expected 0 to 65535"):
        Live(lambda: "", lambda: 0, 99999)


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    program = tmp_path / "program.py"
    program.write_text("x = 1\n")
    for argv, message in (
        (["nowhere.py"], "there is no file nowhere.py"),
        ([str(program), "--out", "x.html"], "--out and --serve: a page is either written or served"),
        ([str(program), "--size", "B"], "--size is 'B', expected one like B=32"),
    ):  # fmt: skip
        assert cli.main(["inspect", *argv, "--serve"]) == 2
        assert message in capsys.readouterr().err


def test_the_command_ends_at_an_interrupt(tmp_path):
    (tmp_path / "program.py").write_text(
        "from tessera import Tensor, f32, jit\n@jit\ndef f(x: Tensor['B', f32]):\n    return x + 1\n"
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "tessera.cli", "inspect", "program.py", "--serve", "--port", "0"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        line = running.stdout.readline()
        assert "shows program.py, version 1; Ctrl-C ends" in line, running.stderr.read()
        assert '"name":"f"' in get(line.split()[0])
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=20)
    finally:
        running.kill()
    assert (running.returncode, out, err) == (0, "ended\n", "")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_a_browser_loads_the_page_again(tmp_path):
    source = Source()
    asked = []
    with served(source) as (live, _):
        shown = live.page
        live.page = lambda: asked.append(source.text) or shown()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--remote-debugging-port=0"]  # fmt: skip
        browser = subprocess.Popen(
            [BROWSER, *flags, f"--user-data-dir={tmp_path / 'profile'}", live.address],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for text in ("one", "two", "three"):
                source.text = text
                deadline = time.monotonic() + 60
                while text not in asked and time.monotonic() < deadline:
                    time.sleep(0.1)
        finally:
            browser.terminate()
            browser.wait(20)
    assert list(dict.fromkeys(asked)) == ["one", "two", "three"]
