"""The page of a dashboard: one file with its data, and a server for browsers of this machine.

The page asks by an event stream for the number of the newest version and reads the data of it; a page that
was saved has its data inside and asks for nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tessera.core.errors import OperandError
from tessera.core.local_page import HOST, PageHandler, PageServer
from tessera.train.history import History

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
        return PageServer((HOST, port), type("Handler", (_BoardHandler,), {"board": board}))
    except OSError as e:
        raise OperandError(
            f"Dashboard: port {port} of {HOST} cannot be had ({e.strerror}); name another, or 0 for any that "
            "is free"
        ) from None


class _BoardHandler(PageHandler):
    board: Board

    def answer(self) -> None:
        """The page, its data, or the stream of its versions."""
        if self.path == "/":
            self.send(200, "text/html; charset=utf-8", page(self.board.data(), live=True))
        elif self.path == "/data":
            self.send(200, "application/json", json.dumps(self.board.data(), allow_nan=False))
        elif self.path == "/events":
            self.stream(self._events())
        else:
            super().answer()

    def _events(self) -> Iterator[str]:
        version = -1
        while (found := self.board.newer(version, 10.0)) is not None:
            version = found
            yield f"data: {version}\n\n"
            self.board.rest()
        yield "event: end\ndata: 0\n\n"
