"""Texts and images of the corpus read back: what is printed, kept or sent is what is read, at every level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tessera.compile import passes_of
from tessera.compile.artifact import Image, decode, demand_fit, encode
from tessera.compile.cpu.build import image_of, schedule_of
from tessera.compile.gpu.offline import OfflineExecutable
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.text import parse_graph
from tessera.ir.graph.verify import verify as verify_graph
from tessera.ir.schedule.text import parse_program, print_program
from tessera.ir.schedule.verify import verify as verify_schedule
from tessera.ir.tile import ir as tile
from tessera.ir.tile.cpu.lower import expand
from tessera.ir.tile.text import parse_kernel, print_kernel
from tessera.ir.tile.verify import verify as verify_tile
from tests.golden import record
from tests.golden.programs import PROGRAMS

RUNS_ON = "numpy"
NAMES = list(PROGRAMS)
TOGETHER = 12  # programs in a test


def graph_for(name: str, target: str) -> Graph:
    g = PROGRAMS[name].trace()
    for p in passes_of(target):
        g = p.run(g)
    return g


class _Keys:
    """Takes the place of what builds: a key for every module."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, source: Any) -> tuple[bytes, tuple[str, ...]]:
        self.count += 1
        return bytes([self.count % 256, self.count // 256]), tuple(source.functions)


def made_of(g: Graph) -> Image:
    keys: Any = _Keys()
    return image_of(schedule_of(g), keys)


def tiles_of(name: str) -> Iterator[tile.Kernel]:
    """The kernels of a program on a CPU and on a GPU."""
    p = schedule_of(graph_for(name, "cpu"))
    types = {n: b.type for n, b in p.buffers.items()}
    for s in p.steps:
        if not hasattr(s, "node"):
            yield from (launch.kernel for launch in expand(s, types).launches)
    g = graph_for(name, "cuda:sm_90")
    at = OfflineExecutable(g, (), "cuda", "sm_90").at(PROGRAMS[name].sizes)
    yield from at.tiles.values()


@pytest.fixture(autouse=True)
def fixed() -> Iterator[None]:
    with record.pinned(record.PROCESSORS["avx512"]):
        yield


@pytest.mark.parametrize("first", range(0, len(NAMES), TOGETHER))
def test_graphs_and_schedules_read_back(first: int) -> None:
    for name in NAMES[first : first + TOGETHER]:
        g = graph_for(name, "cpu")
        again = parse_graph(g.text)
        assert again.text == g.text, name
        verify_graph(again)
        p = schedule_of(g)
        for locations in (False, True):
            text = print_program(p, locations)
            read = parse_program(text)
            assert print_program(read, locations) == text, name
        verify_schedule(read)
        for a, b in zip(p.steps, read.steps, strict=True):
            if not hasattr(a, "node"):  # nodes are other objects
                assert a == b, name


@pytest.mark.parametrize("first", range(0, len(NAMES), TOGETHER))
def test_kernels_read_back(first: int) -> None:
    for name in NAMES[first : first + TOGETHER : 2]:
        for k in tiles_of(name):
            text = print_kernel(k)
            read = parse_kernel(text)
            assert print_kernel(read) == text, name
            assert (read.grid, read.sizes) == (k.grid, k.sizes)
            verify_tile(read)
            verify_tile(k)


@pytest.mark.parametrize("first", range(0, len(NAMES), TOGETHER))
def test_images_read_back(first: int) -> None:
    for name in NAMES[first : first + TOGETHER]:
        g = graph_for(name, "cpu")
        image = made_of(g)
        demand_fit(image, g)
        again = decode(encode(image, g), g)
        assert again == image, name
        if image.kernels and image.steps:
            wrong = decode(encode(image, g).replace(b'"outputs":["', b'"outputs":["no.'), g)
            with pytest.raises((ValueError, LookupError)):
                demand_fit(wrong, g)
