"""Linking for processors that are not here: every reference, decoded by the manual of the processor, reaches its target."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import CompileError, DeviceError
from tessera.deploy import link, machine_code
from tessera.deploy.container import Container
from tessera.deploy.targets import PROCESSORS, usable
from tessera.lang.shapes import trace


def program(x: Any) -> Any:
    return op.softmax(x), op.exp(x) % 1.5, op.sin(x), op.cumsum(x, axis=-1), x.astype(ts.f16)


@pytest.fixture(scope="module")
def linkers() -> dict[str, Any]:
    """The linker of each processor after its work, which `compile_for` does not keep."""
    found: dict[str, Any] = {}
    g = trace(program, ts.zeros((4, 100)))
    usual = link._Linker.image
    for name, p in PROCESSORS.items():

        def image(self: Any, name: str = name) -> Any:
            found[name] = self
            return usual(self)

        with pytest.MonkeyPatch.context() as m:
            m.setattr(link._Linker, "image", image)
            machine_code.compile_for(g, p, "deterministic")
    return found


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def reached_on_arm(code: bytes, at: int, kind: int) -> int:
    """What an instruction says of an address (Arm Architecture Reference Manual, C6.2)."""
    (word,) = struct.unpack_from("<I", code, at)
    if kind in (282, 283):  # B, BL
        return at + 4 * signed(word & 0x3FFFFFF, 26)
    if kind == 275:  # ADRP
        assert word & 0x9F000000 == 0x90000000
        return (at & ~0xFFF) + (signed((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3, 21) << 12)
    scale = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}[kind]
    return (word >> 10 & 0xFFF) << scale


def test_references_on_arm_reach_their_targets(linkers: dict[str, Any]):
    linker, seen = linkers["aarch64"], set()
    code = bytes(linker.memory)
    for k, o in enumerate(linker.objects):
        for section, at, kind, symbol, addend in o.relocations(list(linker.places[k])):
            target = linker._target(k, symbol) + addend
            got = reached_on_arm(code, linker.places[k][section] + at, kind)
            seen.add(kind)
            want = {275: target & ~0xFFF}.get(
                kind, target if kind in (282, 283) else target & 0xFFF
            )
            assert got == want, (o.name, kind)
    assert {275, 277} <= seen or {275, 286} <= seen or {275, 299} <= seen, seen


def test_jumps_to_imports_read_their_slots(linkers: dict[str, Any]):
    arm, x86 = linkers["aarch64"], linkers["x86-64-v3"]
    assert "fmodf" in arm.slots
    assert "fmodf" in x86.slots
    for name, at in arm.stubs.items():
        code = bytes(arm.memory)
        page = reached_on_arm(code, at, 275)
        assert page + reached_on_arm(code, at + 4, 286) == arm.slots[name]
        assert struct.unpack_from("<I", code, at + 8)[0] == 0xD61F0200  # br x16
    for name, at in x86.stubs.items():
        (offset,) = struct.unpack_from("<i", x86.memory, at + 2)
        assert at + 6 + offset == x86.slots[name]


def test_what_no_runtime_has_is_refused():
    with pytest.raises(CompileError, match="too far for one image"):
        link._relative(0, 0, 1 << 32)
    linker = link._Linker({})
    with pytest.raises(CompileError, match=r"kernel 'k' has a relocation of kind 1,"):
        linker._relocate("k", 0, 1, 0, 0)


def test_the_same_bits_on_every_processor_that_is_here(tmp_path: Path):
    x = ts.tensor(np.linspace(-9, 9, 400, dtype=np.float32).reshape(4, 100))
    found = set()
    for name in usable():
        ts.bundle.save(program, tmp_path / "f", x, targets=[f"cpu:{name}"])
        outs = ts.bundle.load(tmp_path / "f").run(x)
        found.add(b"".join(np.asarray(y).tobytes() for y in outs))
    assert len(found) <= 1


@pytest.mark.oracle
def test_code_for_gpus_is_made_without_one(tmp_path: Path):
    pytest.importorskip("triton")

    def f(x: Any) -> Any:
        return op.softmax(op.gelu(x))

    for target in ("cuda:sm_90", "hip:gfx942"):
        digests = {
            ts.bundle.save(f, tmp_path / n, ts.ones((32, 64)), targets=[target]) for n in "ab"
        }
        assert len(digests) == 1
        sections = Container(tmp_path / "a").named
        names = str(Path(tempfile.gettempdir()) / "tmp").encode()
        assert names not in (tmp_path / "a").read_bytes()  # nor any other place of this machine
        assert sections[f"binary/f/{target}"].size > 1000
        assert b"tl." in Container(tmp_path / "a").read(f"device/f/{target}")
    with pytest.raises(DeviceError, match=r"g has steps without code for cuda:sm_90: eigvalsh_0"):
        ts.bundle.save(
            {"g": (op.eigvalsh, ts.ones((8, 8)))}, tmp_path / "g", targets=["cuda:sm_90"]
        )
