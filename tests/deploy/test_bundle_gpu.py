"""Code for GPUs in bundles: it is loaded and run from Python and from C, through drivers that stand in
for a device.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import DeviceError
from tessera.core.types import TensorType
from tessera.deploy import container
from tessera.deploy.container import Container
from tessera.deploy.device_plan import (
    BoxParameter,
    CellPointer,
    DevicePlan,
    Named,
    PlannedLaunch,
    decode,
)
from tessera.native import INCLUDE, SOURCE
from tests.support.fakes.cuda_fake import FakeCuda
from tests.support.fakes.gpu_fake import launching_gpus

RNG = np.random.default_rng(7)


def normal(*shape: int) -> Any:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


@pytest.fixture
def device() -> Iterator[FakeCuda]:
    """A GPU whose kernels the Tile interpreter runs, those of bundles too."""
    with launching_gpus() as fake:
        yield fake


W, B = normal(24, 40), normal(40)


def layer(x: Any) -> Any:
    y = op.gelu(op.matmul(x, W) + B)
    return {"rows": op.softmax(y, axis=-1), "sum": op.sum(x, axis=0), "same": x}


def chain(x: Any, y: Any) -> Any:
    t = op.transpose(x, (1, 0))
    return op.cumsum(op.exp(t) * y, axis=0), t[1:3], op.sum(op.sum(x) * y)


PROGRAMS = {"layer": (layer, (normal(7, 24),)), "chain": (chain, (normal(5, 9), normal(9, 5)))}


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x.numpy()).tobytes() for x in ts.tree.leaves(tree)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bundle_runs_on_a_gpu_with_the_bits_of_its_function(
    name: str, device: FakeCuda, tmp_path: Path
):
    f, args = PROGRAMS[name]
    ts.bundle.save(f, tmp_path / "f", *args, targets=["cuda:sm_90"])
    for given in (args, tuple(x.to("cuda:0") for x in args)):
        want = ts.jit(f, target="cuda:0")(*given)
        b = ts.bundle.load(tmp_path / "f", device="cuda:0")
        got = b.run(*given)
        assert bits(got) == bits(want)
        assert ts.tree.structure(got) == ts.tree.structure(want)
        assert b.entry(name).target == "cuda:sm_90"
        assert all(str(x.device) == "cuda:0" for x in ts.tree.leaves(got))
        assert bits(b.run(*given)) == bits(want)


def test_code_for_a_gpu_alone_needs_no_wish(device: FakeCuda, tmp_path: Path):
    x = normal(7, 24)
    ts.bundle.save(layer, tmp_path / "f", x, targets=["cuda:sm_90"])
    b = ts.bundle.load(tmp_path / "f")
    b.run(x)
    assert (b.entry("layer").target, str(b.entry("layer").device)) == ("cuda:sm_90", "cuda:0")


def test_another_gpu_compiles_the_graph(device: FakeCuda, tmp_path: Path):
    x = normal(7, 24)
    ts.bundle.save(layer, tmp_path / "f", x, targets=["cuda:sm_80"])
    with pytest.warns(RuntimeWarning, match=r"has code for cuda:sm_80, not for cuda:0; layer is"):
        got = ts.bundle.load(tmp_path / "f", device="cuda:0").run(x)
    assert bits(got) == bits(ts.jit(layer, target="cuda:0")(x))


def test_bodies_that_the_host_repeats_are_named(device: FakeCuda, tmp_path: Path):
    def f(x: Any) -> Any:
        return ts.while_loop(lambda s: op.sum(s) < 5.0, lambda s: s + op.sort(s), x)

    with pytest.raises(DeviceError, match=r"f has while_loop_0, while_loop_1, whose bodies the"):
        ts.bundle.save(f, tmp_path / "f", normal(4), targets=["cuda:sm_90"])


def test_a_plan_is_read_as_it_was_written(device: FakeCuda, tmp_path: Path):
    x = normal(7, 24)
    ts.bundle.save(layer, tmp_path / "f", x, targets=["cuda:sm_90"])
    data = Container(tmp_path / "f").read("launches/layer/cuda:sm_90")
    plan = decode(data)
    assert plan.encode() == data
    assert [i.name for i in plan.inputs] == ["x"]
    r = np.random.default_rng(1)
    for _ in range(300):
        wrong = bytearray(data)
        wrong[r.integers(len(data))] ^= 1 << r.integers(8)
        cut = wrong[: r.integers(len(data))] if r.random() < 0.2 else wrong
        try:
            decode(bytes(cut))
        except (ValueError, LookupError):
            continue


# In C, with a driver of tests/native ------------------------------------------------------------------

NATIVE = Path(__file__).parents[1] / "native"
COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def f32_type(*shape: int) -> TensorType:
    return TensorType(ts.f32, shape)


def hand_made(target: str = "cuda:sm_90") -> tuple[DevicePlan, bytes, list[Any]]:
    """A program of the kernels that the driver of tests/native has, its weights, and a record of it."""
    x = RNG.normal(size=(6, 4)).astype(np.float32)
    w = RNG.normal(size=(6, 4)).astype(np.float32)
    n = 4 * x.size
    given, data, first, second, arena, _ = range(6)
    box = BoxParameter(arena, 256, 7, 0, (4, 6), (16,), (4, 6))
    shape = struct.pack("<i", 6), struct.pack("<i", 4), struct.pack("<q", 4), struct.pack("<q", 1)
    count = struct.pack("<i", x.size)
    launches = (
        PlannedLaunch("scale_0", 0, 2, 128, 0, False,
               (CellPointer(given, 0), CellPointer(arena, 0), count, struct.pack("<f", 1.5))),
        PlannedLaunch("add_1", 1, 1, 64, 60000, False,
               (CellPointer(arena, 0), CellPointer(data, 0), CellPointer(arena, 256), count)),
        PlannedLaunch("boxed_2", 2, 1, 64, 0, False, (box, *shape, CellPointer(first, 0))),
        PlannedLaunch("hungry_3", 3, 1, 32, 0, True,
        (CellPointer(first, 0), CellPointer(second, 128), count)),
    )  # fmt: skip
    names = ("scale", "add", "boxed", "hungry")
    plan = DevicePlan(
        target, (Named("x", f32_type(6, 4), 0),), ((64, n),), (n, 512), 512, n,
        (Named("turned", f32_type(4, 6), first), Named("back", f32_type(24), second, 128),
         Named("same", f32_type(6, 4), given)),
        tuple((name, 64 * i, 4) for i, name in enumerate(names)), launches,
    )  # fmt: skip
    turned = np.ascontiguousarray((np.float32(1.5) * x + w).T)
    return plan, w.tobytes(), [x, turned, turned.reshape(-1)[::-1].copy(), x]


def write_hand_made(path: Path, plan: DevicePlan, data: bytes) -> None:
    held = b"{}" + b" " * 6
    weights = len(held).to_bytes(8, "little") + held + bytes(64) + data
    binary = b"".join(b"FAKE".ljust(64, b"\0") for _ in range(4))
    sections = [
        ("manifest", "manifest", b"{}"), ("graph", "graph/f", b""),
        ("device", f"binary/f/{plan.target}", binary),
        ("device", f"launches/f/{plan.target}", plan.encode()), ("weights", "weights", weights),
    ]  # fmt: skip
    container.write(path, sections)


def record(path: Path, tensors: Sequence[Any]) -> None:
    with path.open("wb") as f:
        for x in tensors:
            f.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())


def build(out: Path, *flags: str) -> None:
    front = [
        str(COMPILER),
        "-std=c99",
        "-D_GNU_SOURCE",
        "-g",
        *flags,
        "-pthread",
        "-I",
        str(INCLUDE),
    ]
    subprocess.run([*front, str(NATIVE / "gpu.c"), str(SOURCE), "-o", str(out)], check=True)


@pytest.fixture(scope="module")
def checked(programs: Path) -> None:
    """The program again, with every access checked."""
    build(programs / "checked", "-O0", "-fsanitize=address,undefined")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a driver and a program that uses it."""
    folder = tmp_path_factory.mktemp("driver")
    front = [str(COMPILER), "-std=c99", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-g"]
    fake = [*front, "-shared", "-fPIC", str(NATIVE / "fake_cuda.c"), "-o"]
    subprocess.run([*fake, str(folder / "libcuda.so.1")], check=True)
    build(folder / "gpu", "-O0")
    return folder


def run_c(
    programs: Path, tmp_path: Path, program: str = "gpu", driver: bool = True, **more: str
) -> Any:
    env = {"LD_LIBRARY_PATH": str(programs), "FAKE_CUDA_COUNTS": "1", **more} if driver else {}
    run = [str(programs / program), str(tmp_path / "f.tess"), str(tmp_path / "record"), "f", "3"]
    return subprocess.run(run, capture_output=True, text=True, check=False, env=env)


def run_hand_made(programs: Path, tmp_path: Path, program: str) -> None:
    plan, data, tensors = hand_made()
    write_hand_made(tmp_path / "f.tess", plan, data)
    record(tmp_path / "record", tensors)
    done = run_c(programs, tmp_path, program)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "cuda:sm_90, 4 kernels, 166.7 us a run: the same bits\n"


@needs_compiler
def test_c_runs_launches_through_the_driver(programs: Path, tmp_path: Path):
    run_hand_made(programs, tmp_path, "gpu")


def fail_in_turn(programs: Path, tmp_path: Path, program: str, every: int) -> int:
    """Let every so manieth call of the driver fail; count the runs that ended with its error and left
    nothing.
    """
    plan, data, tensors = hand_made()
    write_hand_made(tmp_path / "f.tess", plan, data)
    record(tmp_path / "record", tensors)
    failed = 0
    for which in range(1, 400, every):
        done = run_c(programs, tmp_path, program, FAKE_CUDA_FAILS=str(which))
        if "the same bits" in done.stderr:  # it failed while all was given back
            break
        assert done.returncode == 1, f"call {which}: {done.stderr}"
        assert "9 cuda: " in done.stderr, f"call {which}: {done.stderr}"
        assert "Sanitizer" not in done.stderr
        failed += 1
    return failed


@needs_compiler
def test_a_driver_that_fails_leaves_nothing_behind(programs: Path, tmp_path: Path):
    assert fail_in_turn(programs, tmp_path, "gpu", 3) > 30


@needs_compiler
@pytest.mark.deep
def test_sanitizers_find_nothing_when_a_driver_fails(programs: Path, checked: None, tmp_path: Path):
    assert fail_in_turn(programs, tmp_path, "checked", 5) > 20


@needs_compiler
@pytest.mark.deep
def test_sanitizers_find_nothing_in_launches(programs: Path, checked: None, tmp_path: Path):
    run_hand_made(programs, tmp_path, "checked")
    damage(programs, tmp_path, "checked", 300)


def _has_driver() -> bool:
    """Whether this machine has a driver of its own."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@needs_compiler
def test_c_says_what_is_wrong_with_a_device(programs: Path, tmp_path: Path):
    plan, data, tensors = hand_made()
    record(tmp_path / "record", tensors)
    write_hand_made(tmp_path / "f.tess", hand_made("cuda:sm_80")[0], data)
    said = run_c(programs, tmp_path).stderr
    assert said == "4 tess_entry_open_on: 'f' has no code for cuda:sm_90\n"
    write_hand_made(tmp_path / "f.tess", plan, data)
    if not _has_driver():
        said = run_c(programs, tmp_path, driver=False).stderr
        assert said.endswith("9 cuda: there is no driver for device 0: there is no libcuda.so.1\n")
    wrong = replace(plan.launches[0], parameters=plan.launches[0].parameters[:3])
    write_hand_made(tmp_path / "f.tess", replace(plan, launches=(wrong, *plan.launches[1:])), data)
    said = run_c(programs, tmp_path).stderr
    assert said == "2 bundle: parameter 3 of kernel 'scale_0' has 8 bytes, its code wants 4\n"


@needs_compiler
def test_c_survives_damaged_launches(programs: Path, tmp_path: Path):
    damage(programs, tmp_path, "gpu", 40)


def damage(programs: Path, tmp_path: Path, program: str, count: int) -> None:
    plan, data, tensors = hand_made()
    record(tmp_path / "record", tensors)
    whole = plan.encode()
    r = np.random.default_rng(2)
    found = set()
    for _ in range(count):
        wrong = bytearray(whole)
        wrong[r.integers(len(wrong))] ^= 1 << r.integers(8)
        if r.random() < 0.2:
            wrong = wrong[: r.integers(len(wrong))]
        damaged = SimpleNamespace(target=plan.target, encode=lambda w=wrong: bytes(w))
        write_hand_made(tmp_path / "f.tess", damaged, data)  # type: ignore[arg-type]
        done = run_c(programs, tmp_path, program)
        assert "Sanitizer" not in done.stderr, done.stderr[-2000:]
        # Fine, or an error of an argument, of the file, of sizes that do not fit, or of the device.
        assert done.returncode in (0, 1, 2, 7, 9), (done.returncode, done.stderr)
        found.add(done.returncode)
    assert 1 in found
