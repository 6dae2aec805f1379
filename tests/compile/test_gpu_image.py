"""GPU images: what comes from the disk is what was lowered, and binding it needs nothing that lowers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.compile import artifact, passes_of
from tessera.compile.gpu import compilation, image
from tessera.compile.gpu.context import context_of
from tessera.compile.gpu.image import GpuImage, TmaParameter, decode, demand_fit, encode, key_of
from tessera.compile.gpu.offline import OfflineExecutable
from tessera.core.flags import override
from tessera.core.tables import Table
from tessera.ir.graph.ir import Graph, Node
from tessera.ir.schedule.ir import HostCall
from tests.golden import record
from tests.golden.programs import PROGRAMS
from tests.support.fakes.gpu_fake import launching_gpus

RUNS_ON = "numpy"
EVERY = 9  # of the corpus one program in so many
X = np.random.default_rng(0).normal(size=(5, 33)).astype(np.float32)


def network(x: Any) -> Any:
    """Rows, a sort, a fold, a table of numbers and a view."""
    y = op.softmax(op.tanh(x) * 2.0, axis=-1)
    wave = op.real(op.fft(op.cast(y, ts.c64), axis=-1))
    return op.sort(wave, axis=-1) + 1.0, op.sum(x, axis=0), op.reshape(y, (33, 5))


def graph_of(f: Any, *xs: Any, target: str = "cuda:sm_90") -> Graph:
    g = ts.trace(f, *map(ts.tensor, xs))
    for step in passes_of(target):
        g = step.run(g)
    return g


def image_of(g: Graph, kind: str = "cuda", name: str = "sm_90", **sizes: int) -> GpuImage:
    return OfflineExecutable(g, (), kind, name).lowered(sizes).image


# Round trips


@pytest.mark.parametrize("kind", record.GPUS)
@pytest.mark.parametrize("first", range(3))
def test_what_is_decoded_is_what_was_encoded(kind: str, first: int) -> None:
    kept, moved = 0, 0
    with record.pinned(record.PROCESSORS["avx512"]):
        for name in list(PROGRAMS)[first :: 3 * EVERY]:
            p = PROGRAMS[name]
            g = p.trace()
            for step in passes_of(":".join(record.GPUS[kind])):
                g = step.run(g)
            made = OfflineExecutable(g, (), *record.GPUS[kind]).lowered(p.sizes, p.donated).image
            demand_fit(made, g)
            data = encode(made, g)
            if data is None:
                moved += 1
                continue
            again = decode(data, g)
            demand_fit(again, g)
            assert again == made, name
            kept += 1
    assert kept > 3 * moved, (kept, moved)


def test_every_kind_of_step_is_kept() -> None:
    constant = np.arange(33, dtype=np.float32)

    def f(x: Any) -> Any:
        inverse = op.inv(op.exp(x) @ op.transpose(x))
        return *network(x + constant), inverse

    g = graph_of(f, X)
    made = image_of(g)
    assert {type(t) for t in made.tables.values()} <= {Table, Node}
    assert any(isinstance(s, HostCall) for _, s in made.steps)
    assert made.views
    assert decode(encode(made, g) or b"", g) == made


def test_boxes_of_the_copy_engine_are_kept() -> None:
    q = np.zeros((2, 128, 64), np.float16)
    g = graph_of(lambda q: op.attention(q, q, q), q)
    made = image_of(g)
    boxes = [b for c in made.calls for b in c.boxes]
    assert boxes
    assert all(isinstance(b, TmaParameter) for b in boxes)
    assert decode(encode(made, g) or b"", g) == made


# Keys


def test_a_key_has_all_that_an_image_follows_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "_sources", lambda: "sources")
    g = graph_of(network, X)
    device = ("cuda", 90, 32)
    plain = context_of("cuda:0", device, {"n": 3}, frozenset())
    contexts = [
        plain,
        context_of("cuda:0", ("cuda", 80, 32), {"n": 3}, frozenset()),
        context_of("cuda:0", device, {"n": 4}, frozenset()),
        context_of("cuda:0", device, {"n": 3}, frozenset([0])),
        context_of("cuda:0", device, {"n": 3}, frozenset(), buckets=True),
        replace(plain, roles=not plain.roles),
        replace(plain, target="hip:0"),
    ]
    keys = [key_of(g, c) for c in contexts]
    with override(numerics="fast"):
        keys.append(key_of(g, plain))
    keys.append(key_of(graph_of(lambda x: network(x)[0], X), plain))
    keys.append(artifact.key_of(g))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    assert key_of(g, replace(plain, target="cuda:1")) == keys[0], "a device of the same kind"


# From the disk


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a device whose kernels the Tile interpreter runs; verification reads no image."""
    monkeypatch.setattr(artifact, "_sources", lambda: "sources")
    with launching_gpus(keeps_programs=True), override(cache_dir=tmp_path, verify=False):
        yield tmp_path / "programs"


def run(f: Any = network, x: Any = X, **options: Any) -> list[bytes]:
    """The results of a function that is compiled anew."""
    made = ts.jit(f, **options)(ts.tensor(x).to("cuda"))
    return [y.numpy().tobytes() for y in ts.tree.leaves(made)]


def no_lowering(patch: pytest.MonkeyPatch) -> None:
    for name in ("_symbolic_schedule", "_lower_at"):
        patch.setattr(compilation, name, lambda *_: pytest.fail("it was lowered"))


def test_a_second_compilation_reads_the_first_one(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run()
    assert any(b'"target":"gpu"' in p.read_bytes() for p in fresh.iterdir())
    no_lowering(monkeypatch)
    assert run() == first


def test_sizes_have_images_of_their_own(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Any) -> Any:
        return op.softmax(x, axis=-1) @ op.transpose(x)

    want = [run(f, X[:n]) for n in (2, 3)]
    with monkeypatch.context() as patch:
        no_lowering(patch)
        assert [run(f, X[:n]) for n in (2, 3)] == want
    assert run(f, X[:4])


def test_what_is_from_the_disk_can_be_looked_at(fresh: Path) -> None:
    x = ts.tensor(X).to("cuda")
    f, g = ts.jit(network), ts.jit(network)
    f(x)
    g(x)
    assert g.lower(x).target.text == f.lower(x).target.text
    passes = [[s.name for s in h.lower(x).record if s.name != "build"] for h in (f, g)]
    assert passes[0] == passes[1]


def test_an_entry_that_fits_no_graph_is_lowered_again(fresh: Path) -> None:
    first = run()
    store = artifact._store()
    for path in fresh.iterdir():
        key = bytes.fromhex(path.stem)
        data = store.get(key)
        assert data is not None
        whole = json.loads(data)
        if whole.get("target") == "gpu":
            whole["outputs"] = whole["outputs"][::-1]
            store.put(key, json.dumps(whole).encode())
    with pytest.warns(RuntimeWarning, match="holds no program that fits the graph"):
        assert run() == first


@pytest.mark.parametrize(
    "part", ["inputs", "outputs", "buffers", "steps", "tables", "types", "sources"]
)
def test_a_damaged_image_is_no_image(part: str, fresh: Path) -> None:
    g = graph_of(network, X)
    made = image_of(g)
    whole = json.loads(encode(made, g) or b"")
    whole[part] = whole[part][1:] if isinstance(whole[part], list) else {}
    artifact.keep(b"k" * 32, json.dumps(whole).encode())
    with pytest.warns(RuntimeWarning, match="holds no program that fits the graph"):
        assert image.load(b"k" * 32, g) is None


def test_what_lowers_is_not_loaded_with_what_runs() -> None:
    code = (
        "import sys, tessera.compile.gpu.executable\n"
        "print([m for m in sys.modules if m in ('tessera.compile.gpu.lowering',"
        " 'tessera.ir.tile.gpu.lower_steps',"
        " 'tessera.ir.schedule.lower', 'tessera.ir.tile.gpu.lower', 'tessera.ir.target.triton.emit')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
