"""What the page shows of a program on a GPU: its schedule, Tile IR, Triton and assembly.  No GPU needs to
be there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import Any, cast

from tessera.checks.roofline import MACHINES
from tessera.compile import compile_graph, run_passes
from tessera.compile.cpu.executable import MachineExecutable
from tessera.compile.fallback import Task, demanded
from tessera.compile.gpu.compilation import GpuCompilation
from tessera.compile.gpu.offline import OfflineProgram, offline_program
from tessera.compile.pipeline import SPECIALIZE
from tessera.core.errors import CompileError, DeviceError, OperandError
from tessera.core.flags import carried, flags
from tessera.core.processor import cores
from tessera.inspect.page_data import Collector, Data, memory_data
from tessera.inspect.page_mix import mix_of
from tessera.inspect.page_text import tile_lines
from tessera.inspect.profile_facts import attention_work
from tessera.inspect.work import work_of
from tessera.ir.graph.ir import Array, Graph, Value, concrete
from tessera.ir.schedule.ir import HostCall, Program
from tessera.ir.schedule.memory import StepAccess
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.launch import Launch
from tessera.runtime import triton_builder
from tessera.runtime.cuda.memory import DeviceArray

# name: what Triton is asked for, how its assembly is called, and a machine with such GPUs
ARCHITECTURES: dict[str, tuple[tuple[str, Any, int], str, str]] = {
    "sm_80": (("cuda", 80, 32), "PTX", "a100"), "sm_90": (("cuda", 90, 32), "PTX", "h200"),
    "sm_100": (("cuda", 100, 32), "PTX", ""), "gfx942": (("hip", "gfx942", 64), "AMDGCN", "mi300x"),
    "gfx950": (("hip", "gfx950", 64), "AMDGCN", ""),
}  # fmt: skip


def demand_architectures(names: Sequence[str]) -> None:
    """Raise when there is no such GPU."""
    for n in names:
        if n not in ARCHITECTURES:
            raise OperandError(f"inspect: gpu is {n!r}, expected one of {', '.join(ARCHITECTURES)}")


def on_the_host(
    e: GpuCompilation[Any], inputs: Sequence[Any]
) -> tuple[MachineExecutable, list[Array]]:
    """A program of a GPU as one of this machine, with what it reads."""
    g = e.written
    here = Graph(
        g.inputs,
        g.nodes,
        g.outputs,
        g.name,
        g.input_names,
        [_here(v) for v in g.captured],
        g.guards,
    )
    made = cast(MachineExecutable, compile_graph(here, "cpu"))
    return made, [x.numpy() if isinstance(x, DeviceArray) else x for x in inputs]


def _here(v: Value) -> Value:
    data: Any = v.storage
    return concrete(data.numpy(), v.dtype) if isinstance(data, DeviceArray) else v


def architecture_of(e: GpuCompilation[Any]) -> str:
    """The name of the GPU that a program is compiled for, or of the newest one before it."""
    kind, made_for, _ = e.device
    known = [n for n, (target, _, _) in ARCHITECTURES.items() if target[0] == kind]
    below = [n for n in known if ARCHITECTURES[n][0][1] <= made_for]
    return below[-1] if below else known[0]


def gpu_data(traced: Graph, sizes: Mapping[str, int], name: str) -> tuple[Data, Data]:
    """What the page shows of a graph on a GPU at once, and what it reads when it is looked at."""
    target, code, machine = ARCHITECTURES[name]
    c = GpuCollector(traced, sizes, target)
    peaks = MACHINES.get(machine)
    data = {
        "name": f"{traced.name} for {name}", "sizes": dict(sizes), "threads": 0,
        "machine": f"{name}, compiled and not run",
        "passes": c.passes(), "nodes": c.nodes(), "schedule": c.schedule(),
        "steps": c.steps(sizes, {}), "kernels": c.kernels(), "lower": c.lower,
        "memory": memory_data(c.made.plan), "code": ["Triton", code], "rewrites": [],
        "peaks": {"flops": peaks.flops if peaks else 0, "bandwidth": peaks.bandwidth if peaks else 0,
                  "threads": 0, "name": machine},
    }  # fmt: skip
    places = c.places.data()
    return data | places | c.grouped(data, places["functions"]), c.texts


class GpuCollector(Collector):
    """Takes a program for a GPU apart."""

    on_gpu = True

    def __init__(self, traced: Graph, sizes: Mapping[str, int], target: tuple[str, Any, int]):
        def made() -> OfflineProgram:
            passed = run_passes(traced, target[0])
            return offline_program(passed[-1].graph, target, sizes, passed)

        self.made = demanded(Task(traced, target[0], flags().numerics), made)
        record = self.made.driver.record
        at = next(s.result for s in record if s.name == SPECIALIZE)
        assert isinstance(at, Program), at
        super().__init__(record, at)
        self._steps = {id(s): i for i, s in enumerate(self.made.lowered.p.steps)}

    def steps(self, sizes: Mapping[str, int], seconds: Mapping[str, float]) -> list[Data]:
        """Every step; what a GPU has kernels for is no call of the host."""
        out = super().steps(sizes, seconds)
        launched: dict[int, list[Data]] = {}
        launches = self.made.lowered.launches
        for a, c in self.made.calls:
            nest = {"kernel": c.name, "nest": _launch_text(launches[c.name]), "chosen": False}
            launched.setdefault(self._number(a), []).append(nest)
        for i, (row, s) in enumerate(zip(out, self.program.steps, strict=True)):
            row |= {"regions": [], "nests": launched.get(i, [])}
            if i in launched and isinstance(s, HostCall):  # an attention, or a view that is a copy
                w = work_of(s, self.types, sizes) + attention_work(s, self.types)
                row |= {"kind": "primitive", "flops": w.flops, "cost": w.cost, "bytes": w.bytes}
        return out

    def _number(self, a: StepAccess) -> int:
        return self._steps[id(self.made.origin[a.name])]

    def kernels(self) -> list[Data]:
        """The kernels; Tile IR, Triton and assembly are read when they are looked at."""
        sources = [c.source for _, c in self.made.calls]
        numbers = {s: i for i, s in enumerate(dict.fromkeys(sources))}
        assembled = self._timed("assembly", lambda: _assembled(list(numbers)))
        for (s, i), code in zip(numbers.items(), assembled, strict=True):
            lines = s.text.rstrip().split("\n")
            self.texts[f"target{i}"] = {
                "lines": lines, "touch": _touched(lines, [n for n, _ in s.signature]), "assembly": code,
                "mix": mix_of(code if _is_assembly(code) else ()),
            }  # fmt: skip
        out = []
        for i, (a, c) in enumerate(self.made.calls):
            buffers, kernel = [*c.inputs, *c.outputs], self.made.lowered.launches[c.name].kernel
            names = {m.name: b for m, b in zip(kernel.parameters, buffers, strict=True)}
            shown = tile_lines(c.name, kernel, names)
            self.texts[f"tile{i}"] = {
                "lines": [x.text for x in shown],
                "names": [list(x.names) for x in shown],
                "places": [self.places.number(x.location) for x in shown],
            }
            out.append(
                {
                    "name": c.name,
                    "step": self._number(a),
                    "target": numbers[c.source],
                    "buffers": buffers,
                }
            )
        return out


def _launch_text(x: Launch) -> str:
    """How many blocks a launch has, and what its threads do."""
    grid = " x ".join(str(n) for _, n in x.kernel.grid) or "1"
    options = ", ".join(
        f.name if getattr(x.threads, f.name) is True else f"{f.name} {getattr(x.threads, f.name)}"
        for f in fields(x.threads)
        if getattr(x.threads, f.name)
    )
    return f"grid {grid}, {options}"


def _touched(lines: Sequence[str], parameters: Sequence[str]) -> list[int]:
    """The parameter whose memory each line addresses first; -1: none."""
    words = {plain_name(n): i for i, n in enumerate(parameters)}
    begin = max((i for i, x in enumerate(lines) if x.startswith("def ")), default=0)
    out = [-1] * (begin + 1)
    for x in lines[begin + 1 :]:
        out.append(next((words[w] for w in re.findall(r"\w+", x) if w in words), -1))
    return out


def _assembled(sources: Sequence[TritonSource]) -> list[list[str]]:
    """PTX or AMDGCN of each kernel, or what keeps it from being shown."""
    try:
        triton_builder.version()
    except DeviceError as e:
        return [[e.message]] * len(sources)
    with ThreadPoolExecutor(cores()) as pool:
        return list(pool.map(carried(_assembly), sources))


def _assembly(s: TritonSource) -> list[str]:
    try:
        text = triton_builder.assembly(s)
    except CompileError as e:
        return e.message.split("\n")
    return [x.replace("\t", "    ").rstrip() for x in text.split("\n") if _is_code(x.strip())]


def _is_assembly(lines: Sequence[str]) -> bool:
    """Whether lines are assembly, which has directives, and not what keeps it from being shown."""
    return any(x.lstrip().startswith(".") for x in lines)


def _is_code(line: str) -> bool:
    """Whether a line is for the processor, not for debuggers."""
    return bool(line) and not line.startswith((".loc", ".file", "//", ";", ".cfi_", "$L__tmp"))
