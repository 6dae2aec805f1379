"""A page for browsers of this machine alone: what the inspector and the dashboard answer requests with."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"


class PageHandler(BaseHTTPRequestHandler):
    """Answers requests that name this machine; `answer` says what a path has."""

    def do_GET(self) -> None:
        """Refuse requests under another name: a page of elsewhere may have made its name lead here."""
        name = (self.headers.get("Host") or "").rpartition(":")[0]
        if name not in (HOST, "localhost"):
            self.send(403, "text/plain", f"ask for {HOST}\n")
        else:
            self.answer()

    def answer(self) -> None:
        """Send what self.path has."""
        self.send(404, "text/plain", "there is only one page: /\n")

    def send(self, status: int, kind: str, text: str) -> None:
        """A whole reply."""
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events: Iterable[str]) -> None:
        """Events, each as soon as it comes."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        for e in events:
            self.wfile.write(e.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every look of a browser would be a line."""


class PageServer(ThreadingHTTPServer):
    """A server of such pages, which ends with its process."""

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that is closed while it reads is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
