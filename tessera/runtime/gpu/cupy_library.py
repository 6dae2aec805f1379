"""Functions of CuPy on arrays of a device: it computes in our memory and on our stream.

What CuPy cannot do here, since one of its own libraries is missing, is left to who asks.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tessera.core.errors import OutOfMemoryError
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.memory import DeviceArray

Arrays = Sequence[DeviceArray]
Run = Callable[[Arrays], list[DeviceArray]]


class CuPy(NamedTuple):
    """The parts of CuPy that are used here."""

    arrays: Any
    linalg: Any
    fft: Any
    errstate: Any


@cache
def cupy() -> CuPy | None:
    """CuPy, imported when it is first wanted; None where it is not installed."""
    if importlib.util.find_spec("cupy") is None:
        return None
    try:
        import cupy
        import cupyx
        import cupyx.scipy.fft
        import cupyx.scipy.linalg
    except ImportError:
        return None
    return CuPy(cupy, cupyx.scipy.linalg, cupyx.scipy.fft, cupyx.errstate)


@dataclass(frozen=True)
class Library:
    """A function of arrays of CuPy, and the dtypes of its results."""

    function: Callable[..., Any]
    dtypes: tuple[Any, ...]

    def run(self, xs: Arrays, place: Gpu, instead: Callable[[str], Run]) -> list[DeviceArray]:
        """The results, in memory of CuPy; `instead`, told why, gives what runs when CuPy cannot."""
        lib = cupy()
        assert lib is not None
        np_, broken = lib.arrays, lib.arrays.cuda.compiler.CompileException
        place.make_current()
        with np_.cuda.Device(place.index), _stream(np_, place), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with lib.errstate(linalg="raise"):
                    made = self.function(lib, *[_wide(_lent(np_, x)) for x in xs])
                    ys = made if isinstance(made, tuple) else (made,)
                    return [_taken(np_, y, t, place) for y, t in zip(ys, self.dtypes, strict=True)]
            except np.linalg.LinAlgError:
                why = ""  # the reference will say it
            except (ImportError, RuntimeError, broken) as e:
                why = f"{type(e).__name__}: {e}"
            except MemoryError as e:
                raise OutOfMemoryError(f"cuda: {e}") from None
        return instead(why)(xs)


class _Handle:
    """A stream as other libraries know it."""

    def __init__(self, handle: int):
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def _stream(np_: Any, place: Gpu) -> Any:
    handle = place.stream.handle
    if hasattr(np_.cuda.Stream, "from_external"):
        return np_.cuda.Stream.from_external(_Handle(handle))
    return np_.cuda.ExternalStream(handle, place.index)


def _lent(np_: Any, x: DeviceArray) -> Any:
    """Our array as one of CuPy."""
    memory = np_.cuda.UnownedMemory(x.ptr, x.nbytes, x, x.gpu.index)
    return np_.ndarray(x.shape, x.dtype, np_.cuda.MemoryPointer(memory, 0))


def _wide(x: Any) -> Any:
    return x.astype(np.float32) if x.dtype == np.float16 else x


def _taken(np_: Any, y: Any, dtype: Any, place: Gpu) -> DeviceArray:
    """An array of CuPy, which keeps its memory, as one of ours."""
    y = np_.ascontiguousarray(y, dtype=dtype)
    return DeviceArray(tuple(y.shape), np.dtype(dtype), place, y.data.ptr, y)
