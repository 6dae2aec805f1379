"""Emit source: print a launch as Triton, or as Gluon where groups of threads have roles."""

from __future__ import annotations

from dataclasses import replace

from tessera.core.dims import substitute
from tessera.ir.target.code import Code
from tessera.ir.target.gluon import flash_forward_emit as gluon
from tessera.ir.target.triton.emit import emit, scratch_bytes
from tessera.ir.target.triton.triton_source import Device, source_of
from tessera.ir.tile.ir import Kernel
from tessera.ir.tile.launch import Threads

# By a kernel's id and its threads: the kernel, its text, and bytes of scratch.
Texts = dict[tuple[int, Threads], tuple[Kernel, str, int]]


def emit_source(c: Code, device: Device, texts: Texts) -> Code:
    """Print a kernel as Triton, or as Gluon where its threads have roles; equal launches are printed once."""
    kernel, threads = c.launch.kernel, c.launch.threads
    key = id(kernel), threads
    if key not in texts:
        # Where threads have roles, shared memory is the scratch.
        scratch = 0 if threads.roles else int(substitute(scratch_bytes(kernel), dict(c.sizes)))
        text = gluon.emit(kernel, threads) if threads.roles else emit(kernel, threads, device[0])
        texts[key] = kernel, text, scratch
    _, text, scratch = texts[key]
    entry = source_of(kernel, text, threads, device, scratch)
    return replace(c, text=text, scratch=scratch, entry=entry)
