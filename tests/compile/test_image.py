"""Images: what comes from the disk is what was built, and nothing else is ever run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, f32, op
from tessera.compile import artifact as image
from tessera.compile.artifact import KernelCall, decode, encode, key_of
from tessera.compile.cpu import build
from tessera.compile.passes import Context
from tessera.core.flags import override
from tessera.core.scalar import apply, arg
from tessera.ir.graph.ir import Graph
from tessera.ir.graph.op import OWN, REGISTRY
from tessera.ir.schedule.ir import Kernel, Literal
from tessera.ir.schedule.lower import lower
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.cpu.lower import lower as to_tile
from tessera.ops.define import as_value, define
from tessera.runtime import code
from tests.support.cases.random_graphs import LoopSteps, programs, same_bits
from tests.support.cases.random_graphs import Program as RandomProgram
from tests.support.runners.levels import prepared

SOURCES = image._sources.__wrapped__
ROOT = Path(__file__).parents[2]
X = np.random.default_rng(0).normal(size=(5, 33)).astype(np.float32)


def network(x: Any) -> Any:
    """Kernels, a fold, a host call and a constant."""
    for _ in range(2):
        x = op.softmax(op.tanh(x) * 2.0, axis=-1)
    return op.sort(x, axis=-1) + 1.0, op.sum(x, axis=0)


def graph_of(f: Any, *xs: Any) -> Graph:
    return prepared(ts.trace(f, *map(ts.tensor, xs)))


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a memory that has seen nothing; images are for those who do not verify."""
    forget(monkeypatch)
    monkeypatch.setattr(image, "_sources", lambda: "sources")  # they may be edited meanwhile
    with override(cache_dir=tmp_path, verify=False):
        yield tmp_path / "programs"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "_LOADED", {})


def no_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "build", lambda g, *_: pytest.fail(f"{g.name} was built"))


def run(f: Any = network, *xs: Any) -> list[Any]:
    """The results of a function that is compiled anew."""
    out = ts.jit(f, target="cpu")(*(xs or (X,)))
    return [np.asarray(y) for y in (out if isinstance(out, tuple) else (out,))]


# Laws


@given(st.one_of(programs(), programs(12, LoopSteps)))
def test_an_image_reads_back(r: RandomProgram) -> None:
    g = prepared(r.graph)
    made, _ = build.build(g, Context())
    assert decode(encode(made, g), g) == made


@given(programs(12, LoopSteps))
def test_kernels_of_one_form_are_one_program(r: RandomProgram) -> None:
    p = lower(prepared(r.graph))
    types = {n: b.type for n, b in p.buffers.items()}
    known: dict[str, Any] = {}
    for s in p.steps:
        if isinstance(s, Kernel):
            made = program(to_tile(s, types))
            plain = replace(made, parameters=tuple(replace(q, name="") for q in made.parameters))
            assert known.setdefault(build.form_of(s, types), plain) == plain


def test_a_second_process_neither_lowers_nor_builds(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run()
    assert len(list(fresh.iterdir())) == 1
    forget(monkeypatch)
    no_builds(monkeypatch)
    assert same_bits(run(), first)


def test_levels_are_made_for_those_who_look(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = ts.jit(network, target="cpu").lower(ts.tensor(X))
    texts = [want.schedule.text, want.tile.text, want.target.text]
    no_builds(monkeypatch)
    low = ts.jit(network, target="cpu").lower(ts.tensor(X))
    assert [low.schedule.text, low.tile.text, low.target.text] == texts


def test_one_image_serves_all_sizes(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor["B", "N", f32]) -> Any:  # type: ignore[name-defined]
        return op.softmax(x, axis=-1)

    first = [run(f, X), run(f, X[:2, :7])]
    assert len(list(fresh.iterdir())) == 1
    no_builds(monkeypatch)
    assert same_bits([*run(f, X), *run(f, X[:2, :7])], [y for ys in first for y in ys])


def test_captured_data_is_no_part_of_an_image(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (ts.tensor(X * k) for k in (1.0, 3.0))
    first = run(lambda x: x + op.exp(a))
    no_builds(monkeypatch)
    second = run(lambda x: x + op.exp(b))
    assert not same_bits(first, second)
    monkeypatch.undo()
    with override(verify=True):
        assert same_bits(second, run(lambda x: x + op.exp(b)))


def test_equal_layers_are_lowered_once(fresh: Path) -> None:
    def layers(n: int) -> Any:
        def f(x: Any, w: Any) -> Any:
            for _ in range(n):
                x = op.softmax(x @ w, axis=-1)
            return x

        return f

    few, many = (build.build(graph_of(layers(n), X, X.T @ X), Context())[0] for n in (3, 9))
    assert len(many.kernels) == len(few.kernels) < 9
    assert len([s for s in many.steps if isinstance(s, KernelCall)]) >= 9


def test_numbers_that_compare_equal_are_not_one_form() -> None:
    p = lower(graph_of(lambda x: x * 0.0, X))
    types = {n: b.type for n, b in p.buffers.items()}
    (k,) = [s for s in p.steps if isinstance(s, Kernel)]

    def with_zero(zero: float) -> Kernel:
        (s,) = k.stages
        left = s.term.children()[0]
        term = replace(s.term, operands=(left, Literal(left.dtype, zero)))  # type: ignore[call-arg]
        return replace(k, stages=(replace(s, term=term),))

    assert build.form_of(with_zero(0.0), types) != build.form_of(with_zero(-0.0), types)


# Damage


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "of another version"])
def test_a_damaged_image_is_built_again_and_replaced(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    first = run()
    (path,) = fresh.iterdir()
    good = path.read_bytes()
    if damage == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "flipped":
        path.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
    elif damage == "of another version":
        path.write_bytes(good[:8] + b"\x63" + good[9:])
    else:
        run(lambda x: x * 2.0 + op.exp(x))
        (other,) = set(fresh.iterdir()) - {path}
        shutil.copy(other, path)
    forget(monkeypatch)
    with pytest.warns(RuntimeWarning, match=f"cache: entry {path} .*; building it again"):
        assert same_bits(run(), first)
    assert path.read_bytes() == good


@pytest.mark.parametrize("damage", ["absent", "cut"])
def test_an_image_whose_code_is_lost_is_built_again(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    first = run()
    for path in (fresh.parent / "code").iterdir():
        if damage == "absent":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:100])
    forget(monkeypatch)
    if damage == "absent":
        assert same_bits(run(), first)
        return
    with pytest.warns(RuntimeWarning, match="building it again"):
        assert same_bits(run(), first)


SCRIPT = """
import sys
import numpy as np
import tessera as ts
from tessera import op
from tessera.compile import artifact as image
image._sources = lambda: "sources"
f = ts.jit(lambda x: op.softmax(op.tanh(x) @ op.transpose(x), axis=-1), target="cpu")
y = f(np.linspace(-1, 1, 500, dtype=np.float32).reshape(20, 25))
print("tessera.compile.cpu.build" in sys.modules, np.asarray(y).tobytes().hex())
"""


def test_processes_that_write_one_cache_do_no_harm(tmp_path: Path) -> None:
    env = {**os.environ, "TESSERA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SCRIPT], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    together = [start() for _ in range(3)]
    results = [p.communicate(timeout=300) for p in together]
    assert [p.returncode for p in together] == [0, 0, 0], results
    last, complaints = start().communicate(timeout=300)
    assert {out.split()[1] for out, _ in results} == {last.split()[1]}
    assert (last.split()[0], complaints) == ("False", "")
    assert len(list((tmp_path / "programs").iterdir())) == 1


# Keys


def test_the_key_follows_from_graph_flags_and_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    g = graph_of(network, X)
    monkeypatch.setattr(image, "_sources", lambda: "sources")
    keys = [key_of(g), key_of(graph_of(network, X[:4])), key_of(graph_of(lambda x: x + 1.0, X))]
    for changes in ({"numerics": "fast"}, {"threads": 3}):
        with override(**changes):
            keys.append(key_of(g))
    with monkeypatch.context() as patch:  # processes on more cores may share a cache
        patch.setattr(image, "expected_threads", lambda: 1000)
        keys.append(key_of(g))
    folder = tmp_path / "tessera"
    shutil.copytree(ROOT / "tessera", folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(image, "_PACKAGE", str(folder))
    monkeypatch.setattr(image, "_STARTED", time.time_ns())
    copied, changed = SOURCES(), folder / "core" / "folds.py"
    stat = changed.stat()
    changed.write_text(changed.read_text().replace("512", "256"))
    os.utime(changed, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert copied is not None
    assert SOURCES() not in (copied, None)
    monkeypatch.setattr(image, "_sources", lambda: "other sources")
    keys.append(key_of(g))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    with override(verify=False, log="debug"):
        assert key_of(g) == keys[-1]


def test_sources_that_changed_under_a_process_give_no_key(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "_STARTED", 0)
    monkeypatch.setattr(image, "_sources", SOURCES)
    assert key_of(graph_of(network, X)) is None
    run()
    assert not fresh.exists()


def test_an_op_of_the_user_gives_no_key(fresh: Path) -> None:
    @define(signature="... -> ...", body=apply("square", arg(0)), numpy=np.square, name="my_square")
    def my_square(x: Any) -> Any:
        """x times x."""
        return my_square.bind(as_value(x))

    try:
        assert REGISTRY["my_square"] not in OWN
        assert key_of(graph_of(lambda x: my_square(x) + 1.0, X)) is None
        assert same_bits(run(lambda x: my_square(x) + 1.0), [X * X + 1])
        assert not fresh.exists()
    finally:
        del REGISTRY["my_square"]
    assert set(REGISTRY.values()) <= OWN
