"""The memory plan: nothing that lives is written over, and the peak is what a run takes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera as ts
from tessera import Tensor, f32, op
from tessera.compile.cpu.executable import MachineExecutable, executable
from tessera.core.errors import OutOfMemoryError
from tessera.core.flags import override
from tessera.core.types import TensorType
from tessera.ir.schedule.layout import layout_of, row_major
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.memory import LINE, MemoryPlan, StepAccess, View, plan_memory
from tessera.ir.tile.sharing import shareable
from tessera.runtime import kernel, memory
from tessera.runtime.pool import Pool
from tests.support.cases.random_graphs import LoopSteps, programs, same_bits
from tests.support.cases.random_graphs import Program as RandomProgram
from tests.support.runners.levels import by_schedule, kernels, prepared, run_llvm

RNG = np.random.default_rng(0)


def draw(*shape: int) -> Tensor:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


def machine(f: Any, *xs: Tensor) -> MachineExecutable:
    low = ts.jit(f, target="cpu").lower(*xs)
    return low._executable  # type: ignore[return-value]


# The law: whatever is planned, the bits are those of buffers that share nothing


@settings(max_examples=100)
@given(st.one_of(programs(), programs(12, LoopSteps)))
def test_a_planned_run_has_the_bits_of_the_schedule(r: RandomProgram) -> None:
    g = prepared(r.graph)
    e = executable(g, ())
    want = by_schedule(e.schedule, r.inputs)
    before = [x.copy() for x in r.inputs]
    for _ in range(2):  # the second run finds memory that was used before
        assert same_bits(e.run(r.inputs), want), f"{e.schedule}\n{r.inputs}"
    assert same_bits(r.inputs, before)
    captured = [v.storage.shape for v in g.captured]
    check(e.at(e._sizes([*[x.shape for x in r.inputs], *captured])).plan)


@given(st.one_of(programs(), programs(12, LoopSteps)))
def test_kernels_write_nothing_beside_their_memory(r: RandomProgram) -> None:
    g = prepared(r.graph)
    blocks: list[Any] = []

    def guarded(shape: Any, dtype: Any) -> Any:
        size = np.empty(0, dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        blocks.append(np.full(size + 256, 0xA5, np.uint8))
        made: Any = blocks[-1][128 : 128 + size].view(dtype).reshape(shape)
        return made

    with pytest.MonkeyPatch.context() as m:
        m.setattr(memory, "maker", lambda size: guarded)
        m.setattr(memory, "empty", guarded)
        executable(g, ()).run(r.inputs)
    for b in blocks:
        assert (b[:128] == 0xA5).all(), r
        assert (b[-128:] == 0xA5).all(), r


def check(plan: MemoryPlan) -> None:
    """What lives at one time lies apart, inside its space."""
    own = {s.space: s.size for s in plan.storages if s.kind == "result"} | {"arena": plan.arena}
    placed = [s for s in plan.storages if s.space]
    for s in placed:
        assert 0 <= s.offset <= s.offset + s.size <= own[s.space], plan
    for a, b in combinations(placed, 2):
        if a.space == b.space and a.first <= b.last and b.first <= a.last:
            apart = a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
            assert apart or 0 in (a.size, b.size), f"{a}\n{b}\n{plan}"


names = st.sampled_from("abcdefghij")


@st.composite
def accesses(draw: Any) -> tuple[dict[str, TensorType], list[StepAccess], list[str], list[str]]:
    """Steps that read what was written before, on buffers of a few sizes."""
    types = {"x0": TensorType(f32, (16,)), "x1": TensorType(f32, (48,))}
    steps: list[StepAccess] = []
    for i in range(draw(st.integers(1, 25))):
        reads = tuple(draw(st.sets(st.sampled_from(sorted(types)), min_size=1, max_size=3)))
        writes = tuple(f"t{i}_{j}" for j in range(draw(st.integers(1, 2))))
        types |= {w: TensorType(f32, (draw(st.sampled_from((16, 48, 100))),)) for w in writes}
        pairs = frozenset((r, w) for r in reads for w in writes if draw(st.booleans()))
        host = draw(st.integers(0, 5)) == 0
        steps.append(StepAccess(f"s{i}", reads, writes, pairs, host, draw(st.sampled_from((0, 8)))))
    made = [w for s in steps for w in s.writes]
    outputs = draw(st.lists(st.sampled_from([*made, "x0"]), min_size=1, max_size=3))
    return types, steps, ["x0", "x1"], outputs


@settings(max_examples=100)
@given(accesses())
def test_steps_that_run_in_the_planned_memory_read_what_was_written(given: Any) -> None:
    """A run of the plan on bytes: every buffer holds the number of its writer until its last reader."""
    types, steps, inputs, outputs = given
    plan = plan_memory("p", types, steps, inputs, outputs, {})
    check(plan)
    memory = {s.space: np.zeros(s.size, np.uint8) for s in plan.storages if s.kind == "result"}
    memory["arena"] = np.zeros(plan.arena, np.uint8)
    memory |= {b: np.zeros(s.size, np.uint8) for s in plan.storages if not s.space for b in s.lives}

    def bytes_of(name: str) -> Any:
        s = plan.place[name]
        if not s.space:
            return memory[name]
        return memory[s.space][s.offset : s.offset + s.size]

    number = {n: i for i, n in enumerate(types)}
    for n in inputs:
        bytes_of(n)[:] = number[n]
    for step in steps:
        for r in step.reads:
            assert (bytes_of(r) == number[r]).all(), (step, r, str(plan))
        for w in step.writes:
            bytes_of(w)[:] = number[w]
    for n in (*outputs, *inputs):
        assert (bytes_of(n) == number[n]).all(), (n, str(plan))
    everything = sum(s.size for s in plan.storages if s.kind != "input")
    gaps = LINE * len(plan.storages)
    assert plan.peak <= everything + max(s.temporary for s in steps) + gaps


def test_a_chain_runs_in_two_buffers() -> None:
    types = {n: TensorType(f32, (256,)) for n in ("x", *"abcdef")}
    chain = ["x", *"abcdef"]
    steps = [StepAccess(w, (r,), (w,)) for r, w in pairwise(chain)]
    plan = plan_memory("p", types, steps, ["x"], ["f"], {})
    assert (plan.arena, plan.results, plan.peak) == (1024, 1024, 2048)
    in_place = [
        StepAccess(s.name, s.reads, s.writes, frozenset(((s.reads[0], s.name),))) for s in steps
    ]
    plan = plan_memory("p", types, in_place, ["x"], ["f"], {})
    assert (plan.arena, plan.results) == (0, 1024)
    assert plan.place["a"] is plan.place["f"]
    given = plan_memory("p", types, in_place, ["x"], ["f"], {}, frozenset("x"))
    assert given.peak == 0
    assert given.place["f"].kind == "input"


def test_a_view_keeps_its_base() -> None:
    types = {n: TensorType(f32, (256,)) for n in "xabcv"}
    steps = [
        StepAccess("1", ("x",), ("a",)),
        StepAccess("2", ("x",), ("b",)),
        StepAccess("3", ("b", "v"), ("c",), frozenset((("v", "c"),))),
    ]
    whole = {"v": View("a", 0, (4,))}
    plan = plan_memory("p", types, steps, ["x"], ["c"], whole)
    assert plan.place["a"] is plan.place["c"], "a view of the whole gives its place"
    part = {"v": View("a", 4, (4,))}
    plan = plan_memory("p", types, steps, ["x"], ["c"], part)
    assert plan.place["a"] is not plan.place["c"]
    assert plan.place["a"].last == 2
    assert plan.place["a"].offset != plan.place["b"].offset
    for views in (whole, part):
        returned = plan_memory("p", types, steps, ["x"], ["c", "v"], views)
        assert returned.place["a"].kind == "result"
        assert returned.place["a"] is not returned.place["c"]


def test_a_result_leaves_an_operand_that_is_read_twice() -> None:
    types = {n: TensorType(f32, (256,)) for n in "xacvy"}
    views = {"v": View("a", 0, (4,))}
    for reads, place_is_taken in ((("a", "x"), True), (("a", "v"), False), (("a", "a"), False)):
        steps = [
            StepAccess("1", ("x",), ("a",)),
            StepAccess("2", reads, ("c",), frozenset((("a", "c"),))),
            StepAccess("3", ("c",), ("y",)),
        ]
        plan = plan_memory("p", types, steps, ["x"], ["y"], views)
        assert (plan.place["a"] is plan.place["c"]) == place_is_taken, reads


def test_the_text_of_a_plan() -> None:
    types = {n: TensorType(f32, (256,)) for n in "xaby"}
    steps = [
        StepAccess("k0", ("x",), ("a",)),
        StepAccess("k1", ("a", "x"), ("b",), frozenset((("a", "b"),)), temporary=64),
        StepAccess("k2", ("b",), ("y",)),
    ]
    assert str(plan_memory("p", types, steps, ["x"], ["y"], {})) == (
        "memory of p: peak 2.1 KiB = arena 1.0 KiB + results 1.0 KiB + host and scratch 64 bytes\n"
        "buffer  type      bytes  first  last  place\n"
        "x       f32[256]  1024   -1     1     input\n"
        "a       f32[256]  1024   0      1     arena + 0\n"
        "b       f32[256]  1024   1      2     arena + 0\n"
        "y       f32[256]  1024   2      3     y + 0"
    )


# In place ----------------------------------------------------------------------------------------

RESIDUAL = ((20, 24), (24, 40), (20, 40))
SHARES: dict[str, tuple[Any, tuple[tuple[int, ...], ...], set[tuple[str, str]]]] = {
    "elementwise": (lambda x, y: op.exp(x) * y, ((30, 70), (30, 70)), {("x0", "t"), ("x1", "t")}),
    "a long vector": (lambda x: op.exp(x), ((10_000,),), {("x0", "t")}),
    "softmax": (lambda x: op.softmax(x), ((7, 1000),), {("x0", "t")}),
    "broadcast": (lambda x, b: x + b, ((30, 70), (70,)), {("x0", "t")}),
    "transposed": (lambda x: x.T * 2.0, ((30, 30),), set()),
    "x and its transpose": (lambda x: x + x.T, ((30, 30),), set()),
    "a product": (lambda a, b: a @ b, ((600, 600), (600, 600)), set()),
    "a residual": (lambda a, b, x: a @ b + x, RESIDUAL, {("x2", "t")}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
def test_results_take_the_place_of_operands_only_where_that_is_safe(name: str) -> None:
    f, shapes, want = SHARES[name]
    e = machine(f, *[draw(*s) for s in shapes])
    found = set()
    for s, k in kernels(e.schedule):
        ps = [m.name for m in k.parameters]
        outer = {n for n in s.inputs() if n in e.schedule.inputs}
        found |= {(ps[i], "t") for i, j in shareable(k) if ps[i] in outer}
    assert found == want


def test_what_is_read_again_is_not_written_over() -> None:
    """The first result is stored in the pass before the one that loads x again."""
    e = machine(lambda x: (x * 2.0, op.softmax(x)), draw(5, 600))
    for s, k in kernels(e.schedule):
        ps = [m.name for m in k.parameters]
        last = s.outputs[-1]
        assert {ps[j] for i, j in shareable(k) if ps[i] == "x0"} <= {last}


@given(st.one_of(programs(), programs(12, LoopSteps)))
def test_kernels_give_the_same_bits_in_place(r: RandomProgram) -> None:
    """Every pair that may share memory does, and the kernel does not notice."""
    p = lower(prepared(r.graph))
    for s, k in kernels(p):
        types = [m.type for m in k.parameters]
        if not all(t.static for t in types):
            continue
        for i, j in shareable(k):
            arrays = [RNG.integers(0, 2, t.shape).astype(t.dtype.np) for t in types]
            alone = [a.copy() for a in arrays]
            run_llvm(k, alone, {})
            arrays[j] = arrays[i]
            run_llvm(k, arrays, {})
            assert same_bits([arrays[j]], [alone[j]]), f"{s}\n{i} {j}"


def test_sharing_what_is_not_shareable_would_show() -> None:
    """The law above can fail: x + x.T, in place, is another result."""
    ((s, k),) = kernels(machine(lambda x: x + x.T, draw(30, 30)).schedule)
    x = RNG.normal(size=(30, 30)).astype(np.float32)
    out, alone = np.empty_like(x), x.copy()
    run_llvm(k, [x.copy(), out], {})
    run_llvm(k, [alone, alone], {})
    assert s.outputs
    assert not np.array_equal(out, alone)


# Programs ----------------------------------------------------------------------------------------


def mixed(x: Any) -> Any:
    """Kernels, views of what they make, host calls on those, and views that are returned."""
    y = op.exp(x * 0.1)
    z = op.sort(op.transpose(y, (1, 0)), 0)
    w = op.reshape(y + 1.0, (-1, 5))
    return op.transpose(w, (1, 0)), z, op.sum(z @ y, 1), op.flip(w, 0), x


def test_views_hosts_and_results_that_share_memory() -> None:
    x = draw(20, 30)
    got, want = ts.jit(mixed, target="cpu")(x), ts.jit(mixed, target="numpy")(x)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_results_live_on_when_the_program_runs_again() -> None:
    f = ts.jit(mixed, target="cpu")
    kept = [
        (x, [np.array(t.numpy()) for t in f(x)], f(x)) for x in (draw(20, 30) for _ in range(5))
    ]
    for _, copies, held in kept:
        for a, b in zip(copies, held, strict=True):
            np.testing.assert_array_equal(a, b)


def test_arguments_that_are_not_in_order() -> None:
    x = np.asfortranarray(RNG.normal(size=(20, 30)).astype(np.float32))
    f = ts.jit(lambda x: (op.exp(x), op.sum(x, 1)), target="cpu")
    for a, b in zip(f(ts.tensor(x).T.T), f(ts.tensor(np.ascontiguousarray(x))), strict=True):
        np.testing.assert_array_equal(a, b)


def test_one_program_from_several_python_threads() -> None:
    f, wrong = ts.jit(lambda x: op.sort(op.softmax(op.exp(x) @ x) * 2.0, 1) @ x, target="cpu"), []
    xs = [draw(60, 60) for _ in range(4)]
    want = [f(x).numpy() for x in xs]

    def work(i: int) -> None:
        for _ in range(40):
            if not np.array_equal(f(xs[i]).numpy(), want[i]):
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong == []


def test_a_barrier_takes_no_memory_and_no_time() -> None:
    def with_barrier(x: Any) -> Any:
        y, z = op.barrier(op.exp(x), op.sum(x, 1))
        return y * 2.0, z

    plan = ts.jit(with_barrier, target="cpu").lower(draw(100, 50)).memory
    assert not any(s.host for s in plan.steps)
    assert plan.peak <= 100 * 50 * 4 + 100 * 4 + 64 * 1024
    x = draw(100, 50)
    got, want = ts.jit(with_barrier, target="cpu")(x), (op.exp(x) * 2.0, op.sum(x, 1))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda x: op.transpose(x, (2, 0, 1)), (3, 4, 5)),
        (lambda x: x[1:, ::-1], (3, 4)),
        (lambda x: op.broadcast_to(x, (2, 3, 4)), (3, 1)),
        (lambda x: op.reshape(x, (6, 2)), (3, 4)),
    ],
    ids=["transpose", "slice", "broadcast", "reshape"],
)
def test_a_layout_says_where_each_element_lies(f: Any, shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    g = ts.trace(f, TensorType(f32, shape))
    data, offset, strides = x, 0, row_major(TensorType(f32, shape))
    for n in g.nodes:
        if n.op.view is not None:
            (a,), (b,) = n.types, [v.type for v in n.results]
            found = layout_of(n.op, a, b, n.params, (offset, strides))
            assert found is not None
            offset, strides = found
    got = np.ndarray(
        g.outputs[0].shape, np.float32, data.reshape(-1).view(np.uint8), offset, strides
    )
    np.testing.assert_array_equal(got, f(ts.tensor(x)).numpy())


# Running out of memory ---------------------------------------------------------------------------


def test_a_run_that_does_not_fit_is_an_error_before_anything_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def f(x: Any) -> Any:
        y = op.exp(x[:, None] + x[None, :])
        return op.softmax(y), y

    x, jitted = draw(5000), ts.jit(f, target="cpu")
    peak = jitted.lower(x).memory.peak
    assert peak >= 2 * 5000 * 5000 * 4
    with override(memory=peak - 1), monkeypatch.context() as m:
        m.setattr(Pool, "run_series", None)  # nothing may run
        with pytest.raises(OutOfMemoryError) as e:
            jitted(x)
    tensor = r"f32\[5000,5000\] of 95\.4 MiB at \S*test_memory_plan\.py:\d+"
    assert re.fullmatch(
        r"f: a run needs 19\d\.\d MiB of memory but 19\d\.\d MiB are free; its largest tensors are "
        rf"{tensor}, {tensor}(, .*)?; use a smaller batch, checkpoint what a gradient keeps, or donate "
        r"arguments",
        e.value.message,
    )
    with override(memory=peak):
        assert jitted(x)[0].shape == (5000, 5000)


def test_sizes_beyond_any_machine() -> None:
    @ts.jit(target="cpu")
    def f(x: Tensor["N", f32]):
        return op.exp(x[:, None] - x[None, :])

    assert f(draw(3)).shape == (3, 3)
    with pytest.raises(OutOfMemoryError) as e:
        f(ts.tensor(np.zeros(2_000_000, np.float32)))
    assert e.value.message.startswith("f: a run needs 14901.2 GiB of memory but ")


def test_what_a_control_group_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit less what is in use, where cached files do not count."""
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    before = memory.available()
    assert 0 < before < 1 << 50
    for name, text in (
        ("memory.max", "70000000\n"),
        ("memory.current", "50000000\n"),
        ("memory.stat", "anon 40000000\ninactive_file 6000000\n"),
    ):
        (tmp_path / name).write_text(text)
    memory.clear()
    assert memory.available() == 26_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available() > 26_000_000
    with override(memory=123):
        assert memory.available() == 123


def test_a_python_whose_arrays_are_laid_out_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where objects cannot be looked into, addresses are asked for."""
    monkeypatch.setattr("tessera.compile.cpu.bound_program.FAST", False)
    monkeypatch.setattr("tessera.compile.cpu.bound_program.cells_of", kernel._plain_cells)
    x = draw(20, 30)
    got, want = ts.jit(mixed, target="cpu")(x), ts.jit(mixed, target="numpy")(x)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


# The measured peak -------------------------------------------------------------------------------

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "memory.py"


def test_the_measured_peak_is_the_planned_one() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--only", "block"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("block")]
    assert abs(float(line.split()[-1]) - 1) < 0.05, done.stdout
