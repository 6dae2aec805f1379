"""What we say of HIP beside its header, which comes with Triton: functions, numbers and structures."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tessera.runtime.cuda import driver, graph, rows, stream
from tessera.runtime.hip.api import _ARCHITECTURE, _PROPERTIES, API, NodeParams
from tests.hip_fake import ATTRIBUTES, ERRORS, declared

pytestmark = pytest.mark.oracle
FOUND = importlib.util.find_spec("triton")
FOLDER = Path(FOUND.origin or "").parent / "backends/amd/include" if FOUND else Path("nowhere")
HEADER = FOLDER / "hip/hip_runtime_api.h"
needs_header = pytest.mark.skipif(not HEADER.exists(), reason="Triton with AMD's headers is needed")


def plain(argument: str) -> str:
    """The type of an argument, without its name and its default."""
    text = re.sub(r"__dparm\(.*?\)|=.*", "", argument).strip()
    return (
        re.sub(r"\s*\b(?!int$|char$|long$|void$|unsigned$)\w+$", "", text) if " " in text else text
    )


@needs_header
def test_functions_have_the_arguments_of_the_header() -> None:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", HEADER.read_text(), flags=re.S)
    for name, types in declared().items():
        found = re.findall(rf"\bhipError_t {name}\s*\(([^;{{]*)\)\s*;", text)
        forms = {tuple(plain(a) for a in f.split(",") if a.strip() != "void") for f in found}
        assert forms == {types}, name


NUMBERS = {
    "sizeof(hipDeviceProp_t)": _PROPERTIES,
    "offsetof(hipDeviceProp_t, gcnArchName)": _ARCHITECTURE,
    "hipDeviceAttributeMultiprocessorCount": API.attributes.multiprocessors,
    "hipDeviceAttributeL2CacheSize": API.attributes.l2,
    "hipDeviceAttributeComputeCapabilityMajor": API.attributes.major,
    "hipDeviceAttributeComputeCapabilityMinor": API.attributes.minor,
    "hipDeviceAttributeMaxSharedMemoryPerBlock": API.attributes.shared,
    "hipDeviceAttributeWarpSize": API.attributes.warp,
    "HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": 0, "HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": 1,
    "HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": 3, "HIP_FUNC_ATTRIBUTE_NUM_REGS": 4,
    "hipSuccess": driver.SUCCESS, "hipErrorNotReady": driver.NOT_READY,
    "hipErrorPeerAccessAlreadyEnabled": driver.PEER_ALREADY,
    "hipStreamNonBlocking": stream._NON_BLOCKING, "hipEventDisableTiming": stream._NO_TIMING,
    "hipStreamCaptureModeRelaxed": graph._RELAXED, "hipMemoryTypeDevice": rows._DEVICE,
    "hipJitOptionErrorLogBuffer": 5, "hipJitOptionErrorLogBufferSizeBytes": 6,
    "sizeof(hip_Memcpy2D)": 128, "offsetof(hip_Memcpy2D, dstXInBytes)": 56,
    "sizeof(hipKernelNodeParams)": 64,
    **{f"offsetof(hipKernelNodeParams, {theirs})": getattr(NodeParams, ours).offset
       for ours, theirs in {"block": "blockDim", "extra": "extra", "kernel": "func", "grid": "gridDim",
                            "parameters": "kernelParams", "shared": "sharedMemBytes"}.items()},
    **{name: code for code, (name, _) in ERRORS.items()},
}  # fmt: skip


@needs_header
@pytest.mark.skipif(shutil.which("cc") is None, reason="a C compiler is needed")
def test_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    lines = "".join(f'printf("%ld\\n", (long)({name}));' for name in NUMBERS)
    source = tmp_path / "numbers.c"
    source.write_text(
        "#define __HIP_PLATFORM_AMD__\n#include <hip/hip_runtime_api.h>\n#include <stddef.h>\n"
        f"#include <stdio.h>\nint main(void) {{ {lines} return 0; }}\n"
    )
    program = str(tmp_path / "numbers")
    subprocess.run(["cc", "-w", f"-I{FOLDER}", str(source), "-o", program], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(NUMBERS, map(int, said), strict=True)) == NUMBERS
    assert set(ATTRIBUTES) == set(API.attributes)
