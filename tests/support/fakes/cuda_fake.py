"""A CUDA driver in Python: memory of the host, streams that do everything at once, faults on demand.

It stands in for libcuda (tessera.runtime.cuda.driver.use), function by function and by the same types, so
that what is above the driver is tested without a device.  Kernels are Python functions of the bytes of
their parameters.  Memory, streams, events and code belong to the device that was current when they were
made, and work that mixes devices is an error.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import struct
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tessera.runtime.cuda.api import API, Api
from tessera.runtime.cuda.device import gpu
from tessera.runtime.cuda.launch import LaunchConfig
from tessera.runtime.cuda.module import DriverFunction, DriverModule

ERRORS = {
    1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    2: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    200: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    400: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    719: ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
}
ATTRIBUTES = {10: 32, 16: 132, 38: 50 << 20, 75: 9, 76: 0, 97: 232_448}
Kernel = Callable[..., None]


def put(where: int, value: int, kind: Any = ctypes.c_uint64) -> int:
    kind.from_address(where).value = value
    return 0


class FakeCuda:
    """What libcuda exports; every function returns the next of its `faults`, or does its work."""

    api: Api = API
    errors: Mapping[int, tuple[str, str]] = ERRORS
    plain_shared = 49_152  # bytes of shared memory that a launch may have without asking

    def __init__(self, total: int = 256 << 20, devices: int = 1):
        self.total, self.devices = total, devices
        self.version = 13_000
        self.calls: list[str] = []
        self.faults: dict[str, list[int]] = {}
        self.memory: dict[int, Any] = {}  # address -> (buffer, size)
        self.pinned: dict[int, Any] = {}
        self.kernels: dict[str, tuple[tuple[int, ...], Kernel]] = {}
        self.busy: set[int] = set()  # streams that are not done
        self.waits: list[tuple[int, int]] = []
        self.priorities: list[int] = []
        self.events: dict[int, int] = {}  # event -> stream
        self.capturing: dict[int, list[int]] = {}
        self.nodes: dict[int, list[Any]] = {}  # node -> [kernel, parameters, grid]
        self.behind: dict[int, tuple[int, ...]] = {}  # node -> nodes that it waits for
        self.awaited: dict[int, tuple[int, ...]] = {}  # stream -> what its next node waits for
        self.early: list[int] = []  # nodes that may begin before those behind which they are end
        self.graphs: dict[int, list[int]] = {}
        self.executables: dict[int, dict[int, list[Any]]] = {}
        self.functions: dict[int, str] = {}
        self.attributes: dict[tuple[int, int], int] = {}
        self.launched: list[tuple[str, tuple[int, ...], int, tuple[int, ...] | None, int]] = []
        self.handles = itertools.count(id(self) & 0xFFFFFF00, 16)
        self.contexts: dict[int, int] = {}  # context -> device
        self.home: dict[int, int] = {}  # memory, stream, event, function, graph -> device
        self.can_reach = True  # whether devices can read each other's memory
        self.peers: set[tuple[int, int]] = set()  # those that do
        self.copied: list[tuple[int, int, int]] = []  # bytes, and from which device to which
        self.running = 0  # the device of the kernel that runs
        self.grid: tuple[int, ...] = ()  # of the kernel that runs
        self.unloaded: list[int] = []  # devices of modules
        self.of_thread = threading.local()
        self.made: dict[str, Any] = {}

    @property
    def current(self) -> int:
        """The context of this thread."""
        return getattr(self.of_thread, "context", 0)

    @current.setter
    def current(self, context: int) -> None:
        self.of_thread.context = context

    @property
    def device(self) -> int:
        """The device of this thread."""
        return self.contexts.get(self.current, -1)

    def belongs(self, *handles: int) -> bool:
        """Whether all of these are of one device; a stream of another library is of any."""
        return len({self.home[h] for h in handles if h in self.home}) < 2

    def where(self, address: int, size: int = 1) -> int | None:
        """The device that has this memory."""
        found = (a for a, (_, n) in self.memory.items() if a <= address and address + size <= a + n)
        return next((self.home[a] for a in found), None)

    def __getattr__(self, symbol: str) -> Any:
        name = next((n for n, f in self.api.functions.items() if f.symbol == symbol), None)
        if name is None or not hasattr(type(self), f"do_{name}"):
            raise AttributeError(symbol)
        if name not in self.made:
            work = getattr(self, f"do_{name}")

            def call(*args: Any) -> int:
                self.calls.append(name)
                self.tick()
                faults = self.faults.get(name)
                return (faults.pop(0) if faults else 0) or work(*args) or 0

            self.made[name] = ctypes.CFUNCTYPE(ctypes.c_int, *self.types(name))(call)
        return self.made[name]

    def types(self, name: str) -> tuple[Any, ...]:
        """The types of the arguments of a function."""
        return self.api.functions[name].types

    def tick(self) -> None:
        """Something else happens between two calls."""

    def submit(self, stream: int, work: Callable[[], Any]) -> None:
        """Do work of a stream, now or later."""
        work()

    def new(self, where: int) -> int:
        handle = next(self.handles)
        put(where, handle)
        self.home[handle] = self.device
        return handle

    # Devices

    def do_cuInit(self, flags: int) -> int:
        return 0 if self.devices else 100

    def do_cuDriverGetVersion(self, out: int) -> int:
        return put(out, self.version, ctypes.c_int)

    def do_cuDeviceGetCount(self, out: int) -> int:
        return put(out, self.devices, ctypes.c_int)

    def do_cuDeviceGet(self, out: int, index: int) -> int:
        return put(out, index, ctypes.c_int)

    def do_cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Fake H200\0", 10)

    def do_cuDeviceGetAttribute(self, out: int, which: int, device: int) -> int:
        if which not in ATTRIBUTES:
            return 1  # CUDA_ERROR_INVALID_VALUE
        return put(out, ATTRIBUTES[which], ctypes.c_int)

    def do_cuDeviceCanAccessPeer(self, out: int, device: int, other: int) -> int:
        return put(out, self.can_reach and device != other, ctypes.c_int)

    def do_cuDevicePrimaryCtxRetain(self, out: int, device: int) -> int:
        found = next((c for c, d in self.contexts.items() if d == device), 0)
        if found:
            return put(out, found)
        self.contexts[self.new(out)] = device
        return 0

    def do_cuCtxEnablePeerAccess(self, context: int, flags: int) -> int:
        pair = self.device, self.contexts[context or 0]
        if pair in self.peers:
            return 704
        self.peers.add(pair)
        return 0

    def do_cuCtxSetCurrent(self, context: int) -> None:
        assert context is None or context in self.contexts, context  # a thread may have none
        self.current = context or 0

    def do_cuCtxGetCurrent(self, out: int) -> int:
        return put(out, self.current)

    def do_cuCtxSynchronize(self) -> None:
        self.busy.clear()

    def do_cuGetErrorName(self, code: int, out: int) -> int:
        return self.text(code, out, 0)

    def do_cuGetErrorString(self, code: int, out: int) -> int:
        return self.text(code, out, 1)

    def text(self, code: int, out: int, which: int) -> int:
        if code not in self.errors:
            return 1
        kept = self.made.setdefault(
            f"{code} {which}", ctypes.create_string_buffer(self.errors[code][which].encode())
        )
        return put(out, ctypes.addressof(kept))

    # Memory

    @property
    def taken(self) -> int:
        return sum(size for _, size in self.memory.values())

    @property
    def left(self) -> int:
        """Free bytes of the current device."""
        mine = [n for a, (_, n) in self.memory.items() if self.home[a] == self.device]
        return self.total - sum(mine)

    def do_cuMemGetInfo(self, free: int, total: int) -> None:
        put(free, self.left)
        put(total, self.total)

    def do_cuMemAlloc(self, out: int, size: int) -> int:
        if self.device < 0:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        if size > self.left:
            return 2
        buffer = np.zeros(size + 512, np.uint8)  # which takes no room before it is touched
        address = buffer.ctypes.data
        address += -address % 512
        self.memory[address] = buffer, size
        self.home[address] = self.device
        return put(out, address)

    def do_cuMemFree(self, address: int) -> int:
        return 0 if self.memory.pop(address, None) else 1

    def do_cuMemHostAlloc(self, out: int, size: int, flags: int) -> int:
        buffer = np.zeros(size, np.uint8)
        self.pinned[buffer.ctypes.data] = buffer
        return put(out, buffer.ctypes.data)

    def is_ours(self, address: int, size: int, stream: int | None = None) -> bool:
        """Whether memory is on a device, that of a stream if one is given."""
        found = self.where(address, size)
        return found is not None and self.home.get(stream or 0, found) == found

    def do_cuMemcpyHtoDAsync(self, to: int, source: int, n: int, stream: int) -> int:
        if not self.is_ours(to, n, stream):
            return 1
        self.submit(stream, lambda: ctypes.memmove(to, source, n))
        return 0

    def do_cuMemcpyDtoHAsync(self, to: int, source: int, n: int, stream: int) -> int:
        if not self.is_ours(source, n, stream):
            return 1
        self.submit(stream, lambda: ctypes.memmove(to, source, n))
        return 0

    def do_cuMemcpyPeerAsync(
        self, to: int, there: int | None, source: int, here: int | None, n: int, stream: int
    ) -> int:
        ends = [(to, there or 0), (source, here or 0)]
        if any(self.where(address, n) != self.contexts.get(c) for address, c in ends):
            return 1
        self.copied.append((n, self.contexts[here or 0], self.contexts[there or 0]))
        self.submit(stream, lambda: ctypes.memmove(to, source, n))
        return 0

    def do_cuMemcpyDtoDAsync(self, to: int, source: int, n: int, stream: int) -> int:
        if not self.is_ours(to, n, stream) or not self.is_ours(source, n, stream):
            return 1
        self.submit(stream, lambda: ctypes.memmove(to, source, n))
        return 0

    def do_cuMemcpy2DAsync(self, what: int, stream: int) -> int:
        _, _, here, _, source, _, pitch, _, _, there, _, to, _, to_pitch, width, count = (
            struct.unpack("<16Q", ctypes.string_at(what, 128))
        )
        ends = (source, pitch), (to, to_pitch)
        if (here, there) != (2, 2) or width > min(pitch, to_pitch):
            return 1
        if not all(self.is_ours(at, (count - 1) * step + width, stream) for at, step in ends):
            return 1

        def copy() -> None:
            for i in range(count):
                ctypes.memmove(to + i * to_pitch, source + i * pitch, width)

        self.submit(stream, copy)
        return 0

    def do_cuMemsetD8Async(self, to: int, byte: int, n: int, stream: int) -> int:
        if not self.is_ours(to, n, stream):
            return 1
        self.submit(stream, lambda: ctypes.memset(to, byte, n))
        return 0

    # Streams and events

    def do_cuStreamCreate(self, out: int, flags: int) -> None:
        assert flags == 1, "not in order with the stream of other libraries"
        self.new(out)

    def do_cuStreamCreateWithPriority(self, out: int, flags: int, priority: int) -> None:
        self.do_cuStreamCreate(out, flags)
        self.priorities.append(priority)

    def do_cuStreamDestroy(self, stream: int) -> None:
        pass

    def do_cuStreamSynchronize(self, stream: int) -> None:
        self.busy.discard(stream)

    def do_cuStreamQuery(self, stream: int) -> int:
        return 600 if stream in self.busy else 0

    def do_cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:
        if stream in self.capturing:
            return 905  # CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        self.waits.append((stream, self.events[event]))
        return 0

    def do_cuEventCreate(self, out: int, flags: int) -> None:
        self.events[self.new(out)] = 0

    def do_cuEventDestroy(self, event: int) -> None:
        del self.events[event]

    def do_cuEventRecord(self, event: int, stream: int) -> int:
        assert stream not in self.capturing, "an event of a capture ends in other streams"
        self.events[event] = stream
        return 0 if self.belongs(event, stream) else 400

    def do_cuEventSynchronize(self, event: int) -> None:
        self.busy.discard(self.events[event])

    def do_cuEventQuery(self, event: int) -> int:
        return 600 if self.events[event] in self.busy else 0

    def do_cuEventElapsedTime(self, out: int, start: int, end: int) -> int:
        ctypes.c_float.from_address(out).value = 1.5
        return 0

    # Modules

    def do_cuModuleLoadDataEx(
        self, out: int, image: int, count: int, options: int, values: int
    ) -> int:
        text = ctypes.string_at(image)
        if text != b"fake":
            log = ctypes.c_uint64.from_address(values).value
            if text.startswith(b"bad ptx"):
                ctypes.memmove(log, b"line 1: syntax error\0", 21)
            return 200
        self.new(out)
        return 0

    def do_cuModuleUnload(self, module: int) -> int:
        if self.home[module] != self.device:
            return 201
        self.unloaded.append(self.device)
        return 0

    def do_cuModuleGetFunction(self, out: int, module: int, name: bytes) -> int:
        if name.decode() not in self.kernels:
            return 500
        made = self.new(out)
        self.functions[made] = name.decode()
        self.home[made] = self.home[module]
        return 0

    def do_cuFuncGetAttribute(self, out: int, which: int, function: int) -> int:
        usual = {0: 1024, 1: 64, 3: 8, 4: 40}
        value = self.attributes.get((function, which), usual.get(which, 0))
        return put(out, value, ctypes.c_int)

    def do_cuFuncSetAttribute(self, function: int, which: int, value: int) -> None:
        self.attributes[function, which] = value

    def do_cuFuncGetParamInfo(
        self, function: int, index: int | None, offset: int, size: int
    ) -> int:
        sizes = self.kernels[self.functions[function]][0]
        if (index or 0) >= len(sizes):
            return 1
        put(offset, sum(sizes[: index or 0]))
        return put(size, sizes[index or 0])

    def read(self, function: int, parameters: int) -> list[bytes]:
        sizes = self.kernels[self.functions[function]][0]
        places = [ctypes.c_uint64.from_address(parameters + 8 * i).value for i in range(len(sizes))]
        return [ctypes.string_at(p, n) for p, n in zip(places, sizes, strict=True)]

    def do_cuLaunchKernelEx(self, config: int, function: int, parameters: int, extra: int) -> int:
        c = LaunchConfig.from_address(config)
        told = ctypes.string_at(c.attributes, 72 * c.count) if c.count else b""
        given = {x[0]: x for x in struct.iter_unpack("i4x3I52x", told)}
        sizes, cluster = (*c.grid, *c.block), given.get(4)
        failed = self.launch(function, sizes, c.shared, cluster, c.stream, parameters)
        if 6 in given:
            assert (given[6][1], failed) == (1, 0)
            self.early.append(self.capturing[c.stream][-1])
        return failed

    def launch(
        self, function: int, sizes: tuple[int, ...], shared: int, cluster: Any, stream: int, at: int
    ) -> int:
        """A launch, whatever the function that was called for it."""
        if not self.belongs(function, stream) or self.home[function] != self.device:
            return 400
        if shared + 64 > self.plain_shared and self.attributes.get((function, 8), 0) < shared:
            return 1  # as a driver does where a kernel has not asked for so much shared memory
        self.launched.append((self.functions[function], sizes, shared, cluster, stream))
        values = self.read(function, at)
        if stream in self.capturing:
            node = next(self.handles)
            self.nodes[node] = [function, values, sizes[:3]]
            self.behind[node] = self.awaited.get(stream, ())
            self.capturing[stream].append(node)
            self.awaited[stream] = (node,)
        else:
            self.submit(stream, partial(self.execute, function, values, sizes[:3]))
        return 0

    def execute(self, function: int, values: Sequence[bytes], grid: Sequence[int]) -> None:
        """Run a kernel."""
        self.grid = tuple(grid)
        self.running = self.home[function]
        self.kernels[self.functions[function]][1](*values)

    # Graphs

    def do_cuStreamBeginCapture(self, stream: int, mode: int) -> None:
        self.capturing[stream] = []
        self.awaited[stream] = ()

    def do_cuStreamEndCapture(self, stream: int, out: int) -> None:
        nodes = self.capturing.pop(stream)
        self.graphs[self.new(out)] = nodes

    def do_cuStreamGetCaptureInfo(
        self, stream: int, status: int, number: int, graph: int, nodes: int, count: int
    ) -> int:
        now = self.awaited[stream]
        last = self.made["last"] = (ctypes.c_uint64 * max(len(now), 1))(*now)
        put(nodes, ctypes.addressof(last))
        return put(count, len(now))

    def do_cuStreamUpdateCaptureDependencies(
        self, stream: int, nodes: int, count: int, flags: int
    ) -> None:
        assert flags == 1, "the nodes take the place of those before"
        found = [ctypes.c_uint64.from_address(nodes + 8 * i).value for i in range(count)]
        assert set(found) <= set(self.capturing[stream]), "nodes of another graph"
        self.awaited[stream] = tuple(found)

    def do_cuGraphInstantiate(self, out: int, graph: int, flags: int) -> None:
        self.executables[self.new(out)] = {n: list(self.nodes[n]) for n in self.graphs[graph]}

    def do_cuGraphDestroy(self, graph: int) -> None:
        del self.graphs[graph]

    def do_cuGraphExecDestroy(self, executable: int) -> None:
        del self.executables[executable]

    def do_cuGraphGetNodes(self, graph: int, nodes: int, count: int) -> int:
        return put(count, len(self.graphs[graph]))

    def do_cuGraphExecKernelNodeSetParams(self, executable: int, node: int, params: int) -> None:
        kind: Any = self.api.node_params
        p = kind.from_address(params)
        self.executables[executable][node] = [
            p.kernel, self.read(p.kernel, p.parameters), tuple(p.grid),
        ]  # fmt: skip

    def do_cuGraphLaunch(self, executable: int, stream: int) -> int:
        nodes = self.executables[executable]
        for node in self.some_order(nodes):
            function, values, grid = nodes[node]
            if not self.belongs(function, stream):
                return 400
            self.submit(stream, partial(self.execute, function, values, grid))
        return 0

    def some_order(self, nodes: Iterable[int]) -> list[int]:
        """An order in which a device may run nodes: of those that wait for nothing any more, the last."""
        left, done = list(nodes), []
        while left:
            free = [n for n in left if all(w in done for w in self.behind[n])]
            done.append(free[-1])
            left.remove(free[-1])
        return done

    # Tensor maps: the address, then everything else in the order of the arguments

    def do_cuTensorMapEncodeTiled(
        self, out: int, kind: int, rank: int, address: int, sizes: int, strides: int, box: int,
        steps: int, interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> int:  # fmt: skip
        if address % 16:
            return 1
        words = [ctypes.c_uint64.from_address(sizes + 8 * i).value for i in range(rank)]
        words += [ctypes.c_uint64.from_address(strides + 8 * i).value for i in range(rank - 1)]
        boxes = [ctypes.c_uint32.from_address(box + 4 * i).value for i in range(rank)]
        head = (kind or 0, interleave or 0, swizzle or 0, promotion or 0, fill or 0)
        data = struct.pack(f"<Q5B3x{len(words)}Q{rank}I", address, *head, *words, *boxes)
        ctypes.memmove(out, data.ljust(128, b"\0"), 128)
        return 0

    def do_cuTensorMapReplaceAddress(self, where: int, address: int) -> int:
        return put(where, address) if where % 64 == 0 else 1


Mark = tuple[int, int]  # a stream, and how much of its work comes before


class LazyCuda(FakeCuda):
    """Streams do their work as late as they may, or a little earlier: a seed picks what runs when.

    What reads or writes memory out of turn, on the device or in pinned buffers, then has wrong results.
    """

    def __init__(self, seed: int, **options: Any):
        super().__init__(**options)
        self.random = random.Random(seed)
        self.queues: dict[int, deque[tuple[Callable[[], Any], Mark]]] = defaultdict(deque)
        self.done: Counter[int] = Counter()
        self.works = False
        self.marks: dict[int, Mark] = {}

    def submit(self, stream: int, work: Callable[[], Any], after: Mark = (0, 0)) -> None:
        self.queues[stream].append((work, after))

    def tick(self) -> None:
        if self.works:  # what the garbage collector frees inside of a kernel is a call, too
            return
        if self.queues and self.random.random() < 0.2:
            stream = self.random.choice(list(self.queues))
            if self.queues[stream] and self.reached(self.queues[stream][0][1]):
                self.advance(stream)

    def end(self, stream: int) -> Mark:
        return stream, self.done[stream] + len(self.queues[stream])

    def reached(self, mark: Mark) -> bool:
        return self.done[mark[0]] >= mark[1]

    def advance(self, stream: int) -> None:
        work, after = self.queues[stream][0]
        self.run_until(after)
        self.works = True
        try:
            work()
        finally:
            self.works = False
        self.queues[stream].popleft()
        self.done[stream] += 1

    def run_until(self, mark: Mark) -> None:
        while not self.reached(mark):
            self.advance(mark[0])

    def do_cuCtxSynchronize(self) -> None:
        for stream in list(self.queues):
            self.run_until(self.end(stream))

    def do_cuMemFree(self, address: int) -> int:
        self.do_cuCtxSynchronize()
        return super().do_cuMemFree(address)

    def do_cuStreamSynchronize(self, stream: int) -> None:
        self.run_until(self.end(stream))

    def do_cuStreamQuery(self, stream: int) -> int:
        return 600 if self.queues[stream] else 0

    def do_cuEventRecord(self, event: int, stream: int) -> int:
        self.marks[event] = self.end(stream)
        return 0 if self.belongs(event, stream) else 400

    def do_cuEventSynchronize(self, event: int) -> None:
        self.run_until(self.marks[event])

    def do_cuEventQuery(self, event: int) -> int:
        return 0 if self.reached(self.marks[event]) else 600

    def do_cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:
        self.submit(stream, lambda: None, self.marks[event])
        return 0


def scale(fake: FakeCuda, index: int = 0) -> DriverFunction:
    """A kernel out[i] = x[i] * factor on n numbers."""

    def run(out: bytes, x: bytes, n: bytes, factor: bytes) -> None:
        size, by = struct.unpack("<i", n)[0], struct.unpack("<f", factor)[0]
        source = (ctypes.c_float * size).from_address(int.from_bytes(x, "little"))
        target = (ctypes.c_float * size).from_address(int.from_bytes(out, "little"))
        target[:] = [v * by for v in source]

    fake.kernels["scale"] = (8, 8, 4, 4), run
    return DriverModule(b"fake", gpu(index, fake.api.kind)).function("scale", 100)
