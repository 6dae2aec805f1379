"""The HTTP application: routes, keys, limits, errors and streams, on starlette."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tessera.serve import requests
from tessera.serve.engine import Refused
from tessera.serve.fields import parsed
from tessera.serve.job import Event, ReplyDone, ReplyJob
from tessera.serve.replies import Replies, error_body
from tessera.serve.service import Service

PAGE = Path(__file__).with_name("chat.html")
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "frame-ancestors 'none'"
)
CLOSED = 499  # status for a client that went away, as nginx counts it
UNFINISHED = (408, 413)  # after these the rest of a request is not read

Endpoint = Callable[[Service, Request], Awaitable[Response]]


def application(service: Service) -> Starlette:
    """The application of a service."""
    routes = [
        _route("/", "GET", _page, service, open_to_all=True),
        _route("/health", "GET", _health, service, open_to_all=True),
        _route("/metrics", "GET", _metrics, service),
        _route("/v1/models", "GET", _models, service),
        _route("/v1/models/{name:path}", "GET", _model, service),
        _route("/v1/chat/completions", "POST", _chat, service),
        _route("/v1/completions", "POST", _completion, service),
        _route("/v1/embeddings", "POST", _embeddings, service),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    handlers: Any = {HTTPException: _not_found, Exception: _failed}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)


def _route(
    path: str, method: str, endpoint: Endpoint, service: Service, open_to_all: bool = False
) -> Route:
    @functools.wraps(endpoint)
    async def run(request: Request) -> Response:
        try:
            _check_host(service, request)
            if not open_to_all:
                _check_key(service, request)
            response = await endpoint(service, request)
        except Refused as e:
            response = _refusal(e.status, e.message)
        except ClientDisconnect:
            response = Response(status_code=CLOSED)
        service.metrics.add("requests_total", path=path, status=str(response.status_code))
        return response

    return Route(path, run, methods=[method])


def _refusal(status: int, message: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in UNFINISHED:
        headers["Connection"] = "close"
    return JSONResponse({"error": error_body(status, message)}, status, headers)


async def _not_found(request: Request, e: Exception) -> Response:
    status = e.status_code if isinstance(e, HTTPException) else 500
    text = "there is no such path" if status == 404 else "the path has another method"
    return _refusal(status, f"{request.method} {request.url.path[:80]}: {text}")


async def _failed(request: Request, e: Exception) -> Response:
    """A fault of ours: its traceback is printed, and the client is told as of any other error."""
    return _refusal(
        500, f"{request.method} {request.url.path[:80]}: the request failed in the server"
    )


def _check_host(service: Service, request: Request) -> None:
    """Refuse names that a page of a stranger may have bound to this machine."""
    host = request.headers.get("host", "").rsplit(":", 1)[0].strip("[]").lower()
    if service.options.hosts and host not in service.options.hosts:
        raise Refused(403, f"the host {host[:80]!r} is not this server")


def _check_key(service: Service, request: Request) -> None:
    keys = service.options.keys
    given = request.headers.get("authorization", "").removeprefix("Bearer ").encode()
    if keys and not any(hmac.compare_digest(given, k.encode()) for k in keys):
        raise Refused(401, "the API key is missing or wrong; send it as Authorization: Bearer KEY")


async def _page(service: Service, request: Request) -> Response:
    page = PAGE.read_text().replace("{{model}}", json.dumps(service.name).replace("<", "\\u003c"))
    return HTMLResponse(page, headers={"Content-Security-Policy": POLICY})


async def _health(service: Service, request: Request) -> Response:
    good = service.healthy
    return JSONResponse({"status": "ok" if good else "failed"}, 200 if good else 503)


async def _metrics(service: Service, request: Request) -> Response:
    text = service.metrics.text(service.gauges())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


def _described(service: Service) -> dict[str, Any]:
    return {
        "id": service.name,
        "object": "model",
        "created": service.created,
        "owned_by": "tessera",
    }


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse({"object": "list", "data": [_described(service)]})


async def _model(service: Service, request: Request) -> Response:
    if request.path_params["name"] != service.name:
        raise Refused(
            404,
            f"the model {request.path_params['name'][:80]!r} is not served here, but "
            f"{service.name!r}",
        )
    return JSONResponse(_described(service))


async def _chat(service: Service, request: Request) -> Response:
    model, _ = service.writer()
    body = await _body(service, request)
    ask = await asyncio.to_thread(requests.chat, body, model, service.name)
    return await _generated(service, request, ask)


async def _completion(service: Service, request: Request) -> Response:
    model, _ = service.writer()
    body = await _body(service, request)
    ask = await asyncio.to_thread(requests.completion, body, model, service.name)
    return await _generated(service, request, ask)


async def _embeddings(service: Service, request: Request) -> Response:
    body = await _body(service, request)
    return await _unless_gone(request, _embedded(service, body))


async def _embedded(service: Service, body: dict[str, Any]) -> Response:
    try:
        async with asyncio.timeout(service.options.timeout):
            return JSONResponse(await service.embeddings(body))
    except TimeoutError:
        raise Refused(504, "the reply took longer than the timeout") from None


async def _body(service: Service, request: Request) -> dict[str, Any]:
    """The object of a request, whose type and size are checked as it arrives."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"the content type is {kind[:80]!r}, expected application/json")
    most, parts, size = service.options.body, [], 0
    try:
        async with asyncio.timeout(service.options.reading):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, f"the body has more than {most} bytes")
                parts.append(part)
    except TimeoutError:
        raise Refused(408, "the body did not arrive in time") from None
    return parsed(b"".join(parts))


async def _generated(service: Service, request: Request, ask: requests.GenerationAsk) -> Response:
    model, engine = service.writer()
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def hear(index: int, event: Event) -> None:
        loop.call_soon_threadsafe(events.put_nowait, (index, event))

    jobs = await asyncio.to_thread(service.jobs, ask, hear)
    replies = Replies(ask, model.tokenizer, service.name)
    engine.submit(*jobs)
    reply = _stream if ask.stream else _whole
    with contextlib.ExitStack() as unless_replied:
        unless_replied.callback(_cancel, service, jobs)
        response = await _unless_gone(request, reply(service, replies, events, jobs))
        unless_replied.pop_all()
    return response


def _cancel(service: Service, jobs: list[ReplyJob]) -> None:
    _, engine = service.writer()
    for job in jobs:
        engine.cancel(job)


async def _unless_gone(request: Request, reply: Any) -> Response:
    """A reply, given up when the client is gone."""
    work = asyncio.ensure_future(reply)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        response: Response = work.result()
        return response
    finally:
        work.cancel()
        gone.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _whole(service: Service, replies: Replies, events: Any, jobs: list[ReplyJob]) -> Response:
    while not replies.done:
        index, event = await events.get()
        replies.hear(index, event)
        _check_error(event)
    return JSONResponse(replies.whole())


def _check_error(event: Event) -> None:
    if isinstance(event, ReplyDone) and event.reason == "error":
        raise Refused(event.status, event.message)


async def _stream(
    service: Service, replies: Replies, events: Any, jobs: list[ReplyJob]
) -> Response:
    """A stream that begins with the first event, so that an error before it has a status of its own."""
    first = await events.get()
    _check_error(first[1])

    async def parts() -> AsyncIterator[bytes]:
        for part in replies.first():
            yield part
        index, event = first
        while True:
            replies.hear(index, event)
            for part in replies.told(index, event):
                yield part
            if replies.done or (isinstance(event, ReplyDone) and event.reason == "error"):
                break
            index, event = await events.get()
        for part in replies.last():
            yield part

    return EventStream(parts(), service.options.reading, lambda: _cancel(service, jobs))


class EventStream(Response):
    """Server-sent events, given up when the client is gone or does not read."""

    def __init__(self, parts: AsyncIterator[bytes], patience: float, ended: Callable[[], None]):
        super().__init__(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        del self.raw_headers[
            next(i for i, (k, _) in enumerate(self.raw_headers) if k == b"content-length")
        ]
        self._parts, self._patience, self._ended = parts, patience, ended

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send the events."""
        work = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            gone.cancel()
            found = await asyncio.gather(work, gone, return_exceptions=True)
            self._ended()
        if isinstance(found[0], Exception) and not isinstance(found[0], TimeoutError | OSError):
            raise found[0]

    async def _send(self, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts:
            async with asyncio.timeout(self._patience):
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
