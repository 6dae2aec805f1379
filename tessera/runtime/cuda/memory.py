"""Arrays in the memory of a device."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from tessera.core.device import GPUS
from tessera.core.errors import DTypeError, ShapeError
from tessera.runtime import memory as host
from tessera.runtime.cuda import device, dlpack, peer
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.pool import PoolBlock
from tessera.runtime.kernel import address

ALIGNED = 16  # bytes at whose multiples every tensor that a kernel reads begins
__all__ = ["DeviceArray", "empty", "from_dlpack", "to_device"]

Array = np.ndarray[Any, np.dtype[Any]]


class DeviceArray:
    """An array on a device, in row-major order without gaps.

    `owner` keeps the memory: a Block, or what holds the memory of another library.
    """

    __slots__ = (
        "__weakref__",
        "dtype",
        "gpu",
        "owner",
        "ptr",
        "shape",
        "writable",
    )

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], gpu: Gpu, ptr: int, owner: object,
        writable: bool = True,
    ):  # fmt: skip
        self.shape, self.dtype, self.gpu, self.ptr, self.owner = shape, dtype, gpu, ptr, owner
        self.writable = writable

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> int:
        """The number of the device."""
        return self.gpu.index

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements from one index to the next, for each axis."""
        return row_major(self.shape)

    def is_free(self) -> bool:
        """Whether this array alone holds its memory, which is of the pool: then it may be written over."""
        # The array and the count hold it.
        return (
            self.writable and isinstance(self.owner, PoolBlock) and sys.getrefcount(self.owner) <= 2
        )

    def numpy(self) -> Array:
        """A copy on the host, after all work of the main stream so far."""
        out = host.empty(self.shape, self.dtype)
        if self.nbytes:
            self.gpu.staging.receive(address(out), self.ptr, self.nbytes)
        return out

    def copy(self) -> DeviceArray:
        """The same elements in memory of their own."""
        out = empty(self.shape, self.dtype, self.gpu)
        if self.nbytes:
            self.gpu.make_current()
            driver = self.gpu.driver
            code = driver.cuMemcpyDtoDAsync(out.ptr, self.ptr, self.nbytes, self.gpu.stream.handle)
            driver.check("cuMemcpyDtoDAsync", code)
        return out

    def fill(self, values: Any) -> None:
        """Take the elements of an array of the host."""
        data = np.ascontiguousarray(values, self.dtype)
        if data.shape != self.shape:
            raise ShapeError(f"fill: got an array {data.shape}, expected {self.shape}")
        if self.nbytes:
            self.gpu.staging.send(self.ptr, address(data), self.nbytes)

    def memset(self, byte: int = 0) -> None:
        """Set every byte."""
        if self.nbytes:
            self.gpu.make_current()
            driver = self.gpu.driver
            code = driver.cuMemsetD8Async(self.ptr, byte, self.nbytes, self.gpu.stream.handle)
            driver.check("cuMemsetD8Async", code)

    def reshape(self, *shape: Any) -> DeviceArray:
        """The same memory under another shape; one size may be -1."""
        sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        if -1 in sizes:
            known = -math.prod(sizes)
            sizes = tuple((self.size // known if known else 0) if n == -1 else n for n in sizes)
        if math.prod(sizes) != self.size or min(sizes, default=0) < 0:
            raise ShapeError(f"reshape: {self.shape} has {self.size} elements, {shape} has not")
        return DeviceArray(sizes, self.dtype, self.gpu, self.ptr, self.owner, self.writable)

    def view(self, dtype: Any) -> DeviceArray:
        """The same memory as elements of another dtype."""
        d = np.dtype(dtype)
        shape = self.shape
        if d.itemsize != self.dtype.itemsize:
            last = shape[-1] * self.dtype.itemsize if shape else 0
            if not shape or last % d.itemsize:
                raise ShapeError(f"view: rows of {self} are no multiple of {d.itemsize} bytes")
            shape = (*shape[:-1], last // d.itemsize)
        return DeviceArray(shape, d, self.gpu, self.ptr, self.owner, self.writable)

    def to(self, gpu: Gpu) -> DeviceArray:
        """The same elements on another device; nobody waits where both are of one kind."""
        if gpu is self.gpu:
            return self
        if gpu.driver is not self.gpu.driver:
            return to_device(self.numpy(), gpu)
        out = empty(self.shape, self.dtype, gpu)
        if self.nbytes:
            peer.copy(gpu, out.ptr, self.gpu, self.ptr, self.nbytes, self.owner)
        return out

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.gpu.kind != "cuda":
            raise AttributeError(f"__cuda_array_interface__: {self} is not on an NVIDIA GPU")
        return {
            "version": 3, "shape": self.shape, "typestr": self.dtype.str,
            "data": (self.ptr if self.nbytes else 0, not self.writable),
            "strides": None, "stream": self.gpu.stream.handle,
        }  # fmt: skip

    def __dlpack__(
        self, *, stream: int | None = None, max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None, copy: bool | None = None,
    ) -> Any:  # fmt: skip
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"__dlpack__: {self} is not on the device {dl_device}; use .numpy()")
        source = self.copy() if copy else self
        return dlpack.export(
            source.shape, source.dtype, source.gpu, source.ptr, source.owner, source.writable,
            bool(copy), stream, max_version,
        )  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        return GPUS[self.gpu.kind], self.gpu.index

    def __repr__(self) -> str:
        return f"DeviceArray({self.shape}, {self.dtype}, {self.gpu.kind}:{self.gpu.index})"


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides, in elements, of an array without gaps."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def empty(shape: Sequence[int], dtype: DTypeLike, gpu: Gpu | None = None) -> DeviceArray:
    """An array whose elements have yet to be written."""
    place, d, sizes = gpu or device.gpu(), np.dtype(dtype), tuple(shape)
    block = place.pool.alloc(math.prod(sizes) * d.itemsize)
    return DeviceArray(sizes, d, place, block.ptr, block)


def to_device(values: Any, gpu: Gpu | None = None) -> DeviceArray:
    """A copy of an array of the host; the array may change when this returns."""
    data = np.asarray(values, order="C")
    if data.dtype.hasobject:
        raise DTypeError(f"to_device: elements are {data.dtype}, expected numbers")
    data = data.astype(data.dtype.newbyteorder("="), copy=False)
    out = empty(data.shape, data.dtype, gpu)
    if out.nbytes:
        out.gpu.staging.send(out.ptr, address(data), out.nbytes)
    return out


def from_dlpack(x: Any) -> DeviceArray:
    """The memory of a GPU's tensor of another library, without a copy if it begins where kernels expect
    it.
    """
    found = dlpack.take(x)
    made = DeviceArray(found.shape, found.dtype, found.gpu, found.ptr, found.owner, found.writable)
    return made.copy() if found.ptr % ALIGNED and made.nbytes else made
