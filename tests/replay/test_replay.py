"""Replay: a recorded run is repeated to the bit, and a fault is located to its op."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import eager, op
from tessera.cli import main
from tessera.compile.cpu import build
from tessera.core.errors import FileError, MissingFileError, TesseraError
from tessera.ir.graph.ir import run_ops_by
from tessera.ir.tile.ir import Block, Kernel, Operation, walk
from tessera.replay import file
from tessera.replay.again import _Replay, replay
from tessera.replay.file import RecordReader, Told

RNG = np.random.default_rng(5)


def draw(*shape: int) -> Any:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


@ts.jit
def step(w: Any, x: Any) -> Any:
    """A step of training, so that calls take what earlier ones gave."""
    g = ts.grad(lambda w: op.mean(op.square(op.tanh(x @ w))))(w)
    return w - 0.1 * g


@contextmanager
def recorded(path: Path, ops: bool = True) -> Iterator[Any]:
    with ts.record(path, ops=ops) as r:
        yield r


def test_a_run_is_repeated_with_its_bits(tmp_path: Path) -> None:
    path, w = tmp_path / "run.tsr", draw(6, 3)
    with recorded(path) as r:
        for _ in range(3):
            w = step(w, X)
    assert len(r.record.calls) == 3
    found = replay(str(path))
    assert found.difference is None
    assert str(found) == "3 calls repeated with the recorded bits"
    stored = [n for n in zipfile.ZipFile(path).namelist() if n.startswith("arrays/")]
    assert len(stored) == 2  # the first weights and the data: what calls gave is not stored


X = draw(9, 6)


def test_calls_through_machine_code_are_recorded_too(tmp_path: Path) -> None:
    f, x = ts.jit(lambda x: x + 1), draw(8)
    for _ in range(20):
        f(x)  # from now on its calls need no Python
    with recorded(tmp_path / "a") as r:
        f(x)
        f(x)
    assert len(r.record.calls) == 2
    with ts.profile() as p:
        f(x)
    assert p.wall > 0
    assert np.asarray(f(x)).tobytes() == np.asarray(x + 1).tobytes()


def test_a_donated_argument_is_recorded_before_it_is_gone(tmp_path: Path) -> None:
    f = ts.jit(lambda x, y: x * 2 + y, donate=["x"])
    with recorded(tmp_path / "a"):
        f(draw(300) + 0, draw(300))
    assert replay(str(tmp_path / "a")).difference is None


def test_what_calls_the_host_is_recorded_and_not_repeated(tmp_path: Path) -> None:
    f = ts.jit(lambda x: ts.callback(np.sin, lambda x: x.type)(x))
    with (
        pytest.warns(RuntimeWarning, match="record: <lambda> calls functions of the host"),
        recorded(tmp_path / "a"),
    ):
        f(draw(4))
    assert (
        str(replay(str(tmp_path / "a")))
        == "0 calls repeated with the recorded bits; 1 that call the host were not repeated"
    )


def test_symbolic_sizes_numbers_and_loops(tmp_path: Path) -> None:
    @ts.jit
    def f(x: ts.Tensor["N", ts.f32], k: Any) -> Any:
        return ts.fori_loop(0, 3, lambda i, c: op.sin(c) * k, x)

    with recorded(tmp_path / "a"):
        f(draw(5), 2.0)
        f(draw(7), 3.0)
    assert replay(str(tmp_path / "a")).difference is None


# Seeded faults


def program(x: Any, y: Any, w: Any) -> Any:
    """Thirteen ops, each with a scalar op of its own."""
    h = op.tanh(x @ w)
    h = op.exp(h * 0.5)
    a = op.maximum(op.sin(y), op.cos(y))
    b = op.sqrt(op.abs(a) + 1.5)
    s = op.sum(op.log(h), axis=-1, keepdims=True)
    return op.atan(s) / b - op.expm1(a)


Wrong = Callable[[Operation], Operation | None]


def applied(scalar: str, other: str) -> Wrong:
    """A scalar op that is computed as another one."""

    def change(o: Operation) -> Operation | None:
        if o.name != "apply" or o.attributes["scalar"] != scalar:
            return None
        return Operation(
            o.name, o.operands, {"scalar": other}, o.results, o.memory, o.block, o.location
        )

    return change


def changed(k: Kernel, wrong: Wrong) -> Kernel:
    def block(b: Block) -> Block:
        done = []
        for o in b.operations:
            inner = None if o.block is None else block(o.block)
            o = Operation(o.name, o.operands, o.attributes, o.results, o.memory, inner, o.location)
            done.append(wrong(o) or o)
        return Block(b.arguments, tuple(done), b.outputs)

    return replace(k, body=block(k.body))


@contextmanager
def faulty(wrong: Wrong, only: Callable[[set[Any]], bool] = lambda _: True) -> Iterator[None]:
    """A compiler that writes a wrong instruction into kernels, those alone whose scalar ops are of this
    kind.
    """
    usual = build.program

    def emit(k: Kernel) -> Any:
        scalars = {o.attributes.get("scalar", o.name) for o in walk(k.body)}
        return usual(changed(k, wrong) if only(scalars) else k)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "program", emit)
        patch.setattr(eager, "_PROGRAMS", {})
        run_ops_by(eager.kernel_of)  # forget programs of single ops
        yield
    run_ops_by(eager.kernel_of)


FAULTS = {  # the scalar op that is wrong, what it becomes, and the op that must be named
    "tanh": ("exp", "tanh"), "exp": ("tanh", "exp"), "sin": ("cos", "sin"), "cos": ("sin", "cos"),
    "sqrt": ("abs", "sqrt"),
    "abs": ("neg", "abs"), "max": ("min", "maximum"), "log": ("neg", "log"), "atan": ("sin", "atan"),
    "div": ("mul", "div"),
    "sub": ("add", "sub"), "expm1": ("neg", "expm1"), "mul": ("add", "mul"),
}  # fmt: skip


def few(table: dict[str, Any], *quick: str) -> list[Any]:
    """The keys of a table; all but a few are for `make test-deep`, which has 20 trials with them."""
    return [k if k in quick else pytest.param(k, marks=pytest.mark.deep) for k in sorted(table)]


@pytest.fixture(scope="module")
def run_of_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("record") / "run"
    with recorded(path):
        ts.jit(program)(draw(4, 6), draw(4, 5), draw(6, 5))
    return str(path)


@pytest.mark.parametrize("scalar", few(FAULTS, "sin", "max"))
def test_a_faulty_kernel_is_located_to_its_op(scalar: str, run_of_program: str) -> None:
    other, name = FAULTS[scalar]
    with faulty(applied(scalar, other)):
        found = replay(run_of_program).difference
    assert found is not None
    assert (found.op, found.call) == (name, 0)
    assert " was " in found.values
    assert "test_replay.py" in found.where


# In these only a kernel that joins the op with another is wrong: each op by itself is right.
JOINED = {
    "tanh": ("neg", {"exp"}, "tanh"), "exp": ("neg", {"tanh"}, "exp"), "log": ("neg", {"exp"}, "log"),
    "div": ("mul", {"atan"}, "div"),
    "sqrt": ("abs", {"max"}, "sqrt"), "sub": ("add", {"div"}, "sub"),
    "max": ("min", {"sin", "cos"}, "maximum"),
}  # fmt: skip


@pytest.mark.parametrize("scalar", few(JOINED, "exp"))
def test_a_kernel_that_is_faulty_as_a_whole_is_located_too(scalar: str, tmp_path: Path) -> None:
    other, beside, name = JOINED[scalar]

    def chain(x: Any, w: Any) -> Any:
        h = op.exp(op.tanh(x @ w))
        a = op.sqrt(op.maximum(op.sin(h), op.cos(h)) + 2.0)
        return op.log(op.exp(a)) - op.atan(a) / a

    path = tmp_path / "run"
    with recorded(path):
        ts.jit(chain)(draw(40, 16), draw(16, 40))
    with faulty(applied(scalar, other), lambda found: beside <= found):
        found = replay(str(path)).difference
    if found is None:  # no kernel joins these ops: there was no fault
        pytest.fail("the fault was not seeded")
    assert found.op == name
    assert found.how != "by itself"


def test_there_are_twenty_trials() -> None:
    assert len(FAULTS) + len(JOINED) == 20


# The command line


def test_the_command_repeats_a_run(run_of_program: str, capsys: Any) -> None:
    assert main(["replay", run_of_program]) == 0
    assert capsys.readouterr().out == "1 calls repeated with the recorded bits\n"
    with faulty(applied("sin", "cos")):
        assert main(["replay", run_of_program, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["difference"]["op"] == "sin"


@pytest.mark.parametrize("damage", ["short", "text", "version"])
def test_a_damaged_record_is_told(damage: str, run_of_program: str, tmp_path: Path) -> None:
    path = tmp_path / "bad"
    data = Path(run_of_program).read_bytes()
    if damage == "version":
        with zipfile.ZipFile(run_of_program) as z, zipfile.ZipFile(path, "w") as out:
            out.writestr(
                "manifest.json", z.read("manifest.json").replace(b'"version": 1', b'"version": 99')
            )
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "short" else b"hello")
    text = "newer" if damage == "version" else "is no record that ts.record wrote"
    with pytest.raises(FileError, match=text):
        replay(str(path))


def test_a_missing_record_is_told() -> None:
    with pytest.raises(MissingFileError, match="there is no file nowhere"):
        replay("nowhere")


def packed(path: Path, parts: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, data in parts.items():
            z.writestr(name, data)
    return path


def test_what_unpacks_to_more_than_it_says_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(file, "MOST_TEXT", 1 << 16)
    path = packed(tmp_path / "bomb.tsr", {"manifest.json": b" " * (1 << 20) + b"{}"})
    with pytest.raises(FileError, match="or is damaged"):
        replay(str(path))
    with recorded(tmp_path / "run.tsr"):
        step(draw(6, 3), X)
    with zipfile.ZipFile(tmp_path / "run.tsr") as z:
        parts = {n: z.read(n) for n in z.namelist()}
    name = next(n for n in parts if n.startswith("arrays/"))
    packed(tmp_path / "run.tsr", {**parts, name: bytes(1 << 20)})
    with pytest.raises(FileError, match="has 1048576 bytes, expected at most"):
        replay(str(tmp_path / "run.tsr"))


def test_damaged_records_are_refused_or_read(tmp_path: Path) -> None:
    with recorded(tmp_path / "run.tsr"):
        step(draw(6, 3), X)
    whole = (tmp_path / "run.tsr").read_bytes()
    with zipfile.ZipFile(tmp_path / "run.tsr") as z:
        parts = {n: z.read(n) for n in z.namelist()}
    r = np.random.default_rng(3)
    refused = 0
    for i in range(60):
        if i % 3 == 0:
            data = bytearray(whole)
            data[r.integers(len(data))] ^= 1 << r.integers(8)
            (tmp_path / "f").write_bytes(data[: r.integers(len(data))] if i % 2 else data)
        else:  # behind the checksums of the zip
            name = sorted(parts)[r.integers(len(parts))] if i % 2 else "manifest.json"
            data = bytearray(parts[name])
            data[r.integers(len(data))] ^= 1 << r.integers(7)
            packed(tmp_path / "f", {**parts, name: bytes(data)})
        try:
            replay(str(tmp_path / "f"))
        except TesseraError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("now", [
    np.ones((2, 3), np.float64), np.ones((3, 2), np.float32), np.ones(6, np.int32),
], ids=lambda a: f"{a.dtype}{list(a.shape)}")  # fmt: skip
def test_a_value_of_another_type_or_shape_is_told_by_these(now: Any, tmp_path: Path) -> None:
    with recorded(tmp_path / "a"):
        ts.jit(lambda x: x * 2)(ts.tensor(np.full((2, 3), 0.5, np.float32)))
    told = Told.of(np.ones((2, 3), np.float32))
    found = _Replay(RecordReader(str(tmp_path / "a")), None).values(told, now)
    assert found == f"recorded {told}, now {Told.of(now)}"
