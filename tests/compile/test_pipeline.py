"""One pipeline: every pass of every level is a line, runs once, is verified, recorded and can be stopped
at.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.cli import main
from tessera.compile import driver, lower_to
from tessera.compile.artifact import are_own, key_of
from tessera.compile.passes import GRAPH, LEVELS, SCHEDULE, TARGET, TILE, Pass
from tessera.compile.pipeline import PIPELINES, SHARED, passes_of
from tessera.core.deferred import Deferred
from tessera.core.errors import VerifyError
from tessera.core.flags import override
from tessera.inspect.page import programs_of
from tessera.ir.graph import op as op_record
from tessera.ir.graph.ir import Graph
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.tile.cpu.lower import LOWERINGS
from tessera.ir.tile.gpu import lower as on_gpu
from tessera.ir.tile.gpu.pooling import POOLS
from tessera.ir.tile.unit import Unit, on_kernels

RUNS_ON = "numpy"
COMPILED = ("cpu", "cuda:sm_90", "hip:gfx942")


def block(x: Any, w: Any) -> Any:
    """A product, rows and a primitive: several lowerings."""
    return op.softmax(x @ w), op.cumsum(x, 1)


def arguments() -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    return tuple(ts.tensor(rng.standard_normal((8, 8)).astype(np.float32)) for _ in range(2))  # type: ignore[return-value]


def traced() -> Graph:
    return ts.trace(block, *arguments())


@pytest.fixture
def ran() -> Iterator[list[tuple[Pass, Any]]]:
    """The passes that run, each with what it made."""
    found: list[tuple[Pass, Any]] = []
    with driver.PASSES.by(lambda p, made: found.append((p, made))):
        yield found


# The lines


@pytest.mark.parametrize("target", ["numpy", "cpu", "cuda", "hip"])
def test_every_line_names_a_function_and_says_what_it_does(target: str) -> None:
    passes = passes_of(target)
    levels = [LEVELS.index(p.level) for p in passes]
    assert levels == sorted(levels)
    assert len({p.name for p in passes}) == len(passes)
    for p in passes:
        inner = p.run.func if isinstance(p.run, partial) else p.run
        assert callable(inner.function() if isinstance(inner, Deferred) else inner), p.name
        assert p.about[0].islower(), p.name
        assert not p.about.endswith("."), p.name
    assert passes[: len(SHARED)] == SHARED


def test_the_lowerings_of_a_file_are_the_lines_of_the_pipeline() -> None:
    """Tests and the tuner lower single steps by these tuples."""
    cpu = [p.run.function() for p in passes_of("cpu", TILE)]  # type: ignore[attr-defined]
    assert tuple(cpu) == LOWERINGS
    gpu = [p.run.function() for p in passes_of("cuda", TILE)]  # type: ignore[attr-defined]
    assert tuple(f for f in gpu if f in on_gpu.LOWERINGS) == on_gpu.LOWERINGS


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    wanted = [(t, p.level, p.name, p.about) for t in PIPELINES for p in PIPELINES[t]]
    assert [(r["target"], r["level"], r["name"], r["about"]) for r in rows] == wanted
    assert main(["passes", "--target", "hip"]) == 0
    shown = capsys.readouterr().out
    assert "update_in_place" in shown
    assert "prefetch_rows" not in shown
    assert main(["passes", "--target", "abacus"]) == 2
    assert "--target is 'abacus', expected one of numpy, cpu, cuda, hip" in capsys.readouterr().err


# The record


@pytest.mark.parametrize("target", COMPILED)
def test_looking_compiles_nothing_again(target: str, ran: list[Any]) -> None:
    f = ts.jit(block, target=target)
    args = arguments()
    if target == "cpu":
        f(*args)
    low = f.lower(*args)
    names = [s.name for s in low.record]
    known = len(ran)
    assert known
    assert names[0] == "trace"
    assert {s.level for s in low.record} == set(LEVELS)
    assert low.schedule.text
    assert low.tile.text
    assert low.target.text
    assert [s.name for s in f.lower(*args).record] == names
    assert len(ran) == known
    runs = {p.name for p, _ in ran}
    assert set(names[1:]) == runs


def test_a_program_from_the_disk_is_lowered_once_when_it_is_looked_at(
    tmp_path: Path, ran: list[Any]
) -> None:
    args = arguments()
    with override(verify=False, cache_dir=tmp_path):
        ts.jit(block, target="cpu")(*args)
        ran.clear()
        f = ts.jit(block, target="cpu")
        f(*args)
        assert {p.level for p, _ in ran} == {GRAPH}  # what lowers is on the disk
        text = f.lower(*args).target.text
        known = len(ran)
        assert {p.level for p, _ in ran} == set(LEVELS)
        assert "build" not in {p.name for p, _ in ran}
        low = f.lower(*args)
        assert (low.target.text, bool(low.tile), len(low.record)) == (text, True, len(low.record))
        assert len(ran) == known


def test_the_inspector_reads_the_record(ran: list[Any]) -> None:
    f = ts.jit(block, target="cpu")
    args = arguments()
    e = f.lower(*args)._executable
    known = len(ran)
    ((data, texts), *_) = programs_of(e, [x.numpy() for x in args])
    assert len(ran) == known
    own = [s.name for s in e.record if s.level != GRAPH]
    assert [x["name"] for x in data["lower"]][: len(own)] == own
    kernels = data["kernels"]
    assert [k["name"] for k in kernels] == list(e.tiles)
    assert {"\n".join(texts[f"target{k['target']}"]["lines"]) for k in kernels} == {
        x.rstrip("\n") for x in e.target.values()
    }


# Stopping


@pytest.mark.parametrize("target", ["numpy", *COMPILED])
def test_every_pass_can_be_stopped_at(target: str, ran: list[Any]) -> None:
    g = traced()
    with override(verify=False):
        stops(g, target, ran)


def stops(g: Graph, target: str, ran: list[Any]) -> None:
    whole = [s.name for s in lower_to(g, target)]
    order = [p.name for p in passes_of(target)]
    for name in whole:
        ran.clear()
        record = lower_to(g, target, name)
        assert record[-1].name == name
        assert record[-1].result.text is not None
        assert {p.name for p, _ in ran} <= set(
            order[: order.index(name) + 1] if name in order else ()
        )
    unused = set(order) - set(whole)
    assert unused <= {
        "relax_order",
        "build",
        "fuse_prologue",
        "fuse_gated_epilogue",
        "dependent_launch",
    }


# Passes for Hopper, whose groups of threads have roles.
ROLES = {"fuse_prologue", "fuse_gated_epilogue", "dependent_launch"}


@pytest.mark.parametrize("target", ["numpy", *COMPILED])
def test_the_passes_that_cannot_be_stopped_at_are_known(target: str) -> None:
    """All but the building of machine code, and on AMD those for Hopper, stop with some numerics."""
    g, open_ = traced(), {p.name for p in passes_of(target)}
    with override(verify=False):
        for numerics in ("deterministic", "fast"):
            for name in sorted(open_):
                record = lower_to(g, target, name, numerics=numerics)
                if record[-1].name == name:
                    open_.remove(name)
    wanted = {"build"} if target != "numpy" else set()
    assert open_ == wanted | (ROLES if target.startswith("hip") else set())


def test_what_comes_after_the_stop_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(u: Unit) -> Unit:
        raise KeyError("too far")

    edit(monkeypatch, "cpu", "prefetch_rows", Pass(TILE, "fails", fails, "fail"))
    assert lower_to(traced(), "cpu", "lower_rows")[-1].result
    with pytest.raises(KeyError):
        lower_to(traced(), "cpu", "emit")


PROGRAM = """
import tessera as ts
from tessera import Tensor, f32, op

@ts.jit
def layer(x: Tensor["B", 16, f32], w: Tensor[16, 16, f32]):
    return op.softmax(x @ w)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "layer.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize(
    ("target", "stop", "has"),
    [
        ("cpu", "decompose", "exp"), ("cpu", "sink", "tessera.graph"), ("cpu", "fuse", "schedule."),
        ("cpu", "lower_contraction", "tile."), ("cpu", "target", "define"),
        ("hip:gfx942", "collapse_axes", "schedule."),
        ("cuda:sm_90", "specialize", "schedule."), ("cuda:sm_90", "split_kernels", "schedule."),
        ("cuda:sm_90", "lower_rows", "tile."), ("cuda:sm_90", "emit", "@triton.jit"),
        ("numpy", "hoist", "tessera.graph"),
    ],
)  # fmt: skip
def test_the_command_line_stops_at_a_pass(
    target: str, stop: str, has: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["compile", file, "--target", target, "--stop-at", stop, "--size", "B=8"]
    assert main(given) == 0
    assert has in capsys.readouterr().out


def test_a_stop_that_a_target_does_not_have(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", file, "--target", "numpy", "--stop-at", "emit"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--stop-at is emit: numpy has no such pass; it has inline, simplify, hoist" in said
    assert main(["compile", file, "--target", "cpu", "--stop-at", "relax_order"]) == 2
    assert "--stop-at relax_order: the pass does not run for this program on cpu" in " ".join(
        capsys.readouterr().err.split()
    )
    assert main(["compile", file, "--target", "cpu", "--stop-at", "build"]) == 2
    assert "--stop-at build: what is built is no text; stop at emit" in " ".join(
        capsys.readouterr().err.split()
    )


# Verification


@pytest.mark.parametrize("target", COMPILED)
def test_every_level_is_verified_after_every_pass(
    target: str, ran: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = dict.fromkeys(LEVELS, 0)
    usual = driver.Driver.verify

    def verify(self: Any, made: Any) -> None:
        usual(self, made)
        counts[level_of(made)] += 1

    def counted(name: str, level: str) -> None:
        checked[level] = 0
        f = getattr(driver, name)

        def check(*given: Any) -> None:
            checked[level] += 1
            f(*given)

        monkeypatch.setattr(driver, name, check)

    checked: dict[str, int] = {}
    monkeypatch.setattr(driver.Driver, "verify", verify)
    for name, level in (
        ("verify_graph", GRAPH), ("_verify_schedule", SCHEDULE), ("_verify_tile", TILE),
        ("_verify_shares", TARGET),
    ):  # fmt: skip
        counted(name, level)
    assert ts.jit(block, target=target).lower(*arguments()).target
    for level in LEVELS:
        passes = [p for p, made in ran if p.level == level and not isinstance(made, list)]
        assert counts[level] == len(passes) > 0, level
        assert checked[level] > 0, level


def level_of(made: Any) -> str:
    if isinstance(made, Graph | Program):
        return GRAPH if isinstance(made, Graph) else SCHEDULE
    return TILE if isinstance(made, Unit) else TARGET


def without_last(g: Graph) -> Graph:
    return Graph(g.inputs, g.nodes[:-1], g.outputs, g.name, g.input_names, g.captured, g.guards)


def without_first(p: Program) -> Program:
    return replace(p, steps=p.steps[1:])


def without_loads(u: Unit) -> Unit:
    return u.each(lambda k: replace(k, body=replace(k.body, operations=k.body.operations[1:])))


BROKEN = {
    GRAPH: Pass(GRAPH, "broken", without_last, "drop a node"),
    SCHEDULE: Pass(SCHEDULE, "broken", without_first, "drop a step"),
    TILE: Pass(TILE, "broken", without_loads, "drop an operation"),
}


@pytest.mark.parametrize("level", BROKEN)
@pytest.mark.parametrize("target", COMPILED)
def test_a_pass_that_breaks_the_ir_is_caught_at_once(
    target: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = target.partition(":")[0]
    last = passes_of(kind, level)[-1].name
    edit(monkeypatch, kind, last, BROKEN[level])
    with pytest.raises(VerifyError) as caught:
        lower_to(traced(), target)
    assert caught.value.tessera_pass == "broken"  # type: ignore[attr-defined]


def test_steps_that_share_launches_are_verified() -> None:
    """Products in one launch, a product with its vector, an update in place, attention in columns of
    others.
    """
    from tests.golden.programs import PROGRAMS

    for name in list(PROGRAMS)[::9]:
        p = PROGRAMS[name]
        assert lower_to(p.trace(), "cuda:sm_90", None, p.sizes, p.numerics)


# Adding a pass: one function, one line


def edit(patch: pytest.MonkeyPatch, target: str, after: str, line: Pass) -> None:
    """The line that somebody adds to compile/pipeline.py."""
    out: list[Pass] = []
    for p in PIPELINES[target]:
        out += [p, line] if p.name == after else [p]
    patch.setitem(PIPELINES, target, tuple(out))


def mark_graph(g: Graph) -> Graph:
    """The graph under another name."""
    name = f"{g.name}_marked"
    return Graph(g.inputs, g.nodes, g.outputs, name, g.input_names, g.captured, g.guards)


def mark_kernels(p: Program) -> Program:
    """The program whose kernels have other names."""
    steps = (replace(s, name=f"{s.name}_marked") if isinstance(s, Kernel) else s for s in p.steps)
    return replace(p, steps=tuple(steps))


ADDED: dict[str, tuple[str, Callable[..., Any], str]] = {
    GRAPH: ("hoist", mark_graph, "tessera.graph"),
    SCHEDULE: ("fuse_fft", mark_kernels, "_marked"),
    TILE: ("prefetch_rows", on_kernels(lambda k: replace(k, name=f"{k.name}_marked")), "_marked"),
}


@pytest.mark.parametrize("level", ADDED)
def test_a_pass_is_one_function_and_one_line(
    level: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after, run, has = ADDED[level]
    wanted = ts.jit(block, target="cpu")(*arguments())
    edit(monkeypatch, "cpu", after, Pass(level, "mark", run, "mark what passes by"))
    assert main(["passes", "--target", "cpu"]) == 0
    assert "mark what passes by" in capsys.readouterr().out
    assert main(["compile", file, "--target", "cpu", "--stop-at", "mark"]) == 0
    assert has in capsys.readouterr().out
    f, args = ts.jit(block, target="cpu"), arguments()
    got = f(*args)
    for a, b in zip(got, wanted, strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
    low = f.lower(*args)
    names = [s.name for s in low.record if s.level == level]
    assert names[names.index(after) + 1] == "mark"
    ((data, _), *_) = programs_of(low._executable, [x.numpy() for x in args])
    shown = data["passes"] if level == GRAPH else data["lower"]
    assert "mark" in [x["name"] for x in shown]


def test_a_pass_of_the_users_is_not_taken_for_what_is_on_the_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The key of an artefact has our sources, and none of other files."""
    g = traced()
    with override(verify=False, cache_dir=tmp_path):
        assert are_own(passes_of("cpu"))
        assert key_of(g) is not None
        edit(monkeypatch, "cpu", "hoist", Pass(GRAPH, "mark", mark_graph, "mark what passes by"))
        assert not are_own(passes_of("cpu"))
        assert key_of(g) is None


def test_a_fault_names_the_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(u: Unit) -> Unit:
        if u.made is not None and u.name.startswith("block"):
            raise KeyError("a tile")
        return u

    edit(monkeypatch, "cpu", "lower_rows", Pass(TILE, "fails", fails, "fail"))
    with (
        override(strict=False, verify=False, cache_dir=tmp_path),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        ts.jit(block, target="cpu")(*arguments())
    told = [str(w.message) for w in caught]
    assert any(
        t.startswith("block: the compiler failed in fails with KeyError: 'a tile'") for t in told
    )


def test_every_pool_of_a_gpu_says_that_it_has_a_kernel() -> None:
    assert {n for n, o in op_record.REGISTRY.items() if o.kernel == "pool"} == set(POOLS)
