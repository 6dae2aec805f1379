"""Memory of a device: blocks that later work of the main stream uses again without waiting.

A block that dies goes to the bin of its size, and the next block of that size comes from there.  The main
stream runs in order, so that what still reads the old block is done before what writes the new one.  A
block that another stream has used carries an event, and is not used again before it.

What no bin has is cut off the smallest free piece that is larger; then free neighbours are joined; then the
driver is asked for a segment.  Bins are lists: CPython appends and pops as one step, so that taking and
giving needs no lock, and a block may die anywhere, even inside `alloc`.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, NamedTuple

from tessera.runtime.cuda.driver import OUT_OF_MEMORY, size_text
from tessera.runtime.cuda.stream import ASIDE, DriverEvent, DriverStream

if TYPE_CHECKING:
    from tessera.runtime.cuda.device import Gpu

ALIGNMENT = 512  # bytes, as PyTorch's allocator rounds
_UNIT = 1 << 21  # what the driver hands out


class FreePiece(NamedTuple):
    """A free part of a segment; its bin knows its size."""

    ptr: int
    segment: int  # where the segment begins


Bin = list[FreePiece]


class PoolBlock:
    """Memory in use, until nobody holds it."""

    __slots__ = ("__weakref__", "_bin", "_events", "_late", "_piece", "ptr", "size")

    def __init__(self, piece: FreePiece, size: int, home: Bin, late: list[Late]):
        self.ptr, self.size = piece.ptr, size
        self._piece, self._bin, self._late = piece, home, late
        self._events: dict[int, DriverEvent] | None = None

    def used_on(self, stream: DriverStream) -> None:
        """Say that work of another stream than the main one, given to it so far, uses this block."""
        if stream is not stream.gpu.main:
            self.used_elsewhere(stream)

    def used_elsewhere(self, stream: DriverStream) -> None:
        """The same for a stream of another device, be it the main one there."""
        if self._events is None:
            self._events = {}
        self._events[stream.handle] = stream.record(self._events.get(stream.handle))

    def __del__(self) -> None:
        if self._events:
            self._late.append(Late(self._piece, self._bin, tuple(self._events.values())))
        else:
            self._bin.append(self._piece)


class Late(NamedTuple):
    """A piece that other streams may still use."""

    piece: FreePiece
    home: Bin
    events: tuple[DriverEvent, ...]


class _Arena:
    """Segments for requests of like size, so that small ones do not break up large ones."""

    __slots__ = ("bins", "limit", "segment", "segments", "step")

    def __init__(self, limit: int, step: int, segment: int):
        self.limit, self.step, self.segment = limit, step, segment
        self.bins: dict[int, Bin] = {}
        self.segments: dict[int, int] = {}  # begin -> size

    def cut(self, size: int) -> FreePiece | None:
        """A piece of this size, cut off the smallest that is large enough."""
        for have in sorted(s for s, b in self.bins.items() if b and s >= size):
            try:
                piece = self.bins[have].pop()
            except IndexError:  # another thread was faster
                continue
            if have > size:
                rest = FreePiece(piece.ptr + size, piece.segment)
                self.bins.setdefault(have - size, []).append(rest)
            return piece
        return None

    def join(self) -> None:
        """Make one piece of free neighbours."""
        free: list[tuple[int, int, int]] = []
        for size, pieces in list(self.bins.items()):
            while pieces:
                try:
                    piece = pieces.pop()
                except IndexError:
                    break
                free.append((piece.segment, piece.ptr, size))
        free.sort()
        joined: list[tuple[int, int, int]] = []
        for segment, ptr, size in free:
            if joined and joined[-1][0] == segment and sum(joined[-1][1:]) == ptr:
                size += joined[-1][2]
                ptr = joined.pop()[1]
            joined.append((segment, ptr, size))
        for segment, ptr, size in joined:
            self.bins.setdefault(size, []).append(FreePiece(ptr, segment))

    def unused(self) -> list[int]:
        """Segments of which nothing is in use, taken out of the bins."""
        self.join()
        out = []
        for segment, size in self.segments.items():
            whole = FreePiece(segment, segment)
            pieces = self.bins.get(size, [])
            if whole in pieces:
                try:
                    pieces.remove(whole)
                except ValueError:  # another thread has just taken it
                    continue
                out.append(segment)
        return out


class DevicePool:
    """The memory of one device."""

    def __init__(self, gpu: Gpu):
        self._gpu = gpu
        self._lock = threading.RLock()
        self._late: list[Late] = []
        self._nothing: Bin = []
        self._small = _Arena(1 << 20, ALIGNMENT, 1 << 23)
        self._middle = _Arena(1 << 24, 1 << 16, 1 << 26)
        self._large = _Arena(1 << 62, _UNIT, 0)

    def alloc(self, nbytes: int) -> PoolBlock:
        """Memory of at least so many bytes; none at all has the address 0."""
        if ASIDE.stream is not None and ASIDE.stream.gpu is self._gpu:
            return self._alloc_aside(nbytes, ASIDE.stream)
        if nbytes <= 1 << 20:
            arena, size = self._small, nbytes + 511 & -512
        elif nbytes <= 1 << 24:
            arena, size = self._middle, nbytes + 0xFFFF & -0x10000
        else:
            arena, size = self._large, nbytes + _UNIT - 1 & -_UNIT
        home = arena.bins.get(size)
        if home:
            try:
                return PoolBlock(home.pop(), size, home, self._late)
            except IndexError:  # another thread was faster
                pass
        return self._find(arena, size)

    def _alloc_aside(self, nbytes: int, stream: DriverStream) -> PoolBlock:
        """Memory for work of another stream, after what the main stream still does with it."""
        ASIDE.stream = None
        try:
            block = self.alloc(nbytes)
        finally:
            ASIDE.stream = stream
        stream.wait(self._gpu.main)
        assert ASIDE.blocks is not None
        ASIDE.blocks.append(block)
        return block

    def _find(self, arena: _Arena, size: int) -> PoolBlock:
        """A block that no bin has ready."""
        if size <= 0:
            assert size == 0, f"a block of {size} bytes"
            return PoolBlock(FreePiece(0, 0), 0, [], self._late)
        with self._lock:
            home = arena.bins.setdefault(size, [])
            piece = self._settled(arena, size, home) or self._joined(arena, size)
            if piece is None:
                self._segment(arena, size)
                piece = arena.cut(size)
            assert piece is not None, f"no piece of {size} bytes in a segment made for it"
            return PoolBlock(piece, size, home, self._late)

    def _settled(self, arena: _Arena, size: int, home: Bin) -> FreePiece | None:
        """A piece without joining any, after looking at what other streams are done with."""
        self._settle(wait=False)
        return home.pop() if home else arena.cut(size)

    def _joined(self, arena: _Arena, size: int) -> FreePiece | None:
        """A piece of neighbours, if need be after what other streams still do."""
        self._settle(wait=True)
        arena.join()
        return arena.cut(size)

    def _settle(self, wait: bool) -> None:
        """Take pieces back that other streams have used; the main stream waits for those that are not
        done.
        """
        for late in [self._late.pop() for _ in range(len(self._late))]:
            running = [e for e in late.events if not e.done()]
            if running and not wait:
                self._late.append(late)
                continue
            for event in running:
                if self._gpu.capturing:  # the main stream cannot wait for what is not captured
                    event.synchronize()
                else:
                    event.wait(self._gpu.main)
            late.home.append(late.piece)

    def _segment(self, arena: _Arena, size: int) -> None:
        """Ask the driver for memory; what is kept goes back first if there is not enough."""
        gpu, made = self._gpu, ctypes.c_uint64()
        gpu.make_current()
        whole = max(arena.segment, -(-size // _UNIT) * _UNIT)
        code = gpu.driver.cuMemAlloc(ctypes.byref(made), whole)
        if code == OUT_OF_MEMORY:
            self.trim()
            whole = -(-size // _UNIT) * _UNIT
            code = gpu.driver.cuMemAlloc(ctypes.byref(made), whole)
        gpu.driver.check("cuMemAlloc", code, f" for {size_text(whole)}", whole, self.used)
        arena.segments[made.value] = whole
        arena.bins.setdefault(whole, []).append(FreePiece(made.value, made.value))

    def trim(self) -> int:
        """Give memory that nobody uses back to the driver; how many bytes that were."""
        if self._gpu.capturing:
            return 0
        with self._lock:
            self._gpu.make_current()
            self._gpu.main.synchronize()
            self._settle(wait=False)
            freed = 0
            for arena in (self._small, self._middle, self._large):
                for segment in arena.unused():
                    self._gpu.driver.check("cuMemFree", self._gpu.driver.cuMemFree(segment))
                    freed += arena.segments.pop(segment)
            return freed

    @property
    def held(self) -> int:
        """Bytes that the driver has given to this pool."""
        arenas = (self._small, self._middle, self._large)
        return sum(sum(list(a.segments.values())) for a in arenas)

    @property
    def used(self) -> int:
        """Bytes of blocks that somebody holds, or that another stream may still use."""
        arenas = (self._small, self._middle, self._large)
        free = sum(size * len(b) for a in arenas for size, b in list(a.bins.items()))
        return self.held - free
