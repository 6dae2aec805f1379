"""What the caches and the memory of this machine deliver to threads that read numbers again and again.

The loop is written in LLVM IR: eight sums of whole vectors, so that loads are what it waits for.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from tessera.core.processor import first_bytes, last_bytes, near_bytes, registers
from tessera.ir.target.cpu.machine import build, link

_SUMS = 8  # vectors that are added to in turn: more than a sum takes cycles
_SPAN = 2e-3  # seconds of a run: long beside the begin of a thread
_RUNS = 3  # the fastest counts
_MOST = 1 << 27  # bytes that are read for the memory; more would take seconds to be had


def delivered(threads: int) -> dict[str, tuple[int, float]]:
    """The bytes that each level holds for these threads, and the bytes a second that they read from it.

    The first and second cache belong to a core; the third, where the system tells of one, to all.
    """
    shared = last_bytes()
    held = {"L1": first_bytes() * threads, "L2": near_bytes() * threads}
    if shared > 2 * held["L2"]:
        held["L3"] = shared
    # Half of a level is certainly in it; past the last one lies the memory.
    read = {name: n // 2 // threads for name, n in held.items()}
    read["memory"] = min(_MOST, 4 * max(held.values())) // threads
    return {name: (held.get(name, 0), _rate(n, threads)) for name, n in read.items()}


def _rate(size: int, threads: int) -> float:
    """Bytes a second of threads that read so many bytes each: the best of some runs."""
    step = _SUMS * registers().bytes
    vectors = max(1, size // step)
    data = [np.zeros(vectors * step // 4 + 64, np.float32) for _ in range(threads)]
    out = [np.zeros(registers().bytes // 4, np.float32) for _ in range(threads)]
    times, best = 1, 0.0
    while True:
        took = min(_together(data, out, vectors, times) for _ in range(_RUNS))
        best = threads * times * vectors * step / took
        if took > _SPAN / 2:
            return best
        times = max(2 * times, int(times * _SPAN / max(took, 1e-6)))


def _together(data: list[np.ndarray], out: list[np.ndarray], vectors: int, times: int) -> float:
    """Seconds from the first begin to the last end of threads that began when all were there."""
    touch, ends = _touch(), [0.0] * len(data)
    ready = threading.Barrier(len(data))
    begins = [0.0] * len(data)

    def work(i: int) -> None:
        ready.wait()
        begins[i] = time.perf_counter()
        touch(data[i].ctypes.data, vectors, times, out[i].ctypes.data)
        ends[i] = time.perf_counter()

    others = [threading.Thread(target=work, args=(i,)) for i in range(1, len(data))]
    for t in others:
        t.start()
    work(0)
    for t in others:
        t.join()
    return max(ends) - min(begins)


@cache
def _touch() -> Callable[..., None]:
    vector = f"<{registers().bytes // 4} x float>"
    names = range(_SUMS)
    zero = "[zeroinitializer, %entry]"
    outer = "\n".join(f"  %a{i} = phi {vector} {zero}, [%c{i}, %done]" for i in names)
    inner = "\n".join(f"  %b{i} = phi {vector} [%a{i}, %again], [%c{i}, %read]" for i in names)
    body = "\n".join(
        f"  %p{i} = getelementptr {vector}, ptr %q, i64 {i}\n  %v{i} = load {vector}, ptr %p{i}, align 4\n"
        f"  %c{i} = fadd {vector} %b{i}, %v{i}"
        for i in names
    )
    total = "\n".join(f"  store {vector} %c{i}, ptr %out, align 4" for i in names)
    text = f"""
define void @touch(ptr %x, i64 %vectors, i64 %times, ptr %out) {{
entry:
  br label %again
again:
  %t = phi i64 [0, %entry], [%t1, %done]
{outer}
  br label %read
read:
  %i = phi i64 [0, %again], [%i1, %read]
{inner}
  %at = mul i64 %i, {_SUMS}
  %q = getelementptr {vector}, ptr %x, i64 %at
{body}
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %vectors
  br i1 %more, label %read, label %done
done:
{total}
  %t1 = add i64 %t, 1
  %next = icmp ult i64 %t1, %times
  br i1 %next, label %again, label %end
end:
  ret void
}}
"""
    held, found = link(build(text), ("touch",))
    _HELD.append(held)
    address, count = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(None, address, count, count, address)(found["touch"])


_HELD: list[object] = []  # code that must not go away
