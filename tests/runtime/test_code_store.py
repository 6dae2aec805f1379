"""The store of compiled code: what comes out is what was put in, or nothing."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.core.flags import override
from tessera.runtime import code
from tessera.runtime.code import LlvmSource, Store, key_of, load, load_all

ROOT = Path(__file__).parents[2]
TEXT = """
define i64 @answer() {
  ret i64 %d
}
"""


def source(n):
    return LlvmSource(f"answer {n}", TEXT.replace("%d", str(n)), ("answer",))


def call(loaded):
    return ctypes.CFUNCTYPE(ctypes.c_int64)(loaded.address)()


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache, and a memory that has seen nothing."""
    monkeypatch.setattr(code, "_LOADED", {})
    monkeypatch.setattr(code, "_USELESS", set())
    with override(cache_dir=tmp_path):
        yield Store(tmp_path / "code")


def forget(monkeypatch):
    monkeypatch.setattr(code, "_LOADED", {})


@given(st.binary(max_size=2000), st.binary(min_size=32, max_size=32))
def test_what_is_put_is_got(tmp_path_factory, payload, key):
    store = Store(tmp_path_factory.getbasetemp() / "round trip")
    store.put(key, payload)
    assert store.get(key) == payload
    other = bytes([key[0] ^ 1]) + key[1:]
    store.path(other).unlink(missing_ok=True)
    assert store.get(other) is None


KEY, PAYLOAD = bytes(range(32)), bytes(range(256)) * 2


@pytest.fixture(scope="module")
def entry(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    store.put(KEY, PAYLOAD)
    return store, store.path(KEY).read_bytes()


@given(st.data())
def test_no_damage_gets_through(entry, data):
    """Any cut, any changed byte and anything appended is noticed."""
    store, good = entry
    cut = data.draw(st.integers(0, len(good) - 1))
    flip = bytearray(good)
    flip[cut] ^= data.draw(st.integers(1, 255))
    for bad in (good[:cut], bytes(flip), good + good[cut:], data.draw(st.binary(max_size=700))):
        store.path(KEY).write_bytes(bad)
        with pytest.warns(RuntimeWarning, match="building it again"):
            assert store.get(KEY) is None
    store.path(KEY).write_bytes(good)
    assert store.get(KEY) == PAYLOAD


def header(**changes):
    fields = {"magic": code._MAGIC, "version": code.VERSION, "key": KEY, "length": len(PAYLOAD)}
    fields |= {"digest": hashlib.sha256(PAYLOAD).digest()} | changes
    return code._HEADER.pack(*fields.values()) + PAYLOAD


FAULTS = {
    "is truncated to 10 bytes": header()[:10],
    "is not a file of this cache": header(magic=b"ELFELFEL"),
    f"has format version 99, expected {code.VERSION}": header(version=99),
    "belongs to another kernel or machine": header(key=bytes(32)),
    "has 500 bytes of code, expected 512": header()[:-12],
    "is damaged": header()[:-1] + b"?",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_warning_says_what_is_wrong(tmp_path, fault):
    store = Store(tmp_path)
    store.path(KEY).write_bytes(FAULTS[fault])
    with pytest.warns(RuntimeWarning) as caught:
        assert store.get(KEY) is None
    texts = [str(w.message) for w in caught]
    assert texts == [f"cache: entry {store.path(KEY)} {fault}; building it again"]


def test_code_is_kept_in_memory_then_on_disk(fresh, monkeypatch):
    first = load(source(1))
    assert call(first) == 1
    assert load(source(1)) is first
    assert [p.name for p in fresh.folder.iterdir()] == [fresh.path(key_of(source(1).text)).name]
    forget(monkeypatch)
    # From disk: there is nobody who could build.
    monkeypatch.setattr(code, "build_safely", lambda text, name: pytest.fail(f"built {name}"))
    again = load(source(1))
    assert again is not first
    assert call(again) == 1


def test_several_modules_at_once(fresh):
    assert [call(x) for x in load_all([source(n) for n in (5, 6, 5, 7)])] == [5, 6, 5, 7]
    assert len(list(fresh.folder.iterdir())) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "foreign", "a folder"])
def test_a_damaged_entry_is_built_again_and_replaced(fresh, monkeypatch, damage):
    load_all([source(1), source(2)])
    path, other = (fresh.path(key_of(source(n).text)) for n in (1, 2))
    good = path.read_bytes()
    if damage == "cut":
        path.write_bytes(good[: len(good) // 2])
    elif damage == "flipped":
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "foreign":
        shutil.copy(other, path)
    else:
        path.unlink()
        path.mkdir()
    forget(monkeypatch)
    with pytest.warns(RuntimeWarning, match="building it again|cannot be used"):
        assert call(load(source(1))) == 1
    if damage != "a folder":
        assert path.read_bytes() == good
    assert call(load(source(2))) == 2


@pytest.mark.parametrize("place", ["below a file", "a file", "read-only"])
def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path, fresh, monkeypatch, place):
    blocked = tmp_path / "blocked"
    if place == "read-only":
        (blocked / "code").mkdir(parents=True)
        (blocked / "code").chmod(0o500)
        if os.access(blocked / "code", os.W_OK):
            pytest.skip("this user may write anywhere")
    else:
        blocked.touch()
    with override(cache_dir=blocked / "deeper" if place == "below a file" else blocked):
        with pytest.warns(RuntimeWarning) as caught:
            assert call(load(source(3))) == 3
        (text,) = [str(w.message) for w in caught]
        assert "cannot be used" in text
        assert text.endswith(
            "kernels are built again in every process; set TESSERA_CACHE_DIR to a writable folder"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert call(load(source(4))) == 4
            forget(monkeypatch)
            assert call(load(source(4))) == 4


def test_the_key_depends_on_text_and_machine_and_is_the_same_in_every_process(monkeypatch):
    assert key_of("a") != key_of("b")
    mine = key_of("a")
    code_ = "from tessera.runtime.code import key_of; print(key_of('a').hex())"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code_], env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert seen == {mine.hex()}
    monkeypatch.setattr(code, "architecture", lambda: "another machine")
    assert key_of("a") != mine


WRITER = """
import sys, warnings
from pathlib import Path
from tessera.runtime.code import Store
warnings.simplefilter("error")  # nobody may ever see a damaged entry
store, who = Store(Path(sys.argv[1])), int(sys.argv[2])
for step in range(300):
    key = bytes([step % 10]) * 32
    found = store.get(key)
    assert found is None or found == key * 2000, found
    store.put(key, key * 2000)
print("done")
"""


def test_two_processes_write_one_cache(tmp_path):
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(i)], env={"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip
    for w in writers:
        out, err = w.communicate(timeout=120)
        assert (w.returncode, out, err) == (0, "done\n", "")
    store = Store(tmp_path)
    keys = [bytes([i]) * 32 for i in range(10)]
    assert sorted(p.name for p in tmp_path.iterdir()) == [store.path(k).name for k in keys]
    assert all(store.get(k) == k * 2000 for k in keys)
