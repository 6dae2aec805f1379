"""Copies of rows on a device, from one distance between rows to another."""

from __future__ import annotations

import struct

from tessera.runtime.cuda.device import Gpu

_DEVICE = 2  # CU_MEMORYTYPE_DEVICE


def copy_rows(
    gpu: Gpu, to: int, to_pitch: int, source: int, pitch: int, width: int, count: int
) -> None:
    """Copy so many rows of `width` bytes; pitches are the bytes from one row to the next."""
    if not width or not count:
        return
    gpu.make_current()
    # CUDA_MEMCPY2D: where it reads, then where it writes: x, y, kind, host, device, array, pitch.
    words = (0, 0, _DEVICE, 0, source, 0, pitch, 0, 0, _DEVICE, 0, to, 0, to_pitch, width, count)
    code = gpu.driver.cuMemcpy2DAsync(struct.pack("<16Q", *words), gpu.stream.handle)
    gpu.driver.check("cuMemcpy2DAsync", code, f" for {count} rows of {width} bytes")
