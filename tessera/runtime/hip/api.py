"""The HIP runtime as the CUDA runtime sees it: other names, the number of a device for its context, a launch
without a configuration, and no tensor maps.

It follows the header of ROCm 7.1, which tests/oracles/test_hip.py reads, and has not run on hardware.
"""

from __future__ import annotations

import ctypes
import re
import sys
from typing import Any

from tessera.core.errors import DeviceError
from tessera.runtime.cuda import api as cuda
from tessera.runtime.cuda.api import ADDRESS, INT, POINTER, SIZE, UINT, Api, ApiFunction, Attributes

# Functions with the arguments that cuda.h has.
_NAMES = {
    "cuInit": "hipInit", "cuDriverGetVersion": "hipDriverGetVersion",
    "cuGetErrorName": "hipDrvGetErrorName", "cuGetErrorString": "hipDrvGetErrorString",
    "cuDeviceGetCount": "hipGetDeviceCount", "cuDeviceGet": "hipDeviceGet",
    "cuDeviceGetName": "hipDeviceGetName", "cuDeviceGetAttribute": "hipDeviceGetAttribute",
    "cuDeviceCanAccessPeer": "hipDeviceCanAccessPeer",
    "cuCtxSynchronize": "hipDeviceSynchronize", "cuMemGetInfo": "hipMemGetInfo",
    "cuMemAlloc": "hipMalloc", "cuMemFree": "hipFree", "cuMemHostAlloc": "hipHostMalloc",
    "cuMemcpyHtoDAsync": "hipMemcpyHtoDAsync", "cuMemcpyDtoHAsync": "hipMemcpyDtoHAsync",
    "cuMemcpyDtoDAsync": "hipMemcpyDtoDAsync", "cuMemcpy2DAsync": "hipMemcpyParam2DAsync",
    "cuMemsetD8Async": "hipMemsetD8Async",
    "cuStreamCreate": "hipStreamCreateWithFlags", "cuStreamDestroy": "hipStreamDestroy",
    "cuStreamCreateWithPriority": "hipStreamCreateWithPriority",
    "cuStreamSynchronize": "hipStreamSynchronize", "cuStreamQuery": "hipStreamQuery",
    "cuStreamWaitEvent": "hipStreamWaitEvent", "cuStreamBeginCapture": "hipStreamBeginCapture",
    "cuStreamEndCapture": "hipStreamEndCapture",
    "cuStreamGetCaptureInfo": "hipStreamGetCaptureInfo_v2",
    "cuStreamUpdateCaptureDependencies": "hipStreamUpdateCaptureDependencies",
    "cuEventCreate": "hipEventCreateWithFlags", "cuEventDestroy": "hipEventDestroy",
    "cuEventRecord": "hipEventRecord", "cuEventSynchronize": "hipEventSynchronize",
    "cuEventQuery": "hipEventQuery", "cuEventElapsedTime": "hipEventElapsedTime",
    "cuModuleLoadDataEx": "hipModuleLoadDataEx", "cuModuleUnload": "hipModuleUnload",
    "cuModuleGetFunction": "hipModuleGetFunction", "cuFuncGetAttribute": "hipFuncGetAttribute",
    "cuGraphInstantiate": "hipGraphInstantiateWithFlags", "cuGraphDestroy": "hipGraphDestroy",
    "cuGraphExecDestroy": "hipGraphExecDestroy", "cuGraphLaunch": "hipGraphLaunch",
    "cuGraphGetNodes": "hipGraphGetNodes",
    "cuGraphExecKernelNodeSetParams": "hipGraphExecKernelNodeSetParams",
}  # fmt: skip
# Functions with other arguments: devices in place of contexts, and a launch that lists what it is told.
_OTHERS = {
    "cuCtxSetCurrent": ApiFunction("hipSetDevice", "hipSetDevice", (INT,)),
    "cuCtxGetCurrent": ApiFunction("hipGetDevice", "hipGetDevice", (POINTER,)),
    "cuCtxEnablePeerAccess": ApiFunction(
        "hipDeviceEnablePeerAccess", "hipDeviceEnablePeerAccess", (INT, UINT)
    ),
    "cuMemcpyPeerAsync": ApiFunction(
        "hipMemcpyPeerAsync", "hipMemcpyPeerAsync", (ADDRESS, INT, ADDRESS, INT, SIZE, POINTER)
    ),
    "cuLaunchKernelEx": ApiFunction(
        "hipModuleLaunchKernel", "hipModuleLaunchKernel",
        (POINTER, *[UINT] * 7, POINTER, POINTER, POINTER),
    ),
    "hipGetDeviceProperties": ApiFunction(
        "hipGetDeviceProperties", "hipGetDevicePropertiesR0600", (POINTER, INT)
    ),
}  # fmt: skip
_PROPERTIES, _ARCHITECTURE = (
    1472,
    1160,
)  # bytes of hipDeviceProp_tR0600, and where gcnArchName begins
_NAME_BYTES = 256  # of gcnArchName (hip_runtime_api.h)


class NodeParams(ctypes.Structure):
    """hipKernelNodeParams; ROCm takes the handle of a module's function where the header says address."""

    _fields_ = (
        ("block", UINT * 3), ("extra", POINTER), ("kernel", POINTER), ("grid", UINT * 3),
        ("parameters", POINTER), ("shared", UINT),
    )  # fmt: skip


def _architecture(driver: Any, device: int, capability: tuple[int, int]) -> tuple[str, str]:
    """The name of an architecture, which only the properties of a device have: gfx942:sramecc+:xnack- is
    gfx942.
    """
    room = ctypes.create_string_buffer(2 * _PROPERTIES)  # a newer runtime may write more
    code = driver.hipGetDeviceProperties(room, device)
    driver.check("hipGetDeviceProperties", code, f" for hip:{device}")
    text = room.raw[_ARCHITECTURE : _ARCHITECTURE + _NAME_BYTES].split(b"\0")[0]
    found = re.match(r"gfx[0-9a-f]+", text.decode(errors="replace"))
    if found is None:
        raise DeviceError(
            f"hip: hipGetDeviceProperties says that hip:{device} is a {text!r}, expected a name such as "
            "gfx942; this ROCm lays properties out otherwise than ROCm 6 and 7 do"
        )
    return found[0], found[0]


def _libraries() -> tuple[str, ...]:
    if sys.platform == "win32":
        return ("amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll")
    names = ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so")
    return (*names, "/opt/rocm/lib/libamdhip64.so")


API = Api(
    kind="hip", title="HIP", vendor="AMD", libraries=_libraries(),
    functions=_OTHERS | {
        ours: ApiFunction(name, name, cuda.API.functions[ours].types) for ours, name in _NAMES.items()
    },
    attributes=Attributes(multiprocessors=63, l2=19, major=23, minor=61, shared=74, warp=87),
    architecture=_architecture,
    version=lambda n: (n // 10_000_000, n % 10_000_000 // 100_000),
    node_params=NodeParams, hints=cuda.hints("rocgdb"),
    install="install ROCm, so that rocminfo works",
    look="look at rocminfo and at HIP_VISIBLE_DEVICES",
    needs="ROCm 6.0", contexts=False, plain_shared=1 << 30,  # a kernel has all that there is
    default_stream=0,
)  # fmt: skip
