"""CuPy without a GPU: its arrays are memory of the host, its functions NumPy's and SciPy's.

As in CuPy, arrays do not meet those of NumPy, and memory is taken where an address points.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.fft
import scipy.linalg

from tessera.runtime.cuda.memory import empty
from tessera.runtime.gpu import cupy_library

LOG: list[
    tuple[str, int]
] = []  # every function that was called, and the stream that it was called on
STREAMS: list[int] = []
BROKEN: set[str] = set()  # functions whose library is missing


class CompileException(Exception):
    """As CuPy calls it."""


class ndarray(np.ndarray):  # noqa: N801
    """An array of the fake device."""

    def __new__(cls, shape: Any, dtype: Any, memptr: Any) -> Any:
        n = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        assert n <= memptr.mem.size
        memory = (ctypes.c_char * n).from_address(memptr.ptr)
        return np.ndarray.__new__(cls, shape, dtype, memory)

    @property
    def data(self) -> Any:
        return MemoryPointer(UnownedMemory(self.ctypes.data, self.nbytes, self, 0), 0)

    def get(self) -> Any:
        return np.array(self.view(np.ndarray))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return called(func, *args, **kwargs)

    def __array_ufunc__(self, ufunc: Any, method: str, *xs: Any, **kwargs: Any) -> Any:
        return called(getattr(ufunc, method), *xs, **kwargs)


def called(f: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of NumPy on arrays of the device."""
    name = getattr(f, "__name__", "")
    LOG.append((name, STREAMS[-1]))
    if name in BROKEN:
        raise ImportError(f"{name}: libcusolver.so is not here")
    return there(f(*map(here, args), **{k: here(x) for k, x in kwargs.items()}))


def here(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(map(here, x))
    if isinstance(x, ndarray):
        return x.view(np.ndarray)
    assert not isinstance(x, np.ndarray) or not x.ndim, "an array of NumPy on the device"
    return x


def there(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(there, x))
    return np.asarray(x).view(ndarray)


def put(x: Any) -> Any:
    """An array of NumPy, copied to the device."""
    return np.array(x).view(ndarray)


def in_order(x: Any, dtype: Any) -> Any:
    """A copy in memory of the device."""
    memory = empty(x.shape, dtype)
    made = ndarray(
        x.shape, dtype, MemoryPointer(UnownedMemory(memory.ptr, memory.nbytes, memory), 0)
    )
    made.view(np.ndarray)[...] = here(x)
    made.owner = memory
    return made


class UnownedMemory:
    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem: UnownedMemory, offset: int):
        self.mem, self.ptr = mem, mem.ptr + offset


class Stream:
    def __init__(self, handle: int):
        self.handle = handle

    @classmethod
    def from_external(cls, x: Any) -> Stream:
        version, handle = x.__cuda_stream__()
        assert version == 0
        return cls(handle)

    def __enter__(self) -> None:
        STREAMS.append(self.handle)

    def __exit__(self, *_: Any) -> None:
        STREAMS.pop()


class Device:
    def __init__(self, index: int):
        assert index == 0

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


@contextmanager
def errstate(linalg: str) -> Iterator[None]:
    assert linalg == "raise"
    yield


def solve_triangular(
    a: Any, b: Any, trans: int = 0, lower: bool = False, unit_diagonal: bool = False
) -> Any:
    def one(a: Any, b: Any) -> Any:
        return scipy.linalg.solve_triangular(
            a, b, trans=trans, lower=lower, unit_diagonal=unit_diagonal
        )

    return called(lambda a, b: np.stack([*map(one, a, b)]) if a.ndim == 3 else one(a, b), a, b)


def dct(x: Any, type: int = 2, axis: int = -1, norm: str | None = None) -> Any:
    if type not in (2, 3):
        raise NotImplementedError("Only DCT-II and DCT-III have been implemented.")
    return called(scipy.fft.dct, x, type, axis=axis, norm=norm)


def two_axes(f: Any) -> Any:
    def run(x: Any, **kwargs: Any) -> Any:
        assert x.ndim == 2
        return called(f, x, **kwargs)

    return run


def module(name: str, **content: Any) -> ModuleType:
    m = ModuleType(name)
    m.__spec__ = importlib.machinery.ModuleSpec(name, None)
    m.__path__ = []  # type: ignore[attr-defined]
    m.__dict__.update(content)
    return m


def modules() -> dict[str, ModuleType]:
    def of(f: Any) -> Any:
        return lambda *args, **kwargs: called(f, *args, **kwargs)

    fft = module(
        "fft", **{n: of(getattr(scipy.fft, n)) for n in ("fftn", "ifftn", "rfft", "irfft")}
    )
    compiler = module("compiler", CompileException=CompileException)
    cuda = module(
        "cuda", UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer, Stream=Stream,
        Device=Device, compiler=compiler,
    )  # fmt: skip
    names = ("stack", "diagonal", "concatenate", "zeros_like")
    cupy = module(
        "cupy", ndarray=ndarray, cuda=cuda, fft=fft, linalg=module("linalg", eig=of(np.linalg.eig)),
        asarray=put, ascontiguousarray=in_order, **{n: of(getattr(np, n)) for n in names},
    )  # fmt: skip
    linalg = module(
        "cupyx.scipy.linalg", lu=two_axes(scipy.linalg.lu), expm=two_axes(scipy.linalg.expm),
        solve_triangular=solve_triangular,
    )  # fmt: skip
    cosines = module("cupyx.scipy.fft", dct=dct)
    inner = module("cupyx.scipy", linalg=linalg, fft=cosines)
    found = [cupy, module("cupyx", scipy=inner, errstate=errstate), inner, linalg, cosines]
    return {m.__name__: m for m in found}


@contextmanager
def fake_cupy() -> Iterator[None]:
    """While the block runs CuPy is installed."""
    with pytest.MonkeyPatch.context() as patch:
        for name, m in modules().items():
            patch.setitem(sys.modules, name, m)
        cupy_library.cupy.cache_clear()
        LOG.clear()
        BROKEN.clear()
        try:
            yield
        finally:
            cupy_library.cupy.cache_clear()
