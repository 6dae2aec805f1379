"""Hostile bundles: damaged and forged files are refused with a clear error, and crash neither reader."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import struct
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.core.errors import FileError, TesseraError
from tessera.deploy.container import ENTRY_BYTES, HEADER_BYTES
from tessera.deploy.targets import usable
from tessera.native import INCLUDE

HERE = Path(__file__).parents[1] / "native"
COMPILER = shutil.which("gcc") or shutil.which("cc")
W = ts.tensor(np.linspace(-1, 1, 70, dtype=np.float32).reshape(7, 10))


def program(x: Tensor["n", 7], y: Tensor["2*n"]) -> Any:
    t = op.transpose(op.matmul(x, W), (1, 0))
    carry, ys = ts.scan(
        lambda c, v: (c + v, c * v), ts.zeros(()), ts.tensor(np.ones(5, np.float32))
    )
    either = ts.cond(carry > 0.0, lambda a: op.matmul(a, W), lambda a: op.matmul(a, W) + 1.0, x)
    square = op.matmul(op.transpose(W, (1, 0)), W)  # once, from constants alone

    def turn(c: Any, _: Any) -> Any:
        return (op.tanh(c[1] * 2.0), op.matmul(c[0], square)), None

    turned, _ = ts.scan(turn, (either, either + 1.0), None, length=3)
    return op.softmax(t), t, op.sum(y) + carry, ys, turned, op.topk(y, 1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "whole.tess"
    targets = [f"cpu:{usable()[-1]}"] if usable() else None
    ts.bundle.save(program, path, Tensor["n", 7], Tensor["2*n"], targets=targets)
    return path


def mended(data: bytearray) -> bytearray:
    """The bytes with digests that fit them."""
    count = struct.unpack_from("<I", data, 12)[0]
    end = HEADER_BYTES + ENTRY_BYTES * count
    for at in range(HEADER_BYTES, min(end, len(data) - ENTRY_BYTES), ENTRY_BYTES):
        offset, size = struct.unpack_from("<QQ", data, at + 8)
        if offset + size <= len(data):
            data[at + 24 : at + 56] = hashlib.sha256(data[offset : offset + size]).digest()
    data[32:64] = hashlib.sha256(data[:32] + data[HEADER_BYTES:end]).digest()
    return data


def look(path: Path) -> None:
    """Open a bundle and make its program, which is not run."""
    b = ts.bundle.load(path)
    for name in b.entries:
        b.entry(name)._made()


def changed(data: bytes, r: random.Random) -> bytearray:
    out = bytearray(data)
    sections = struct.unpack_from("<I", data, 12)[0]
    for _ in range(r.randint(1, 3)):
        at = r.randrange(HEADER_BYTES + ENTRY_BYTES * sections)
        if r.random() < 0.7:
            row = HEADER_BYTES + ENTRY_BYTES * r.randrange(sections)
            offset, size = struct.unpack_from("<QQ", data, row + 8)
            at = offset + r.randrange(max(size, 1))
        out[min(at, len(out) - 1)] ^= 1 << r.randrange(8)
    return out


def attempt(whole: Path, path: Path, seeds: range) -> None:
    data = whole.read_bytes()
    for seed in seeds:
        r = random.Random(seed)
        out = changed(data, r)
        if r.random() < 0.05:
            del out[r.randrange(len(out)) :]
        elif r.random() < 0.8:
            out = mended(out)
        path.write_bytes(out)
        with contextlib.suppress(TesseraError), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a target that is damaged has no code
            look(path)


def test_python_survives_damaged_bundles(whole: Path, tmp_path: Path):
    attempt(whole, tmp_path / "f", range(120))


@pytest.mark.deep
def test_python_survives_thousands(whole: Path, tmp_path: Path):
    attempt(whole, tmp_path / "f", range(1000, 6000))


def test_every_changed_byte_is_found(whole: Path, tmp_path: Path):
    data = whole.read_bytes()
    for seed in range(60):
        out = bytearray(data)
        out[random.Random(seed).randrange(len(out))] ^= 1 + seed % 255
        (tmp_path / "f").write_bytes(out)
        unsigned = out[:64] == data[:64] and out[256:] == data[256:]
        if unsigned:  # the place of a signature, which is not asked for
            continue
        with pytest.raises(FileError):
            ts.bundle.load(tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("empty", b""),
        ("short", b"TESSERAB"),
        ("zip", b"PK\3\4" + bytes(400)),
        ("zeros", bytes(4096)),
    ],
)
def test_other_files_are_refused(name: str, data: bytes, tmp_path: Path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FileError, match=r"is no bundle|is empty"):
        ts.bundle.load(tmp_path / name)


def test_versions_sizes_and_folders_are_said(whole: Path, tmp_path: Path):
    data = bytearray(whole.read_bytes())
    (tmp_path / "cut").write_bytes(data[:-1])
    with pytest.raises(FileError, match="it is truncated or damaged"):
        ts.bundle.load(tmp_path / "cut")
    data[8] = 2
    (tmp_path / "newer").write_bytes(data)
    with pytest.raises(FileError, match="has format version 2, expected 1"):
        ts.bundle.load(tmp_path / "newer")
    with pytest.raises(FileError, match="cannot be read"):
        ts.bundle.load(tmp_path)


def test_pipes_and_links_that_lead_nowhere_are_refused_at_once(whole: Path, tmp_path: Path):
    """A pipe would be waited for, and a link to itself followed."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in ("pipe", "link", "round"):
        with pytest.raises(FileError, match=r"cannot be read \("):
            ts.bundle.load(tmp_path / name)
        for suffix in ("safetensors", "safetensors.index.json"):
            (tmp_path / f"{name}.{suffix}").symlink_to(tmp_path / name)
            with pytest.raises(FileError):
                ts.load(tmp_path / f"{name}.{suffix}")
    with pytest.raises(FileError):
        ts.bundle.load("/dev/zero")
    (tmp_path / "good").symlink_to(whole)
    look(tmp_path / "good")


def test_what_stands_where_a_signature_may_stand_is_looked_at(whole: Path, tmp_path: Path):
    data = whole.read_bytes()
    for at, bit in [(64, 1), (64, 2), (68, 1), (72, 1), (104, 1), (167, 1), (168, 1), (255, 1)]:
        out = bytearray(data)
        out[at] |= bit
        (tmp_path / "f").write_bytes(out)
        if (at, bit) == (64, 1):  # the signature of a key of zeros, which only a demand looks at
            with pytest.raises(FileError, match=r"none of the keys|signature"):
                ts.bundle.load(tmp_path / "f", trusted=[bytes(32)])
            continue
        with pytest.raises(FileError, match="signature"):
            ts.bundle.load(tmp_path / "f")


def mutate(whole: Path, folder: Path, count: int, *flags: str) -> None:
    front = [str(COMPILER), "-D_GNU_SOURCE", "-I", str(INCLUDE), *flags, "-pthread"]
    subprocess.run([*front, str(HERE / "mutate.c"), "-o", str(folder / "mutate")], check=True)
    run = [str(folder / "mutate"), str(whole), str(count), "1"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])


@pytest.mark.skipif(not (COMPILER and usable()), reason="no C compiler for this processor")
def test_c_survives_damaged_bundles(whole: Path, tmp_path: Path):
    mutate(whole, tmp_path, 500, "-O1")


@pytest.mark.deep
@pytest.mark.skipif(not (COMPILER and usable()), reason="no C compiler for this processor")
def test_c_survives_a_hundred_thousand_under_sanitizers(whole: Path, tmp_path: Path):
    checks = "-fsanitize=address,undefined"
    mutate(whole, tmp_path, 100_000, "-O1", "-g", checks, "-fno-sanitize-recover=all")
