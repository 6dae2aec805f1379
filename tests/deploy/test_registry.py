"""The registry of bundles, and the commands for bundles and registries."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import cli, op
from tessera.core.errors import FileError, OperandError
from tessera.deploy import ed25519
from tessera.deploy.registry import Registry

WEIGHTS = ts.tensor(np.linspace(-1, 1, 2000, dtype=np.float32).reshape(10, 200))
X = ts.tensor(np.ones((3, 10), np.float32))


def first(x: Any) -> Any:
    return op.matmul(x, WEIGHTS)


def second(x: Any) -> Any:
    return op.relu(op.matmul(x, WEIGHTS))


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    for f in (first, second):
        ts.bundle.save(f, tmp_path / f"{f.__name__}.tess", X)
    r = Registry(tmp_path / "registry")
    r.put(tmp_path / "first.tess", "model")
    r.put(tmp_path / "second.tess", "model")
    r.put(tmp_path / "first.tess", "other")
    return r


def test_what_is_put_is_got_byte_for_byte(registry: Registry, tmp_path: Path):
    for name, file in (("model", "second"), ("other", "first")):
        digest = registry.get(name, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == (tmp_path / f"{file}.tess").read_bytes()
        assert registry.get(digest[:12], tmp_path / "got") == digest
    old = registry.names()["model"][0]
    assert registry.get(f"model@{old[:8]}", tmp_path / "got") == old
    with pytest.raises(OperandError, match=r"there is no bundle 'x' in .*; it has model, other"):
        registry.get("x", tmp_path / "got")


def test_bundles_share_their_weights(registry: Registry, tmp_path: Path):
    files = sum(f.stat().st_size for f in (tmp_path / "registry" / "blobs").iterdir())
    both = sum((tmp_path / f"{n}.tess").stat().st_size for n in ("first", "second"))
    assert files < both - 8000


def test_gc_keeps_what_is_needed(registry: Registry, tmp_path: Path):
    assert registry.gc(keep=2) == (0, 0)
    removed, size = registry.gc()
    assert (removed, size) == (0, 0), "the older bundle of one name is the newest of another"
    registry.put(tmp_path / "second.tess", "other")
    removed, size = registry.gc()
    assert removed > 0
    assert size > 0
    assert registry.verify() == []
    registry.get("other", tmp_path / "got")


def test_damage_is_found_and_nothing_is_given_out(registry: Registry, tmp_path: Path):
    blob = max((tmp_path / "registry" / "blobs").iterdir(), key=lambda f: f.stat().st_size)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    assert registry.verify()
    with pytest.raises(FileError, match="is damaged"):
        registry.get("model", tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_an_index_is_not_believed(tmp_path: Path):
    folder = tmp_path / "r"
    folder.mkdir()
    for text in (
        '{"format": 1, "names": {"../x": ["00"]}}',
        "[]",
        '{"format": 2, "names": {}}',
        "{",
    ):
        (folder / "index.json").write_text(text)
        with pytest.raises(FileError, match="is no index of format 1"):
            Registry(folder).names()
    with pytest.raises(OperandError, match="letters, digits"):
        Registry(folder).put("f", "../x")


def hostile_head(folder: Path, size: int) -> str:
    """A registry whose only bundle states sections of any size, with digests that fit."""
    row = struct.pack("<IIQQ32s72s", 1, 0, 4096, size, bytes(32), b"manifest")
    front = struct.pack("<8sIIQQ", b"TESSERAB", 1, 1, 4096 + size, 256)
    digest = hashlib.sha256(front + row).digest()
    for name in ("heads", "blobs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "heads" / digest.hex()).write_bytes((front + digest).ljust(256, b"\0") + row)
    (folder / "blobs" / bytes(32).hex()).write_bytes(b"x" * 5000)
    (folder / "index.json").write_text(
        json.dumps({"format": 1, "names": {"model": [digest.hex()]}})
    )
    return digest.hex()


@pytest.mark.parametrize("size", [1, 5001, 1 << 50, (1 << 63) - 8192])
def test_sizes_that_are_promised_take_no_memory(size: int, tmp_path: Path):
    hostile_head(tmp_path / "r", size)
    r = Registry(tmp_path / "r")
    with pytest.raises(FileError, match=r"is damaged|more bytes than"):
        r.get("model", tmp_path / "got")
    assert len(r.verify()) == 1
    assert not (tmp_path / "got").exists()


def test_a_pipe_in_a_registry_is_not_waited_for(tmp_path: Path):
    (tmp_path / "r").mkdir()
    os.mkfifo(tmp_path / "r" / "index.json")
    with pytest.raises(FileError, match=r"cannot be read \(.*no regular file"):
        Registry(tmp_path / "r").names()


def test_signing_keeps_the_digest_and_what_is_signed_stays_signed(
    registry: Registry, tmp_path: Path
):
    key = bytes(range(32))
    digest = registry.digest_of("model")
    with pytest.raises(OperandError, match="a secret key is 32 bytes, got bytes of 3"):
        registry.sign("model", b"abc")
    assert registry.sign("model", key) == digest
    registry.put(tmp_path / "second.tess", "again")  # which is not signed
    registry.get("again", tmp_path / "got")
    got = ts.bundle.load(tmp_path / "got", trusted=[ed25519.public(key)])
    assert got.run(X).numpy().tobytes() == ts.jit(second)(X).numpy().tobytes()
    ts.bundle.save(second, tmp_path / "signed.tess", X, key=key)
    assert (tmp_path / "signed.tess").read_bytes() == (tmp_path / "got").read_bytes()
    blob = max((registry.folder / "blobs").iterdir(), key=lambda f: f.stat().st_size)
    blob.write_bytes(b"")
    with pytest.raises(FileError, match="is damaged"):
        registry.sign("model", key)
    registry.put(tmp_path / "second.tess", "model")  # mends what was damaged
    assert registry.verify() == []


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(registry: Registry) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(registry.folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as s:
        thread = threading.Thread(target=s.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{s.server_port}/"
        s.shutdown()
        thread.join()


def test_a_server_of_files_is_a_registry(server: str, tmp_path: Path):
    r = Registry(server)
    assert [row.name for row in r.rows()] == ["model", "model", "other"]
    r.get("model", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == (tmp_path / "second.tess").read_bytes()
    with pytest.raises(OperandError, match="can only be read"):
        r.put(tmp_path / "first.tess", "model")


def test_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("f.py").write_text(
        "import tessera as ts\nfrom tessera import Tensor, op\n"
        '@ts.jit\ndef double(x: Tensor["n", 4]):\n    return x + x\n'
        '@ts.jit\ndef triple(x: Tensor["n", 4]):\n    return x + x + x\n'
    )
    np.save("x.npy", np.ones((3, 4), np.float32))
    Path("key").write_bytes(bytes(range(32)))

    def run(*argv: str) -> tuple[int, str]:
        status = cli.main(argv)
        shown = capsys.readouterr()
        return status, shown.out + shown.err

    assert run("bundle", "build", "f.py:double", "--key", "key")[0] == 0
    assert (
        run("bundle", "build", "f.py:triple", "--target", "cpu:x86-64-v3", "--out", "t.tess")[0]
        == 0
    )
    status, text = run("bundle", "inspect", "double.tess")
    assert status == 0
    assert "double(x: f32[n,4]) -> output0: f32[n,4]" in text
    assert "signed by 03a107bff3ce10be" in text
    assert json.loads(run("bundle", "inspect", "t.tess", "--json")[1])["format"] == 1
    assert run("bundle", "verify", "double.tess")[0] == 0
    assert run("bundle", "verify", "double.tess", "--trust", "00" * 32)[0] == 1
    assert run("bundle", "run", "double.tess", "--input", "x.npy", "--output", "o")[0] == 0
    assert np.load("o/0_output0.npy").tolist() == [[2.0] * 4] * 3
    status, text = run("bundle", "diff", "double.tess", "t.tess")
    assert status == 1
    assert "graph/double: only in double.tess" in text
    assert any(x.startswith("manifest: ") and "byte" not in x for x in text.splitlines())
    assert run("bundle", "diff", "t.tess", "t.tess")[0] == 0
    assert run("bundle", "runtime", "c")[0] == 0
    assert Path("c/tessera/tessera.h").exists()
    assert run("registry", "put", "r", "double.tess", "--name", "double")[0] == 0
    assert "double" in run("registry", "list", "r")[1]
    assert run("registry", "get", "r", "double", "--out", "g.tess")[0] == 0
    assert Path("g.tess").read_bytes() == Path("double.tess").read_bytes()
    assert run("registry", "sign", "r", "double", "--key", "key")[1].endswith(
        "signed by 03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8\n"
    )
    assert run("registry", "sign", "r", "double", "--key", "none")[0] == 1
    assert run("registry", "verify", "r") == (0, "every bundle is whole\n")
    assert run("registry", "gc", "r")[0] == 0
    assert run("registry", "get", "r", "nothing")[0] == 1
