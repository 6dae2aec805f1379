"""Drivers of GPUs by ctypes: the functions that we use, as their API describes them, and their errors.

Nothing is loaded before `load()` or `available()`.  The library is the only thing that tests replace: see
`use`.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tessera.core.deferred import Deferred
from tessera.core.device import GPUS
from tessera.core.errors import DeviceError, OutOfMemoryError, TesseraError

if TYPE_CHECKING:
    from tessera.runtime.cuda.api import Api

Call = Callable[..., int]
_APIS = {
    "cuda": Deferred("tessera.runtime.cuda.api:API"),
    "hip": Deferred("tessera.runtime.hip.api:API"),
}
SUCCESS, OUT_OF_MEMORY, NOT_READY, PEER_ALREADY = 0, 2, 600, 704  # in all drivers


class DriverApi:
    """The functions of a driver as attributes, by the names of cuda.h; each returns its error code."""

    def __init__(self, api: Api, library: Any):
        self.api, self.library = api, library
        self.ended = False  # at exit, what is left belongs to the driver: it may have gone already
        atexit.register(self._end)
        for name, f in api.functions.items():
            function = getattr(library, f.symbol, None)
            if function is not None:
                function.argtypes, function.restype = f.types, ctypes.c_int
                setattr(self, name, function)

    def _end(self) -> None:
        self.ended = True

    def __getattr__(self, name: str) -> Call:
        if name not in self.api.functions:
            raise AttributeError(name)
        raise DeviceError(
            f"{self.api.kind}: this {self.api.vendor} driver has no {self.api.name(name)}; "
            f"install {self.api.needs} or newer"
        )

    def has(self, name: str) -> bool:
        """Whether the driver has a function: others are of newer drivers, or of another API."""
        return name in self.__dict__

    def check(self, name: str, code: int, about: str = "", asked: int = 0, held: int = 0) -> None:
        """Raise the error that a code stands for; `about` says what the call was for."""
        if code == SUCCESS:
            return
        api = self.api
        if code == OUT_OF_MEMORY:
            raise self._out_of_memory(api.name(name), asked, held)
        hint = f"; {api.hints[code]}" if code in api.hints else ""
        raise DeviceError(
            f"{api.kind}: {api.name(name)} failed with {self.describe(code)}{about}{hint}"
        )

    def describe(self, code: int) -> str:
        """The driver's name of an error and what it says of it."""
        return (
            f"{self._said(self.cuGetErrorName, code)} ({self._said(self.cuGetErrorString, code)})"
        )

    def _said(self, get: Call, code: int) -> str:
        text = ctypes.c_char_p()
        found = get(code, ctypes.byref(text)) == SUCCESS and text.value
        return found.decode() if found else f"error {code}"

    @property
    def version(self) -> tuple[int, int]:
        """The newest version of the API that the driver knows."""
        out = ctypes.c_int()
        self.check("cuDriverGetVersion", self.cuDriverGetVersion(ctypes.byref(out)))
        return self.api.version(out.value)

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all bytes, of the current device."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        code = self.cuMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        return (free.value, total.value) if code == SUCCESS else (0, 0)

    def _out_of_memory(self, name: str, asked: int, held: int) -> TesseraError:
        free, total = self.memory()
        error = self._said(self.cuGetErrorName, OUT_OF_MEMORY)
        wanted = f"for {size_text(asked)}" if asked else f"with {error}"
        return OutOfMemoryError(
            f"{self.api.kind}: {name} failed {wanted}: {size_text(free)} of {size_text(total)} are free and "
            f"tensors of this process hold {size_text(held)}; let go of tensors or use smaller ones"
        )


def size_text(n: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= scale:
            return f"{n / scale:.1f} {unit}"
    return f"{n} bytes"


class DriverLoader:
    """A driver that is looked for when it is needed, and once."""

    def __init__(self, kind: str):
        self.kind = kind
        self.lock = threading.Lock()
        self.driver: DriverApi | None = None
        self.absent = ""  # why there is no driver, once that is known

    @property
    def api(self) -> Api:
        """The table of the driver, which is not needed at start-up."""
        found: Any = _APIS[self.kind].function()
        made: Api = found
        return made

    def load(self) -> DriverApi:
        """The driver of this machine, ready for use."""
        with self.lock:
            if self.driver is None and not self.absent:
                try:
                    self.driver = self.started(self._library())
                except DeviceError as e:
                    self.absent = e.message
            if self.driver is None:
                raise DeviceError(self.absent)
            return self.driver

    def _library(self) -> ctypes.CDLL:
        """The library, rather one that is loaded: two of them would know nothing of each other's memory."""
        api, why = self.api, ""
        loaded = getattr(os, "RTLD_NOLOAD", None)
        for mode in (ctypes.DEFAULT_MODE,) if loaded is None else (loaded, ctypes.DEFAULT_MODE):
            said = []
            for name in api.libraries:
                try:
                    return ctypes.CDLL(name, mode)
                except OSError as e:
                    said.append(f"{name}: {e}")
            why = said[0]
        raise DeviceError(
            f"{api.kind}: there is no {api.vendor} driver here ({why}); {api.install}, or use the device "
            f"'cpu'"
        )

    def started(self, library: Any) -> DriverApi:
        """The driver in a library, after its start; an error when it finds no device."""
        api = self.api
        driver = DriverApi(api, library)
        code, count = driver.cuInit(0), ctypes.c_int()
        if code == SUCCESS:
            code = driver.cuDeviceGetCount(ctypes.byref(count))
        if code == SUCCESS and count.value:
            return driver
        failed = f"{api.name('cuInit')} failed with {driver.describe(code)}"
        why = "it counts 0 devices" if code == SUCCESS else failed
        raise DeviceError(
            f"{api.kind}: the {api.vendor} driver finds no device: {why}; {api.look}, or use the device 'cpu'"
        )

    def after_fork(self) -> None:
        """A child cannot use what its parent has started."""
        self.lock = threading.Lock()
        if self.driver is not None:
            self.driver = None
            self.absent = (
                f"{self.kind}: this process was forked from one that had used the GPU, which "
                f"{self.api.title} does not allow; start processes by 'spawn' "
                "(multiprocessing.set_start_method)"
            )


LOADERS = {kind: DriverLoader(kind) for kind in GPUS}


def load(kind: str = "cuda") -> DriverApi:
    """The driver of a kind of device, ready for use."""
    loader = LOADERS[kind]
    return loader.driver or loader.load()


def available(kind: str = "cuda") -> bool:
    """Whether there is a driver with a device."""
    if LOADERS[kind].absent:
        return False
    try:
        load(kind)
    except DeviceError:
        return False
    return True


@contextmanager
def use(library: Any, kind: str = "cuda") -> Iterator[DriverApi]:
    """Take a library in place of the driver's while the block runs; what was made before stays as it is."""
    loader = LOADERS[kind]
    before = loader.driver, loader.absent
    driver = loader.started(library)
    loader.driver, loader.absent = driver, ""
    try:
        yield driver
    finally:
        loader.driver, loader.absent = before


def _after_fork() -> None:
    for loader in LOADERS.values():
        loader.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
