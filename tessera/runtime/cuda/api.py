"""What the API of a driver is: its library, its functions with their types, its numbers and its words.

The runtime is written against the functions of cuda.h.  HIP has nearly all of them under other names
(runtime/hip/api.py), so that a table says what is different, and everything else is shared.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

POINTER, INT, UINT, SIZE, ADDRESS = (
    ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint64,
)  # fmt: skip


class ApiFunction(NamedTuple):
    """A function of a driver."""

    name: str  # in the header
    symbol: str  # in the library
    types: tuple[Any, ...]  # of its arguments


class Attributes(NamedTuple):
    """The numbers by which a device is asked for what it has."""

    multiprocessors: int
    l2: int
    major: int
    minor: int
    shared: int  # bytes of shared memory that a kernel can opt in to
    warp: int


@dataclass(frozen=True)
class Api:
    """The API of a driver."""

    kind: str  # of its devices
    title: str  # of the API
    vendor: str
    libraries: tuple[str, ...]  # the first that is there is taken
    functions: Mapping[str, ApiFunction]  # by the names of cuda.h, which the runtime calls them by
    attributes: Attributes
    architecture: Callable[[Any, int, tuple[int, int]], tuple[str, Any]]  # name, and for Triton
    version: Callable[[int], tuple[int, int]]
    node_params: Callable[..., ctypes.Structure]  # what a graph knows of a launch
    hints: Mapping[int, str]  # what to do about an error
    install: str
    look: str  # where one sees devices
    needs: str  # the oldest version that has everything
    contexts: bool  # whether devices have contexts; the number of a device stands for one otherwise
    plain_shared: int  # bytes of shared memory that a kernel has without asking
    default_stream: int  # the handle of the stream that libraries use when they say nothing

    def name(self, function: str) -> str:
        """What the header calls a function of cuda.h."""
        return self.functions[function].name


class NodeParams(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS."""

    _fields_ = (
        ("kernel", POINTER), ("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT),
        ("parameters", POINTER), ("extra", POINTER), ("kern", POINTER), ("context", POINTER),
    )  # fmt: skip


# Names as cuda.h has them, and the types of their arguments.
_TYPES: dict[str, tuple[Any, ...]] = {
    "cuInit": (UINT,),
    "cuDriverGetVersion": (POINTER,),
    "cuGetErrorName": (INT, POINTER),
    "cuGetErrorString": (INT, POINTER),
    "cuDeviceGetCount": (POINTER,),
    "cuDeviceGet": (POINTER, INT),
    "cuDeviceGetName": (POINTER, INT, INT),
    "cuDeviceGetAttribute": (POINTER, INT, INT),
    "cuDeviceCanAccessPeer": (POINTER, INT, INT),
    "cuDevicePrimaryCtxRetain": (POINTER, INT),
    "cuCtxSetCurrent": (POINTER,),
    "cuCtxGetCurrent": (POINTER,),
    "cuCtxSynchronize": (),
    "cuCtxEnablePeerAccess": (POINTER, UINT),
    "cuMemGetInfo": (POINTER, POINTER),
    "cuMemAlloc": (POINTER, SIZE),
    "cuMemFree": (ADDRESS,),
    "cuMemHostAlloc": (POINTER, SIZE, UINT),
    "cuMemcpyHtoDAsync": (ADDRESS, POINTER, SIZE, POINTER),
    "cuMemcpyDtoHAsync": (POINTER, ADDRESS, SIZE, POINTER),
    "cuMemcpyDtoDAsync": (ADDRESS, ADDRESS, SIZE, POINTER),
    "cuMemcpy2DAsync": (POINTER, POINTER),
    "cuMemcpyPeerAsync": (ADDRESS, POINTER, ADDRESS, POINTER, SIZE, POINTER),
    "cuMemsetD8Async": (ADDRESS, ctypes.c_ubyte, SIZE, POINTER),
    "cuStreamCreate": (POINTER, UINT),
    "cuStreamCreateWithPriority": (POINTER, UINT, INT),
    "cuStreamDestroy": (POINTER,),
    "cuStreamSynchronize": (POINTER,),
    "cuStreamQuery": (POINTER,),
    "cuStreamWaitEvent": (POINTER, POINTER, UINT),
    "cuStreamBeginCapture": (POINTER, INT),
    "cuStreamEndCapture": (POINTER, POINTER),
    "cuStreamGetCaptureInfo": (POINTER, POINTER, POINTER, POINTER, POINTER, POINTER),
    "cuStreamUpdateCaptureDependencies": (POINTER, POINTER, SIZE, UINT),
    "cuEventCreate": (POINTER, UINT),
    "cuEventDestroy": (POINTER,),
    "cuEventRecord": (POINTER, POINTER),
    "cuEventSynchronize": (POINTER,),
    "cuEventQuery": (POINTER,),
    "cuEventElapsedTime": (POINTER, POINTER, POINTER),
    "cuModuleLoadDataEx": (POINTER, POINTER, UINT, POINTER, POINTER),
    "cuModuleUnload": (POINTER,),
    "cuModuleGetFunction": (POINTER, POINTER, ctypes.c_char_p),
    "cuFuncGetAttribute": (POINTER, INT, POINTER),
    "cuFuncSetAttribute": (POINTER, INT, INT),
    "cuFuncGetParamInfo": (POINTER, SIZE, POINTER, POINTER),
    "cuLaunchKernelEx": (POINTER, POINTER, POINTER, POINTER),
    "cuTensorMapEncodeTiled": (
        POINTER, INT, UINT, POINTER, POINTER, POINTER, POINTER, POINTER, INT, INT, INT, INT,
    ),
    "cuTensorMapReplaceAddress": (POINTER, POINTER),
    "cuGraphInstantiate": (POINTER, POINTER, ctypes.c_ulonglong),
    "cuGraphDestroy": (POINTER,),
    "cuGraphExecDestroy": (POINTER,),
    "cuGraphLaunch": (POINTER, POINTER),
    "cuGraphGetNodes": (POINTER, POINTER, POINTER),
    "cuGraphExecKernelNodeSetParams": (POINTER, POINTER, POINTER),
}  # fmt: skip
# The names in the library that cuda.h gives to the newest forms.
_SYMBOLS = {
    **{name: f"{name}_v2" for name in (
        "cuMemGetInfo", "cuMemAlloc", "cuMemFree", "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemcpy2DAsync", "cuStreamDestroy",
        "cuEventDestroy",
        "cuStreamBeginCapture", "cuStreamGetCaptureInfo", "cuGraphExecKernelNodeSetParams",
    )},
    "cuGraphInstantiate": "cuGraphInstantiateWithFlags",
}  # fmt: skip
_FAILED = (700, *range(714, 720))  # of a kernel while it ran


def hints(tool: str) -> dict[int, str]:
    """What to do about errors, given what finds a kernel that fails."""
    ends = (
        "a kernel failed while it ran, which ends the use of this device: start the process again; "
        f"{tool} finds the kernel"
    )
    other = "the code was built for another architecture than this device has"
    return {209: other, **dict.fromkeys(_FAILED, ends)}


API = Api(
    kind="cuda", title="CUDA", vendor="NVIDIA",
    libraries=("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1",),
    functions={n: ApiFunction(n, _SYMBOLS.get(n, n), types) for n, types in _TYPES.items()},
    attributes=Attributes(multiprocessors=16, l2=38, major=75, minor=76, shared=97, warp=10),
    architecture=lambda driver, device, c: (f"sm_{c[0]}{c[1]}", 10 * c[0] + c[1]),
    version=lambda n: (n // 1000, n % 1000 // 10),
    node_params=NodeParams, hints=hints("compute-sanitizer"),
    install="install one, so that nvidia-smi works",
    look="look at nvidia-smi and at CUDA_VISIBLE_DEVICES",
    needs="driver 525 (CUDA 12.0)", contexts=True, plain_shared=48 << 10,
    default_stream=1,
)  # fmt: skip
