"""Bundles: what a file holds, that it is the same bytes every time, and that it runs with the bits of the
function.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.compile.cpu.nests import identity
from tessera.core import flags, processor
from tessera.core.errors import FileError, OperandError, ShapeError
from tessera.deploy import ed25519
from tessera.deploy.targets import PROCESSORS, usable
from tessera.ir.schedule.ir import Kernel
from tessera.ir.schedule.lower import lower
from tessera.ir.schedule.nests.space import nests
from tessera.ir.target.cpu import machine, tiles
from tessera.runtime import code, tuned
from tests.support.runners.levels import prepared
from tools import bundle_digests

ALL = [f"cpu:{n}" for n in PROCESSORS]
HERE = [f"cpu:{n}" for n in usable()]
RNG = np.random.default_rng(3)


def normal(*shape: int) -> Any:
    return ts.tensor(RNG.normal(size=shape).astype(np.float32))


W1, W2, KERNEL, TABLE = normal(16, 32), normal(32, 8), normal(8, 3, 3, 3), normal(50, 32)


def mlp(x: Any) -> Any:
    return op.matmul(op.gelu(op.matmul(x, W1)), W2)


def cnn(x: Any) -> Any:
    y = op.max_pool(op.relu(op.conv2d(x, KERNEL, padding=1)), 2)
    return op.softmax(op.mean(y, axis=(2, 3)), axis=-1)


def spectrum(x: Any) -> Any:
    return op.real(op.ifft2(op.fft2(x)))


def greedy(tokens: Any) -> Any:
    h = op.transpose(op.reshape(op.take(TABLE, tokens, axis=0), (8, 4, 8)), (1, 0, 2))
    a = op.attention(h, h, h, causal=True)
    a = op.layernorm(op.reshape(op.transpose(a, (1, 0, 2)), (8, 32)))
    return op.argmax(op.matmul(a, op.transpose(TABLE, (1, 0))), axis=-1)


def several(x: Any) -> Any:
    return {"sum": op.sum(x), "rest": (op.exp(x) % 1.5, x.astype(ts.bf16), x)}


def sized(x: Tensor["B", "S"], y: Tensor["S", "2*B"]) -> Any:
    return op.softmax(op.matmul(x, y), axis=-1), op.transpose(x, (1, 0))


def counted(x: Any) -> Any:
    return ts.while_loop(lambda s: s[0] < 5.0, lambda s: (s[0] + 1.0, s[1] * 0.5), (0.0, x))[1]


TOKENS = ts.tensor(np.arange(8, dtype=np.int32))
PROGRAMS = {
    "mlp": (mlp, (normal(4, 16),)), "cnn": (cnn, (normal(2, 3, 16, 16),)),
    "spectrum": (spectrum, (normal(16, 16),)), "greedy": (greedy, (TOKENS,)),
    "several": (several, (normal(100),)),
}  # fmt: skip


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in ts.tree.leaves(tree)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bundle_has_the_bits_of_its_function_on_every_processor(name: str, tmp_path: Path):
    f, args = PROGRAMS[name]
    want = ts.jit(f)(*args)
    for target in HERE:
        ts.bundle.save(f, tmp_path / "f.tess", *args, targets=[target])
        b = ts.bundle.load(tmp_path / "f.tess")
        got = b.run(*args)
        assert bits(got) == bits(want)
        assert ts.tree.structure(got) == ts.tree.structure(want)
        assert b.entry(name).target == target


SAVES = """
import sys
import numpy as np
import tessera as ts
from tessera import op
w = ts.tensor(np.linspace(-1, 1, 96, dtype=np.float32).reshape(12, 8))
def f(x):
    return op.softmax(op.matmul(x, w))
ts.bundle.save(f, sys.argv[1], ts.zeros((5, 12)), targets=["cpu:x86-64-v3", "cpu:aarch64"])
"""
ELSEWHERE: list[tuple[str, int, dict[str, str]]] = [
    ("one", 0o022, {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"}),
    ("two/much deeper", 0o077, {
        "PYTHONHASHSEED": "4242", "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "HOME": "/nowhere",
        "USER": "other",
        "TESSERA_THREADS": "3", "HOSTNAME": "other", "SOURCE_DATE_EPOCH": "1",
    }),
]  # fmt: skip


def test_a_bundle_is_the_same_bytes_from_every_folder_and_environment(tmp_path: Path):
    """Folder of the program and of the process, time, umask, hash seed, threads and cache leave no trace."""
    made = []
    for name, mask, env in ELSEWHERE:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "program.py").write_text(SAVES)
        if made:
            os.utime(folder / "program.py", (1e9, 1e9))
        given = {**env, "TESSERA_CACHE_DIR": str(folder / "cache"), "PATH": "/usr/bin:/bin"}
        subprocess.run(
            [sys.executable, str(folder / "program.py"), str(folder / "f.tess")], check=True, cwd=folder,
            umask=mask,
            env={**given, "PYTHONPATH": str(Path(ts.__file__).parent.parent)},
        )  # fmt: skip
        made.append((folder / "f.tess").read_bytes())
    assert made[0] == made[1]


def test_a_bundle_asks_nothing_of_the_machine_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What lowering chooses by is the target's: with a machine that answers otherwise the bytes stay."""
    names = ["cnn", "heat"]
    want = [bundle_digests.make(n, tmp_path / n, ALL)["digest"] for n in names]
    odd = processor.Registers(6, 8, 1, total=8)
    monkeypatch.setattr(processor, "_own_registers", lambda: odd)
    monkeypatch.setattr(processor, "_own_words", lambda: frozenset(["amx_tile", "amx_bf16"]))
    monkeypatch.setattr(processor, "_cache_bytes", lambda index: 4096)
    monkeypatch.setattr(processor, "cores", lambda: 61)
    monkeypatch.setattr(machine, "_features", lambda: "")
    monkeypatch.setattr(code, "architecture", lambda: "another")
    monkeypatch.setattr(tiles, "host_features", lambda: frozenset())
    with flags.override(cache_dir=tmp_path / "cache"):
        found = [bundle_digests.make(n, tmp_path / n, ALL)["digest"] for n in names]
    assert found == want


def test_tuned_nests_are_part_of_a_bundle(tmp_path: Path):
    """Nests of a file, tuned elsewhere, are those of the kernels; results stay, the count is in the
    manifest.
    """
    x = normal(64, 16)
    rows = []
    for p in PROCESSORS.values():
        with processor.assume(p):
            program = lower(prepared(ts.trace(mlp, x)))
            types = {n: b.type for n, b in program.buffers.items()}
            kernels = [k for k in program.steps if isinstance(k, Kernel)]
            found = [(identity(k, types), n) for k in kernels for n in list(nests(k))[1:4]]
            place = tuned.neutral().partition(" caches")[0] + " caches=128K,8192K"
        row = {
            "sizes": "",
            "place": place,
            "versions": tuned.versions(),
            "seconds": 1.0,
            "before": 2.0,
        }
        rows += [{**row, "kernel": k, "nest": str(n)} for k, n in found]
    (tmp_path / "nests.json").write_text(json.dumps({"version": 2, "tuned": rows}))
    ts.bundle.save(mlp, tmp_path / "plain", x, targets=ALL)
    ts.bundle.save(mlp, tmp_path / "tuned", x, targets=ALL, tuned=tmp_path / "nests.json")
    plain, with_nests = (ts.bundle.load(tmp_path / n) for n in ("plain", "tuned"))
    assert all(with_nests.manifest["tuned"][t] > 0 for t in ALL)
    codes = [
        [s.digest for s in b.container.sections if s.kind == "code"] for b in (plain, with_nests)
    ]
    assert all(a != b for a, b in zip(*codes, strict=True))
    if HERE:
        assert bits(with_nests.run(x)) == bits(plain.run(x)) == bits(ts.jit(mlp)(x))
    with pytest.raises(OperandError, match="no kernel for cpu:aarch64 has a nest in the file"):
        ts.bundle.save(
            several,
            tmp_path / "f",
            normal(3),
            targets=["cpu:aarch64"],
            tuned=tmp_path / "nests.json",
        )


def test_loops_are_chosen_for_the_threads_that_will_run_them(tmp_path: Path):
    """Other code for one thread than for 16, with the same bits; the manifest has the number."""
    x = normal(192, 16)
    for n in (None, 1, 16):
        ts.bundle.save(mlp, tmp_path / f"{n}", x, targets=ALL, threads=n)
    plain, one, many = (ts.bundle.load(tmp_path / f"{n}") for n in (None, 1, 16))
    assert "threads" not in plain.manifest
    assert (one.manifest["threads"], many.manifest["threads"]) == (1, 16)
    for t in ALL:
        assert one.container.read(f"code/mlp/{t}") != many.container.read(f"code/mlp/{t}")
    if HERE:
        assert bits(one.run(x)) == bits(many.run(x)) == bits(ts.jit(mlp)(x))
    ts.bundle.link(tmp_path / "linked", {"one": one}, targets=HERE, threads=1)
    assert ts.bundle.load(tmp_path / "linked").manifest["threads"] == 1


@pytest.mark.parametrize("n", [0, -1, 1025, 2.0, True, "4"])
def test_a_number_of_threads_that_no_machine_has_is_refused(tmp_path: Path, n: Any):
    with pytest.raises(OperandError, match=r"bundle: threads is .*, expected how many threads"):
        ts.bundle.save(mlp, tmp_path / "f", normal(64, 16), threads=n)
    assert not (tmp_path / "f").exists()


def test_two_lists_of_digests_are_compared_by_section():
    f = {"digest": "1", "tools": {"llvm": "1"}, "sections": {"manifest": "a", "code/f": "b"}}
    mine = {"f": f}
    other = {
        "f": {**f, "digest": "2", "sections": {"manifest": "a", "code/f": "c", "plan/f": "d"}},
        "g": f,
    }
    assert bundle_digests.differences(mine, mine) == []
    assert bundle_digests.differences(mine, other) == ["f: code/f", "f: plan/f"]
    assert bundle_digests.differences(mine, {"f": {**f, "digest": "3"}}) == ["f: the header"]
    newer = {"f": {**f, "digest": "3", "tools": {"llvm": "2"}}}
    assert bundle_digests.differences(mine, newer) == []
    told = bundle_digests.compared({"bundles": mine}, {"machine": "m", "bundles": newer})
    assert (told["bundles"], list(told["not compared, other tools"])) == (0, ["f"])


def test_sizes_that_are_equal_in_the_example_stay_different(tmp_path: Path):
    ts.bundle.save(sized, tmp_path / "f", normal(3, 3), normal(3, 6))
    b = ts.bundle.load(tmp_path / "f")
    x, y = normal(4, 5), normal(5, 8)
    assert bits(b.run(x, y)) == bits(ts.jit(sized)(x, y))
    with pytest.raises(ShapeError, match=r"y is f32\[4,8\]|S"):
        b.run(x, normal(4, 8))


def test_annotations_stand_for_arguments(tmp_path: Path):
    def double(x: Any) -> Any:
        return x + x

    ts.bundle.save(double, tmp_path / "f", Tensor["n", 4])
    x = normal(7, 4)
    assert bits(ts.bundle.load(tmp_path / "f").run(x)) == bits(x + x)


def test_several_entry_points_share_their_weights(tmp_path: Path):
    weights = {"w": normal(16, 24), "b": normal(24)}

    def forward(p: Any, x: Any) -> Any:
        return op.relu(op.matmul(x, p["w"]) + p["b"])

    def backward(p: Any, y: Any) -> Any:
        return op.matmul(y, op.transpose(p["w"], (1, 0)))

    x, y = normal(3, 16), normal(3, 24)
    both = {"forward": (forward, x), "backward": (backward, y)}
    ts.bundle.save(both, tmp_path / "f", weights=weights)
    b = ts.bundle.load(tmp_path / "f")
    assert b.entries == ("backward", "forward") or b.entries == ("forward", "backward")
    assert bits(b.entry("forward").run(x)) == bits(ts.jit(forward)(weights, x))
    assert bits(b.entry("backward")(y)) == bits(ts.jit(backward)(weights, y))
    assert sorted(b.weights) == ["p.b", "p.w"]
    with pytest.raises(OperandError, match="say which"):
        b.run(x)


def test_steps_that_only_python_can_run_are_named_when_the_bundle_is_made(tmp_path: Path):
    def spectrum_of(x: Any) -> Any:
        return op.eigvalsh(x)

    x = normal(4, 4)
    with pytest.raises(OperandError, match=r"steps that only Python can run: eigvalsh"):
        ts.bundle.save(spectrum_of, tmp_path / "f", x)
    ts.bundle.save(spectrum_of, tmp_path / "f", x, python_only=True)
    hosted = ts.bundle.load(tmp_path / "f").entry("spectrum_of").row["hosted"]
    assert set(map(tuple, hosted.values())) == {("eigvalsh",)}  # and no place of this machine
    assert str(Path(__file__).parent).encode() not in (tmp_path / "f").read_bytes()
    with pytest.raises(OperandError, match=r"det of complex numbers \(at .*by op.real, op.imag"):
        ts.bundle.save({"f": (lambda z: op.det(op.fft(z)), x)}, tmp_path / "g")
    assert bits(ts.bundle.load(tmp_path / "f").run(x)) == bits(ts.jit(spectrum_of)(x))


def test_an_unknown_processor_compiles_the_graph(tmp_path: Path):
    other = "cpu:aarch64" if HERE and "x86" in HERE[0] else "cpu:x86-64-v3"
    ts.bundle.save(mlp, tmp_path / "f", normal(4, 16), targets=[other])
    x = normal(4, 16)
    with pytest.warns(RuntimeWarning, match="compiled from its Graph IR"):
        got = ts.bundle.load(tmp_path / "f").run(x)
    assert bits(got) == bits(ts.jit(mlp)(x))


def test_signatures(tmp_path: Path):
    key, other = bytes(range(32)), ed25519.public(bytes(32))
    ts.bundle.save(mlp, tmp_path / "f", normal(4, 16), key=key)
    ts.bundle.load(tmp_path / "f", trusted=[other, ed25519.public(key)])
    with pytest.raises(FileError, match="none of the keys"):
        ts.bundle.load(tmp_path / "f", trusted=[other])
    ts.bundle.save(mlp, tmp_path / "g", normal(4, 16))
    with pytest.raises(FileError, match="is not signed"):
        ts.bundle.load(tmp_path / "g", trusted=[other])
    data = bytearray((tmp_path / "f").read_bytes())
    data[110] ^= 1  # of the signature
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(FileError, match="signature that is wrong"):
        ts.bundle.load(tmp_path / "f", trusted=[ed25519.public(key)])


# RFC 8032, section 7.1: secret key, public key, message, signature.
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
    ),
]


@pytest.mark.parametrize("i", range(len(VECTORS)))
def test_ed25519_agrees_with_the_rfc(i: int):
    secret, public, message, signature = map(bytes.fromhex, VECTORS[i])
    assert ed25519.public(secret) == public
    assert ed25519.sign(secret, message) == signature
    assert ed25519.verify(public, message, signature)
    assert not ed25519.verify(public, message + b"x", signature)


def test_keys_of_small_order_sign_nothing():
    """For the eight points whose eightfold is zero, anybody finds signatures of some messages."""
    found = set()
    for y in range(200):
        a = ed25519._point(y.to_bytes(32, "little"))
        if a is not None:
            found.add(ed25519._packed(ed25519._times(ed25519._L, a)))
    assert len(found) == 8
    assert bytes(32) in found
    message = b"tessera"
    forged = [(k, r + bytes(32)) for k in found for r in found]
    assert not any(ed25519.verify(k, message, s) for k, s in forged)
    own = ed25519.public(bytes(range(32)))
    assert not any(ed25519.verify(own, message, r + bytes(32)) for r in found)


def test_wrong_arguments_are_named(tmp_path: Path):
    with pytest.raises(
        OperandError, match=r"target 'cpu:z80' is unknown, expected one of cpu:x86-64-v3"
    ):
        ts.bundle.save(mlp, tmp_path / "f", normal(4, 16), targets=["cpu:z80"])
    with pytest.raises(OperandError, match="expected a list"):
        ts.bundle.save(mlp, tmp_path / "f", normal(4, 16), targets="cpu:x86-64-v3")
    with pytest.raises(FileError, match="there is no file"):
        ts.bundle.load(tmp_path / "nothing")
    ts.bundle.save(mlp, tmp_path / "f", normal(4, 16))
    b = ts.bundle.load(tmp_path / "f")
    with pytest.raises(OperandError, match=r"mlp: got 2 tensors, expected 1: x: f32\[4,16\]"):
        b.run(normal(4, 16), normal(4, 16))
    with pytest.raises(OperandError, match="has no entry 'g'; it has mlp"):
        b.entry("g")
