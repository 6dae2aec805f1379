"""A page that is served to browsers of this machine, and made again when what it shows changes.

The page asks by an event stream whether it is still the newest and loads itself again when it is not; its
address, with the view and what is selected, stays.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from html import escape
from http.server import ThreadingHTTPServer
from typing import Any

from tessera.core.errors import OperandError
from tessera.core.local_page import HOST, PageHandler, PageServer

_LOOK = 0.25  # seconds between two looks at what is watched
_POLICY = "default-src 'none';"
_WATCH = """<script>
new EventSource("/changes").onmessage = e => { if (e.data !== "%d") location.reload(); };
</script>
"""
_FAILED = """<!DOCTYPE html><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>error</title>
<style>:root { color-scheme: light dark } body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem } pre { white-space: pre-wrap }</style>
<h1>The page could not be made</h1><pre>%s</pre><p>It is tried again when the file changes.</p><body></body>"""  # noqa: E501


class PageError(Exception):
    """A page could not be made; the text says why."""


class Live:
    """A page, who asks for it, and the state that it was made from."""

    def __init__(self, make: Callable[[], str], state: Callable[[], Any], port: int):
        self._make, self._state = make, state
        self._changed = threading.Condition()
        self._ended = False
        self.version, self.text = 0, ""
        self._seen: Any = None
        self.server = _listen(port, self)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://{HOST}:{self.server.server_address[1]}/"

    def refresh(self) -> bool:
        """Make the page again if what it shows has changed; whether it had."""
        now = self._state()
        if now == self._seen:
            return False
        self._seen = now
        try:
            text = self._make()
        except PageError as e:
            sys.stderr.write(f"{e}\n")
            text = _FAILED % escape(str(e))
        with self._changed:
            self.version, self.text = self.version + 1, text
            self._changed.notify_all()
        return True

    def page(self) -> str:
        """The newest page, which watches for a newer one."""
        with self._changed:
            allowed = self.text.replace(_POLICY, f"{_POLICY} connect-src 'self';", 1)
            head, end, tail = allowed.rpartition("</body>")
            return head + _WATCH % self.version + end + tail

    def newer(self, than: int, seconds: float) -> int | None:
        """The number of the newest page as soon as it is another one, or after a while; None: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.version != than, seconds)
            return None if self._ended else self.version

    def run(self, told: Callable[[], None], stop: threading.Event | None = None) -> None:
        """Serve until somebody interrupts, or stop is set; told is called whenever a page was made."""
        over = stop or threading.Event()
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            while not over.is_set():
                if self.refresh():
                    told()
                over.wait(_LOOK)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            self.server.shutdown()
            self.server.server_close()


def _listen(port: int, live: Live) -> ThreadingHTTPServer:
    try:
        return PageServer((HOST, port), type("Handler", (_PageHandler,), {"live": live}))
    except OverflowError:
        raise OperandError(f"inspect: {port} is no port, expected 0 to 65535") from None
    except OSError as e:
        raise OperandError(
            f"inspect: port {port} of {HOST} cannot be had ({e.strerror}); name another with --port, or 0 "
            "for any that is free"
        ) from None


class _PageHandler(PageHandler):
    live: Live

    def answer(self) -> None:
        """The page, or the stream of its versions."""
        if self.path == "/changes":
            self.stream(self._changes())
        elif self.path == "/":
            self.send(200, "text/html; charset=utf-8", self.live.page())
        else:
            super().answer()

    def _changes(self) -> Iterator[str]:
        version = -1
        while (found := self.live.newer(version, 10.0)) is not None:
            version = found
            yield f"data: {version}\n\n"
