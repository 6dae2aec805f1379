"""The NCCL engine: ranks with an NVIDIA GPU each, whose memory goes from GPU to GPU by NCCL.

What the host holds (checkpoints, errors, the id by which NCCL's ranks find each other) goes by the engine
that the ranks were started with, local or MPI.  What devices hold is sent and received on the stream that
made it, and the host does not wait: a thread looks after what has begun, and ends the rank when NCCL reports
an error or other ranks do not come in time.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessera.core.errors import DeviceError, RankError
from tessera.core.flags import flags
from tessera.core.ranks import RankEngine
from tessera.runtime.cuda import device
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.memory import DeviceArray
from tessera.runtime.cuda.stream import DriverEvent

Array = np.ndarray[Any, Any]
_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_SUCCESS, _IN_PROGRESS = 0, 7
_BYTES, _SUM = 1, 0  # ncclUint8, ncclSum
# ncclDataType_t of what NCCL adds up as NumPy does, but for the order.
_SUMMED = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9,
}  # fmt: skip
_OLDEST = 21_000  # 2.10: bf16
_ID_BYTES, _WHO_BYTES = 128, 384
_FILES = ("libnccl.so.2", "libnccl.so")
_ENDING = 2.0  # seconds that NCCL has to end what has begun


class UniqueId(ctypes.Structure):
    """ncclUniqueId, by which the ranks of a communicator find each other."""

    _fields_ = (("data", ctypes.c_byte * _ID_BYTES),)


_TYPES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_POINTER,),
    "ncclGetUniqueId": (_POINTER,),
    "ncclCommInitRank": (_POINTER, _INT, UniqueId, _INT),
    "ncclCommGetAsyncError": (_POINTER, _POINTER),
    "ncclCommAbort": (_POINTER,),
    "ncclCommDestroy": (_POINTER,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclAllReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
}  # fmt: skip


class Nccl:
    """The functions of libnccl as attributes; each returns its error code."""

    def __init__(self, library: Any):
        self._library = library
        for name, types in _TYPES.items():
            function = getattr(library, name, None)
            if function is None:
                raise RankError(f"this NCCL has no {name}; {_HOW}")
            function.argtypes, function.restype = types, _INT
            setattr(self, name, function)
        library.ncclGetErrorString.argtypes = (_INT,)
        library.ncclGetErrorString.restype = ctypes.c_char_p
        if hasattr(library, "ncclGetLastError"):  # of 2.13 and newer
            library.ncclGetLastError.argtypes = (_POINTER,)
            library.ncclGetLastError.restype = ctypes.c_char_p
        version = ctypes.c_int()
        self.check("ncclGetVersion", self.ncclGetVersion(ctypes.byref(version)))
        self.version = version.value
        if self.version < _OLDEST:
            raise RankError(
                f"this NCCL is {version_text(self.version)}, expected {version_text(_OLDEST)} or newer; "
                f"{_HOW}"
            )

    def __getattr__(self, name: str) -> Callable[..., int]:
        raise AttributeError(name)

    def describe(self, code: int) -> str:
        """What NCCL says of an error, and of the last thing that failed in it."""
        said = self._library.ncclGetErrorString(code)
        last = getattr(self._library, "ncclGetLastError", None)
        detail = last(None) if last is not None else None
        parts = [(x or b"").decode(errors="replace").strip() for x in (said, detail)]
        return f"error {code} ({'; '.join(p for p in parts if p)})"

    def check(self, name: str, code: int, about: str = "") -> None:
        """Raise the error that a code stands for; `about` says what the call was for."""
        if code not in (_SUCCESS, _IN_PROGRESS):
            raise RankError(
                f"{about + ': ' if about else ''}{name} failed with {self.describe(code)}; "
                "NCCL_DEBUG=INFO shows what it did"
            )


_HOW = (
    "get it with pip install nvidia-nccl-cu13 (nvidia-nccl-cu12 for a driver of CUDA 12), or leave out "
    "--engine nccl and give --device cuda: ranks then exchange by the host"
)


def version_text(n: int) -> str:
    """A version as people write it: 2.28.3 of 22803, and 2.7.8 of 2708, as it was before 2.9."""
    if n < 10_000:
        return f"{n // 1000}.{n // 100 % 10}.{n % 100}"
    return f"{n // 10_000}.{n // 100 % 100}.{n % 100}"


@cache
def library() -> Nccl:
    """NCCL: rather one that is loaded, then that of the wheel, then that of the system."""
    loaded = getattr(os, "RTLD_NOLOAD", None)
    tries: list[tuple[str, int]] = [] if loaded is None else [(_FILES[0], loaded)]
    tries += [(str(p), ctypes.DEFAULT_MODE) for p in _in_wheels()]
    tries += [(name, ctypes.DEFAULT_MODE) for name in _FILES]
    why = ""
    for name, mode in tries:
        try:
            return Nccl(ctypes.CDLL(name, mode))
        except OSError as e:
            why = str(e)
    raise RankError(
        f"the engine nccl needs NVIDIA's library NCCL, which is not here ({why}); {_HOW}"
    )


def _in_wheels() -> list[Path]:
    """The libraries of NVIDIA's wheels in Python's environment."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [Path(f).glob(f"{part}/lib/{_FILES[0]}") for f in folders for part in ("nccl", "cu*")]
    return [p for each in found for p in each]


class _Begun(NamedTuple):
    """Work on a stream: what for, with which ranks, and the events around it."""

    what: str
    group: Sequence[int]
    begin: DriverEvent
    end: DriverEvent


class NcclEngine(RankEngine):
    """A rank with a GPU of its own."""

    name, carries = "nccl", "cuda"

    def __init__(self, host: RankEngine, lost: Callable[[str], None], nccl: Nccl | None = None):
        """`host` carries what the host holds; `lost` is told why the run cannot go on, and ends the rank."""
        self.rank, self.size, self.place = host.rank, host.size, host.place
        self._nccl = library() if nccl is None else nccl
        self._host, self._lost = host, lost
        self._comms: dict[tuple[int, ...], int] = {}
        self._agreed: set[tuple[str, tuple[int, ...]]] = set()
        self._watch: _Watch | None = None
        found = device.count("cuda")
        if self.place[0] >= found:
            raise RankError(
                f"rank {self.rank} has no GPU of its own: its machine has {self.place[1]} ranks and {found} "
                f"of them, and NCCL takes one rank a GPU; start at most {found} here, or leave out "
                "--engine nccl and give --device cuda"
            )

    # What the host holds

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Array]) -> list[Array]:
        """Send an array of the host to each rank of a group and return what each of them sent here."""
        return self._host.exchange(what, group, sent)

    def sum(self, what: str, group: Sequence[int], x: Array) -> Array | None:
        """The sum of arrays of the host by the library of the engine that carries them."""
        return self._host.sum(what, group, x)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory of the host for what a collective makes."""
        made: Array = self._host.empty(shape, dtype)
        return made

    # What devices hold

    def move(
        self, what: str, group: Sequence[int], sent: DeviceArray, parts: Sequence[tuple[int, int]],
        got: DeviceArray, counts: Sequence[int],
    ) -> None:  # fmt: skip
        """Send parts of an array to the ranks of a group and write what they send into another, as bytes."""
        size = sent.dtype.itemsize
        places = [size * n for n in accumulate(counts, initial=0)]
        with self._begun(what, group, sent.gpu) as comm:
            nccl, stream = self._nccl, sent.gpu.stream.handle
            nccl.check("ncclGroupStart", nccl.ncclGroupStart(), what)
            failed: tuple[str, int] | None = None
            # What stays here is a message to itself: NCCL copies it along with the others.
            for r, (begin, n), place, count in zip(group, parts, places, counts, strict=False):
                sending = (nccl.ncclSend, "ncclSend", sent.ptr + size * begin, size * n)
                receiving = (nccl.ncclRecv, "ncclRecv", got.ptr + place, size * count)
                for call, name, at, nbytes in (sending, receiving):
                    code = call(at, nbytes, _BYTES, r, comm, stream) if nbytes else _SUCCESS
                    failed = failed or ((name, code) if code else None)
            code = nccl.ncclGroupEnd()
            nccl.check(*(failed or ("ncclGroupEnd", code)), what)

    def sum_on_device(
        self, what: str, group: Sequence[int], x: DeviceArray, out: DeviceArray
    ) -> bool:
        """Begin NCCL's own all-reduce, in an order of its own."""
        kind = _SUMMED.get(x.dtype.name)
        if kind is None:
            return False
        with self._begun(what, group, x.gpu, own=True) as comm:
            code = self._nccl.ncclAllReduce(
                x.ptr, out.ptr, x.size, kind, _SUM, comm, x.gpu.stream.handle
            )
            self._nccl.check("ncclAllReduce", code, what)
        return True

    @contextmanager
    def _begun(self, what: str, group: Sequence[int], gpu: Gpu, own: bool = False) -> Iterator[int]:
        """Let what is begun in the block be watched; the communicator, that of the group if `own`."""
        ranks, watch = tuple(group), self._watching(gpu)
        watch.demand_sound()
        if (what, ranks) not in self._agreed:  # at the first time ranks compare what they are at
            self._host.exchange(what, ranks, [np.zeros(0)] * len(ranks))
            self._agreed.add((what, ranks))
        comm = self._comm(ranks if own else tuple(range(self.size)), gpu)
        gpu.make_current()
        begin = gpu.stream.record()
        with watch.calling(what, ranks):
            yield comm
        watch.add(_Begun(what, ranks, begin, gpu.stream.record()))

    def _watching(self, gpu: Gpu) -> _Watch:
        if self._watch is None:
            self._watch = _Watch(self, gpu, flags().watchdog)
        return self._watch

    def _comm(self, ranks: tuple[int, ...], gpu: Gpu) -> int:
        """The communicator of these ranks, which meet here the first time."""
        found = self._comms.get(ranks)
        if found is not None:
            return found
        made, unique = ctypes.c_void_p(), self._meet(ranks, gpu)
        gpu.make_current()
        what = f"nccl communicator of {len(ranks)} ranks"
        with self._watching(gpu).calling(what, ranks):
            code = self._nccl.ncclCommInitRank(
                ctypes.byref(made), len(ranks), unique, ranks.index(self.rank)
            )
        self._nccl.check("ncclCommInitRank", code, what)
        self._comms[ranks] = made.value or 0
        return self._comms[ranks]

    def _meet(self, ranks: tuple[int, ...], gpu: Gpu) -> UniqueId:
        """The id that the first of these ranks makes; an error where two of them have one GPU."""
        unique = UniqueId()
        if ranks[0] == self.rank:
            self._nccl.check("ncclGetUniqueId", self._nccl.ncclGetUniqueId(ctypes.byref(unique)))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        who = f"cuda:{gpu.index} of {socket.gethostname()} {visible}".encode()[:_WHO_BYTES]
        mine = np.frombuffer(bytes(unique) + who.ljust(_WHO_BYTES), np.uint8)
        got = [bytes(x) for x in self._host.exchange("nccl id", ranks, [mine] * len(ranks))]
        seen: dict[bytes, int] = {}
        for r, x in zip(ranks, got, strict=True):
            other = seen.setdefault(x[_ID_BYTES:], r)
            if other != r:
                place = x[_ID_BYTES:].decode(errors="replace").strip()
                raise RankError(
                    f"ranks {other} and {r} are both on {place}, and NCCL takes one rank a GPU; give each "
                    "its own, or leave out --engine nccl and give --device cuda"
                )
        return UniqueId.from_buffer_copy(got[0][:_ID_BYTES])

    # The end

    def failed(self) -> str:
        """What NCCL says went wrong in the background; "" if nothing did."""
        for comm in list(self._comms.values()):
            now = ctypes.c_int()
            code = self._nccl.ncclCommGetAsyncError(comm, ctypes.byref(now)) or now.value
            if code not in (_SUCCESS, _IN_PROGRESS):
                return self._nccl.describe(code)
        return ""

    def abort(self) -> None:
        """End what has begun, here and on the other ranks; it may take as long as NCCL is stuck."""
        comms, self._comms = list(self._comms.values()), {}

        def end() -> None:
            for comm in comms:
                self._nccl.ncclCommAbort(comm)

        ending = threading.Thread(target=end, daemon=True)
        ending.start()
        ending.join(_ENDING)

    def lost(self, text: str) -> None:
        """End what has begun and tell why."""
        self.abort()
        self._lost(text)

    def close(self) -> None:
        """Leave the run when all that has begun is done."""
        if self._watch is not None:
            self._watch.finish()
        for comm in self._comms.values():
            self._nccl.check("ncclCommDestroy", self._nccl.ncclCommDestroy(comm))
        self._comms = {}
        self._host.close()


class _Watch:
    """A thread that looks after what NCCL has begun: it fails, or waits for other ranks too long."""

    def __init__(self, engine: NcclEngine, gpu: Gpu, limit: float):
        self._engine, self._gpu, self._limit = engine, gpu, limit
        self._begun: deque[_Begun] = deque()
        self._call: tuple[str, Sequence[int], float] | None = (
            None  # that the host is in, since when
        )
        self._head: tuple[_Begun, float] | None = None  # what runs, and since when it is known to
        self._why = ""  # the run cannot go on
        self._ends = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(target=self._look, daemon=True).start()

    def add(self, begun: _Begun) -> None:
        """Look after this, too."""
        with self._lock:
            self._forget_done()
            self._begun.append(begun)

    @contextmanager
    def calling(self, what: str, group: Sequence[int]) -> Iterator[None]:
        """Look after a call of NCCL that may wait for other ranks."""
        self._call = what, group, time.monotonic()
        try:
            yield
        finally:
            self._call = None

    def demand_sound(self) -> None:
        """Raise where the run cannot go on."""
        if self._why:
            raise RankError(self._why)

    def finish(self) -> None:
        """Wait for all that has begun, and look no more."""
        self._gpu.main.synchronize()
        self._ends.set()
        self.demand_sound()

    def _forget_done(self) -> None:
        while self._begun and self._begun[0].end.done():
            self._begun.popleft()

    def _look(self) -> None:
        while not self._ends.wait(min(1.0, self._limit / 4)):
            try:
                self._why = self._trouble()
            except DeviceError as e:  # a kernel failed: the program's own thread will say so, too
                self._why = e.message
            if self._why:
                self._engine.lost(self._why)
                return

    def _trouble(self) -> str:
        with self._lock:
            self._forget_done()
            head = self._begun[0] if self._begun else None
        call, now = self._call, time.monotonic()
        at = call[0] if call is not None else "nccl" if head is None else head.what
        if error := self._engine.failed():
            return f"{at}: NCCL reports {error}; NCCL_DEBUG=INFO shows what it did"
        if call is not None and now - call[2] > self._limit:
            return self._late(call[0], call[1])
        if head is None or not head.begin.done():
            self._head = None
        elif self._head is None or self._head[0] is not head:
            self._head = head, now
        elif now - self._head[1] > self._limit:
            return self._late(head.what, head.group)
        return ""

    def _late(self, what: str, group: Sequence[int]) -> str:
        others = " or ".join(str(r) for r in group if r != self._engine.rank)
        return (
            f"{what}: rank {others or self._engine.rank} did not come within {self._limit} s "
            "(TESSERA_WATCHDOG); it is stopped, too slow, or at no collective or another one"
        )
