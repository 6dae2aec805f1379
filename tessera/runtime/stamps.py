"""Stamps: when kernels begin and end, written by the kernels themselves.

A job can run through another kernel that looks at the clock, runs the job's own, looks again and notes
both times in the job's record.  The thread pool knows nothing of it, and jobs that are not stamped pay
nothing.  The record of a job is four words: the first begin, the last end, the time of all threads in it,
and how often it ran.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from functools import cache
from string import Template
from typing import Any

import numpy as np

from tessera.runtime.code import LlvmSource, load
from tessera.runtime.loaded import Loaded
from tessera.runtime.pool import Job

Array = np.ndarray[Any, np.dtype[Any]]
FIRST, LAST, BUSY, RUNS = range(4)
WORDS = 4  # of a kernel: first, last, busy, runs
_NEVER = np.iinfo(np.int64).max
_LOOKS = 1000  # at the clock, to learn what one takes
# The clock of time.perf_counter, as the C library numbers it.
_CLOCKS = {"linux": 1, "darwin": 8}

_STAMPED = """
declare i32 @clock_gettime(i32, ptr)
declare i64 @llvm.smin.i64(i64, i64)

define i64 @now() {
  %time = alloca { i64, i64 }
  %status = call i32 @clock_gettime(i32 $clock, ptr %time)
  %seconds = load i64, ptr %time
  %rest_at = getelementptr { i64, i64 }, ptr %time, i32 0, i32 1
  %rest = load i64, ptr %rest_at
  %whole = mul i64 %seconds, 1000000000
  %nanoseconds = add i64 %whole, %rest
  ret i64 %nanoseconds
}

; The least that two looks at the clock are apart.
define i64 @cost(i64 %times) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i_after, %next ]
  %least = phi i64 [ 1000000, %entry ], [ %lower, %next ]
  %before = call i64 @now()
  %after = call i64 @now()
  %took = sub i64 %after, %before
  %lower = call i64 @llvm.smin.i64(i64 %took, i64 %least)
  %i_after = add i64 %i, 1
  %more = icmp slt i64 %i_after, %times
  br i1 %more, label %next, label %end
end:
  ret i64 %lower
}

; In the place of its sizes the job says: its own kernel, the sizes of that, and its record.
define void @stamped(ptr %parameters, ptr %told, i64 %begin, i64 %end, ptr %scratch) {
  %kernel = load ptr, ptr %told
  %sizes_at = getelementptr ptr, ptr %told, i64 1
  %sizes = load ptr, ptr %sizes_at
  %record_at = getelementptr ptr, ptr %told, i64 2
  %record = load ptr, ptr %record_at
  %before = call i64 @now()
  call void %kernel(ptr %parameters, ptr %sizes, i64 %begin, i64 %end, ptr %scratch)
  %after = call i64 @now()
  %took = sub i64 %after, %before
  %first = atomicrmw umin ptr %record, i64 %before monotonic
  %last_at = getelementptr i64, ptr %record, i64 1
  %last = atomicrmw umax ptr %last_at, i64 %after monotonic
  %busy_at = getelementptr i64, ptr %record, i64 2
  %busy = atomicrmw add ptr %busy_at, i64 %took monotonic
  %runs_at = getelementptr i64, ptr %record, i64 3
  %runs = atomicrmw add ptr %runs_at, i64 1 monotonic
  ret void
}
"""


@cache
def _code() -> Loaded | None:
    """The code that stamps, if its clock is that of Python."""
    clock = _CLOCKS.get(sys.platform)
    if clock is None:
        return None
    text = Template(_STAMPED).substitute(clock=clock)
    made = load(LlvmSource("stamps", text, ("stamped", "now", "cost")))
    now = ctypes.CFUNCTYPE(ctypes.c_int64)(made.addresses["now"])
    before = time.perf_counter_ns()
    return made if before <= now() <= time.perf_counter_ns() else None


@cache
def clock() -> tuple[int, int] | None:
    """The address of a function that looks at the clock, and the nanoseconds that a look takes."""
    code = _code()
    if code is None:
        return None
    cost = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.addresses["cost"])
    return code.addresses["now"], int(cost(_LOOKS))


class Records:
    """The records of jobs, and of whatever else notes its times in them."""

    def __init__(self, count: int):
        self.table: Array = np.empty((count, WORDS), np.int64)
        self._blank: Array = np.array([[_NEVER, 0, 0, 0]] * count, np.int64).reshape(count, WORDS)
        self._at = self.table.ctypes.data
        self.table[:] = self._blank

    def stamped(self, job: Job, number: int) -> Job | None:
        """A job that does the same and notes its times; None where the machine has no clock for it."""
        code = _code()
        if code is None:
            return None
        return job.through(code.addresses["stamped"], self._at + number * 8 * WORDS)

    def note(self, number: int, begin: int, end: int) -> None:
        """Note a time that was taken elsewhere."""
        self.table[number] = (begin, end, end - begin, 1)

    def take(self) -> Array:
        """What was noted; afterwards nothing is."""
        taken = self.table.copy()
        self.table[:] = self._blank
        return taken


def spans(records: Array, phases: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """(number, begin, end) of what ran, one after another.

    Jobs of a phase run at the same time: each gets the part of the phase that its threads were busy for.
    """
    out = []
    for phase in phases:
        ran = [i for i in phase if records[i, RUNS]]
        if not ran:
            continue
        begin = at = int(records[ran, FIRST].min())
        end = int(records[ran, LAST].max())
        busy = int(records[ran, BUSY].sum()) or 1
        done = 0
        for i in ran:
            done += int(records[i, BUSY])
            until = end if i == ran[-1] else begin + (end - begin) * done // busy
            out.append((i, at, until))
            at = until
    return out
