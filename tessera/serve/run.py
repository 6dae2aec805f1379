"""Running a service on a port, on uvicorn; SIGTERM and Ctrl-C finish what has begun."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tessera.serve.app import application
from tessera.serve.service import Service

BACKLOG = 1024  # connections that wait to be accepted
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Connection(H11Protocol):
    """A connection that is ended when a request does not arrive in time, or a reply is not taken.

    Otherwise clients that send half a head, or read nothing, hold connections for as long as they like, and
    the others are refused.
    """

    def __init__(self, *args: Any, patience: float, **named: Any):
        super().__init__(*args, **named)
        self._patience = patience
        self._arriving: asyncio.TimerHandle | None = None
        self._taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request."""
        super().connection_made(transport)
        self._arriving = self.loop.call_later(self._patience, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of a request whose head has begun, and no longer once it is there."""
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            _cancel(self._arriving)
            self._arriving = None
        elif self._arriving is None:
            self._arriving = self.loop.call_later(self._patience, self.transport.abort)

    def pause_writing(self) -> None:
        """Give a client some time to read."""
        super().pause_writing()
        self._taking = self.loop.call_later(self._patience, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        _cancel(self._taking)
        self._taking = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """Do not wait for ever for the last bytes to be read."""
        super().on_response_complete()
        if self.transport.is_closing() and self._taking is None:
            self._taking = self.loop.call_later(self._patience, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all waiting."""
        _cancel(self._arriving)
        _cancel(self._taking)
        self._arriving = self._taking = None
        super().connection_lost(exc)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


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
    """A socket that listens; an OSError or an OverflowError says why not."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(BACKLOG)  # clients that come while the model loads wait
    except (OSError, OverflowError):
        made.close()
        raise
    return made


def server(service: Service, drain: float, connections: int) -> Server:
    """The server of a service, which waits so many seconds for open requests when it ends."""
    protocol: Any = functools.partial(Connection, patience=service.options.reading)
    config = uvicorn.Config(
        application(service), http=protocol, ws="none", log_level="warning", access_log=False, lifespan="on",
        server_header=False, timeout_graceful_shutdown=max(int(drain), 1),
        limit_concurrency=connections, backlog=BACKLOG,
    )  # fmt: skip
    return Server(config)


def serve(made: Server, on: socket.socket) -> None:
    """Serve until a signal."""
    sockets: list[Any] = [on]
    made.run(sockets=sockets)
