"""The local engine: ranks are processes of one machine that speak by sockets and shared memory.

A message is a header on a socket and a payload: on the socket too when it is short, otherwise in memory
that the sender shares with this one receiver.  That memory has two halves, used in turn.  A rank writes the
half of message k after it got message k - 1 of the other side, which that one sent after it had read
message k - 2.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.core.errors import RankError
from tessera.core.flags import flags
from tessera.core.ranks import INLINE, RankEngine
from tessera.runtime import memory

Array = np.ndarray[Any, Any]
_LENGTH = struct.Struct("<I")
_LEAST = 1 << 20  # bytes of a half when there is the first one


class _Sender:
    """Memory for what goes to one other rank."""

    def __init__(self) -> None:
        self._half, self._turn = 0, 0
        self._memory: mmap.mmap | None = None

    def put(self, x: Array) -> tuple[int, int | None]:
        """Write an array; where it begins, and a descriptor where the memory is new."""
        new = None
        if x.nbytes > self._half:
            self._half = max(_LEAST, 1 << (x.nbytes - 1).bit_length())
            new = os.memfd_create("tessera")
            os.ftruncate(new, 2 * self._half)
            self._memory = mmap.mmap(new, 2 * self._half)
        self._turn ^= 1
        begin = self._turn * self._half
        assert self._memory is not None
        there: Array = np.frombuffer(self._memory, x.dtype, x.size, begin)
        np.copyto(there.reshape(x.shape), x)
        return begin, new


class _Peer:
    """Another rank."""

    def __init__(self, rank: int, descriptor: int):
        self.rank = rank
        self._socket = socket.socket(fileno=descriptor)
        self._sender = _Sender()
        self._memory: mmap.mmap | None = None

    def send(self, what: str, x: Array) -> None:
        header: dict[str, Any] = {"what": what, "shape": x.shape}
        inline, descriptors = x.nbytes <= INLINE, []
        if not inline:
            header["begin"], new = self._sender.put(x)
            descriptors = [] if new is None else [new]
            header["new"] = len(descriptors)
        text = json.dumps(header).encode()
        payload = np.ascontiguousarray(x).tobytes() if inline else b""
        try:
            socket.send_fds(self._socket, [_LENGTH.pack(len(text))], descriptors)
            self._socket.sendall(text + payload)
        except OSError:
            raise self._ended(what) from None
        for d in descriptors:
            os.close(d)

    def receive(self, what: str, dtype: Any) -> Array:
        self._socket.settimeout(flags().watchdog)
        try:
            first, descriptors, _, _ = socket.recv_fds(self._socket, _LENGTH.size, 1)
            if not first:
                raise self._ended(what)
            first += self._bytes(_LENGTH.size - len(first), what)
            header = json.loads(self._bytes(_LENGTH.unpack(first)[0], what))
            for d in descriptors:
                self._memory = mmap.mmap(d, os.fstat(d).st_size)
                os.close(d)
            if header["what"] != what:
                raise RankError(
                    f"ranks are out of step: this rank is at {what}, rank {self.rank} at {header['what']}; "
                    "every rank "
                    "must run the same collectives in the same order"
                )
            return self._payload(header, dtype, what)
        except TimeoutError:
            raise RankError(
                f"{what}: rank {self.rank} did not come within {flags().watchdog} s (TESSERA_WATCHDOG); it "
                "is stopped, "
                "too slow, or at no collective"
            ) from None
        except ConnectionError:
            raise self._ended(what) from None

    def _payload(self, header: dict[str, Any], dtype: Any, what: str) -> Array:
        shape = tuple(header["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        if "begin" in header:
            assert self._memory is not None
            made: Array = np.frombuffer(self._memory, dtype, count, header["begin"])
        else:
            made = np.frombuffer(self._bytes(count * dtype.itemsize, what), dtype, count)
        return made.reshape(shape)

    def _bytes(self, n: int, what: str) -> bytes:
        found = bytearray()
        while len(found) < n:
            more = self._socket.recv(n - len(found))
            if not more:
                raise self._ended(what)
            found += more
        return bytes(found)

    def _ended(self, what: str) -> RankError:
        return RankError(f"{what}: rank {self.rank} has ended")

    def close(self) -> None:
        self._socket.close()


class LocalEngine(RankEngine):
    """A rank among processes of one machine."""

    name = "local"

    def __init__(self, rank: int, descriptors: Sequence[int]):
        """`descriptors` has a socket to each rank, and anything for this one."""
        self.rank, self.size = rank, len(descriptors)
        self.place = self.rank, self.size
        self._peers = {r: _Peer(r, d) for r, d in enumerate(descriptors) if r != rank}

    def exchange(self, what: str, group: Sequence[int], sent: Sequence[Array]) -> list[Array]:
        """Send an array to each rank of a group and return what each of them sent here.

        What is returned is valid until the next exchange.
        """
        for r, x in zip(group, sent, strict=True):
            if r != self.rank:
                self._peers[r].send(what, x)
        return [
            x if r == self.rank else self._peers[r].receive(what, x.dtype)
            for r, x in zip(group, sent, strict=True)
        ]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Memory for what a collective makes, used again when nothing holds it."""
        return memory.empty(shape, dtype)

    def close(self) -> None:
        """Leave the run."""
        for p in self._peers.values():
            p.close()


def sockets(count: int) -> list[list[socket.socket | None]]:
    """A socket of each rank to each other one."""
    made: list[list[socket.socket | None]] = [[None] * count for _ in range(count)]
    for i in range(count):
        for j in range(i + 1, count):
            made[i][j], made[j][i] = socket.socketpair()
    return made
