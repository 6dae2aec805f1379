"""The page of a dashboard: one file with its data, and a server for browsers of this machine.

The page asks by an event stream for the number of the newest version and reads the data of it; a page that
was saved has its data inside and asks for nothing.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tessera.core.errors import OperandError
from tessera.train.history import History

HOST = "127.0.0.1"
_POLICY = "default-src 'none';"
_PAUSE = 0.4  # seconds between two versions that a browser is told of


@cache
def _template() -> str:
    return Path(__file__).with_name("board.html").read_text(encoding="utf-8")


def page(runs: Sequence[dict[str, Any]], live: bool = False) -> str:
    """The page of some runs; one that is live asks the server for what is newer."""
    text = json.dumps({"live": live, "runs": list(runs)}, allow_nan=False, separators=(",", ":"))
    made = _template().replace("@DATA@", text.replace("<", "\\u003c"), 1)
    return made.replace(_POLICY, f"{_POLICY} connect-src 'self';", 1) if live else made


class Board:
    """A server of the page of runs that go on."""

    def __init__(self, runs: Callable[[], Sequence[History]], port: int):
        self._runs, self._ended = runs, threading.Event()
        self._server = _listen(port, self)
        self.address = f"http://{HOST}:{self._server.server_address[1]}/"

    def start(self) -> None:
        """Answer browsers, in threads of their own."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Answer no more."""
        self._ended.set()
        for run in self._runs():
            with run.lock:
                run.lock.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def data(self) -> list[dict[str, Any]]:
        """The runs as they are now."""
        return [r.data() for r in self._runs()]

    def newer(self, than: int, seconds: float) -> int | None:
        """The newest version as soon as it is another one, or after a while; None: it is over."""
        runs = self._runs()
        lock = runs[-1].lock

        def version() -> int:
            return sum(r.version for r in runs)

        with lock:
            lock.wait_for(lambda: self._ended.is_set() or version() != than, seconds)
        return None if self._ended.is_set() else version()

    def rest(self) -> None:
        """Wait before a browser is told of the next version."""
        self._ended.wait(_PAUSE)


def _listen(port: int, board: Board) -> ThreadingHTTPServer:
    try:
        return _Server((HOST, port), type("Handler", (_Handler,), {"board": board}))
    except OSError as e:
        raise OperandError(
            f"Dashboard: port {port} of {HOST} cannot be had ({e.strerror}); name another, or 0 for any that "
            "is free"
        ) from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that is closed while it reads is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    board: Board

    def do_GET(self) -> None:
        """The page, its data, or the stream of versions, for this machine only."""
        name = (self.headers.get("Host") or "").rpartition(":")[0]
        if name not in (HOST, "localhost"):  # a page of elsewhere whose name was made to lead here
            self._send(403, "text/plain", f"ask for {HOST}\n")
        elif self.path == "/":
            self._send(200, "text/html; charset=utf-8", page(self.board.data(), live=True))
        elif self.path == "/data":
            text = json.dumps(self.board.data(), allow_nan=False)
            self._send(200, "application/json", text)
        elif self.path == "/events":
            self._events()
        else:
            self._send(404, "text/plain", "there is only one page: /\n")

    def _send(self, status: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def _events(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        version: int | None = -1
        while version is not None:
            version = self.board.newer(version, 10.0)
            text = "event: end\ndata: 0\n\n" if version is None else f"data: {version}\n\n"
            self.wfile.write(text.encode())
            self.board.rest()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every look of a browser would be a line."""
