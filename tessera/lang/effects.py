"""Declared data movement: where a block wants its data."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from tessera.core import tree
from tessera.core.blame import blames_arguments
from tessera.core.errors import OperandError, located
from tessera.core.processor import near_bytes
from tessera.core.source import warn_caller
from tessera.ir.graph.ir import Value
from tessera.lang import op
from tessera.lang.device import current_device
from tessera.lang.tensor import Tensor
from tessera.ops.state import NEAR

_SPACES = (*NEAR, "device", "host")
_OVERLAPS = ("compute", "none")
_LINE, _PAGE = 64, 4096  # bytes that come into a cache, and into memory, at once


@blames_arguments
@contextmanager
def prefetch(obj: Any, into: str = "smem", overlap: str = "compute") -> Iterator[Any]:
    """Have the tensors of a tree near while the block runs; `as` gives the tree that the block should use.

    Into `device` and `host` they are copied, to the device in force or back.  The other spaces are levels
    of a memory near to what computes: on a CPU the tensors are read into its caches, beside the block or,
    with overlap="none", before it.  In a program for the CPU they are asked for where the block begins, by
    a step of its own that runs beside the others.  On a GPU these memories are the kernels' to fill, and a
    warning says so.
    """
    if into not in _SPACES:
        raise located(
            OperandError(f"prefetch: into is {into!r}, expected one of {', '.join(_SPACES)}")
        )
    if overlap not in _OVERLAPS:
        raise located(
            OperandError(
                f"prefetch: overlap is {overlap!r}, expected one of {', '.join(_OVERLAPS)}"
            )
        )
    if into not in NEAR:
        yield _moved(obj, into, overlap)
        return
    values = [x for x in tree.leaves(obj) if isinstance(x, Value)]
    reader = _reader([v for v in values if not _is_asked_for(v, into)], into)
    reader.start()
    if overlap == "none":
        reader.join()
    try:
        yield obj
    finally:
        reader.join()


def _is_asked_for(v: Value, into: str) -> bool:
    """Whether a program that is traced has a step that asks for a tensor."""
    if v.storage is not None or v.device.kind != "cpu":
        return False
    op.state_prefetch(v, into=into)
    return True


def _moved(obj: Any, into: str, overlap: str) -> Any:
    """The tree with its tensors on the device in force, or on the host."""
    target = "cpu" if into == "host" else current_device()
    made = tree.map(lambda x: x.to(target) if isinstance(x, Tensor) else x, obj)
    if overlap == "none":
        for x in tree.leaves(made):
            gpu = getattr(getattr(x, "storage", None), "gpu", None)
            if gpu is not None:
                gpu.synchronize()
    return made


def _reader(values: list[Value], into: str) -> threading.Thread:
    """What reads tensors of the CPU; others are named in a warning."""
    arrays = [v.storage for v in values if isinstance(v.storage, np.ndarray)]
    if len(arrays) < len(values):
        warn_caller(
            f"prefetch: into {into!r} is not done here: on a GPU a kernel decides what lies near; see "
            "tile.prefetch and "
            "tile.load(stages=...)"
        )
    return threading.Thread(target=_read, args=(arrays,), daemon=True)


def _read(arrays: list[Any]) -> None:
    """Touch every line of what fits the caches, and every page of the rest."""
    left = near_bytes()
    for x in arrays:
        if not x.flags.c_contiguous or not x.size:
            continue
        step = _LINE if x.nbytes <= left else _PAGE
        left -= x.nbytes if step == _LINE else 0
        np.bitwise_or.reduce(x.reshape(-1).view(np.uint8)[::step])
