"""What the compiler makes of the corpus on processors that are fixed: digests of every level, counts,
memory plans.

Nothing is built and nothing runs.  A record does not depend on this machine, on its cores, on Python's
hashes or on what was compiled before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tessera.checks.kernel import check_kernel
from tessera.compile import passes_of
from tessera.compile.cpu.bound_program import Prepared
from tessera.compile.cpu.build import image_of, schedule_of
from tessera.compile.gpu import context as gpu_context
from tessera.compile.gpu.offline import OfflineExecutable, OfflineProgram
from tessera.core import matrix_units, processor
from tessera.core.flags import override
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.ir import HostCall, Kernel
from tessera.ir.schedule.nests.nest import parse_nest
from tessera.ir.schedule.nests.space import nests
from tessera.ir.schedule.text import print_program
from tessera.ir.target.cpu import tiles
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.entry import Entry
from tessera.ir.target.triton import emit as triton
from tessera.ir.tile.cpu import lower as to_tile
from tessera.ir.tile.cpu.legalize import expand
from tessera.ir.tile.cpu.loops import LENGTH
from tessera.ir.tile.gpu.written import written
from tessera.ir.tile.launch import Threads
from tessera.ir.tile.text import print_kernel
from tessera.runtime import tuned
from tessera.runtime.allocator_ir import blocks_ir
from tessera.runtime.call_ir import call_ir
from tessera.runtime.cuda.dlpack_ir import dlpack_ir
from tessera.runtime.cuda.launch_ir import launch_ir
from tessera.runtime.gpu.launch_order import order
from tessera.runtime.kernel import CompiledKernel
from tessera.runtime.pool_ir import pool_ir
from tests.golden.choices import CHOICES, attentions, texts_of
from tests.golden.kernels import KERNELS
from tests.golden.programs import PROGRAMS, Program
from tests.support.cases.check_kernels import GLOBAL, SHARED, bound_mutants, pipelined, race_mutants

FOLDER = Path(__file__).parent
Record = dict[str, Any]


class Processor(NamedTuple):
    """A processor: what it says of itself, LLVM's names for its features, its caches, and the threads to
    plan for.
    """

    words: frozenset[str]
    features: frozenset[str]
    caches: tuple[int, ...]  # KiB: of data, of instructions, the second
    threads: int


PROCESSORS = {
    "avx512": Processor(
        frozenset(["avx512f", "avx2", "amx_tile", "amx_int8", "amx_bf16"]),
        frozenset(
            ["avx512f", "avx512dq", "avx512vl", "avx512vnni", "amx-tile", "amx-int8", "amx-bf16"]
        ),
        (48, 32, 2048),
        8,
    ),
    "vnni": Processor(
        frozenset(["avx512f", "avx2"]),
        frozenset(["avx512f", "avx512dq", "avx512vl", "avx512vnni"]),
        (32, 32, 1024),
        1,
    ),
    "avx2": Processor(frozenset(["avx2"]), frozenset(["avx2", "fma"]), (32, 32, 512), 2),
    "asimd": Processor(frozenset(["asimd"]), frozenset(["neon"]), (64, 64, 1024), 4),
}
GPUS = {"sm_90": ("cuda", "sm_90"), "gfx942": ("hip", "gfx942")}
# One in so many of the corpus is compiled for every processor; all of it for the first, and for
# both kinds of GPU.
EVERYWHERE = 2


def digest(*parts: object) -> str:
    """The first digits of the SHA-256 of texts."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


@contextmanager
def pinned(p: Processor) -> Iterator[None]:
    """Compile for a processor that need not be this one, as if nothing had been tuned."""
    known = (processor._own_registers,)
    caches = dict(zip((0, 1, 2), p.caches, strict=True))
    with pytest.MonkeyPatch.context() as patch, override(
        threads=p.threads, verify=False, matrix_units=True, checked=False, numerics="deterministic"
    ):  # fmt: skip
        patch.setattr(processor, "words", lambda: p.words)
        patch.setattr(processor, "_own_words", lambda: p.words)
        patch.setattr(matrix_units, "words", lambda: p.words)
        patch.setattr(matrix_units, "may_use_tiles", lambda: True)
        patch.setattr(processor, "cores", lambda: p.threads)
        patch.setattr(processor, "_cache_bytes", lambda i: caches[i] << 10)
        patch.setattr(tiles, "host_features", lambda: p.features)
        patch.setattr(tuned, "entries", dict)
        patch.setattr(gpu_context, "has_roles", lambda: True)
        for f in known:
            f.cache_clear()
        try:
            yield
        finally:
            for f in known:
                f.cache_clear()


# The CPU ----------------------------------------------------------------------------------------


class _Texts:
    """Takes the place of what builds: it keeps the modules."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, source: Any) -> bytes:
        self.texts.append(source.text)
        return b""


def on_cpu(p: Program) -> Record:
    """What becomes of a program on the processor in force."""
    g = p.trace()
    for step in passes_of("cpu"):
        g = step.run(g)
    return _machine_code(g, p.sizes, p.numerics, p.donated)


def _machine_code(
    g: Graph, sizes: Mapping[str, int], numerics: str, donated: frozenset[int] = frozenset()
) -> Record:
    schedule = schedule_of(g, None, numerics)
    modules = _Texts()
    image = image_of(schedule, modules)
    nowhere: Any = SimpleNamespace(address=0)
    kernels = [CompiledKernel(e, code=nowhere) for e in image.kernels]
    inside: list[Record] = []

    def host(s: HostCall, types: Any, known: Any) -> tuple[Any, int]:
        inside.extend(_machine_code(r, sizes, numerics) for r in s.node.regions)
        return print, 0  # nothing calls it

    names = frozenset(image.inputs[i] for i in donated)
    threads = processor.expected_threads()
    made = Prepared(g.name, image, kernels, sizes, threads, host, names)
    codes = [
        digest(text, *(getattr(e, f.name) for f in fields(Entry)))
        for e, text in zip(image.kernels, modules.texts, strict=True)
    ]
    cells = [
        [len(series.phases), series.phases, series.needs, series.seats]
        if (series := made.quick) is not None
        else [type(s).__name__ for s in made._segments]
    ]
    jobs = [
        [made.sizes, j.count, j.scratch, j.seats, round(j.worth, 6)]
        for j in (k.job({LENGTH: 1000, **sizes}, threads, 10_000_000) for k in kernels)
    ]
    return {
        "graph": digest(g.text),
        "schedule": digest(print_program(schedule)),
        "kernels": codes,
        "calls": len(image.steps),
        "peak": made.peak,
        "plan": digest(made.plan, made.views, cells, sorted(made.places.items()),
        made.tidy and sorted(made.tidy)),
        "jobs": digest(jobs),
        "tables": [str(t.type) for t in image.tables],
        **({"regions": inside} if inside else {}),
    }  # fmt: skip


# GPUs -------------------------------------------------------------------------------------------


def on_gpu(p: Program, kind: str, name: str) -> Record:
    """What becomes of a program on a GPU of a name."""
    g = p.trace()
    for step in passes_of(f"{kind}:{name}"):
        g = step.run(g)
    made = OfflineExecutable(g, (), kind, name).at(p.sizes, p.donated)
    return {"graph": digest(g.text), **_launches(made)}


def _launches(p: OfflineProgram) -> Record:
    code: Any = SimpleNamespace(scratch=0)
    kernels = []
    for _, c in p.calls:
        request = c.source.request()
        threads = p.lowered.launches[c.name].threads
        kernels.append(digest(json.dumps(request, sort_keys=True), c.scratch, threads, c.blocks))
    waits = order([p.touched(c, code) for _, c in p.calls])
    return {
        "schedule": digest(print_program(p.lowered.p)),
        "tiles": digest(*map(print_kernel, p.tiles.values())),
        "kernels": kernels,
        "peak": p.plan.peak,
        "plan": digest(p.plan, p.views, sorted(p.places.items())),
        "waits": digest(waits),
        "hosted": sorted(p.hosted),
        "tables": [f"{x.dtype}{x.shape}" for x in p.tables.values()],
        **({"regions": [_launches(x) for x in p.inside.values()]} if p.inside else {}),
    }


# Kernels of the kernel language -----------------------------------------------------------------


def of_kernel(name: str) -> Record:
    """What becomes of a kernel that somebody wrote."""
    f, args = KERNELS[name]
    k = f.lower(*args)
    wide = expand(k)
    return {
        "tile": digest(print_kernel(k)),
        "expanded": digest(print_kernel(wide)),
        "llvm": digest(emit(wide)),
        "triton": digest(triton.emit(written(k), Threads(4, 2))),
    }


# What is no program ---------------------------------------------------------------------------------


def _seen(report: Any) -> list[Any]:
    """What the checks say of a kernel, without the places where it was written."""
    return [
        [v.tool, v.ok, v.is_proof, v.note,
        *([f.tool, f.level, f.message, f.operation, str(f.witness), f.suggestion, f.confirmed]
        for f in v.findings)]
        for v in report
    ]  # fmt: skip


def of_checks(name: str) -> Record:
    """What the checks find in a right kernel, and in wrong ones that are like it."""
    make = CHECKED[name]
    k = make()
    wrong = [*bound_mutants(k), *race_mutants(k)][::FAULTS] if name not in SHARED else [
        (str(i), SHARED[name][0](i)) for i in range(SHARED[name][1])
    ]  # fmt: skip
    return {
        "right": digest(_seen(check_kernel(k, machine="h200"))),
        "wrong": digest(*([n, _seen(check_kernel(x, machine="h200"))] for n, x in wrong)),
    }


def of_nests(name: str) -> Record:
    """The nests that the tuner may try for each kernel of a program, and the code of one of them."""
    g = PROGRAMS[name].trace()
    for step in passes_of("cpu"):
        g = step.run(g)
    p = schedule_of(g, None)
    types = {n: b.type for n, b in p.buffers.items()}
    found = {}
    for s in p.steps:
        if isinstance(s, Kernel):
            tried = list(nests(s))
            assert all(parse_nest(str(n)) == n for n in tried)
            k = to_tile.lower(replace(s, nest=tried[len(tried) // 2]), types)
            found[s.name] = [digest(*tried), len(tried), digest(emit(k))]
    return found


def of_choice(name: str) -> Record:
    """What is chosen for a kind of program at each of its sizes."""
    make, sizes = CHOICES[name]
    made = {}
    for n in sizes:
        p = make(*n)
        made[" ".join(map(str, n))] = [
            digest(json.dumps(on_cpu(p))), digest(json.dumps(on_gpu(p, *GPUS["sm_90"])))
        ]  # fmt: skip
    return made


TEXTS: dict[str, Callable[[], str]] = {
    "pool": lambda: pool_ir(processor="x86_64"),
    "pool without futex": lambda: pool_ir(False, "x86_64"),
    "call": call_ir,
    "blocks": blocks_ir,
    "launch": lambda: launch_ir("cuLaunchKernelEx"),
    "dlpack": lambda: dlpack_ir(100, 200),
}
CHECKED: dict[str, Callable[[], Any]] = {
    **{f.__name__: f for f in GLOBAL},
    **{n: f for n, (f, _) in SHARED.items()},
    "pipelined": pipelined,
}
FAULTS = 1  # of the wrong kernels one in so many
TUNED = 3  # of the programs one in so many


# All --------------------------------------------------------------------------------------------


OTHERS: dict[str, Callable[[str], Record]] = {
    "kernels": of_kernel,
    "checks": of_checks,
    "nests": of_nests,
    "choices": of_choice,
    "attention": lambda name: {"code": [*map(digest, texts_of(dict(attentions())[name]))]},
    "runtime": lambda name: {"text": digest(TEXTS[name]())},
}


def cases() -> Iterator[tuple[str, str]]:
    """Every file of the record and every name in it."""
    for where in PROCESSORS:
        names = list(PROGRAMS) if where == "avx512" else list(PROGRAMS)[::EVERYWHERE]
        if where == "vnni":
            names = [n for n in PROGRAMS if "product" in n or "bf16" in n or "conv" in n]
        yield from ((where, n) for n in names)
    for where in GPUS:
        yield from ((where, n) for n in PROGRAMS)
    yield from (("kernels", n) for n in KERNELS)
    yield from (("checks", n) for n in CHECKED)
    yield from (("nests", n) for n in list(PROGRAMS)[::TUNED])
    yield from (("runtime", n) for n in TEXTS)
    yield from (("choices", n) for n in CHOICES)
    yield from (("attention", n) for n, _ in attentions())


def made(where: str, name: str) -> Record:
    """The record of one program or kernel."""
    with pinned(PROCESSORS.get(where, PROCESSORS["avx512"])):
        if where in OTHERS:
            found = OTHERS[where](name)
        elif where in GPUS:
            found = on_gpu(PROGRAMS[name], *GPUS[where])
        else:
            found = on_cpu(PROGRAMS[name])
    plain: Record = json.loads(json.dumps(found))  # as the file has it
    return plain


def recorded(where: str) -> dict[str, Record]:
    """What a file of the record holds."""
    path = FOLDER / f"{where}.json"
    found: dict[str, Record] = json.loads(path.read_text()) if path.exists() else {}
    return found


def differences(old: Record | None, new: Record) -> list[str]:
    """The parts of a record that changed."""
    if old is None:
        return ["new"]
    return [k for k in {**old, **new} if old.get(k) != new.get(k)]
