"""kernel.autotune on a GPU: schedules of a space are built side by side and timed by the device's own clock.

space -> programs (blocks) times threads (warps, stages) -> ranked -> built -> those that spill, or
find no room, are left out -> measured in turn -> taken only beyond the spread -> kept for this device
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tessera.compile import compile_graph
from tessera.core.device import Device
from tessera.core.dims import product, substitute
from tessera.core.errors import CompileError, DeviceError, ScheduleError, ShapeError
from tessera.core.flags import carried, flags
from tessera.ir.graph.ir import Builder, Value, building
from tessera.ir.tile.work import instance_work
from tessera.lang.kernel.traced import text_of
from tessera.lang.kernel.translate import Translated
from tessera.lang.kernel.tune import AutotuneSearch, FoundSchedule, Translate, fastest
from tessera.lang.kernel.values import KernelError
from tessera.lang.schedule import Schedule
from tessera.ops.tiles import kernel as kernel_op
from tessera.runtime import tuned
from tessera.runtime.cuda.device import gpu
from tessera.runtime.triton_builder import version
from tessera.tune.measure import Candidate

_BATCH = 12  # candidates that are built at a time
_SHARE = 10  # of so many programs one is measured, but a batch at least
_SAMPLE = 1e-3  # seconds that a sample takes at least


def place_of(device: Device) -> str:
    """What measurements on a device depend on."""
    g = gpu(device.index, device.kind)
    return f"{g.kind} {g.architecture} {g.name}, triton {version()}"


@dataclass(kw_only=True)
class Tried(Candidate):
    """A schedule on a device."""

    clock: Any = None  # what runs it so many times and says the seconds
    made: Any = None  # what gives its results
    spills: bool = False  # whether registers were too few

    def sample(self) -> None:
        """Run once more, long enough to be timed by the device."""
        took = self.clock(self.repeats) / self.repeats
        if took * self.repeats < _SAMPLE / 2:
            self.repeats = max(self.repeats + 1, int(_SAMPLE / max(took, 1e-7)))
            took = self.clock(self.repeats) / self.repeats
        self.times.append(took)


def look_there(
    search: AutotuneSearch, base: Schedule, translate: Translate, values: Sequence[Value], device: Device,
    sizes: Mapping[str, int], key: str,
) -> FoundSchedule:  # fmt: skip
    """Measure the schedules of a space on the tensors of a call, where they are, and keep the fastest."""
    ranked = _ranked(search, base, translate, sizes)
    if not ranked:
        raise ScheduleError("autotune: no schedule of the space fits the arguments")
    bench = _GpuBench(values, device)
    end = perf_counter() + search.budget_ms / 1e3
    tried: list[Tried] = []
    ranked = ranked[: max(_BATCH, len(ranked) // _SHARE)]
    for i in range(0, len(ranked), _BATCH):
        if tried and perf_counter() > end:
            break
        tried += bench.candidates(ranked[i : i + _BATCH])
    if not tried:
        raise bench.refused[0]
    found = fastest(tried, end)
    label, text = tuned.size_class(sizes), json.dumps(found.schedule.to_dict(), sort_keys=True)
    with search.store(), tuned.tolerant():
        kept = tuned.Tuned(key, label, text, found.seconds, found.before)
        tuned.keep(kept, place=place_of(device))
    return found


def _ranked(
    search: AutotuneSearch, base: Schedule, translate: Translate, sizes: Mapping[str, int]
) -> list[tuple[Schedule, Translated]]:
    """The first schedule of each program and its threads: the first one of the space, then by their work."""
    made: dict[Any, tuple[Schedule, Translated]] = {}
    for s in search.space:
        chosen = s.over(base)
        try:
            t = translate(chosen)
        except (KernelError, ShapeError):  # blocks that the kernel cannot have
            continue
        made.setdefault((t.kernel.hash, chosen.threads), (chosen, t))
    found = list(made.values())
    return [*found[:1], *sorted(found[1:], key=lambda x: _work(x[1], sizes))]


def _work(t: Translated, sizes: Mapping[str, int]) -> float:
    """About how long all instances of a kernel take one after another."""
    count = substitute(product(tuple(n for _, n in t.kernel.grid)), sizes)
    return float(substitute(instance_work(t.kernel), sizes) * count)


class _GpuBench:
    """The tensors that candidates run on; schedules that change bits are none, unless numerics are fast."""

    def __init__(self, values: Sequence[Value], device: Device):
        self.values, self.device = values, device
        self.arrays = [v.storage for v in values]
        self.bits: list[bytes] | None = None  # of the first candidate
        self.refused: list[CompileError | DeviceError] = []  # why others are none

    def candidates(self, made: Sequence[tuple[Schedule, Translated]]) -> list[Tried]:
        """Schedules as code on the device, less those that cannot run or would be slow."""
        with ThreadPoolExecutor(len(made)) as pool:
            built = list(pool.map(carried(self._built), made))
        ready = [x for x in built if isinstance(x, Tried)]
        self.refused += [x for x in built if not isinstance(x, Tried)]
        kept = [x for x in ready if not x.spills] or ready[:1]
        return [x for x in kept if self._is_right(x)]

    def _built(self, made: tuple[Schedule, Translated]) -> Tried | CompileError | DeviceError:
        """A schedule ready to run, or why it cannot."""
        schedule, t = made
        nest: Any = schedule
        b = Builder()
        with building(b):
            inputs = [b.input(v.type, self.device) for v in self.values]
            out = kernel_op(*inputs, program=text_of(t.kernel), threads=schedule.threads)
            g, _ = b.finish(out, t.kernel.name)
        try:
            executable: Any = compile_graph(g, str(self.device))
            timed = executable.timed(self.arrays)
        except (CompileError, DeviceError) as e:  # no room for its tiles
            return e
        spills = any(f.spilled for f in timed.figures)
        return Tried(
            timed.run, nest=nest, clock=timed.seconds, spills=spills,
            made=lambda: executable.run(self.arrays),
        )  # fmt: skip

    def _is_right(self, c: Tried) -> bool:
        bits = [x.numpy().tobytes() for x in c.made()]
        if self.bits is None:
            self.bits = bits
        return bits == self.bits or flags().numerics == "fast"
