"""The tuner: what it keeps, how it ranks, what it accepts, and that programs use what it found."""

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
from tessera import Tensor, cli, f32, op
from tessera.compile import artifact as image
from tessera.compile.artifact import key_of
from tessera.compile.cpu.build import identity
from tessera.core.errors import OperandError
from tessera.core.flags import override
from tessera.core.processor import registers
from tessera.ir.schedule.ir import Kernel, Program
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests.nest import parse_nest
from tessera.ir.schedule.nests.space import nests
from tessera.runtime import tuned
from tessera.tune.measure import Bench, Candidate, best_of, is_faster
from tessera.tune.model import Correction, Setting, estimate, features, instances
from tessera.tune.roofline import Peaks, work_of
from tessera.tune.search import TuningProgress, tune_kernel, tune_programs
from tests.support.runners.levels import prepared

PEAKS = Peaks(flops=1e11, bandwidth=3e10, threads=2, near=1 << 20)
FOUND = tuned.Tuned("k", "", "m:6", 1.0, 2.0)


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[Path]:
    """A store of its own for every test."""
    with override(cache_dir=tmp_path):
        yield tmp_path / "tune.sqlite"


def program(f: Any, *types: Any) -> Program:
    return lower(prepared(ts.trace(f, *types)))


def setting(f: Any, *types: Any, sizes: Any = ()) -> Setting:
    p = program(f, *types)
    (kernel,) = p.steps
    assert isinstance(kernel, Kernel)
    return Setting(kernel, {n: b.type for n, b in p.buffers.items()}, dict(sizes), PEAKS)


def draw(*shape: int) -> Any:
    return ts.tensor(np.random.default_rng(0).normal(size=shape).astype(np.float32))


# The store


def test_there_is_no_store_until_something_is_kept(store: Path) -> None:
    assert tuned.stamp() == ""
    assert tuned.entries() == {}
    assert tuned.find("k", "") is None
    assert tuned.measurements() == []
    assert not store.exists()


def test_what_is_kept_is_found(store: Path) -> None:
    m = tuned.MeasuredNest("k", "", "m:6", 1.0, 0.5, (1.0, 2.0))
    tuned.keep(FOUND, [m])
    assert tuned.find("k", "") == FOUND
    assert tuned.find("k", "B<=64") is None
    assert tuned.entries() == {("k", ""): "m:6"}
    assert tuned.measurements() == [m]
    before = tuned.stamp()
    tuned.keep(replace(FOUND, nest=""))
    assert tuned.stamp() != before
    assert tuned.entries() == {}
    tuned.clear()
    assert tuned.find("k", "") is None


def test_peaks_are_kept_for_a_number_of_threads() -> None:
    tuned.keep_peaks(2, 1e9, 2e9)
    assert tuned.peaks(2) == (1e9, 2e9)
    assert tuned.peaks(1) is None


def test_a_damaged_store_is_put_aside_with_a_warning(store: Path) -> None:
    tuned.keep(FOUND)
    data = bytearray(store.read_bytes())
    data[: len(data) // 2] = b"\x5a" * (len(data) // 2)
    store.write_bytes(data)
    with pytest.warns(RuntimeWarning, match="tune.sqlite is damaged .*; beginning a new one"):
        assert tuned.find("k", "") is None
    assert store.with_suffix(".damaged").read_bytes() == data
    tuned.keep(FOUND)
    assert tuned.find("k", "") == FOUND


def test_a_store_that_is_no_database_does_not_stop_a_program(store: Path) -> None:
    store.write_text("no database at all, but a text that is longer than the head of a file\n" * 9)
    f = ts.jit(lambda x: op.exp(x) + 1.0, target="cpu")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert f(draw(3)).shape == (3,)


def test_a_folder_in_the_place_of_the_store_is_said_and_not_used(store: Path) -> None:
    store.mkdir()
    with pytest.warns(RuntimeWarning, match="tune: the store .* cannot be used"):
        assert tuned.entries() == {}
    with pytest.raises(OperandError, match=r"tune: the store .* cannot be used"):
        tuned.keep(FOUND)


def test_what_another_machine_found_is_not_used(store: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tuned, "architecture", lambda: "another machine")
    tuned.keep(FOUND)
    monkeypatch.undo()
    assert tuned.find("k", "") is None
    assert tuned.entries() == {}


def test_processes_that_write_at_once_lose_nothing(store: Path) -> None:
    script = (
        "import sys; from tessera.runtime import tuned\n"
        "for i in range(20): tuned.keep(tuned.Tuned(f'{sys.argv[1]}-{i}', '', 'm:6', 1.0, 2.0))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, name], env={"TESSERA_CACHE_DIR": str(store.parent)}
        )
        for name in "ab"
    ]
    assert [p.wait() for p in running] == [0, 0]
    assert {k for k, _ in tuned.entries()} == {f"{n}-{i}" for n in "ab" for i in range(20)}


def test_export_and_import(store: Path, tmp_path: Path) -> None:
    tuned.keep(FOUND)
    tuned.keep(replace(FOUND, sizes="B<=64"))
    assert ts.cache.export(tmp_path / "a.json") == 2
    ts.cache.clear()
    assert tuned.entries() == {}
    assert ts.cache.load(tmp_path / "a.json") == 2
    assert tuned.find("k", "B<=64") == replace(FOUND, sizes="B<=64")


def test_processors_with_the_same_registers_and_caches_share_nests(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exported file names no maker: another CPU takes its nests over, one with other vectors does not."""
    file = tmp_path / "a.json"
    tuned.keep(FOUND)
    tuned.export(file)
    assert tuned.architecture() not in file.read_text()
    assert json.loads(file.read_text())["tuned"][0]["place"] == tuned.neutral()
    ts.cache.clear()
    other = "x86_64-unknown-linux-gnu znver5 +avx512f,+vaes llvm 22.1.0 llvmlite 0.50.0"
    monkeypatch.setattr(tuned, "architecture", lambda: other)
    assert tuned.load(file) == 1
    assert tuned.find("k", "") == FOUND
    assert tuned.entries() == {("k", ""): FOUND.nest}
    with monkeypatch.context() as m:
        m.setattr(tuned, "registers", lambda: replace(registers(), bytes=128))
        assert tuned.entries() == {}
        assert tuned.find("k", "") is None
    tuned.keep(replace(FOUND, nest=""))  # here the default is as fast
    assert tuned.entries() == {}
    tuned.export(file)
    assert [r["nest"] for r in json.loads(file.read_text())["tuned"]] == [""]


def test_files_of_format_1_name_a_processor(store: Path, tmp_path: Path) -> None:
    row = {
        "kernel": "k",
        "sizes": "",
        "versions": tuned.versions(),
        "nest": FOUND.nest,
        "seconds": 1.0,
        "before": 2.0,
    }
    for place, found in (("another machine", {}), (tuned.architecture(), {("k", ""): FOUND.nest})):
        rows = [{**row, "architecture": place}]
        (tmp_path / "a.json").write_text(json.dumps({"version": 1, "tuned": rows}))
        assert tuned.load(tmp_path / "a.json") == 1
        assert tuned.entries() == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "tune: {} cannot be read (No such file or directory)"),
        ("{", "tune: {} is no file that tune has exported"),
        ('{"tuned": [{"kernel": 1}]}', "tune: {} is no file that tune has exported"),
        ("[]", "tune: {} is no file that tune has exported"),
        ('{"tuned": [], "version": 9}', "tune: {} has format version 9, expected 1 or 2"),
    ],
)
def test_an_import_that_cannot_be_is_refused(text: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(OperandError) as e:
        tuned.load(path)
    assert e.value.message == message.format(path)


# The model


def test_the_work_of_kernels() -> None:
    s = setting(lambda a, b: a @ b, Tensor[8, 32, f32], Tensor[32, 16, f32])
    w = work_of(s.kernel, s.types, {})
    assert w.flops == 2 * 8 * 32 * 16
    assert w.bytes == 4 * (8 * 32 + 32 * 16 + 8 * 16)
    s = setting(lambda x: op.sum(x * 2.0, 1), Tensor["R", 100, f32], sizes={"R": 7})
    assert work_of(s.kernel, s.types, s.sizes).flops == 2 * 700
    assert work_of(s.kernel, s.types, s.sizes).seconds(PEAKS) == 4 * 707 / PEAKS.bandwidth


@pytest.mark.parametrize(
    ("f", "types", "nest", "count"),
    [
        (lambda a, b: a @ b, (Tensor[3, 100, 32, f32], Tensor[3, 32, 70, f32]),
         "parallel m:24, parallel n:64, m:6, k:1, unroll m:1, vector n:16", 3 * 5 * 2),
        (lambda a, b: a @ b, (Tensor[3, 100, 32, f32], Tensor[3, 32, 70, f32]),
         "parallel b0:2, parallel m:24, b0:1, m:6, n:64, k:1, unroll m:1, vector n:16", 2 * 5),
        (op.softmax, (Tensor[50, 70, f32],), "parallel r0:8, r0:1, c:64, vector c:16", 7),
        (op.exp, (Tensor[5000, f32],), "parallel c:1024, c:64, vector c:16", 5),
    ],
)  # fmt: skip
def test_how_many_instances_a_nest_has(f: Any, types: Any, nest: str, count: int) -> None:
    assert instances(setting(f, *types), parse_nest(nest)) == count


def test_the_model_knows_idle_threads_wasted_blocks_and_small_instances() -> None:
    s = setting(lambda a, b: a @ b, Tensor[512, 512, f32], Tensor[512, 512, f32])
    block = "k:1, unroll m:1, vector n:16"
    good = estimate(s, parse_nest(f"parallel m:96, parallel n:64, m:6, {block}"))
    assert good < estimate(s, parse_nest(f"parallel m:510, parallel n:512, m:6, n:64, {block}"))
    assert good < estimate(s, parse_nest(f"parallel m:1, parallel n:16, {block}"))


def test_measurements_correct_the_ranking() -> None:
    s = setting(op.softmax, Tensor[500, 70, f32])
    space = list(nests(s.kernel))
    slow = [n for n in space if (n.steps("c", "serial") or [0])[-1] >= 128]
    assert slow
    assert len(space) - len(slow) > 24

    def took(n: Any) -> float:
        return estimate(s, n) * (3.0 if n in slow else 1.5)

    past = [
        tuned.MeasuredNest("k", "", str(n), took(n), estimate(s, n), features(s, n)) for n in space
    ]
    learned = Correction(past)
    factors = {n: learned.factor(features(s, n)) for n in space}
    assert max(factors[n] for n in space if n not in slow) < min(factors[n] for n in slow)
    few = Correction(past[:5])
    assert few.factor(features(s, space[0])) == 1.0


# Measuring and accepting


def timed(*times: float) -> Candidate:
    return Candidate(lambda: None, nest=parse_nest("m:6"), times=list(times))


@pytest.mark.parametrize(
    ("a", "b", "faster"),
    [
        ((1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 2.0, 2.0), True),
        ((1.0, 1.0, 1.0, 1.0), (1.01, 1.01, 1.01, 1.01), False),  # by too little
        ((1.0, 1.0, 3.0, 3.0), (2.0, 2.0, 2.0, 2.0), False),  # not beyond the spread
        ((1.0, 5.0, 1.0, 9.0), (1.2, 6.0, 1.2, 11.0), True),  # disturbed alike
    ],
)
def test_faster_means_beyond_the_spread(a: Any, b: Any, faster: bool) -> None:
    assert is_faster(timed(*a), timed(*b)) is faster


class Busy:
    """A machine that others use: now and then everything is slow for a while, and a sample may take twice
    as long.
    """

    def __init__(self, seed: int):
        self.rng, self.slow = np.random.default_rng(seed), 1.0

    def disturbance(self) -> float:
        if self.rng.random() < 0.08:
            self.slow = self.rng.choice([1.0, 1.0, 1.3, 1.8])
        spike = 1 + self.rng.random() if self.rng.random() < 0.15 else 1.0
        return float(self.slow * spike * (1 + 0.02 * self.rng.random()))


class Simulated(Candidate):
    """A candidate of a known time on such a machine."""

    def __init__(self, name: str, took: float, machine: Busy):
        super().__init__(lambda: None, nest=parse_nest(f"m:{name}"))
        self.took, self.machine = took, machine

    def sample(self) -> None:
        self.times.append(self.took * self.machine.disturbance())


def test_the_fastest_is_found_on_a_busy_machine() -> None:
    late, lost = float("inf"), 0
    for seed in range(60):
        machine = Busy(seed)
        took = [2.0, *np.random.default_rng(seed + 100).uniform(1.0, 1.6, 11)]
        made = [Simulated(str(i + 1), t, machine) for i, t in enumerate(took)]
        found = best_of(made[0], made[1:], late)
        assert isinstance(found, Simulated)
        lost += found.took > 1.05 * min(took)
    assert lost <= 3


def test_of_equals_the_one_named_first_is_taken_and_the_default_stays() -> None:
    quiet = Busy(0)
    quiet.disturbance = lambda: 1.0
    default, a, b = (Simulated(str(i), t, quiet) for i, t in ((1, 2.0), (2, 1.01), (3, 1.0)))
    assert best_of(default, [a, b], 0.0) is a
    assert best_of(default, [b, a], 0.0) is b
    assert best_of(a, [b], 0.0) is a  # which is faster by too little
    assert best_of(a, [], 0.0) is a


@pytest.mark.parametrize(
    ("f", "shape"),
    [(op.softmax, (30, 1100)), (op.sum, (9000,)), (lambda x: op.sum(x, 0), (2100, 40))],
)
def test_candidates_compute_the_same(f: Any, shape: tuple[int, ...]) -> None:
    s = setting(f, Tensor[(*shape, f32)])
    bench = Bench(s.kernel, s.types, {})
    space = list(nests(s.kernel))
    results = set()
    for c in bench.candidates(space[:: max(len(space) // 5, 1)]):
        for name in s.kernel.outputs:
            bench.arrays[name].fill(np.nan)
        c.run()
        results.add(b"".join(bench.arrays[n].tobytes() for n in s.kernel.outputs))
    (only,) = results
    assert not np.isnan(np.frombuffer(only, np.float32)).any()


def test_a_kernel_is_measured_once_and_then_known() -> None:
    s = setting(op.softmax, Tensor["R", 40, f32], sizes={"R": 30})
    seen: list[list[float]] = []
    spent: list[float] = []  # the share of the time, never more than all of it

    def report(p: TuningProgress) -> None:
        assert p.space == len(list(nests(s.kernel)))
        seen.append([c.seconds for c in p.candidates])
        spent.append(p.spent)

    first = tune_kernel("key", s, 0.05, report=report)
    assert 1 < first.tried <= 24
    assert first.default == next(nests(s.kernel))
    assert first.seconds > 0
    assert seen == [sorted(times) for times in seen]
    assert len(seen[0]) > 1
    assert len(tuned.measurements()) == first.tried
    again = tune_kernel("key", s, 0.05)
    assert again == replace(first, tried=0, known=True)
    assert 0 < spent[0] <= spent[-1] <= 1
    assert tune_kernel("key", s, 1e-6, again=True, report=report).tried > 1
    assert spent[-1] == 1


def test_kernels_of_one_form_are_tuned_once() -> None:
    p = program(lambda x: op.softmax(op.sort(op.softmax(x), 1)), Tensor[9, 20, f32])
    assert sum(isinstance(s, Kernel) for s in p.steps) > 1
    outcomes = tune_programs([p, p], {}, 50.0)
    forms = {identity(s, {n: b.type for n, b in p.buffers.items()}) for s in p.steps
             if isinstance(s, Kernel)}  # fmt: skip
    assert len(outcomes) == len(forms)


# Using


def keep_nest(p: Program, nest: str, sizes: str = "") -> None:
    types = {n: b.type for n, b in p.buffers.items()}
    (kernel,) = (s for s in p.steps if isinstance(s, Kernel))
    tuned.keep(tuned.Tuned(identity(kernel, types), sizes, nest, 1.0, 2.0))


def test_programs_use_what_is_tuned_and_their_images_know(monkeypatch: Any) -> None:
    monkeypatch.setattr(image, "_sources", lambda: "as they are")  # they may be edited meanwhile
    x = draw(40, 70)
    p = program(op.softmax, x)
    f = ts.jit(op.softmax, target="cpu")
    want, plain = f(x).numpy(), f.lower(x)
    key = key_of(plain.graph)
    assert plain.schedule.steps[0].nest is None
    keep_nest(p, "parallel r0:8, r0:1, c:32, vector c:16")
    f.forget()
    used = f.lower(x)
    assert str(used.schedule.steps[0].nest) == "parallel r0:8, r0:1, c:32, vector c:16"
    assert used.tile.text != plain.tile.text
    assert key_of(used.graph) != key
    np.testing.assert_array_equal(f(x).numpy(), want)


def test_two_symbolic_sizes_of_which_a_kernel_has_one_only_in_its_terms() -> None:
    """y * mean(x): the last kernel divides by sizes that none of its tensors has."""

    def scaled(x: Tensor["B", "S", f32], y: Tensor["N", f32]) -> Any:
        return y * op.mean(x) + x.shape[0]

    f = ts.jit(scaled, target="cpu")
    x, y = draw(6, 24), draw(10)
    want = f(x, y).numpy()
    found = ts.tune(f, x, y, budget_ms=20)
    assert len(found) == len(f.lower(x, y).schedule.steps)
    for n in (6, 9):
        got = f(x[:n], y).numpy()
        np.testing.assert_array_equal(got, ts.jit(scaled, target="cpu")(x[:n], y).numpy())
    np.testing.assert_array_equal(f(x, y).numpy(), want)


def test_a_stored_nest_that_the_kernel_cannot_have_is_not_used() -> None:
    x = draw(40, 70)
    for text in ("parallel m:6", "what is this"):
        keep_nest(program(op.softmax, x), text)
        assert ts.jit(op.softmax, target="cpu").lower(x).schedule.steps[0].nest is None


def test_symbolic_sizes_have_a_variant_only_where_one_is_tuned() -> None:
    def f(x: Tensor["R", 70, f32]) -> Any:
        return op.softmax(x)

    compiled = ts.jit(f, target="cpu")
    machine = compiled.lower(draw(40, 70))._executable
    keep_nest(machine.schedule, "parallel r0:8, r0:1, c:32, vector c:16", "R<=64")
    for rows, variants in ((10, 0), (40, 1), (64, 1), (65, 1), (33, 1)):
        x = draw(rows, 70)
        got = machine.run([x.storage])[0]
        assert len(machine._variants) == variants
        np.testing.assert_array_equal(got, ts.jit(op.softmax, target="cpu")(x).numpy())


def test_tune_reports_every_kernel_and_keeps_the_bits() -> None:
    def f(a: Any, b: Any) -> Any:
        return op.softmax(op.sort(a @ b, 1))

    x, y = draw(30, 40), draw(40, 50)
    jitted = ts.jit(f, target="cpu")
    want = jitted(x, y).numpy()
    found = ts.tune(jitted, x, y, budget_ms=50)
    assert [o.kernel for o in found] == ["f_0", "f_2"]
    assert str(found).splitlines()[0].split() == ["kernel", "default", "ms", "best", "ms", "gain",
                                                  "nest"]  # fmt: skip
    np.testing.assert_array_equal(jitted(x, y).numpy(), want)
    assert all(o.known for o in ts.tune(f, x, y, budget_ms=50))


def test_regions_are_tuned_too() -> None:
    def f(x: Any) -> Any:
        return ts.fori_loop(0, 3, lambda i, h: op.softmax(h * 2.0), x)

    assert len(ts.tune(f, draw(9, 20), budget_ms=20)) >= 1


def test_a_budget_must_be_positive() -> None:
    with pytest.raises(OperandError) as e:
        ts.tune(op.exp, draw(3), budget_ms=0)
    assert e.value.message == "tune: budget_ms is 0, expected more than 0"


# The command

FILE = """
from tessera import Tensor, f32, jit, op

@jit
def one(x: Tensor["B", 40, f32]):
    return op.softmax(x)

@jit
def two(x: Tensor[9, 40, f32]):
    return op.layernorm(x)

def three(x):
    return x
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(FILE)
    return str(path)


def test_the_command_tunes_every_jitted_function(file: str, capsys: Any) -> None:
    assert cli.main(["tune", file, "--budget", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["kernel", "one_0", "kernel", "two_0"]
    assert cli.main(["tune", f"{file}:one", "--budget", "60"]) == 0
    assert "known" in capsys.readouterr().out


def test_the_command_as_json_with_sizes_and_files(file: str, capsys: Any, tmp_path: Path) -> None:
    out = str(tmp_path / "out.json")
    given = ["tune", f"{file}:one", "--budget", "30", "--size", "B=100", "--json"]
    assert cli.main([*given, "--export", out]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["function"] == "one"
    assert row["known"] is False
    assert min(row["best_ms"], row["default_ms"]) > 0
    (kept,) = json.loads(Path(out).read_text())["tuned"]
    assert kept["sizes"] == "B<=128"
    ts.cache.clear()
    assert cli.main(["tune", "--import", out]) == 0
    assert capsys.readouterr().out == f"1 kernels taken over from {out}\n"
    assert cli.main(given) == 0
    assert json.loads(capsys.readouterr().out)[0]["known"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name a file to tune, or give --import or --export"),
        (["{}", "--budget", "0"], "--budget is 0, expected more than 0"),
        (["{}", "--size", "B"], "--size is 'B', expected one like B=32"),
        (["{}:three"], "three has parameters without a Tensor annotation: x;"),
        (["{}:four"], "defines no 'four'; it has one, two"),
    ],
)
def test_a_wrong_command_is_said(arguments: Any, message: str, file: str, capsys: Any) -> None:
    assert cli.main(["tune", *(a.format(file) for a in arguments)]) == 2
    assert message in capsys.readouterr().err
