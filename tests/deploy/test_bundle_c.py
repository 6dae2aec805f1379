"""The C runtime: a C program runs bundles with the bits of Python's run, built in several ways, on
several threads.
"""

from __future__ import annotations

import platform
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.deploy.container import Container
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE

HERE = Path(__file__).parents[1] / "native"
COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(
    not (COMPILER and usable()), reason="no C compiler for this processor"
)
RNG = np.random.default_rng(5)
STRICT = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]


def normal(*shape: int, scale: float = 1.0) -> Any:
    return ts.tensor((scale * RNG.normal(size=shape)).astype(np.float32))


# Programs ---------------------------------------------------------------------------------------

HEADS, WIDTH, WORDS = 4, 32, 61


def gpt_weights() -> Any:
    def block() -> Any:
        return {
            "qkv": normal(WIDTH, 3 * WIDTH, scale=0.2), "out": normal(WIDTH, WIDTH, scale=0.2),
            "up": normal(WIDTH, 4 * WIDTH, scale=0.2), "down": normal(4 * WIDTH, WIDTH, scale=0.2),
            "gain1": normal(WIDTH), "gain2": normal(WIDTH),
        }  # fmt: skip

    return {"embed": normal(WORDS, WIDTH), "blocks": [block(), block()]}


def greedy(p: Any, tokens: Tensor["S", ts.i32]) -> Any:
    """The next token of a small GPT, and its logits."""
    s = tokens.shape[0]
    h = op.take(p["embed"], tokens, axis=0)
    for b in p["blocks"]:
        q, k, v = (
            op.transpose(op.reshape(x, (s, HEADS, WIDTH // HEADS)), (1, 0, 2))
            for x in op.split(op.matmul(op.layernorm(h, b["gain1"]), b["qkv"]), 3, axis=-1)
        )
        a = op.reshape(op.transpose(op.attention(q, k, v, causal=True), (1, 0, 2)), (s, WIDTH))
        h = h + op.matmul(a, b["out"])
        h = h + op.matmul(op.gelu(op.matmul(op.layernorm(h, b["gain2"]), b["up"])), b["down"])
    logits = op.matmul(h, op.transpose(p["embed"], (1, 0)))[-1]
    return op.argmax(logits), logits


K1, K2, DENSE = normal(8, 3, 3, 3), normal(16, 8, 3, 3), normal(16, 10)


def cnn(x: Any) -> Any:
    y = op.max_pool(op.relu(op.conv2d(x, K1, padding=1)), 2)
    y = op.mean(op.relu(op.conv2d(y, K2, padding=1)), axis=(2, 3))
    return op.softmax(op.matmul(y, DENSE), axis=-1)


def heat(f: Any) -> Any:
    """A step of the heat equation on a torus, by its spectrum."""
    n = f.shape[-1]
    k = np.fft.fftfreq(n, 1 / n)
    factor = ts.tensor(np.exp(-0.01 * (k[:, None] ** 2 + k[None] ** 2)).astype(np.float32))
    return op.real(op.ifft2(op.fft2(f) * factor))


A, B = normal(8, 8), normal(6, 6)


def kronecker(x: Any) -> Any:
    return op.kronecker(op.dense(A), op.dense(B)) @ x


def loops(xs: Any) -> Any:
    carry, ys = ts.scan(lambda c, x: (c * 0.5 + x, op.tanh(c)), ts.zeros((4,)), xs)
    halved = ts.while_loop(lambda s: s[0] < 5.0, lambda s: (s[0] + 1.0, s[1] * 0.5), (0.0, carry))
    return halved[1], ys


def views(x: Tensor["n", "m"]) -> Any:
    t = op.transpose(x, (1, 0))
    return t, x[1:3], x, op.matmul(t, x), op.exp(x) % 1.5, x


SQUARE = normal(5, 5, scale=0.3)


def branches(x: Tensor["n", 5], flag: Tensor[ts.bool_]) -> Any:
    """Branches and loops whose bodies are programs: products, running sums, branches inside of loops."""

    def step(c: Any, row: Any) -> Any:
        c = op.matmul(c, SQUARE) + row
        c = ts.cond(op.sum(c) > 0.0, lambda y: op.cumsum(y, axis=-1) * 0.5, lambda y: y - 1.0, c)
        return c, op.softmax(op.matmul(c, op.transpose(SQUARE, (1, 0))), axis=-1)

    carry, ys = ts.scan(step, ts.zeros((2, 5)), op.broadcast_to(x[:, None, :], (x.shape[0], 2, 5)))
    back, zs = ts.scan(
        step, carry, op.broadcast_to(x[:, None, :], (x.shape[0], 2, 5)), reverse=True
    )
    none, _ = ts.scan(step, carry, ts.zeros((0, 2, 5)))
    grown = ts.while_loop(
        lambda s: op.sum(s[1] * s[1]) < 50.0,
        lambda s: (s[0] + 1, op.matmul(s[1], op.transpose(s[1], (1, 0))) @ s[1] + 1.0),
        (ts.tensor(np.int32(0)), carry * 0.1),
    )
    either = ts.cond(flag, lambda a, b: op.cumsum(a, axis=0), lambda a, b: a + b[0], x, carry)
    return carry, ys, back, zs, none, grown, either


def orders(x: Tensor["n", "m"]) -> Any:
    """Sorts, which the runtime does itself."""
    best, places = op.topk(x * 2.0, 2)
    return (
        op.sort(op.transpose(x, (1, 0))),
        best,
        op.take_along_axis(x, places, axis=1),
        op.argsort(x, axis=0),
    )


DEEP = normal(8, 8, scale=0.3)


def carried(x: Tensor["n", 8], ys: Tensor["n", 8], times: Tensor[ts.i32]) -> Any:
    """Loops that hand carries on, swap them, write over them and write one row."""

    def turn(c: Any, y: Any) -> Any:
        a, b, d, e = c
        a = (a * 0.5 + 1.0).at[1].set(y)  # over a, whose operand somebody else holds
        return (b, a, op.tanh(op.matmul(d, DEEP)), e), (op.tanh(e), a)

    first, rows = ts.scan(turn, (x, x, x, x), ys)

    def twice(c: Any, _: Any) -> Any:
        a, b, d = c
        return (d, a, b), op.matmul(a, DEEP)

    second, more = ts.scan(twice, (x, ys, first[0]), None, length=5)
    once, _ = ts.scan(lambda c, _: ((op.matmul(c[0], DEEP), c[0]), None), (x, ys), None, length=1)

    def shorter(s: Any) -> Any:
        i, a, b = s
        gone = op.exp(a * 0.1) * 2.0 + op.matmul(b, DEEP)  # in the place of a, and dropped
        return i + 1, b, op.cumsum(gone, axis=-1)

    third = ts.while_loop(lambda s: s[0] < times, shorter, (ts.tensor(np.int32(0)), x, ys))
    inner = ts.scan(lambda c, y: (ts.scan(lambda d, _: ((d[1], d[0] + y), None), (c, c), None,
                                          length=3)[0][0], y), ys[0], ys)  # fmt: skip
    return (
        first,
        rows,
        second,
        more,
        once,
        third,
        inner[0],
        op.reshape(op.exp(x), (x.shape[0] * 8,)),
    )


def empty(x: Tensor["n", 8], y: Tensor["n", 8]) -> Any:
    """A carry without elements between two that change places: its memory may begin where theirs does."""

    def turn(c: Any, _: Any) -> Any:
        a, none, b = c
        return (b, none, a), op.matmul(a, DEEP)

    (a, _, b), rows = ts.scan(turn, (x, ts.zeros((0, 8)), y), None, length=3)
    return op.matmul(a, DEEP), op.matmul(b, DEEP), rows


KERNEL, TABLE = normal(6, 4, 3), normal(5, 7)


def constant(p: Any, x: Tensor["n", 4], flag: Tensor[ts.bool_]) -> Any:
    """What follows from weights and constants alone, in loops and branches too."""
    w = op.transpose(op.softmax(p["w"] * 3.0, axis=0), (1, 0))
    order = op.argsort(op.sum(KERNEL, axis=(1, 2)))
    picked = op.take(op.transpose(KERNEL, (2, 0, 1)), order, axis=1)
    y = op.matmul(x, w)

    def step(c: Any, _: Any) -> Any:
        held = op.matmul(TABLE, op.transpose(TABLE, (1, 0))) * 0.1
        return op.matmul(c, op.exp(held)) * 0.1, op.sum(c)

    loop, sums = ts.scan(step, y, None, length=3)
    either = ts.cond(flag, lambda a: op.matmul(a, op.cumsum(TABLE, axis=0)),
                     lambda a: op.matmul(a, op.sort(TABLE)), y)  # fmt: skip
    return y, picked, loop, sums, either, op.log(p["w"] * p["w"]), w


GRU, ITEMS = 24, 48


def gru_weights() -> Any:
    gates = {k: normal(2 * GRU, GRU, scale=0.3) for k in ("z", "r", "h")}
    return {**gates, "embed": normal(ITEMS, GRU), "out": normal(GRU, ITEMS)}


def cell(p: Any, h: Any, x: Any) -> Any:
    both = op.concat([x, h], axis=-1)
    z, r = op.sigmoid(op.matmul(both, p["z"])), op.sigmoid(op.matmul(both, p["r"]))
    return (1 - z) * h + z * op.tanh(op.matmul(op.concat([x, r * h], axis=-1), p["h"]))


def sampler(p: Any, h: Any, key: Any, temperature: Any) -> Any:
    """At most 20 tokens of a recurrent model, drawn, or the best where the temperature is 0; token 0 ends
    it.
    """

    def step(s: Any) -> Any:
        i, h, token, out = s
        h = cell(p, h, op.take(p["embed"], token, axis=0))
        logits = op.matmul(h, p["out"])
        drawn = op.random.fold_in(key, i)
        token = ts.cond(
            temperature > 0.0,
            lambda x: op.random.categorical(drawn, x / op.maximum(temperature, 1e-3)).astype(
                ts.i32
            ),
            lambda x: op.argmax(x).astype(ts.i32),
            logits,
        )
        return i + 1, h, token, op.where(op.arange(20) == i, token, out)

    first = (ts.tensor(np.int32(0)), h, ts.tensor(np.int32(1)), op.full((20,), -1, dtype=ts.i32))
    count, h, _, out = ts.while_loop(lambda s: (s[0] < 20) & (s[2] != 0), step, first)
    return {"tokens": out, "count": count, "state": h}


def recommender(p: Any, history: Tensor["B", "T", ts.i32], offers: Tensor["B", "C", ts.i32]) -> Any:
    """The three best of each user's offers, after what the user has seen."""
    seen = op.transpose(op.take(p["embed"], history, axis=0), (1, 0, 2))
    h, _ = ts.scan(lambda h, x: (cell(p, h, x), op.sum(x)), ts.zeros((history.shape[0], GRU)), seen)
    scores = op.take_along_axis(op.matmul(h, p["out"]), offers, axis=1)
    best, places = op.topk(scores, 3)
    return best, op.take_along_axis(offers, places, axis=1)


def ids(*shape: int) -> Any:
    return ts.tensor(RNG.integers(0, ITEMS, shape).astype(np.int32))


SPLIT = {"tokens": ts.tensor(RNG.integers(0, WORDS, 12).astype(np.int32))}
PROGRAMS: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "greedy": (greedy, (SPLIT["tokens"],), gpt_weights()), "cnn": (cnn, (normal(2, 3, 16, 16),), None),
    "heat": (heat, (normal(32, 32),), None), "kronecker": (kronecker, (normal(48),), None),
    "loops": (loops, (normal(9, 4),), None), "views": (views, (normal(6, 6),), None),
    "branches": (branches, (normal(4, 5), ts.tensor(np.array(True))), None),
    "orders": (orders, (normal(6, 6),), None),
    "sampler": (sampler, (normal(GRU), op.random.key(42), ts.tensor(np.float32(0.8))), gru_weights()),
    "recommender": (recommender, (ids(3, 4), ids(3, 6)), gru_weights()),
    "carried": (carried, (normal(4, 8), normal(4, 8), ts.tensor(np.int32(3))), None),
    "empty": (empty, (normal(1024, 8), normal(1024, 8)), None),
    "constant": (constant, (normal(3, 4), ts.tensor(np.array(True))), {"w": normal(5, 4)}),
}  # fmt: skip
OTHER = {
    "greedy": (ts.tensor(RNG.integers(0, WORDS, 7).astype(np.int32)),),
    "views": (normal(7, 4),),
    "orders": (normal(5, 40),),
    "sampler": (normal(GRU), op.random.key(7), ts.tensor(np.float32(0.0))),
    "recommender": (ids(1, 7), ids(1, 30)),
    "branches": (normal(7, 5), ts.tensor(np.array(False))),
    "carried": (normal(5, 8), normal(5, 8), ts.tensor(np.int32(0))),
    "constant": (normal(2, 4), ts.tensor(np.array(False))),
}


# Running them -----------------------------------------------------------------------------------


def record(path: Path, tensors: Sequence[Any]) -> None:
    """Write tensors as tests/native/run.c reads them."""
    with path.open("wb") as f:
        for x in map(np.asarray, tensors):
            f.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())


_OBJECTS = tempfile.TemporaryDirectory(prefix="tessera-objects-")


@cache
def _runtime(front: tuple[str, ...]) -> Path:
    """The object file of the runtime; a compiler takes 3 to 15 seconds for it."""
    out = Path(_OBJECTS.name) / f"{_runtime.cache_info().currsize}.o"
    subprocess.run([*front, "-c", str(SOURCE), "-o", str(out)], check=True)
    return out


def build(out: Path, source: str, *flags: str, compiler: str | None = COMPILER) -> Path:
    front = (str(compiler), *STRICT, *flags, "-pthread", "-I", str(INCLUDE))
    parts = [str(HERE / source), str(_runtime(front))]
    subprocess.run([*front, *parts, "-o", str(out)], check=True)
    return out


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle and the record of every program."""
    folder = tmp_path_factory.mktemp("bundles")
    for name, (f, args, weights) in PROGRAMS.items():
        targets = [f"cpu:{usable()[-1]}"]  # that valgrind knows the instructions of
        ts.bundle.save(f, folder / f"{name}.tess", *args, targets=targets, weights=weights)
        given = OTHER.get(name, args)
        held = () if weights is None else (weights,)
        outs = ts.jit(f)(*held, *given)
        record(folder / f"{name}.record", [*ts.tree.leaves(given), *ts.tree.leaves(outs)])
        got = ts.bundle.load(folder / f"{name}.tess").run(*given)
        pairs = zip(ts.tree.leaves(got), ts.tree.leaves(outs), strict=True)
        assert all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs), name
    return folder


def runs(made: Path, name: str, program: Path, threads: int, *front: str) -> str:
    at = [str(made / f"{name}.tess"), str(made / f"{name}.record"), name, str(threads), "3"]
    done = subprocess.run([*front, str(program), *at], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{name} on {threads} threads: {done.stderr}"
    return done.stderr


@pytest.mark.parametrize(
    ("compiler", "level"),
    [
        ("gcc", "-O0"),
        *(
            pytest.param(c, o, marks=pytest.mark.deep)
            for c, o in [("gcc", "-O3"), ("clang", "-O0"), ("clang", "-O3")]
        ),
    ],
)
def test_c_has_the_bits_of_python(made: Path, tmp_path: Path, compiler: str, level: str):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    program = build(tmp_path / "run", "run.c", level, compiler=compiler)
    for name in PROGRAMS:
        for threads in (1, 2, 3):
            assert "the same bits" in runs(made, name, program, threads)


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
@pytest.mark.parametrize("name", PROGRAMS)
def test_valgrind_finds_nothing(made: Path, tmp_path: Path, name: str):
    program = build(tmp_path / "run", "run.c", "-O1", "-g")
    check = (
        "valgrind",
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    )
    if platform.machine() != "aarch64":
        assert "the same bits" in runs(made, name, program, 1, *check)
        return
    # valgrind 3.19 rounds the product of a vector's fused multiply-add there, so that bits differ
    at = [str(made / f"{name}.tess"), str(made / f"{name}.record"), name, "1", "3"]
    run = [*check, str(program), *at]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    assert "==" not in done.stderr


@pytest.mark.deep
def test_sanitizers_find_nothing(made: Path, tmp_path: Path):
    program = build(
        tmp_path / "run",
        "run.c",
        "-O1",
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    )
    for name in PROGRAMS:
        for threads in (1, 3):
            assert "the same bits" in runs(made, name, program, threads)


def _strided(out: Path, *flags: str) -> Path:
    """tests/native/strided.c, which includes the runtime."""
    run = [str(COMPILER), "-std=c99", "-D_GNU_SOURCE", "-w", *flags, "-pthread", "-I", str(INCLUDE)]
    subprocess.run([*run, str(HERE / "strided.c"), "-ldl", "-o", str(out)], check=True)
    return out


def test_copies_of_views_have_every_element_in_its_place(tmp_path: Path):
    flags = ["-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    out = _strided(tmp_path / "strided", *flags)
    done = subprocess.run([str(out), "3000", "1"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3000 copies\n"), done.stderr


@pytest.mark.deep
def test_a_copy_of_more_than_four_gibibytes_is_whole(tmp_path: Path):
    out = _strided(tmp_path / "strided", "-O1")
    done = subprocess.run([str(out), "whole"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the whole\n"), done.stderr


def _milliseconds(
    folder: Path, program: Path, f: Any, args: Sequence[Any], weights: Any = None
) -> tuple[float, float]:
    """The first and the least later run of a function in C."""
    held = () if weights is None else (weights,)
    ts.bundle.save({"f": (f, *args)}, folder / "f.tess", weights=weights)
    record(folder / "f.record", [*args, *ts.tree.leaves(ts.jit(f)(*held, *args))])
    told = runs(folder, "f", program, 1)
    found = re.search(r"first run ([0-9.]+) ms, later runs ([0-9.]+) us", told)
    assert found is not None
    assert "the same bits" in told
    return float(found[1]), float(found[2]) / 1000


def test_lines_are_sorted_on_several_threads(tmp_path: Path):
    program = build(tmp_path / "run", "run.c", "-O1", "-g", "-fsanitize=thread")
    x = normal(90, 700)
    ts.bundle.save({"orders": (orders, x)}, tmp_path / "orders.tess")
    record(tmp_path / "orders.record", [x, *ts.tree.leaves(ts.jit(orders)(x))])
    for threads in (2, 7):
        assert "the same bits" in runs(tmp_path, "orders", program, threads)


def test_a_loop_in_c_writes_one_row_in_its_place(tmp_path: Path):
    """A step that writes 4 bytes of 4 MB, or hands these on, copies nothing; 2,000 copies take a second."""
    program = build(tmp_path / "run", "run.c", "-O1")
    x, places = ts.zeros((1 << 20,)), ts.tensor(np.arange(2000, dtype=np.int32))

    def written(x: Any, places: Any) -> Any:
        def step(c: Any, k: Any) -> Any:
            a, b = c
            return (b, a.at[k].set(b[k] + 1.0)), None

        return op.sum(ts.scan(step, (x, x + 1.0), places)[0][0])

    assert _milliseconds(tmp_path, program, written, (x, places))[1] < 200


def test_what_follows_from_weights_is_computed_once_in_c(tmp_path: Path):
    program = build(tmp_path / "run", "run.c", "-O1")

    def f(w: Any, x: Any) -> Any:
        held = op.tanh(op.matmul(op.matmul(w, w) * 0.01, op.transpose(w, (1, 0))))
        return op.matmul(x, held)

    first, later = _milliseconds(tmp_path, program, f, (normal(2, 512),), normal(512, 512))
    assert later < first / 4


def test_the_header_is_c_and_cpp(tmp_path: Path):
    unit = tmp_path / "unit.cpp"
    unit.write_text(
        '#include "tessera/tessera.h"\nint main() { return tess_abi_version() != 1; }\n'
    )
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    flags = [
        "-std=c++11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-fsyntax-only",
        "-I",
        str(INCLUDE),
    ]
    subprocess.run([compiler, *flags, str(unit)], check=True)


def test_threads_run_one_entry_at_once(made: Path, tmp_path: Path):
    program = build(tmp_path / "threads", "threads.c", "-O0")
    for name in ("cnn", "greedy", "loops", "branches", "orders", "carried", "constant"):
        run = [str(program), str(made / f"{name}.tess"), name, "3", "40"]
        assert subprocess.run(run, check=False).returncode == 0, name


@pytest.mark.deep
def test_the_thread_sanitizer_finds_nothing(made: Path, tmp_path: Path):
    program = build(tmp_path / "threads", "threads.c", "-O1", "-g", "-fsanitize=thread")
    for name in ("cnn", "greedy", "loops", "carried", "constant"):
        run = [str(program), str(made / f"{name}.tess"), name, "3", "10"]
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]


def test_wrong_calls_are_explained(made: Path, tmp_path: Path):
    program = build(tmp_path / "wrong", "wrong.c", "-O0")
    run = [str(program), str(made / "views.tess"), str(made / "cnn.tess")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 bundle: nothing.tess cannot be opened (No such file or directory)",
        "5 tess_entry_open: there is no entry point 'other'",
        "1 views: got 0 inputs, expected 1",
        "1 tensor: size 0 and version 0, expected 168 and 1; use tess_tensor_init",
        "6 views: input 0 'x' is f64 of rank 2, expected f32 of rank 2",
        "1 views: room for 1 outputs, expected 6",
        "1 views: output 0 overlaps input 0",
        "7 views: output 0 is not a row-major tensor of the result's shape; see tess_entry_plan",
        "7 cnn: input 0 'x': axis 3 has 15 elements, expected 16",
        "3 cnn: the bundle was opened unverified; what is not verified is not run",
        "1 operator: tag 1 does not fit representation 0",
        "7 operator: the matrix is not 3 by 2",
        "1 tess_set_numerics: 'quick', expected fast, deterministic or strict",
        "1 tess_set_numerics: '', expected fast, deterministic or strict",
        "11 views: it has numerics 'deterministic', but tess_set_numerics asks for 'strict'; build the "
        "bundle under "
        'ts.numerics("strict"), or ask for less',
        "11 operator: a C compiler may round its sums in other ways on other processors, which numerics "
        "'strict' refuse; "
        "ask for 'deterministic' with tess_set_numerics",
    ]


def test_what_changes_after_it_was_opened_is_not_run(made: Path, tmp_path: Path):
    program = build(tmp_path / "changed", "changed.c", "-O0")
    shutil.copy(made / "views.tess", tmp_path / "spoilt.tess")
    run = [str(program), str(tmp_path / "spoilt.tess"), str(made / "views.tess")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr)
    wrong = "bundle: the digest of section '{}/views/cpu:{}' is wrong; it is damaged or was changed"
    assert done.stdout.splitlines() == [wrong.format(x, usable()[-1]) for x in ("code", "plan")]


def test_damaged_weights_are_found_piece_by_piece(tmp_path: Path):
    program = build(tmp_path / "run", "run.c", "-O1")
    w = normal(400, 173)  # which ends inside of a piece
    x = normal(3, 400)
    path = tmp_path / "whole.tess"
    ts.bundle.save({"f": (lambda p, x: op.matmul(x, p), x)}, path, weights=w)
    record(tmp_path / "record", [x, ts.jit(op.matmul)(x, w)])
    data = path.read_bytes()
    at = Container(path).named["weights"]
    run = [str(program), str(tmp_path / "f.tess"), str(tmp_path / "record"), "f", "2"]
    places = [0, 16383, 16384, at.size // 2, at.size - 1, *RNG.integers(0, at.size, 12)]
    for place in [None, *places]:
        wrong = bytearray(data)
        if place is not None:
            wrong[at.offset + int(place)] ^= 1 << int(place) % 8
        (tmp_path / "f.tess").write_bytes(wrong)
        done = subprocess.run(run, capture_output=True, text=True, check=False)
        if place is None:
            assert "the same bits" in done.stderr
        else:
            assert "status 3: bundle: the digest of section 'weights' is wrong" in done.stderr, (
                place
            )
