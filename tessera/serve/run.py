"""Running a service on a port, on uvicorn; SIGTERM and Ctrl-C finish what has begun."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn

from tessera.serve.app import application
from tessera.serve.service import Service

BACKLOG = 1024  # connections that wait to be accepted
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """A server that ends with status 0 after a signal, once open requests are answered."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at the first signal, end at once at the second."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for s in SIGNALS:
            loop.add_signal_handler(s, self._drain)
        try:
            yield
        finally:
            for s in SIGNALS:
                loop.remove_signal_handler(s)

    def _drain(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; an OSError says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)  # clients that come while the model loads wait
    except OSError:
        made.close()
        raise
    return made


def server(service: Service, drain: float, connections: int) -> Server:
    """The server of a service, which waits so many seconds for open requests when it ends."""
    config = uvicorn.Config(
        application(service), log_level="warning", access_log=False, lifespan="on", server_header=False,
        timeout_graceful_shutdown=max(int(drain), 1), limit_concurrency=connections, backlog=BACKLOG,
    )  # fmt: skip
    return Server(config)


def serve(made: Server, on: socket.socket) -> None:
    """Serve until a signal."""
    sockets: list[Any] = [on]
    made.run(sockets=sockets)
