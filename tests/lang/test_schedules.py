"""Schedules of compiled kernels: by op, by the names of kernels, from a file; each acts or is refused,
and no bit changes.
"""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import tessera as ts
from tessera import Schedule, block, op
from tessera.core.errors import OperandError, ScheduleError
from tessera.ir.graph.scheduled import with_schedules
from tessera.ir.schedule.passes.assign import assign
from tessera.ir.schedule.text import parse_program


def f(a, b):
    return op.softmax(op.matmul(a, b))


A, B = (
    ts.tensor(np.random.default_rng(i).normal(size=(96, 96)).astype(np.float32)) for i in (0, 1)
)
NEST = "parallel r0:8, r0:1, c:64, unroll l:4, vector c:16"
GIVEN = {
    "product": {"f_0": block(32, 32)},
    "rows of a product": {"f_0": block(16)},
    "rows": {"f_1": block(8)},
    "columns": {"f_1": block(4, 32)},
    "both": {"f_0": Schedule(block=(64, 16)), "f_1": block(2)},
    "nest": {"f_1": NEST},
}


@pytest.fixture(scope="module")
def plain():
    g = ts.jit(f, target="cpu")
    lowered = g.lower(A, B)
    return g(A, B).numpy().tobytes(), {n: str(k) for n, k in lowered.tile.items()}


@pytest.mark.parametrize("given", GIVEN)
def test_a_schedule_changes_its_kernels_and_no_bit(given, plain):
    bits, tiles = plain
    g = ts.jit(f, target="cpu", schedules=GIVEN[given])
    assert g(A, B).numpy().tobytes() == bits
    made = {n: str(k) for n, k in g.lower(A, B).tile.items()}
    assert {n for n in made if made[n] != tiles[n]} == set(GIVEN[given])


GPU = {
    "block": ({"f_0": Schedule(block=(32, 64))}, ["f_0"]),
    "depth": ({"f_0": Schedule(k=16)}, ["f_0"]),
    "stages": ({"f_0": Schedule(stages=5)}, ["f_0"]),
    "warps": ({"f_0": Schedule(warps=2), "f_1": Schedule(warps=2)}, []),
}


@pytest.mark.parametrize("target", ["cuda:sm_90", "hip:gfx942"])
@pytest.mark.parametrize("given", GPU)
def test_a_schedule_changes_its_kernels_on_a_gpu(given, target):
    said, texts = GPU[given]
    made = [_launches(ts.jit(f, target=target, schedules=s)) for s in (None, said)]
    before, after = made
    assert [n for n in before if before[n].text != after[n].text] == texts
    changed = [n for n in before if before[n] != after[n]]
    assert changed == list(said)
    assert all(after[n].warps == s.warps for n, s in said.items() if s.warps)


def _launches(g):
    program = g.program(A, B)[0].program_at([A.shape, B.shape])
    return {c.name: c.source for _, c in program.image.steps}


REFUSED = [
    ("cpu", {"g_0": block(8)}, "there is no kernel 'g_0' in f; there are f_0, f_1"),
    ("cpu", {"f_0": block(8).warps(4)}, "warps does nothing on cpu for f_0: a CPU runs a block"),
    ("cpu", {"f_0": block(8).stages(4)}, "stages does nothing on cpu for f_0"),
    ("cpu", {"f_0": block(8).vector(4)}, "vector does nothing on cpu for f_0"),
    ("cpu", {"f_1": block(8).swizzle("xor")}, "swizzle does nothing on cpu for f_1"),
    ("cpu", {"f_0": block(8, 8, 8)}, "k does nothing on cpu for f_0: the depth of a block is"),
    ("cpu", {"f_1": block(8).d(4)}, "d does nothing on cpu for f_1"),
    ("cpu", {"f_1": block(8, 9)}, "f_1 on cpu: nest: vector c:16 does not divide the blocks"),
    ("cpu", {"f_0": "parallel q:3"}, "there is no axis q to loop over; the kernel has m, n, k"),
    ("hip:gfx942", {"f_1": block(8)}, "f_1 on hip: block does nothing: blocks of rows follow"),
    ("hip:gfx942", {"f_0": block(7, 9)}, "expected powers of two from 16 to 256 on a GPU"),
    ("hip:gfx942", {"f_0": block(16).vector(4)}, "vector does nothing on hip for f_0"),
    ("cuda:sm_90", {"f_0": block(16).swizzle("xor")}, "swizzle does nothing on cuda for f_0"),
    ("cuda:sm_90", {"f_1": NEST}, "nest does nothing on cuda for f_1: nests are of CPUs"),
    ("numpy", {"f_0": block(8)}, "f: schedules do nothing on numpy"),
    ("cpu", {"f_0": 3}, "schedules['f_0'] is int 3, expected a Schedule"),
    ("cpu", {"f_0": Schedule()}, "schedules['f_0'] says nothing; name a block"),
    ("cpu", {"f_0": "sideways"}, "nest: 'sideways' is no loop"),
    ("cpu", {"f_0": {"tiles": 3}}, "Schedule has no tiles"),
    ("cpu", [3], "schedules is list [3], expected schedules by the names of kernels"),
    ("cpu", "/nowhere/at/all.json", "/nowhere/at/all.json cannot be read"),
]


@pytest.mark.parametrize(("target", "given", "text"), REFUSED, ids=[r[2][:40] for r in REFUSED])
def test_what_cannot_act_is_refused_by_name(target, given, text):
    with pytest.raises(ScheduleError) as e:
        ts.jit(f, target=target, schedules=given).lower(A, B).target  # noqa: B018
    assert text in str(e.value)
    assert "test_schedules.py" in str(e.value)


def test_a_program_has_its_schedules_from_a_file(tmp_path, plain):
    path = tmp_path / "f.json"
    ts.jit(f, target="cpu").lower(A, B).save_schedules(path)
    said = json.loads(path.read_text())
    assert list(said) == ["f_0", "f_1"]
    said["f_1"] = {"block": [8]}
    path.write_text(json.dumps(said))
    g = ts.jit(f, target="cpu", schedules=path)
    assert g(A, B).numpy().tobytes() == plain[0]
    assert str(g.lower(A, B).schedule.steps[1].nest).startswith("parallel r0:8")
    for wrong in (
        [1],
        {"f_0": 3},
        {"f_0": {"block": [8]}, "f_1": [8]},
        {"f_0": "x", "f_1": {"block": [8]}},
    ):
        path.write_text(json.dumps(wrong))
        with pytest.raises(ScheduleError, match="holds no schedules, expected JSON such as"):
            ts.jit(f, schedules=str(path))
    path.write_text("{}")
    assert ts.jit(f, target="cpu", schedules=path)(A, B).numpy().tobytes() == plain[0]


def test_a_product_has_a_schedule_of_its_own():
    def g(a, b, s=None):
        return op.exp(op.matmul(a, b, schedule=s) * 0.01)

    cut = ts.jit(lambda a, b: g(a, b, block(16, 32)), target="cpu")
    want = ts.jit(g, target="cpu")(A, B).numpy().tobytes()
    assert cut(A, B).numpy().tobytes() == want
    (step,) = cut.lower(A, B).schedule.steps
    (columns,) = re.findall(r"parallel n:(\d+)", str(step.nest))
    assert 32 <= int(columns) < 64  # whole vectors of this machine
    assert (op.matmul(A, B, schedule=block(16, 32)).numpy() == op.matmul(A, B).numpy()).all()
    for target, s, text in (
        ("cpu", block(8).warps(4), "warps does nothing on cpu"),
        ("numpy", block(8), "matmul: schedule does nothing on numpy"),
        ("hip:gfx942", block(16).vector(4), "vector does nothing on hip"),
        ("cpu", Schedule(), "expected a Schedule that says something"),
        ("cpu", 7, "matmul: schedule is 7, expected a Schedule"),
    ):
        with pytest.raises(ts.TesseraError, match=text):
            ts.jit(lambda a, b, s=s: g(a, b, s), target=target).lower(A, B).target  # noqa: B018
    with pytest.raises(OperandError, match="tile_shape does nothing for c64"):
        op.matmul(A.astype("c64"), B, tile_shape=(8, 8, 8))


def test_a_matrix_by_a_vector_and_a_batch_keep_their_schedule():
    x = ts.tensor(np.arange(96, dtype=np.float32))
    for left, right in (
        (A, x),
        (x, A),
        (op.stack([A, B]), B),
        (op.stack([A, B]), op.stack([B, A])),
    ):
        g = ts.jit(lambda a, b: op.matmul(a, b, schedule=block(16, 32)), target="cpu")
        p = ts.jit(lambda a, b: op.matmul(a, b), target="cpu")
        assert g(left, right).numpy().tobytes() == p(left, right).numpy().tobytes()
        assert any(getattr(s, "nest", None) for s in g.lower(left, right).schedule.steps)
    batched = ts.jit(ts.vmap(lambda a: op.matmul(a, B, schedule=block(16, 32))), target="cpu")
    both = op.stack([A, B])
    assert batched(both).numpy().tobytes() == op.matmul(both, B).numpy().tobytes()
    slope = ts.grad(lambda a: op.sum(op.matmul(a, B, schedule=block(16, 32))))(A)
    assert (slope.numpy() == ts.grad(lambda a: op.sum(op.matmul(a, B)))(A).numpy()).all()


def test_symbolic_sizes_have_the_schedule_too(plain):
    def f(a: ts.Tensor["M", "K", ts.f32], b: ts.Tensor["K", "N", ts.f32]):
        return op.softmax(op.matmul(a, b))

    g = ts.jit(f, target="cpu", schedules=GIVEN["both"])
    assert g(A, B).numpy().tobytes() == plain[0]
    assert all(s.nest is not None for s in g.lower(A, B).schedule.steps)


def test_schedules_are_part_of_the_text_of_a_graph():
    g = with_schedules(ts.trace(f, A, B), [("f_0", '{"block": [32]}')])
    assert "schedules" in g.text
    again = ts.ir.parse(g.text)
    assert again.schedules == g.schedules
    assert again.text == g.text
    assert g.hash != ts.trace(f, A, B).hash


def test_groups_and_primitives_refuse_schedules():
    q = ts.tensor(np.random.default_rng(3).normal(size=(1, 2, 64, 16)).astype(np.float32))

    def attention(q):
        return op.attention(q, q, q)

    (name,) = (s.name for s in ts.jit(attention, target="cpu").lower(q).schedule.steps)
    with pytest.raises(ScheduleError, match=f"{name} is a group of fused kernels, whose blocks"):
        ts.jit(attention, target="cpu", schedules={name: block(8)})(q)
    steps = ts.jit(lambda x: op.sort(x), target="cpu").lower(A).schedule.steps
    name = next(s.name for s in steps if type(s).__name__ == "Primitive")
    with pytest.raises(ScheduleError, match="is a primitive, whose blocks on cpu are its own"):
        ts.jit(lambda x: op.sort(x), target="cpu", schedules={name: block(8)})(A)


def test_a_kernel_that_asks_prints_and_parses():
    p = ts.jit(f, target="cpu").lower(A, B).schedule
    asked = replace(p, steps=tuple(replace(k, asked='{"block": [32]}') for k in p.steps))
    again = parse_program(asked.text)
    assert again.text == asked.text
    assert all("asked" in str(k) for k in again.steps)
    done = assign(again, (), "cpu")
    assert all(k.nest is not None and not k.asked for k in done.steps)


def _scanned(a, b, s):
    return ts.scan(lambda c, _: (op.matmul(c, b, **s) * 0.1, None), a, length=3)[0]


def _looped(a, b, s):
    step = lambda c: (c[0] + 1, op.matmul(c[1], b, **s) * 0.1)  # noqa: E731
    return ts.while_loop(lambda c: c[0] < 3, step, (op.full((), 0, ts.i64), a))[1]


def _branched(a, b, s):
    return ts.cond(op.sum(a) > 0, lambda x: op.matmul(x, b, **s), lambda x: op.matmul(b, x, **s), a)


@pytest.mark.parametrize("n", [96, 4])
@pytest.mark.parametrize("g", [_scanned, _looped, _branched])
def test_a_schedule_of_a_product_in_a_loop_or_a_branch_acts(g, n):
    """Loops of few numbers were one kernel, which lost it."""
    a, b = (ts.tensor(x.numpy()[:n, :n].copy()) for x in (A, B))

    def at(**s):
        f = ts.jit(lambda a, b: g(a, b, s), target="cpu")
        made, program = f(a, b).numpy().tobytes(), f.program(a, b)[0]
        return made, [str(k) for _, k in program.every_tile]

    said = ({}, {"schedule": block(32, 32)}, {"tile_shape": (16, 64, 96)})
    plain, *cut = (at(**s) for s in said)
    assert {bits for bits, _ in cut} == {plain[0]}
    if n == 96:  # four rows are one block
        assert len({str(tiles) for _, tiles in (plain, *cut)}) == 3
    with pytest.raises(ScheduleError, match="warps does nothing on cpu for"):
        at(schedule=block(8).warps(4))


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_kernels_of_loops_have_no_names_and_the_error_says_what_to_write(target):
    f = ts.jit(lambda a, b: _scanned(a, b, {}), target=target, schedules={"scan: f_0": block(32)})
    with pytest.raises(
        ScheduleError, match=r"in loops and branches take op.matmul\(a, b, schedule"
    ):
        f.lower(A, B).target  # noqa: B018
