"""What we say of HIP beside its header, which comes with Triton: functions, numbers and structures."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.dtype import bf16, f32
from tessera.runtime.cuda import driver, graph, rows, stream
from tessera.runtime.hip.api import _ARCHITECTURE, _PROPERTIES, API, NodeParams
from tests.support.fakes.hip_fake import ATTRIBUTES, ERRORS, declared

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


# What Triton makes of programs: EM_AMDGPU, and the machine in e_flags of AMD's ABI
AMDGPU, MACHINES = 224, {"gfx942": 0x4C, "gfx950": 0x4F}


def unpacked(data: bytes, at: int = 0) -> tuple[Any, int]:
    """A value in MessagePack, as far as the notes of code objects use it, and where it ends."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind in (0xC2, 0xC3):
        return kind == 0xC3, at
    if kind in (0xCC, 0xCD, 0xCE, 0xCF):
        size = 1 << kind - 0xCC
        return int.from_bytes(data[at : at + size], "big"), at + size
    if kind & 0xE0 == 0xA0 or kind in (0xD9, 0xDA):
        wide = 0 if kind < 0xC0 else kind - 0xD8
        n = int.from_bytes(data[at : at + wide], "big") if wide else kind & 31
        return data[at + wide : at + wide + n].decode(), at + wide + n
    wide = 0 if kind < 0xA0 else 2
    n = int.from_bytes(data[at : at + wide], "big") if wide else kind & 15
    at += wide
    pairs = kind & 0xF0 == 0x80 or kind == 0xDE
    found = []
    for _ in range(n * (2 if pairs else 1)):
        x, at = unpacked(data, at)
        found.append(x)
    return (dict(zip(found[::2], found[1::2], strict=True)) if pairs else found), at


@needs_header
@pytest.mark.parametrize("name", MACHINES)
def test_programs_become_code_objects_that_take_what_we_pass(name: str) -> None:
    """HIP does not say what parameters a kernel has: two pointers come after ours, always."""

    def loss(q: Any, w: Any) -> Any:
        y = op.attention(q, q, q, causal=True)
        return op.sum((y @ w).astype(f32) ** 2)

    q, w = (ts.tensor(np.ones(s, np.float32)).astype(bf16) for s in ((1, 2, 128, 64), (64, 256)))
    made = ts.jit(ts.grad(loss), target=f"hip:{name}")
    program = made.lower(q, w)
    codes = program.code
    assert len(codes) > 4
    calls = program._machine("code").program_at([q.shape, w.shape]).calls  # type: ignore[attr-defined]
    for access, call in calls:
        image = codes[access.name]
        assert image[:4] == b"\x7fELF"
        assert int.from_bytes(image[18:20], "little") == AMDGPU
        assert image[48] == MACHINES[name]
        note, _ = unpacked(image, image.index(b"amdhsa.kernels") - 2)
        (kernel,) = note["amdhsa.kernels"]
        given = [a for a in kernel[".args"] if not a[".value_kind"].startswith("hidden")]
        sizes = [8 if kind.startswith("*") else 4 for _, kind in call.source.signature]
        assert [a[".size"] for a in given] == [*sizes, 8, 8], access.name
        assert (kernel[".name"], kernel[".wavefront_size"]) == (call.source.name, 64)


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
