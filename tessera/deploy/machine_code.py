"""A traced graph as a program for a processor that need not be here: steps, kernels and one image of their
code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from tessera.compile import run_passes
from tessera.compile.artifact import Image
from tessera.compile.cpu.build import Building
from tessera.compile.driver import Driver
from tessera.compile.fallback import Task, demanded
from tessera.compile.passes import SCHEDULE, Context
from tessera.compile.pipeline import passes_of
from tessera.core.flags import carried
from tessera.core.processor import Processor, assume
from tessera.deploy.link import LinkedImage as Code
from tessera.deploy.link import link
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.ir import HostCall
from tessera.runtime.builder import MOST, build_safely, start
from tessera.runtime.code import Key, LlvmSource, code_store, key_of


@dataclass(frozen=True)
class CodePart:
    """A graph as steps and kernels: a whole program, or a region of one."""

    graph: Graph  # after its passes, whose nodes the host steps of the image name
    image: Image
    functions: Mapping[int, int]  # where the function of each kernel begins in the code
    regions: Mapping[Graph, CodePart]  # of steps that are branches or loops


@dataclass(frozen=True)
class Compiled:
    """A program for one processor."""

    program: CodePart
    code: Code

    @property
    def graph(self) -> Graph:
        """The graph after its passes."""
        return self.program.graph

    @property
    def image(self) -> Image:
        """The steps and kernels."""
        return self.program.image

    @property
    def functions(self) -> Mapping[int, int]:
        """Where the function of each kernel begins in the code."""
        return self.program.functions


class _Objects:
    """Takes the sources of kernels in the place of a loader; nothing is loaded here."""

    def __init__(self, processor: Processor):
        self.line = processor.line
        self.sources: dict[Key, LlvmSource] = {}

    def add(self, source: LlvmSource) -> Key:
        text = self.line + source.text
        key = (key_of(text), source.functions)
        self.sources[key] = source._replace(text=text)
        return key

    def digest(self, key: Key) -> bytes:
        """SHA-256 of a source and the processor that it is for."""
        return hashlib.sha256(self.sources[key].text.encode()).digest()

    def built(self) -> dict[Key, bytes]:
        """The object file of each source: from the store of code, or built by workers."""
        store = code_store()
        found = {k: store.get(k[0]) for k in self.sources}
        missing = [k for k, code in found.items() if code is None]
        start(len(missing))
        with ThreadPoolExecutor(MOST) as pool:
            wanted = [self.sources[k] for k in missing]
            made = pool.map(
                carried(build_safely), [s.text for s in wanted], [s.name for s in wanted]
            )
            for k, code in zip(missing, made, strict=True):
                store.put(k[0], code)
                found[k] = code
        return {k: code for k, code in found.items() if code is not None}


def compile_for(g: Graph, processor: Processor, numerics: str) -> Compiled:
    """A traced graph compiled for a processor; the same graph gives the same bytes on every machine."""
    return demanded(Task(g, "cpu", numerics), lambda: _compiled(g, processor, numerics))


def _compiled(g: Graph, processor: Processor, numerics: str) -> Compiled:
    objects = _Objects(processor)
    with assume(processor):
        lowered = run_passes(g, "cpu", numerics)[-1].graph
        images: dict[Graph, Image] = {}
        _lower(lowered, numerics, objects, images)
    built = objects.built()
    names: dict[Key, str] = {}
    for image in images.values():
        for k, entry in zip(image.codes, image.kernels, strict=True):
            names.setdefault(k, f"{len(names)}.{entry.name}")
    code = link({names[k]: (built[k], k[1]) for k in names})

    def part(h: Graph) -> CodePart:
        image = images[h]
        functions = {
            i: code.functions[f"{names[k]}/{e.symbol}"]
            for i, (k, e) in enumerate(zip(image.codes, image.kernels, strict=True))
        }
        # Keys of the store of code name the machine that built it; what a bundle says is the same anywhere.
        codes = tuple((objects.digest(k), k[1]) for k in image.codes)
        return CodePart(
            h, replace(image, codes=codes), functions, {r: part(r) for r in regions_of(image)}
        )

    return Compiled(part(lowered), code)


def regions_of(image: Image) -> list[Graph]:
    """The regions of the steps that are no kernels."""
    steps = enumerate(image.steps)
    hosted = [s for i, s in steps if isinstance(s, HostCall) and i not in image.loops]
    return [r for s in hosted for r in s.node.regions]


def _lower(g: Graph, numerics: str, objects: _Objects, images: dict[Graph, Image]) -> None:
    """Lower a graph after its passes, and the regions of its steps."""
    d = Driver(passes_of("cpu"), Context("cpu", numerics, loading=objects))
    images[g] = image = Building(d.run(g, SCHEDULE), d).image()
    for r in regions_of(image):
        if r not in images:
            _lower(r, numerics, objects, images)
