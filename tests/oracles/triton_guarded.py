"""Printed kernels by Triton's interpreter, in memory that is watched: no GPU is needed to see that a mask
is missing.

    TRITON_INTERPRET=1 python -m tests.oracles.triton_guarded FOLDER plain|mutants

Every tensor lies in the middle of poison: NaN, or numbers that are wrong wherever they are used.  An access
outside of a tensor is an error of its own, poison that changed is one, and so is a result that differs.
`mutants` drops the masks of the printed source one at a time; each must be noticed.
"""

from __future__ import annotations

import ast
import json
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

import tessera as ts
from tessera.core.dims import product, substitute
from tessera.ir.target.triton.emit import emit, scratch_bytes
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.gpu.written import written
from tessera.ir.tile.interp import interpret, unwritten
from tessera.ir.tile.ir import Kernel, walk
from tessera.lang.kernel.launch import covered
from tests.oracles.triton_interpreter import is_otherwise, load, same, ties_zeros
from tests.support.cases import random_data_kernels, random_kernels
from tests.support.cases.random_kernels import Case
from tests.support.fakes import gpu_fake
from tests.support.fakes.gpu_fake import Interpreted, _array, fake_gpu
from tests.support.runners import kernel_runs as runs

RANDOM = {"plain": 60, "mutants": 20}  # kernels beside those of the compiler
GUARD = 256  # bytes of poison before and behind a tensor
POISON = 0x7F  # bytes of it: large numbers, and NaN in every float


class Outside(Exception):
    """An access outside of every tensor."""


class Memory:
    """Tensors in poison, and the addresses that may be used."""

    def __init__(self) -> None:
        self.tensors: list[
            tuple[Any, Any]
        ] = []  # bytes with their guards, and the array they are of
        self.partial: set[int] = set()  # lines whose masks are false somewhere

    def tensor(self, a: Any) -> Any:
        """A tensor of Triton's that holds an array."""
        data = a.astype(np.int8) if a.dtype.name == "int4" else a
        raw = torch.full((data.nbytes + 2 * GUARD,), POISON, dtype=torch.uint8)
        inner = raw[GUARD : GUARD + data.nbytes]
        if data.nbytes:
            inner.copy_(
                torch.from_numpy(np.ascontiguousarray(data).view(np.uint8).reshape(-1).copy())
            )
        self.tensors.append((raw, a))
        kind = torch.from_numpy(np.zeros(1, _storage(data.dtype))).dtype
        return inner.view(kind) if data.nbytes else torch.empty(0, dtype=kind)

    def array(self, i: int) -> Any:
        """What a tensor holds by now."""
        raw, like = self.tensors[i]
        n = like.size * (1 if like.dtype.name == "int4" else like.dtype.itemsize)
        data = raw[GUARD : GUARD + n].numpy()
        kind = np.int8 if like.dtype.name == "int4" else like.dtype
        return data.view(kind).reshape(like.shape).astype(like.dtype)

    def check(self) -> None:
        """Raise Outside where poison has changed."""
        for raw, _ in self.tensors:
            ends = (raw[:GUARD], raw[len(raw) - GUARD :])
            if any(bool((x != POISON).any()) for x in ends):
                raise Outside("poison beside a tensor was written over")

    def demand(self, what: str, pointers: Any, mask: Any) -> None:
        """Raise Outside at an address that is in no tensor."""
        chosen = np.asarray(mask).astype(bool)
        if not chosen.all():
            self.partial.add(_line())
        used = np.asarray(pointers).astype(np.uint64)[chosen]
        inside = np.zeros(used.shape, bool)
        for raw, _ in self.tensors:
            begin = raw.data_ptr() + GUARD
            inside |= (used >= begin) & (used < begin + len(raw) - 2 * GUARD)
        if not inside.all():
            raise Outside(
                f"a {what} of {int((~inside).sum())} elements lies outside of every tensor"
            )


def _line() -> int:
    """The line of the printed kernel that is being run."""
    frame: Any = sys._getframe(1)
    while frame is not None and "kernel_" not in Path(frame.f_code.co_filename).name:
        frame = frame.f_back
    return -1 if frame is None else int(frame.f_lineno)


def _storage(dtype: Any) -> Any:
    """The dtype that PyTorch takes for one of NumPy."""
    return {"bool": np.uint8, "int4": np.int8, "bfloat16": np.int16}.get(dtype.name, dtype)


@contextmanager
def watched(memory: Memory) -> Iterator[None]:
    """While the block runs, loads and stores of Triton's interpreter are looked at."""
    builder = interpreter.InterpreterBuilder
    read, write = builder.create_masked_load, builder.create_masked_store

    def load_(self: Any, ptrs: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        memory.demand("load", ptrs.data, mask.data)
        return read(self, ptrs, mask, *rest, **more)

    def store_(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **more: Any) -> Any:
        memory.demand("store", ptrs.data, mask.data)
        return write(self, ptrs, value, mask, *rest, **more)

    builder.create_masked_load, builder.create_masked_store = load_, store_
    try:
        yield
    finally:
        builder.create_masked_load, builder.create_masked_store = read, write


def run(
    kernel: Kernel, arrays: Sequence[Any], sizes: Mapping[str, int], folder: Path,
    text: str | None = None, partial: set[int] | None = None,
) -> list[Any]:  # fmt: skip
    """What a kernel leaves in its arrays, by Triton's interpreter; of a changed text if one is given.

    Lines whose masks are false somewhere are added to `partial`.
    """
    count = int(substitute(product(tuple(n for _, n in kernel.grid)), sizes)) if kernel.grid else 1
    memory = Memory()
    given = [memory.tensor(a) for a in arrays]
    scratch = int(substitute(scratch_bytes(kernel), sizes)) * max(count, 1)
    more = [memory.tensor(np.full(scratch, POISON, np.int8))] if scratch else []
    if count:
        f = load(text or emit(kernel), plain_name(kernel.name), folder)
        try:
            with watched(memory):
                f[(count,)](*given, *(sizes[n] for n in kernel.sizes), *more)
        except InterpreterError as e:
            if isinstance(e.__cause__, Outside):
                raise e.__cause__ from None
            raise
    memory.check()
    if partial is not None:
        partial |= memory.partial
    return [memory.array(i) for i in range(len(arrays))]


def without_masks(text: str, partial: set[int]) -> Iterator[tuple[str, str]]:
    """The printed source with one mask dropped, each in turn, and the line that it was dropped from.

    A mask that is true everywhere for these sizes changes nothing.
    """
    tree = ast.parse(text)
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and _is_access(n)]
    for call in (c for c in calls if c.lineno in partial):
        kept, line = list(call.keywords), ast.unparse(call)
        call.keywords = [k for k in kept if k.arg not in ("mask", "other")]
        if len(call.keywords) < len(kept):
            yield line, ast.unparse(tree)
        call.keywords = kept


def _is_access(n: ast.Call) -> bool:
    f = n.func
    return (
        isinstance(f, ast.Attribute)
        and f.attr in ("load", "store")
        and ast.unparse(f.value) == "tl"
    )


# Random kernels -------------------------------------------------------------------------------


def verdict(case: Case, folder: Path) -> str | None:
    """What differs between machine code, the Tile interpreter and Triton's for a random kernel."""
    ((f, _),) = runs.load([case], folder)
    args = case.arguments()
    found = prepared(f, args)
    if is_otherwise(found[0]):
        return "left out"
    k, arrays, sizes = found
    wanted = [x.copy() for x in arrays]
    interpret(k, wanted, sizes)
    try:
        got = run(k, arrays, sizes, folder)
    except Outside as e:
        return f"Triton: {e}"
    signs = not ties_zeros(k)
    made = [i for i, m in enumerate(k.parameters) if m.writable]
    if not all(same(got[i], wanted[i], signs) for i in made):
        return "the Tile interpreter and Triton differ"
    usual = runs.arrays_of(f(*args))  # of a CPU, whose folds have another order
    if not runs.all_close(case, [got[i] for i in made], usual):
        return "machine code and Triton differ"
    return None


def prepared(
    f: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Kernel, list[Any], dict[str, int]]:
    """The kernel of a call as a GPU gets it, the arrays it runs on, and their sizes."""
    bound = f.signature.bind(tuple(args), kwargs or {})
    sizes = {
        n: int(k)
        for p, shape in zip(bound.parameters, bound.shapes, strict=True)
        for n, k in zip(map(str, p.type.shape), shape, strict=True)
    }
    t = f.translated(bound, sizes, f.chosen(bound, sizes, None), fixed=True)  # as for a device
    k, count = written(t.kernel), len(t.inputs)
    known = {n: sizes[n] for n in k.sizes}
    arrays = [
        np.array(a, p.type.dtype.np) for a, p in zip(bound.arrays, bound.parameters, strict=True)
    ]
    for m, whole in zip(k.parameters[count:], covered(t.kernel, count), strict=True):
        shape = tuple(int(substitute(n, known)) for n in m.type.shape)
        empty = unwritten(shape, m.type.dtype)
        arrays.append(empty if whole else np.zeros(shape, m.type.dtype.np))
    return k, arrays, known


# Kernels of the compiler ----------------------------------------------------------------------


def programs() -> dict[str, tuple[Callable[..., Any], list[Any]]]:
    """Functions whose kernels have masks of every kind: rows, columns, depths, gathers, folds, scans."""
    op, rng = ts.op, np.random.default_rng(0)

    def data(*shape: int) -> Any:
        return rng.integers(-8, 9, shape).astype(np.float32) / 4

    ids = np.array([4, 0, 6, 2, 2], np.int64)
    return {
        "elementwise": (lambda x: x * 2 + 1, [data(7, 13)]),
        "transposed": (lambda x: x.T + 1, [data(7, 13)]),
        "sum": (lambda x: op.sum(x, axis=1), [data(5, 37)]),
        "sum of columns": (lambda x: op.sum(x, axis=0), [data(37, 5)]),
        "least": (lambda x: op.min(x + 9, axis=1), [data(5, 37)]),
        "softmax": (lambda x: op.softmax(x), [data(3, 21)]),
        "product": (lambda a, b: a @ b, [data(13, 9), data(9, 11)]),
        "product and more": (lambda a, b, c: op.maximum(a @ b + c, 0), [data(5, 18), data(18, 7), data(7)]),
        "batched product": (lambda a, b: a @ b, [data(3, 5, 6), data(3, 6, 7)]),
        "rows of a table": (lambda x, i: x[i] + 1, [data(7, 5), ids]),
        "scan": (lambda x: op.cumsum(x, axis=1), [data(3, 13)]),
        "logarithms of sums": (lambda x: op.logcumsumexp(x, axis=1), [data(3, 13)]),
        "counts": (lambda x: op.bincount(x, length=100), [rng.integers(-3, 120, 4099)]),
        "draws": (lambda k: op.random.normal(k, (3, 50)), [np.array([3, 1 << 31], np.uint32)]),
        "wide draws": (
            lambda k: op.random.normal(k, (51,), dtype=ts.f64), [np.array([3, 1 << 31], np.uint32)],
        ),
        "dropout": (
            lambda k, x: op.dropout(k, x, 0.4), [np.array([9, 1 << 31], np.uint32), data(7, 13)],
        ),
        "concat": (lambda x, y: op.concat([x, y], axis=0) * 2, [data(3, 5), data(4, 5)]),
        "padded": (lambda x: op.pad(x, ((1, 2), (0, 3))) + 1, [data(5, 6)]),
        "shifted": (lambda x: x[1:] - x[:-1], [data(13)]),
        "long scan": (lambda x: op.cumsum(x, axis=1), [data(2, 5000)]),
        "scan of columns": (lambda x: op.cumsum(x, axis=0), [data(70, 5)]),
        "largest": (lambda x: op.topk(x, 3)[0], [data(3, 70)]),
        "convolution": (lambda x, w: op.conv(x, w, padding=1), [data(2, 5, 7, 9), data(6, 5, 3, 3)]),
        "strided convolution": (lambda x, w: op.conv(x, w, stride=2, padding=1),
        [data(1, 17, 9, 8), data(4, 17, 3, 3)]),
        "slope of a convolution": (
            ts.grad(lambda x, w: op.sum(op.square(op.conv(x, w, stride=2, padding=1)))),
            [data(1, 17, 9, 8), data(4, 17, 3, 3)],
        ),
        "slope in a kernel": (
            ts.grad(lambda w, x: op.sum(op.square(op.conv(x, w, padding=1)))),
            [data(6, 5, 3, 3), data(2, 5, 7, 9)],
        ),
        "depthwise": (lambda x, w: op.conv(x, w, groups=6, padding=1), [data(2, 6, 7, 9), data(6, 1, 3, 3)]),
        "pooling": (lambda x: op.max_pool(x, 3, stride=2, padding=1), [data(2, 3, 9, 11)]),
        "slope of pooling": (
            ts.grad(lambda x: op.sum(op.square(op.max_pool(x, 3, stride=2, padding=1)))), [data(2, 3, 9, 11)],
        ),
    }  # fmt: skip


class Guarded(Interpreted):
    """Launches that Triton's interpreter runs on copies in poison."""

    folder: Path
    wrong: list[str]
    sources: dict[str, tuple[Kernel, list[Any], dict[str, int]]]

    def run_one(self, i: int, stream: Any) -> None:
        c = self.launches[i]
        k = self.program.lowered.launches[c.name].kernel
        known = dict(self.program.lowered.known.get(c.name, {}))
        places = [self.program.place(n) for n in c.buffers]
        arrays = [
            _array(self.bound[cell] + offset, m.type.substitute(known))
            for (cell, offset), m in zip(places, k.parameters, strict=True)
        ]
        if i == 0:
            self.begun: set[tuple[Any, Any]] = set()  # where launches of this run have written
        # What an earlier launch wrote in part, as the border of images, stays.
        fresh = [
            unwritten(a.shape, m.type.dtype)
            if m.writable and not _reads(k, m) and tuple(place) not in self.begun
            else a.copy()
            for a, m, place in zip(arrays, k.parameters, places, strict=True)
        ]
        self.begun |= {tuple(x) for x, m in zip(places, k.parameters, strict=True) if m.writable}
        want = [a.copy() for a in fresh]
        interpret(k, want, known)
        self.sources[emit(k)] = (k, [a.copy() for a in fresh], known)
        try:
            got = run(k, fresh, known, self.folder)
            if not all(map(near, got, want)):
                self.wrong.append(f"{c.name}: Triton and the Tile interpreter differ")
        except Outside as e:
            self.wrong.append(f"{c.name}: {e}")
        for a, b in zip(arrays, want, strict=True):
            a[...] = b


def _reads(k: Kernel, m: Any) -> bool:
    return any(o.memory is m and o.name in ("load", "gather") for o in walk(k.body))


def near(a: Any, b: Any) -> bool:
    """Whether results agree; products are summed in another order."""
    if a.dtype.kind in "iub":
        return bool((a == b).all())
    x, y = a.astype(np.float64), b.astype(np.float64)
    return bool(np.isclose(x, y, rtol=1e-4, atol=1e-4, equal_nan=True).all())


def compiled(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The printed kernels of the programs, and what was wrong with them."""
    Guarded.folder, Guarded.wrong, Guarded.sources = folder, [], {}
    usual, gpu_fake.Interpreted = gpu_fake.Interpreted, Guarded  # type: ignore[misc]
    try:
        with fake_gpu():
            for name, (f, args) in programs().items():
                want = f(*(ts.tensor(a) for a in args)).numpy()
                got = ts.jit(f)(*(ts.tensor(a).to("cuda") for a in args)).numpy()
                if not near(np.asarray(got), np.asarray(want)):
                    Guarded.wrong.append(f"{name}: the GPU and the CPU differ")
    finally:
        gpu_fake.Interpreted = usual  # type: ignore[misc]
    return Guarded.sources, Guarded.wrong


def handwritten(folder: Path, mode: str) -> Iterator[tuple[Kernel, list[Any], dict[str, int]]]:
    """Random kernels that have masks; those of scratch memory are not watched, so mutants have none of it."""
    for seed in range(RANDOM[mode]):
        if mode == "mutants":
            rng = random.Random(seed)
            case = rng.choice(random_kernels.FAMILIES)(rng)
        else:
            case = random_data_kernels.random_case(seed)
        ((f, _),) = runs.load([case], folder)
        try:
            found = prepared(f, case.arguments())
        except ts.TesseraError:
            continue
        if not is_otherwise(found[0]):
            yield found


def noticed(k: Kernel, arrays: list[Any], sizes: dict[str, int], text: str, folder: Path) -> bool:
    """Whether a changed source is noticed: by an access outside, or by a result."""
    want = [a.copy() for a in arrays]
    interpret(k, want, sizes)
    try:
        return not all(map(near, run(k, arrays, sizes, folder, text), want))
    except Outside:
        return True


def main(folder: Path, mode: str) -> None:
    """Print what was found as JSON."""
    sources, wrong = compiled(folder)
    every = [*sources.values(), *handwritten(folder, mode)]
    if mode == "plain":
        for k, arrays, sizes in every[len(sources) :]:
            if noticed(k, arrays, sizes, emit(k), folder):
                wrong.append(f"{k.name} {sizes}: Triton and the Tile interpreter differ\n{emit(k)}")
        print(json.dumps({"compiled": len(sources), "kernels": len(every), "wrong": wrong}))
        return
    dropped, left = 0, []
    for k, arrays, sizes in every:
        partial: set[int] = set()
        run(k, arrays, sizes, folder, emit(k), partial)
        for line, text in without_masks(emit(k), partial):
            dropped += 1
            if not noticed(k, arrays, sizes, text, folder):
                left.append(f"{k.name} {sizes}: {line}")
    print(json.dumps({"kernels": len(every), "dropped": dropped, "left": left}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2])
