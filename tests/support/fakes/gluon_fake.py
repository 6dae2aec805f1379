"""Gluon without a GPU: what is printed runs in Python, each role a thread, products as late as their waits
allow.

A product reads its factors when somebody waits for it, the latest moment that hardware may: a place of a
ring that is given back too early is seen as a wrong number, and roles that wait for each other as an error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from tessera.ir.target.gluon.flash_forward_emit import boxes_of, emit
from tessera.ir.target.triton.triton_source import blocks_of
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Launch, Threads

_PATIENCE = 20.0  # seconds that a role waits for the others
_changed = threading.Condition()
_here = threading.local()
_block = 0


class Value(np.ndarray):
    """A tile in registers."""

    @property
    def type(self) -> Any:
        return SimpleNamespace(layout=None)

    def to(self, kind: Any, bitcast: bool = False) -> Value:
        return value(np.asarray(self).view(kind) if bitcast else self.astype(kind))


def value(x: Any) -> Value:
    return np.asarray(x).view(Value)


class Shared:
    """Shared memory, or a part of it."""

    def __init__(self, data: Any):
        self.data = data

    def index(self, i: int) -> Shared:
        return Shared(self.data[int(i)])

    def permute(self, order: Sequence[int]) -> Shared:
        return Shared(self.data.transpose(order))

    def load(self, layout: Any) -> Value:
        return value(self.data.copy())

    def store(self, x: Any) -> None:
        self.data[...] = x

    @property
    def barrier(self) -> Barrier:
        return _barriers[self.data.__array_interface__["data"][0]]


class Barrier:
    """Arrivals and bytes that a phase waits for."""

    def __init__(self, count: int):
        self.count, self.phase = count, 0
        self.left, self.bytes = count, 0

    def change(self, arrivals: int, size: int) -> None:
        with _changed:
            self.left, self.bytes = self.left - arrivals, self.bytes + size
            assert self.left >= 0, "more arrive than a phase has"
            if self.left == self.bytes == 0:
                self.phase, self.left = self.phase + 1, self.count
            _changed.notify_all()

    def wait(self, parity: int) -> None:
        with _changed:
            done = _changed.wait_for(lambda: self.phase & 1 != parity, _PATIENCE)
        assert done, "roles wait for each other"


_barriers: dict[int, Barrier] = {}


class Pointer:
    """Addresses in global memory."""

    def __init__(self, flat: Any, at: Any = 0):
        self.flat, self.at = flat, at

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.flat, self.at + other)

    def __sub__(self, other: Any) -> Pointer:
        return Pointer(self.flat, self.at - other)


class Box:
    """Global memory that is copied by boxes."""

    def __init__(self, data: Any, extent: tuple[int, ...]):
        self.data, self.extent = data, extent

    def at(self, corner: Sequence[int]) -> Any:
        spans = zip(corner, self.extent, strict=True)
        return self.data[tuple(slice(int(c), int(c) + n) for c, n in spans)]


class Pending:
    """A product that runs."""

    def __init__(self, run: Callable[[], Any]):
        self.run, self.result = run, None


def _mma(
    a: Any, b: Any, acc: Any, *, use_acc: bool = True, is_async: bool = False, **_: Any
) -> Pending:
    def run() -> Any:
        left = a.data if isinstance(a, Shared) else a
        made = left.astype(np.float32) @ b.data.astype(np.float32)
        before = acc.result if isinstance(acc, Pending) else acc
        return value(np.asarray(before) + made if use_acc else made)

    assert is_async
    pending = Pending(run)
    _here.queue.append(pending)
    return pending


def _mma_wait(outstanding: int = 0, deps: Sequence[Any] = ()) -> Any:
    time.sleep(2e-4)  # others may do what they are allowed to meanwhile
    while len(_here.queue) > outstanding:
        p = _here.queue.pop(0)
        p.result = p.run()
    out = [x.result if isinstance(x, Pending) else x for x in deps]
    assert all(x is not None for x in out), "a product is read that may still run"
    return out[0] if len(out) == 1 else tuple(out)


def _load_box(box: Box, corner: Sequence[int], full: Shared, to: Shared) -> None:
    part = box.at(corner)
    to.data[...] = part
    full.barrier.change(0, -part.nbytes)


def _store_box(box: Box, corner: Sequence[int], shared: Shared) -> None:
    box.at(corner)[...] = shared.data


def _specialize(roles: Sequence[Any], warps: Any, registers: Any) -> None:
    errors: list[BaseException] = []

    def run(f: Any, given: Any) -> None:
        _here.queue = []
        try:
            f(*given)
            assert not _here.queue, "a role ends while its products run"
        except BaseException as e:  # it is raised again where all roles are known
            errors.append(e)

    threads = [threading.Thread(target=run, args=role, daemon=True) for role in roles]
    for t in threads:
        t.start()
    for t in threads:
        t.join(3 * _PATIENCE)
    if errors:
        raise errors[0]


def _either(ints: Callable[[Any, Any], Any], tiles: Callable[[Any, Any], Any]) -> Any:
    def f(a: Any, b: Any, propagate_nan: Any = None) -> Any:
        plain = isinstance(a, int) and isinstance(b, int)
        return ints(a, b) if plain else tiles(a, b)

    return f


def _where(test: Any, a: Any, b: Any) -> Any:
    return (a if test else b) if isinstance(test, bool) else value(np.where(test, a, b))


def _reduce(x: Any, axis: int, f: Any, keep_dims: bool = False) -> Any:
    parts = [value(p) for p in np.moveaxis(np.asarray(x), axis, 0)]
    while len(parts) > 1:
        parts = [f(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return value(np.expand_dims(parts[0], axis)) if keep_dims else parts[0]


def _language() -> Any:
    kinds = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
    integers = {"int64": np.int64, "int32": np.int32, "int1": np.bool_}
    return SimpleNamespace(
        **kinds, **integers, constexpr=object, static_range=range,
        program_id=lambda axis: _block,
        full=lambda shape, x, kind, layout=None: value(np.full(shape, x, kind)),
        arange=lambda a, b, layout=None: value(np.arange(a, b, dtype=np.int32)),
        expand_dims=lambda x, axis: value(np.expand_dims(x, axis)),
        reshape=lambda x, shape: value(np.reshape(x, shape)),
        convert_layout=lambda x, layout, assert_trivial=False: x,
        load=lambda p: value(p.flat[p.at]), store=lambda p, x: p.flat.__setitem__(p.at, x),
        fma=lambda a, b, c: value((a.astype(np.float64) * b + c).astype(np.float32)),
        fast_dividef=lambda x, y: value(np.float32(x) / y),
        exp2=lambda x: value(np.exp2(x)), log2=lambda x: value(np.log2(x)), where=_where, reduce=_reduce,
        PropagateNan=SimpleNamespace(ALL=None), maximum=_either(max, np.maximum),
        minimum=_either(min, np.minimum),
        allocate_shared_memory=lambda kind, shape, layout: Shared(np.zeros(shape, kind)),
        warp_specialize=_specialize, SliceLayout=lambda *_: None, DotOperandLayout=lambda *_: None,
        NVMMADistributedLayout=lambda *_: None, NVMMASharedLayout=lambda *_: None,
    )  # fmt: skip


def _arrive(bar: Shared, count: int = 1, pred: Any = True) -> None:
    if pred:
        bar.barrier.change(count, 0)


def _init(bar: Shared, count: int) -> None:
    _barriers[bar.data.__array_interface__["data"][0]] = Barrier(count)


def _names() -> dict[str, Any]:
    language = _language()
    return {
        "gl": language, "tl": language, "gluon": SimpleNamespace(jit=lambda f: f),
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: None, init=_init, arrive=_arrive,
            expect=lambda bar, size: bar.barrier.change(1, size),
            wait=lambda bar, phase: bar.barrier.wait(int(phase)),
        ),
        "tma": SimpleNamespace(async_load=_load_box, async_store=_store_box, store_wait=lambda n: None),
        "fence_async_shared": lambda: None, "warpgroup_mma": _mma, "warpgroup_mma_wait": _mma_wait,
        "libdevice": language,
    }  # fmt: skip


def run(kernel: Kernel, threads: Threads, arrays: Mapping[str, Any]) -> None:
    """Run what is printed for a kernel on arrays by the names of its parameters."""
    global _block
    text = emit(kernel, threads)
    names = _names()
    exec(compile(text[text.index("newer = ") :], kernel.name, "exec"), names)
    found = boxes_of(kernel)
    given: list[Any] = []
    for m in kernel.parameters:
        data, box = arrays[m.name], found.get(m)
        if box is None:
            given.append(Pointer(data.reshape(-1)))
        elif box.is_line:
            given.append(Box(data.reshape(-1), (box.columns,)))
        else:
            given.append(Box(data.reshape(box.shape), (box.rows, box.columns)))
    for _block in range(blocks_of(Launch(kernel, (), (), threads), {})):
        _barriers.clear()
        names[plain_name(kernel.name)](*given)
