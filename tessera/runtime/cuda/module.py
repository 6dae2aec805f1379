"""Compiled code on a device: modules, and the kernels in them."""

from __future__ import annotations

import contextlib
import ctypes

from tessera.core.errors import DeviceError, TesseraError
from tessera.runtime.cuda.device import Gpu

_MAX_THREADS, _STATIC_SHARED, _LOCAL, _REGISTERS, _DYNAMIC_SHARED = 0, 1, 3, 4, 8
_CARVEOUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_LOG, _LOG_SIZE = 5, 6  # CU_JIT_ERROR_LOG_BUFFER and its size
_LOG_BYTES = 4096  # room for the driver's error text


class DriverModule:
    """Code in the memory of a device: a cubin, or PTX as text, which the driver compiles; of AMD, a hsaco."""

    def __init__(self, image: bytes, gpu: Gpu):
        self.gpu, self._handle = gpu, 0
        gpu.make_current()
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_LOG, _LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        made, text = ctypes.c_void_p(), ctypes.create_string_buffer(image)  # ends with a zero
        code = gpu.driver.cuModuleLoadDataEx(ctypes.byref(made), text, 2, options, values)
        said = " ".join(log.value.decode(errors="replace").split())
        about = f" for {len(image)} bytes of code on {gpu.architecture}" + (
            f": {said}" if said else ""
        )
        gpu.driver.check("cuModuleLoadDataEx", code, about, len(image), gpu.pool.used)
        self._handle = made.value or 0

    def function(self, name: str, shared: int = 0) -> DriverFunction:
        """A kernel, with so many bytes of dynamic shared memory."""
        return DriverFunction(self, name, shared)

    def __del__(self) -> None:
        if self._handle and not self.gpu.driver.ended:
            with contextlib.suppress(TesseraError), self.gpu.aside():
                self.gpu.driver.cuModuleUnload(self._handle)


class DriverFunction:
    """A kernel of a module."""

    def __init__(self, module: DriverModule, name: str, shared: int):
        self.module, self.name, self.shared = module, name, shared
        self.gpu = gpu = module.gpu
        gpu.make_current()
        made = ctypes.c_void_p()
        code = gpu.driver.cuModuleGetFunction(ctypes.byref(made), module._handle, name.encode())
        gpu.driver.check("cuModuleGetFunction", code, f" for a kernel {name!r}")
        self.handle = made.value or 0
        self.registers = self._get(_REGISTERS)
        self.local_bytes = self._get(_LOCAL)  # of a thread: what registers could not hold
        self.static_shared = self._get(_STATIC_SHARED)
        self.max_threads = self._get(_MAX_THREADS)
        if shared + self.static_shared > gpu.shared_per_block:
            raise DeviceError(
                f"{gpu.kind}: kernel {name!r} needs {shared + self.static_shared} bytes of shared memory, "
                f"but a "
                f"block on {gpu} has {gpu.shared_per_block}; use smaller tiles or fewer stages"
            )
        # One kernel may be asked for twice: the larger wish stays.
        asks = shared + self.static_shared > gpu.driver.api.plain_shared
        if asks and shared > self._get(_DYNAMIC_SHARED):
            self._set(_DYNAMIC_SHARED, shared)

    def prefer_shared(self) -> None:
        """Ask for the most shared memory that a multiprocessor can have, so that kernels divide it in one
        way.
        """
        self._set(_CARVEOUT, 100)

    def allow_clusters(self) -> None:
        """Allow clusters of more than 8 blocks."""
        self._set(_CLUSTERS, 1)

    @property
    def parameters(self) -> tuple[tuple[int, int], ...] | None:
        """Offset and size of each parameter; None when the driver cannot tell."""
        driver = self.gpu.driver
        out: list[tuple[int, int]] = []
        if not driver.has("cuFuncGetParamInfo"):
            return None
        self.gpu.make_current()
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        where = ctypes.byref(offset), ctypes.byref(size)
        while driver.cuFuncGetParamInfo(self.handle, len(out), *where) == 0:
            out.append((offset.value, size.value))
        return tuple(out)

    def _get(self, which: int) -> int:
        out = ctypes.c_int()
        code = self.gpu.driver.cuFuncGetAttribute(ctypes.byref(out), which, self.handle)
        self.gpu.driver.check("cuFuncGetAttribute", code, f" for kernel {self.name!r}")
        return out.value

    def _set(self, which: int, value: int) -> None:
        self.gpu.make_current()
        code = self.gpu.driver.cuFuncSetAttribute(self.handle, which, value)
        self.gpu.driver.check("cuFuncSetAttribute", code, f" for kernel {self.name!r}: {value}")

    def __repr__(self) -> str:
        return f"kernel {self.name!r}"
