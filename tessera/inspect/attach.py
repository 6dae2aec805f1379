"""A running process that shows what it has compiled until now, to browsers and commands of this machine."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tessera.core.errors import OperandError, TesseraError
from tessera.core.local_page import HOST, PageHandler, PageServer
from tessera.inspect.page import run_page
from tessera.lang.compilations import compilations
from tessera.lang.watching import watching

_WAIT = 600.0  # seconds for a page: programs are timed for it beside what the process does


@contextmanager
def attachable(port: int, title: str) -> Iterator[str]:
    """While the block runs, its compilations can be looked at; gives the address."""
    with compilations() as found, watching() as seen:
        making = threading.Lock()  # one page at a time: programs are timed for it

        def page() -> tuple[int, str]:
            with making:
                try:
                    return 200, run_page(list(found), title, lambda text: None, seen)
                except TesseraError as e:
                    return 503, f"{e}\n"

        server = _listen(port, page)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            server.server_close()


def _listen(port: int, page: Any) -> PageServer:
    class Handler(PageHandler):
        def answer(self) -> None:
            if self.path != "/":
                return super().answer()
            status, text = page()
            return self.send(
                status, "text/html; charset=utf-8" if status == 200 else "text/plain", text
            )

    try:
        return PageServer((HOST, port), Handler)
    except (OSError, OverflowError) as e:
        why = getattr(e, "strerror", None) or "expected 0 to 65535"
        raise OperandError(
            f"inspect: port {port} of {HOST} cannot be had ({why}); name another, or 0"
        ) from None


def attached(port: int) -> str:
    """The page of the process that listens at a port of this machine."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/", timeout=_WAIT) as reply:
            text: str = reply.read().decode()
            return text
    except urllib.error.HTTPError as e:
        raise OperandError(
            e.read().decode().strip() or f"inspect: port {port} answers {e.code}"
        ) from None
    except OSError:
        raise OperandError(
            f"inspect: no process listens at port {port}; start it as `tessera run --inspect {port} FILE`"
        ) from None
