"""The HIP runtime in Python: what FakeCuda is for libcuda, with the functions and types of hip_runtime_api.h.

Functions are made with the arguments that the header declares, not with those that our table says, so that
a wrong row of the table gives wrong numbers.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from typing import Any

from tessera.runtime.hip.api import API
from tests.support.fakes.cuda_fake import FakeCuda, put

# The arguments of every function, as the header of ROCm has them.
DECLARED = """
hipInit(unsigned int)
hipDriverGetVersion(int*)
hipDrvGetErrorName(hipError_t, const char**)
hipDrvGetErrorString(hipError_t, const char**)
hipGetDeviceCount(int*)
hipDeviceGet(hipDevice_t*, int)
hipDeviceGetName(char*, int, hipDevice_t)
hipDeviceGetAttribute(int*, hipDeviceAttribute_t, int)
hipDeviceCanAccessPeer(int*, int, int)
hipDeviceEnablePeerAccess(int, unsigned int)
hipGetDeviceProperties(hipDeviceProp_t*, int)
hipSetDevice(int)
hipGetDevice(int*)
hipDeviceSynchronize(void)
hipMemGetInfo(size_t*, size_t*)
hipMalloc(void**, size_t)
hipFree(void*)
hipHostMalloc(void**, size_t, unsigned int)
hipMemcpyHtoDAsync(hipDeviceptr_t, const void*, size_t, hipStream_t)
hipMemcpyDtoHAsync(void*, hipDeviceptr_t, size_t, hipStream_t)
hipMemcpyDtoDAsync(hipDeviceptr_t, hipDeviceptr_t, size_t, hipStream_t)
hipMemcpyParam2DAsync(const hip_Memcpy2D*, hipStream_t)
hipMemcpyPeerAsync(void*, int, const void*, int, size_t, hipStream_t)
hipMemsetD8Async(hipDeviceptr_t, unsigned char, size_t, hipStream_t)
hipStreamCreateWithFlags(hipStream_t*, unsigned int)
hipStreamCreateWithPriority(hipStream_t*, unsigned int, int)
hipStreamDestroy(hipStream_t)
hipStreamSynchronize(hipStream_t)
hipStreamQuery(hipStream_t)
hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned int)
hipStreamBeginCapture(hipStream_t, hipStreamCaptureMode)
hipStreamEndCapture(hipStream_t, hipGraph_t*)
hipStreamGetCaptureInfo_v2(hipStream_t, hipStreamCaptureStatus*, unsigned long long*, hipGraph_t*, const hipGraphNode_t**, size_t*)
hipStreamUpdateCaptureDependencies(hipStream_t, hipGraphNode_t*, size_t, unsigned int)
hipEventCreateWithFlags(hipEvent_t*, unsigned)
hipEventDestroy(hipEvent_t)
hipEventRecord(hipEvent_t, hipStream_t)
hipEventSynchronize(hipEvent_t)
hipEventQuery(hipEvent_t)
hipEventElapsedTime(float*, hipEvent_t, hipEvent_t)
hipModuleLoadDataEx(hipModule_t*, const void*, unsigned int, hipJitOption*, void**)
hipModuleUnload(hipModule_t)
hipModuleGetFunction(hipFunction_t*, hipModule_t, const char*)
hipFuncGetAttribute(int*, hipFunction_attribute, hipFunction_t)
hipModuleLaunchKernel(hipFunction_t, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, hipStream_t, void**, void**)
hipGraphInstantiateWithFlags(hipGraphExec_t*, hipGraph_t, unsigned long long)
hipGraphDestroy(hipGraph_t)
hipGraphExecDestroy(hipGraphExec_t)
hipGraphLaunch(hipGraphExec_t, hipStream_t)
hipGraphGetNodes(hipGraph_t, hipGraphNode_t*, size_t*)
hipGraphExecKernelNodeSetParams(hipGraphExec_t, hipGraphNode_t, const hipKernelNodeParams*)
"""  # noqa: E501
# What is no pointer; handles and hipDeviceptr_t are pointers.
_NUMBERS = {
    "int": ctypes.c_int, "hipError_t": ctypes.c_int, "hipDevice_t": ctypes.c_int,
    "hipDeviceAttribute_t": ctypes.c_int, "hipStreamCaptureMode": ctypes.c_int,
    "hipFunction_attribute": ctypes.c_int, "unsigned": ctypes.c_uint,
    "unsigned int": ctypes.c_uint, "unsigned char": ctypes.c_ubyte, "size_t": ctypes.c_size_t,
    "unsigned long long": ctypes.c_ulonglong,
}  # fmt: skip


def declared() -> dict[str, tuple[str, ...]]:
    """The types of the arguments of every function, in C."""
    rows = re.findall(r"(\w+)\((.*)\)", DECLARED)
    return {name: tuple(t for t in given.split(", ") if t != "void") for name, given in rows}


def as_ctypes(types: tuple[str, ...]) -> tuple[Any, ...]:
    """Types of C as ctypes has them; text that a function reads is bytes."""
    plain = {"const char*": ctypes.c_char_p, **_NUMBERS}
    return tuple(plain.get(t, ctypes.c_void_p) for t in types)


ERRORS = {
    1: ("hipErrorInvalidValue", "invalid argument"),
    2: ("hipErrorOutOfMemory", "out of memory"),
    100: ("hipErrorNoDevice", "no ROCm-capable device is detected"),
    200: ("hipErrorInvalidImage", "device kernel image is invalid"),
    209: ("hipErrorNoBinaryForGpu", "no kernel image is available for execution on the device"),
    400: ("hipErrorInvalidHandle", "invalid resource handle"),
    500: ("hipErrorNotFound", "named symbol not found"),
    700: ("hipErrorIllegalAddress", "an illegal memory access was encountered"),
    719: ("hipErrorLaunchFailure", "unspecified launch failure"),
}
ATTRIBUTES = {19: 4 << 20, 23: 9, 61: 4, 63: 304, 74: 65_536, 87: 64}
PROPERTIES = 1472  # sizeof(hipDeviceProp_tR0600)


class FakeHip(FakeCuda):
    """What libamdhip64 exports."""

    api = API
    errors: Mapping[int, tuple[str, str]] = ERRORS
    plain_shared = 65_536  # all that there is

    def __init__(self, total: int = 256 << 20, devices: int = 1, architecture: str = "gfx942"):
        super().__init__(total, devices)
        self.contexts = {i: i for i in range(devices)}  # there are none: a number is current
        self.architecture = f"{architecture}:sramecc+:xnack-"

    def types(self, name: str) -> tuple[Any, ...]:
        """The types of the arguments of a function, as the header declares them."""
        return as_ctypes(declared()[self.api.name(name)])

    def do_cuDriverGetVersion(self, out: int) -> int:
        return put(out, 70_125_424, ctypes.c_int)

    def do_cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Fake MI300X\0", 12)

    def do_cuDeviceGetAttribute(self, out: int, which: int, device: int) -> int:
        return put(out, ATTRIBUTES[which], ctypes.c_int)

    def do_hipGetDeviceProperties(self, out: int, device: int) -> None:
        ctypes.memset(out, 0xFF, PROPERTIES)  # what is not asked for
        ctypes.memset(out + 1160, 0, 256)
        text = self.architecture.encode()
        ctypes.memmove(out + 1160, text, len(text))

    def do_cuCtxSetCurrent(self, device: int) -> int:
        if device not in self.contexts:
            return 101  # hipErrorInvalidDevice
        self.current = device
        return 0

    def do_cuCtxGetCurrent(self, out: int) -> int:
        return put(out, self.current, ctypes.c_int)

    def do_cuLaunchKernelEx(self, function: int, *rest: int) -> int:
        *sizes, shared, stream, parameters, extra = rest
        assert not extra, "parameters come as a list"
        return self.launch(function, tuple(sizes), shared, None, stream, parameters)
