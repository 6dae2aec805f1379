"""What a server serves: one model, its engine and its limits, behind the forms of requests and replies."""

from __future__ import annotations

import asyncio
import base64
import functools
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tessera.core.errors import TesseraError
from tessera.models.blocks import Array
from tessera.models.encoder import TextEncoder
from tessera.models.guide import Guide, guide
from tessera.models.text import TextStream
from tessera.models.writer import Writer
from tessera.serve.engine import Refused, ServeEngine, ServeLimits
from tessera.serve.fields import Fields
from tessera.serve.job import Event, ReplyJob
from tessera.serve.metrics import Metrics
from tessera.serve.requests import EMBEDDING, GenerationAsk, check_model, inputs_of


@dataclass(frozen=True)
class Options:
    """Who may ask, and how much."""

    keys: tuple[str, ...] = ()  # none: anybody
    hosts: tuple[str, ...] = ()  # names by which a client may address the server; none: any
    body: int = 1 << 20  # bytes of a request
    timeout: float = 600.0  # seconds of a reply
    reading: float = (
        30.0  # seconds for a request to arrive, and for a client to take what it is sent
    )
    warm: bool = False  # compile the steps of the model before the first request asks for them


class Service:
    """A model that is served."""

    def __init__(
        self, model: Writer | TextEncoder, name: str, limits: ServeLimits, options: Options
    ) -> None:
        self.model, self.name, self.options = model, name, options
        self.metrics = Metrics()
        self.created = int(time.time())
        self.engine = (
            ServeEngine(model, limits, self.metrics) if isinstance(model, Writer) else None
        )
        self._limit, self._pending = limits.waiting, 0
        self._alone = ThreadPoolExecutor(1, "tessera-encoder") if self.engine is None else None

    def start(self) -> None:
        """Start what generates."""
        if self.engine is not None:
            self.engine.start(warm=self.options.warm)

    def stop(self) -> None:
        """End what generates."""
        if self.engine is not None:
            self.engine.stop()
        if self._alone is not None:
            self._alone.shutdown(cancel_futures=True)

    @property
    def healthy(self) -> bool:
        """Whether requests are taken on."""
        return self.engine is None or self.engine.alive

    def gauges(self) -> dict[str, float]:
        """How full the server is."""
        return {"waiting": self._pending} if self.engine is None else self.engine.gauges()

    def writer(self) -> tuple[Writer, ServeEngine]:
        """The model that writes text, and its engine."""
        if self.engine is None or not isinstance(self.model, Writer):
            raise Refused(
                400, f"{self.name} is a model that writes no text; it has embeddings only"
            )
        return self.model, self.engine

    def jobs(self, ask: GenerationAsk, hear: Callable[[int, Event], None]) -> list[ReplyJob]:
        """A job for each choice of each prompt."""
        model, engine = self.writer()
        room, deadline = engine.room, time.monotonic() + self.options.timeout
        out: list[ReplyJob] = []
        engine.check_room(len(ask.prompts) * ask.choices)
        for prompt in ask.prompts:
            if len(prompt) >= room:
                raise Refused(
                    400,
                    f"the prompt has {len(prompt)} tokens; context and cache have room for {room}",
                )
            if max(prompt) >= model.shape.vocabulary or min(prompt) < 0:
                raise Refused(
                    400,
                    "a token of the prompt is out of range; the model has "
                    f"{model.shape.vocabulary}",
                )
            limit = min(ask.limit or room, room - len(prompt))
            for i in range(ask.choices):
                sampling = replace(ask.sampling, seed=(ask.sampling.seed + i) % 2**64)
                index, guided = len(out), _guide(model, ask.schema, limit)
                rules = [*ask.rules, *([] if guided is None else [guided.masked])]
                job = ReplyJob(
                    prompt, limit, sampling, functools.partial(hear, index),
                    TextStream(model.tokenizer, ask.stop), rules, ask.logprobs, deadline,
                    None if guided is None else guided.complete,
                )  # fmt: skip
                out.append(job)
        return out

    async def embeddings(self, body: dict[str, Any]) -> dict[str, Any]:
        """The reply of /v1/embeddings."""
        fields = Fields(body, EMBEDDING)
        check_model(fields, self.name)
        form = fields.choice("encoding_format", ("float", "base64"), "float")
        width = self.model.shape.width
        if fields.integer("dimensions", width, 1, 1 << 20) != width:
            raise Refused(
                400,
                f"dimensions is {fields.raw('dimensions')}, expected {width}, the width of the "
                "model",
            )
        rows, used = [], 0
        for i, given in enumerate(inputs_of(fields, "input")):
            vector, count = await self._compute(functools.partial(self._embedded, given))
            used += count
            shown = (
                vector.tolist()
                if form == "float"
                else base64.b64encode(vector.astype("<f4").tobytes()).decode()
            )
            rows.append({"object": "embedding", "index": i, "embedding": shown})
        return {"object": "list", "data": rows, "model": self.name,
                "usage": {"prompt_tokens": used, "total_tokens": used}}  # fmt: skip

    def _embedded(self, given: Any) -> tuple[Array, int]:
        ids = self.model.tokenizer.encode(given) if isinstance(given, str) else given
        if not ids or len(ids) > self.model.shape.context:
            raise Refused(
                400, f"an input has {len(ids)} tokens, expected 1 to {self.model.shape.context}"
            )
        if isinstance(self.model, Writer):
            return self.model.embed_tokens(ids), len(ids)
        return np.asarray(self.model.embed_tokens(ids)), len(ids)

    def _compute(self, work: Callable[[], Any]) -> Awaitable[Any]:
        """The result of some work that is done between steps."""
        loop = asyncio.get_running_loop()
        out: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            self._pending -= 1
            if out.done():
                return
            if error is None:
                out.set_result(result)
            else:
                out.set_exception(error)

        def run() -> None:
            result: Any = None
            error: Exception | None = None
            try:
                result = work()
            except Refused as e:
                error = e
            except TesseraError as e:
                error = Refused(400, e.message)
            except Exception as e:  # the request fails; what runs beside it goes on
                error = e
            loop.call_soon_threadsafe(settle, result, error)

        def lost() -> None:
            loop.call_soon_threadsafe(settle, None, Refused(503, "the server stopped"))

        if self._pending >= self._limit:
            raise Refused(429, f"{self._pending} requests are waiting already; try again later")
        if self.engine is not None:
            self.engine.call(run, lost)
        elif self._alone is not None:
            self._alone.submit(run)
        self._pending += 1
        return out


def _guide(model: Writer, schema: Any, limit: int) -> Guide | None:
    try:
        return None if schema is None else guide(model, schema, limit, "max_tokens")
    except TesseraError as e:
        raise Refused(400, e.message) from None
