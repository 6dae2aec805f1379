"""A stream of events ends once, whatever ends it: its source, an error of it, or the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from tessera.serve.app import EventStream

RUNS_ON = "numpy"


def served(
    ends: BaseException | None, leaves: bool = False, sends: BaseException | None = None
) -> Any:
    """What was sent, how often it was said to have ended, and the error that came out."""
    sent: list[Any] = []
    ended: list[int] = []

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        if leaves:
            await asyncio.sleep(60)
        if ends is not None:
            raise ends
        yield b"two"

    async def receive() -> Any:
        if leaves:
            return {"type": "http.disconnect"}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if sends is not None:
            raise sends
        sent.append(message)

    async def run() -> BaseException | None:
        try:
            await EventStream(parts(), 5.0, lambda: ended.append(1))({}, receive, send)
        except Exception as e:
            return e
        return None

    error = asyncio.run(asyncio.wait_for(run(), 20))
    return [m.get("body") for m in sent if m["type"] == "http.response.body"], len(ended), error


def test_a_stream_sends_all_and_then_the_end() -> None:
    assert served(None) == ([b"one", b"two", b""], 1, None)


@pytest.mark.parametrize("kind", [ValueError, KeyError, RuntimeError])
def test_an_error_of_the_source_comes_out(kind: Any) -> None:
    fault = kind("of the source")
    assert served(fault) == ([b"one"], 1, fault)


@pytest.mark.parametrize("kind", [OSError, ConnectionResetError, TimeoutError])
def test_a_client_that_is_gone_is_no_error(kind: Any) -> None:
    assert served(None, sends=kind("gone")) == ([], 1, None)


def test_a_client_that_leaves_ends_the_stream() -> None:
    bodies, ended, error = served(None, leaves=True)
    assert (ended, error) == (1, None)
    assert b"two" not in bodies
