"""Building GPU code: Triton runs in child processes, and what it made is kept on disk.

A program has dozens of kernels, each of which takes Triton a few tenths of a second: several
workers build them at once, and a crash inside a compiler ends a worker, not the program.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from tessera.core.errors import CompileError, DeviceError
from tessera.core.flags import carried, flags
from tessera.core.processor import cores
from tessera.ir.target.triton.triton_source import TritonSource
from tessera.runtime import triton_worker
from tessera.runtime.builder import Workers
from tessera.runtime.code import Store

_MOST = 12  # workers at once


def key_of(s: TritonSource) -> bytes:
    """SHA-256 of all that the code of a kernel follows from."""
    whole = json.dumps([s.request(), version()], sort_keys=True)
    return hashlib.sha256(whole.encode()).digest()


@dataclass(frozen=True)
class BuiltCode:
    """Code for a GPU and what a launch must know about it."""

    name: str
    warps: int
    shared: int  # bytes of shared memory
    scratch: int  # bytes of global memory that a block needs
    cluster: tuple[int, int, int]
    image: bytes


@cache
def version() -> str:
    """The version of Triton; raises DeviceError when it is not installed."""
    if importlib.util.find_spec("triton") is None:
        raise DeviceError(
            "cuda: Triton, which makes code for GPUs, is not installed; pip install 'tessera[gpu]'"
        )
    return importlib.metadata.version("triton")


@cache
def has_roles() -> bool:
    """Whether Triton can be expected to build kernels whose groups of threads have roles (Gluon)."""
    try:
        major, minor, *_ = version().split(".")
    except DeviceError:
        return True  # nothing is built then
    return (int(major), int(minor)) >= (3, 6)


def build(sources: Sequence[TritonSource]) -> list[BuiltCode]:
    """The code of kernels, from the disk or built."""
    store = Store(flags().cache_dir / "gpu", "kernel")
    found: dict[bytes, BuiltCode] = {}
    missing: dict[bytes, TritonSource] = {}
    for s in sources:
        code = _stored(store, key_of(s))
        if code is None:
            missing[key_of(s)] = s
        else:
            found[key_of(s)] = code
    if missing:
        seats = max(min(len(missing), cores(), _MOST), 1)
        with ThreadPoolExecutor(seats) as pool:
            for key, data in zip(missing, pool.map(carried(_asked), missing.values()), strict=True):
                store.put(key, data)
                found[key] = _decoded(data)
    return [found[key_of(s)] for s in sources]


def assembly(source: TritonSource) -> str:
    """PTX or AMDGCN of a kernel, for people who look."""
    data = _asked(source, assembly=True, lines=True)
    text: str = json.loads(data[: data.index(b"\0")])["assembly"]
    return text


_WORKERS = Workers([triton_worker.__file__], _MOST)


def _asked(source: TritonSource, **more: Any) -> bytes:
    reply = _WORKERS.build(json.dumps(source.request() | more))
    if isinstance(reply, str):
        raise CompileError(f"compile: Triton could not build kernel {source.name!r} ({reply})")
    status, payload = reply
    if status == b"+":
        return payload
    said = payload.decode(errors="replace")
    raise CompileError(f"compile: Triton refused kernel {source.name!r}: {said}")


def _stored(store: Store, key: bytes) -> BuiltCode | None:
    """The code of a kernel from the disk; None when it is not there, or is none."""
    data = store.get(key)
    if data is None:
        return None
    try:
        return _decoded(data)
    except (ValueError, LookupError, TypeError):
        store.distrust(key, "holds no code of a GPU")
        return None


def _decoded(data: bytes) -> BuiltCode:
    end = data.index(b"\0")
    f = json.loads(data[:end])
    numbers = [f["warps"], f["shared"], f["scratch"], *f["cluster"]]
    if not isinstance(f["name"], str) or {type(n) for n in numbers} != {int} or len(numbers) != 6:
        raise ValueError("head of a kernel")
    warps, shared, scratch, *cluster = numbers
    return BuiltCode(f["name"], warps, shared, scratch, tuple(cluster), data[end + 1 :])
