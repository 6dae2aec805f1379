"""The engine: one thread that admits replies, gives them pages and runs steps of the model for all of them
at once.

A round prefills up to `CHUNK` tokens of prompts, oldest first, then decodes one token of every reply that
is ready.  What a reply contains does not depend on any of this: each sequence of a step has the bits that
it has alone, a choice depends on logits, seed and place only, and a reply that lost its pages computes them
again to the same bits.
"""

from __future__ import annotations

import heapq
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.core.errors import TesseraError
from tessera.models.blocks import Array
from tessera.models.generation import log_probabilities
from tessera.models.paged import PAGE, ROWS, PagedSteps, SequencePart, bytes_of_page
from tessera.models.sampling import choose
from tessera.models.writer import Writer
from tessera.serve.job import ReplyDone, ReplyJob, ReplyToken, ruled
from tessera.serve.metrics import Metrics
from tessera.serve.pages import ROOT, PageTable, key_of

CHUNK = ROWS[-1]  # tokens of prompts in a round, so that decoding replies never wait long
# Sequences and tokens of the steps that come up first: the prompt of a short chat, its reply, and so on.
USUAL = ((1, 32), (1, 1), (1, 128), (4, 1), (16, 1))


@dataclass(frozen=True)
class ServeLimits:
    """How much a server takes on."""

    memory: int = 1 << 30  # bytes of keys and values
    batch: int = 64  # replies that are generated at once
    waiting: int = 256  # replies that may wait


@dataclass(frozen=True)
class EngineCall:
    """Something that runs between two steps, and what is told where it never runs."""

    work: Callable[[], None]
    lost: Callable[[], None] = lambda: None


class Refused(Exception):
    """A reply that is not taken on: a status of HTTP, and why."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status, self.message = status, message


class ServeEngine:
    """Replies of one model, as many at once as pages and limits allow."""

    def __init__(self, model: Writer, limits: ServeLimits, metrics: Metrics):
        most = -(-model.context // PAGE) * limits.batch
        count = min(limits.memory // bytes_of_page(model), most)
        if count < 1:
            raise Refused(
                500,
                f"{model.name}: a page of keys and values takes {bytes_of_page(model)} bytes, "
                "more than the memory",
            )
        self.model, self.limits, self.metrics = model, limits, metrics
        self.pages = PageTable(count)
        self._steps = PagedSteps(model, count)
        self._changed = threading.Condition()
        self._arrivals = 0
        self._waiting: list[tuple[int, ReplyJob]] = []  # a heap: the oldest first
        self._running: list[ReplyJob] = []
        self._calls: list[EngineCall] = []
        self._cold: list[tuple[int, int]] = []  # sequences and tokens of steps to compile when idle
        self._stopping = False
        self.alive = True
        self._thread = threading.Thread(target=self._run, name="tessera-engine", daemon=True)

    # Other threads ------------------------------------------------------------------------------

    def start(self, *, warm: bool = False) -> None:
        """Start the thread; `warm` compiles the usual steps while no request waits."""
        self._cold = list(USUAL) if warm else []
        self._thread.start()

    def stop(self) -> None:
        """End the thread; replies that are not done end with an error."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def room(self) -> int:
        """Positions that one sequence may have."""
        return min(self.model.context, self.pages.count * PAGE)

    def check_room(self, count: int) -> None:
        """Refuse more replies than may wait."""
        if self._stopping or not self.alive:
            raise Refused(503, "the server is stopping")
        if count > self.limits.waiting:
            raise Refused(
                400,
                f"the request asks for {count} replies, expected at most {self.limits.waiting}",
            )
        if len(self._waiting) + count > self.limits.waiting:
            raise Refused(429, f"{len(self._waiting)} replies are waiting already; try again later")

    def submit(self, *jobs: ReplyJob) -> None:
        """Take replies on, all or none."""
        with self._changed:
            self.check_room(len(jobs))
            now = time.monotonic()
            for job in jobs:
                self._arrivals += 1
                job.arrival, job.submitted = self._arrivals, now
                heapq.heappush(self._waiting, (job.arrival, job))
                self.metrics.add("prompt_tokens_total", len(job.prompt))
            self._changed.notify_all()

    def cancel(self, job: ReplyJob) -> None:
        """Give up a reply whose client is gone; its pages are free after the step that runs."""
        with self._changed:
            job.cancelled = True
            self._changed.notify_all()

    def call(self, work: Callable[[], None], lost: Callable[[], None] = lambda: None) -> None:
        """Run something between two steps, on the thread of the engine; `lost` is called where the
        engine ends before.
        """
        with self._changed:
            if self._stopping or not self.alive:
                raise Refused(503, "the server is stopping")
            if len(self._calls) >= self.limits.waiting:
                raise Refused(
                    429, f"{len(self._calls)} requests are waiting already; try again later"
                )
            self._calls.append(EngineCall(work, lost))
            self._changed.notify_all()

    def gauges(self) -> dict[str, float]:
        """How full the server is."""
        return {
            "running": len(self._running), "waiting": len(self._waiting), "pages": self.pages.count,
            "pages_used": self.pages.used, "pages_idle_or_free": self.pages.available,
        }  # fmt: skip

    # The engine's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait():
                self._round()
        finally:  # also when a step fails: its traceback is printed, and every waiting request ends
            with self._changed:
                self.alive = False
                left = [*self._running, *(job for _, job in self._waiting)]
                calls = self._calls
                self._running, self._waiting, self._calls = [], [], []
            for job in left:
                job.listener(ReplyDone("error", status=503, message="the server stopped"))
            for call in calls:
                call.lost()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when the engine stops."""
        with self._changed:
            while not (self._running or self._waiting or self._calls or self._stopping):
                if self._cold:
                    return True
                self._changed.wait()
            if self._stopping:
                return False
            call = self._calls.pop(0) if self._calls else None
        if call is not None:  # one at a time: between any two there is a token for every reply
            call.work()
        return True

    def _round(self) -> None:
        if self._cold and not (self._running or self._waiting):
            self._warm(*self._cold.pop(0))
        self._drop()
        self._admit()
        self._prefill()
        self._decode()

    def _warm(self, batch: int, rows: int) -> None:
        """Compile a step by running it over pages that hold nothing yet."""
        pages = self.pages.unused()[: _pages(rows)]
        fits = rows <= self.model.context and batch <= self.limits.batch
        if fits and len(pages) == _pages(rows):
            self._steps.run([SequencePart([0] * rows, 0, pages)] * batch)

    def _drop(self) -> None:
        """End replies that were cancelled or are late, running or waiting."""
        now = time.monotonic()
        gone = [j for j in self._running if j.cancelled or now > j.deadline]
        with self._changed:
            late = [j for _, j in self._waiting if j.cancelled or now > j.deadline]
            if late:
                self._waiting = [(n, j) for n, j in self._waiting if j not in late]
                heapq.heapify(self._waiting)
        for job in gone:
            self._free(job)
        for job in gone + late:
            if job.cancelled:
                self.metrics.add("cancelled_total")
            self._tell(
                job,
                ReplyDone("error", status=504, message="the reply took longer than the timeout"),
            )

    def _admit(self) -> None:
        """Let the oldest replies run while there are pages for what they have, and one for each that runs."""
        while len(self._running) < self.limits.batch:
            with self._changed:
                if not self._waiting:
                    return
                job = self._waiting[0][1]
                found = self._found(job)
                taken = sum(self.pages.idle(p) for p in found)
                need = _pages(job.length) - len(found) + taken
                spare = len(self._running)
                if need + spare > self.pages.available:
                    return
                heapq.heappop(self._waiting)
                self._running.append(job)
            self._begin(job, len(found))

    def _found(self, job: ReplyJob) -> list[int]:
        """Pages of the prefix cache that hold the beginning of a job; one token at least is left to
        compute.
        """
        out: list[int] = []
        key = ROOT
        for end in range(PAGE, job.length, PAGE):
            key = key_of(key, job.tokens(end - PAGE, end))
            page = self.pages.holds(key)
            if page is None:
                break
            out.append(page)
        return out

    def _begin(self, job: ReplyJob, shared: int) -> None:
        for _ in range(shared):
            assert self._share(job), "a page was lost between two looks of one thread"
        while len(job.pages) < _pages(job.length):
            page = self.pages.take()
            assert page is not None, "admission counted the pages"
            job.pages.append(page)

    def _share(self, job: ReplyJob) -> bool:
        """Take over the page that holds the next tokens of a job, if there is one; a page of its own goes
        back.
        """
        i = len(job.keys)
        if job.computed != i * PAGE or job.computed + PAGE >= job.length:
            return False
        key = key_of(
            job.keys[-1] if job.keys else ROOT, job.tokens(job.computed, job.computed + PAGE)
        )
        page = self.pages.share(key)
        if page is None:
            return False
        if i < len(job.pages):
            self.pages.give(job.pages[i])
            job.pages[i] = page
        else:
            job.pages.append(page)
        job.keys.append(key)
        job.computed += PAGE
        if not job.new:
            job.shared += PAGE
            self.metrics.add("shared_tokens_total", PAGE)
        return True

    def _prefill(self) -> None:
        left = CHUNK
        for job in sorted(self._running, key=lambda j: j.arrival):
            while job.pending > 1 and left > 0 and not job.cancelled:
                while self._share(job):  # what another reply has computed since
                    pass
                size = min(left, job.pending, CHUNK)
                part = SequencePart(
                    job.tokens(job.computed, job.computed + size), job.computed, job.pages
                )
                logits = self._step([part])
                left -= size
                self._advance(job, size)
                if job.pending == 0:
                    self._choose(job, logits[0])
                    break

    def _decode(self) -> None:
        ready = [j for j in sorted(self._running, key=lambda j: j.arrival) if j.pending == 1]
        ready = [j for j in ready if self._has_room(j)]
        ready = [j for j in ready if j in self._running]  # an older one may have taken its pages
        if not ready:
            return
        parts = [SequencePart(j.tokens(j.computed, j.length), j.computed, j.pages) for j in ready]
        for job, logits in zip(ready, self._step(parts), strict=True):
            self._advance(job, 1)
            self._choose(job, logits)

    def _step(self, parts: list[SequencePart]) -> Array:
        begin = time.perf_counter()
        logits = self._steps.run(parts)
        self.metrics.time("step_seconds", time.perf_counter() - begin)
        return logits

    def _has_room(self, job: ReplyJob) -> bool:
        """Give a reply the page that its next token needs; the youngest replies give theirs back for it."""
        while job in self._running and len(job.pages) < _pages(job.length):
            page = self.pages.take()
            if page is None:
                self._preempt(max(self._running, key=lambda j: j.arrival))
            else:
                job.pages.append(page)
        return job in self._running

    def _preempt(self, job: ReplyJob) -> None:
        self.metrics.add("preemptions_total")
        self._free(job)
        with self._changed:
            heapq.heappush(self._waiting, (job.arrival, job))

    def _free(self, job: ReplyJob) -> None:
        """Take a reply off the batch; later pages are idle for longer, so that beginnings are kept."""
        self._running.remove(job)
        for page in reversed(job.pages):
            self.pages.give(page)
        job.pages, job.keys, job.computed = [], [], 0

    def _advance(self, job: ReplyJob, count: int) -> None:
        """Count positions that are in pages now, and name the pages that they fill."""
        job.computed += count
        while (len(job.keys) + 1) * PAGE <= job.computed:
            i = len(job.keys)
            before = job.keys[-1] if job.keys else ROOT
            job.keys.append(key_of(before, job.tokens(i * PAGE, (i + 1) * PAGE)))
            self.pages.name(job.pages[i], job.keys[-1])

    def _choose(self, job: ReplyJob, logits: Array) -> None:
        """Choose the next token of a reply from its logits, and end the reply where it ends."""
        try:
            scores = ruled(job.rules, logits, job.new, job.limit - len(job.new))
            token = choose(scores, [*job.prompt, *job.new], job.new, job.sampling)
        except TesseraError as e:
            self._end(job, ReplyDone("error", status=500, message=e.message))
            return
        except Exception:  # of rules, which are this request's own: the others go on
            traceback.print_exc()
            self._end(job, ReplyDone("error", status=500, message="the reply failed in the server"))
            return
        if not job.new:
            self.metrics.time("first_token_seconds", time.monotonic() - job.submitted)
        self.metrics.add("generated_tokens_total")
        if token in self.model.ends:
            self._end(job, ReplyDone("stop", job.text.finish()))
            return
        job.new.append(token)
        text = job.text.push(token)
        complete = job.text.stopped or (job.ended is not None and job.ended(job.new))
        last = complete or len(job.new) >= job.limit
        self._tell(job, ReplyToken(token, text, *_likely(job, logits, token)))
        if last:
            self._end(job, ReplyDone("stop" if complete else "length", job.text.finish()))

    def _end(self, job: ReplyJob, done: ReplyDone) -> None:
        self.metrics.time("reply_seconds", time.monotonic() - job.submitted)
        self._free(job)
        self._tell(job, ReplyDone(done.reason, done.text, done.status, done.message, job.shared))

    def _tell(self, job: ReplyJob, event: Any) -> None:
        if not job.cancelled:
            job.listener(event)


def _pages(positions: int) -> int:
    return -(-positions // PAGE)


def _likely(
    job: ReplyJob, logits: Array, token: int
) -> tuple[float | None, list[tuple[int, float]]]:
    """The log-probability of a token, and the likeliest tokens with theirs."""
    if job.logprobs is None:
        return None, []
    scores = log_probabilities(logits)
    best = np.argsort(-scores, kind="stable")[: job.logprobs].tolist()
    return float(scores[token]), [(t, float(scores[t])) for t in best]
