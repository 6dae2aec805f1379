"""Whatever stands in the cache: never an error, never a wrong result, never a wait, and nothing of other
users'.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import cache, op
from tessera.compile import artifact as image
from tessera.core.flags import override
from tessera.runtime import archive, code, folder, triton_builder, tuned

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes of POSIX")


def program(x: Any, w: Any) -> Any:
    return op.softmax(x @ w) + op.exp(x)


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(ts.tensor(rng.standard_normal((6, 6)).astype(np.float32)) for _ in range(2))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, as a process finds it that has loaded nothing."""
    monkeypatch.setattr(code, "_LOADED", {})
    monkeypatch.setattr(code, "_USELESS", set())
    monkeypatch.setattr(tuned, "_REFUSED", set())
    with override(cache_dir=tmp_path / "cache", verify=False):
        yield tmp_path / "cache"


def again(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The result in what is as good as a new process."""
    monkeypatch.setattr(code, "_LOADED", {})
    monkeypatch.setattr(code, "_USELESS", set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return ts.jit(program)(*data()).numpy().tobytes()


def files(kept: Path) -> list[Path]:
    return sorted(p for kind in ("code", "programs") for p in (kept / kind).iterdir())


# The generator: what may happen to a file


def flipped(p: Path, rng: random.Random, others: list[Path]) -> None:
    bad = bytearray(p.read_bytes())
    for _ in range(rng.choice((1, 1, 8))):
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    p.write_bytes(bad)


def cut(p: Path, rng: random.Random, others: list[Path]) -> None:
    whole = p.read_bytes()
    p.write_bytes(whole[: rng.randrange(len(whole))])


def swapped(p: Path, rng: random.Random, others: list[Path]) -> None:
    shutil.copy(rng.choice(others), p)


def a_folder(p: Path, rng: random.Random, others: list[Path]) -> None:
    p.unlink()
    p.mkdir()


def a_link(p: Path, rng: random.Random, others: list[Path]) -> None:
    p.unlink()
    p.symlink_to(rng.choice([*others, Path("/dev/zero"), p, Path("nowhere")]))


def a_pipe(p: Path, rng: random.Random, others: list[Path]) -> None:
    p.unlink()
    os.mkfifo(p)


def refilled(p: Path, rng: random.Random, others: list[Path]) -> None:
    """A head and a hash that are right, with what is no program or no machine code."""
    whole = p.read_bytes()
    payload = whole[code._HEADER.size :]
    half = bytearray(payload)
    half[rng.randrange(len(half)) :] = b""
    noise = bytearray(payload)
    noise[rng.randrange(40)] ^= 255
    wrong: list[bytes] = [b"", b"{}", b"[]", b"null", b"\x7fELF", bytes(half), rng.randbytes(300)]
    if p.parent.name == "programs":
        wrong += [
            payload.replace(b'"x0"', b'"x1"', 1),
            payload.replace(b'["f32",[6,6]]', b'["f32",[6,7]]'),
        ]
    else:
        wrong += [bytes(noise)] if noise[:4] != payload[:4] else []
    rewrite(p, rng.choice([w for w in wrong if w != payload]))


def rewrite(p: Path, payload: bytes) -> None:
    key = bytes.fromhex(p.name.removesuffix(".code"))
    digest = hashlib.sha256(payload).digest()
    p.write_bytes(code._HEADER.pack(code._MAGIC, code.VERSION, key, len(payload), digest) + payload)


DAMAGES: list[Callable[..., None]] = [flipped, cut, swapped, a_folder, a_link, a_pipe, refilled]


@posix
@pytest.mark.parametrize("seed", range(4))
def test_no_damage_of_the_cache_is_an_error_or_a_wrong_result(kept, monkeypatch, seed):
    rng, expected = random.Random(seed), again(monkeypatch)
    spare = kept.parent / "spare"
    shutil.copytree(kept, spare)
    for _ in range(12):
        all_files = files(kept)
        for p in rng.sample(all_files, rng.choice((1, 2, len(all_files)))):
            rng.choice(DAMAGES)(p, rng, files(spare))
        assert again(monkeypatch) == expected
        shutil.rmtree(kept)
        shutil.copytree(spare, kept)


@posix
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.__name__)
@pytest.mark.parametrize("kind", ["code", "programs"])
def test_a_damaged_entry_is_told_and_built_again_once(kept, monkeypatch, damage, kind):
    expected = again(monkeypatch)
    made = ts.jit(program).lower(*data())._executable.image
    key = (
        made.codes[0][0].hex() if kind == "code" else ""
    )  # not that of the pool, which runs already
    path = next(p for p in files(kept) if p.parent.name == kind and p.name.startswith(key))
    others = [p for p in files(kept) if p != path]
    damage(path, random.Random(3), others)
    monkeypatch.setattr(code, "_LOADED", {})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert ts.jit(program)(*data()).numpy().tobytes() == expected
    assert any("building it again" in str(w.message) for w in caught)
    if damage is a_folder:
        return
    monkeypatch.setattr(code, "_LOADED", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ts.jit(program)(*data()).numpy().tobytes() == expected


def test_a_program_with_a_right_hash_and_wrong_content_is_built_again(kept, monkeypatch):
    expected = again(monkeypatch)
    (path,) = (kept / "programs").iterdir()
    rewrite(path, b'{"buffers": {}}')
    with pytest.warns(RuntimeWarning) as caught:
        assert ts.jit(program)(*data()).numpy().tobytes() == expected
    assert [str(w.message) for w in caught] == [
        f"cache: entry {path} holds no program that fits the graph; building it again"
    ]


def test_the_program_of_another_graph_does_not_fit():
    made = {}
    for name, f in (("a", lambda x: op.exp(x) + 1), ("b", lambda x: op.sum(x, axis=0))):
        e = ts.jit(f, target="cpu").lower(op.ones((3, 4)))._executable
        made[name] = e.image, e.graph
    for name, (one, g) in made.items():
        image.demand_fit(image.decode(image.encode(one, g), g), g)
        other, _ = made["b" if name == "a" else "a"]
        with pytest.raises(ValueError, match="image"):
            image.demand_fit(other, g)


# Owners and modes


@posix
def test_the_cache_is_the_users_alone_whatever_the_umask(tmp_path):
    script = (
        "import os; os.umask(0)\nimport tessera as ts\nfrom tessera import op\nfrom tessera.runtime import "
        "tuned\n"
        "ts.jit(lambda x: op.exp(x) * 2)(op.ones((3,)))\n"
        "tuned.keep(tuned.Tuned('k', '', '', 1.0, 1.0))\n"
    )
    root = tmp_path / "new" / "cache"
    env = os.environ | {"TESSERA_CACHE_DIR": str(root), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
    found = [root.parent, root, *root.rglob("*")]
    assert len(found) > 6
    assert {p.name: oct(p.stat().st_mode & 0o077) for p in found if p.stat().st_mode & 0o077} == {}


@posix
def test_an_entry_of_another_user_is_not_loaded(kept, monkeypatch):
    expected = again(monkeypatch)
    monkeypatch.setattr(folder, "_is_ours", lambda s: not stat.S_ISREG(s.st_mode))
    monkeypatch.setattr(code, "_LOADED", {})
    with pytest.warns(RuntimeWarning, match=r"belongs to another user; building it again"):
        assert ts.jit(program)(*data()).numpy().tobytes() == expected


@posix
def test_an_entry_that_others_may_write_is_not_loaded(kept, monkeypatch):
    expected = again(monkeypatch)
    for p in files(kept):
        p.chmod(0o666)
    monkeypatch.setattr(code, "_LOADED", {})
    with pytest.warns(RuntimeWarning, match=r"can be written by other users; building it again"):
        assert ts.jit(program)(*data()).numpy().tobytes() == expected
    assert {oct(p.stat().st_mode & 0o777) for p in (kept / "programs").iterdir()} == {"0o600"}


@posix
def test_a_folder_of_another_user_is_told_and_left_alone(kept, monkeypatch):
    monkeypatch.setattr(folder, "_is_ours", lambda s: False)
    with pytest.warns(RuntimeWarning, match=r"cannot be used \(it belongs to another user\)"):
        ts.jit(lambda x: op.exp(x) - 3)(op.ones((3,)))
    assert list(kept.rglob("*.code")) == []


# The store of the tuner


def a_table_of_other_columns(p: Path) -> None:
    p.unlink()
    with closing(sqlite3.connect(p)) as db, db:
        db.execute("create table tuned (a, b)")


def rows_of_other_kinds(p: Path) -> None:
    with closing(sqlite3.connect(p)) as db, db:
        db.execute("update tuned set nest = x'00ff', seconds = 'soon'")
        db.execute("update measured set features = '[1, '")
        db.execute("insert into peaks values ('here', 1, 'fast', null)")


def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def run(p: Path) -> None:
        p.unlink()
        make(p)

    return run


STORES: dict[str, Callable[[Path], None]] = {
    "other columns": a_table_of_other_columns,
    "rows of other kinds": rows_of_other_kinds,
    "a pipe": replaced(os.mkfifo),
    "a device": replaced(lambda p: p.symlink_to("/dev/zero")),
    "a folder": replaced(Path.mkdir),
    "noise": lambda p: p.write_bytes(random.Random(1).randbytes(9000)),
    "cut": lambda p: p.write_bytes(p.read_bytes()[:5000]),
    "empty": lambda p: p.write_bytes(b""),
}


@posix
@pytest.mark.parametrize("damage", STORES)
def test_no_damage_of_the_tuners_store_stops_a_program_or_the_tuner(kept, damage):
    m = tuned.MeasuredNest("k", "", "m:6", 1.0, 0.5, (1.0, 2.0))
    tuned.keep(tuned.Tuned("k", "", "m:6", 1.0, 2.0), [m])
    STORES[damage](kept / "tune.sqlite")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        f = ts.jit(lambda x: op.exp(x) + 2.0)
        assert f(op.ones((3,))).shape == (3,)
        assert len(ts.tune(f, op.ones((64,)), budget_ms=30)) == 1
        assert f(op.ones((3,))).shape == (3,)


@posix
@pytest.mark.parametrize("seed", range(6))
def test_bits_that_flip_in_the_tuners_store_stop_nothing(kept, seed):
    rng = random.Random(seed)
    tuned.keep(tuned.Tuned("k", "", "m:6", 1.0, 2.0))
    path = kept / "tune.sqlite"
    good = path.read_bytes()
    for _ in range(15):
        bad = bytearray(good)
        for _ in range(rng.choice((1, 4, 64))):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            tuned.entries()
            with tuned.tolerant():
                tuned.find("k", "")
            with tuned.tolerant():
                tuned.measurements()
            with tuned.tolerant():
                tuned.keep(tuned.Tuned("j", "", "", 1.0, 1.0))


@posix
def test_a_store_of_another_user_is_told_once_and_not_used(kept, monkeypatch):
    tuned.keep(tuned.Tuned("k", "", "m:6", 1.0, 2.0))
    monkeypatch.setattr(folder, "_is_ours", lambda s: False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert tuned.entries() == {}
        assert tuned.entries() == {}
    assert [str(w.message) for w in caught] == [
        f"tune: the store {kept / 'tune.sqlite'} belongs to another user; it is not used"
    ]


# The code of GPUs, and archives


def test_gpu_code_with_a_right_hash_and_wrong_content_is_built_again(kept):
    store, key = code.Store(kept / "gpu"), bytes(32)
    good = b'{"name": "k", "warps": 4, "shared": 0, "scratch": 0, "cluster": [1, 1, 1]}\0image'
    store.put(key, good)
    assert triton_builder._stored(store, key).image == b"image"
    for wrong in (
        b"",
        b"{}\0",
        b"no zero",
        good.replace(b"4", b'"4"'),
        good.replace(b"[1, 1, 1]", b"[]"),
    ):
        store.put(key, wrong)
        with pytest.warns(RuntimeWarning, match="holds no code of a GPU; building it again"):
            assert triton_builder._stored(store, key) is None


def test_damage_to_what_a_zip_says_of_itself_is_no_raw_error(kept, monkeypatch, tmp_path):
    """Methods, versions, sizes and offsets of a zip stand at its end and before each entry."""
    again(monkeypatch)
    whole = tmp_path / "whole.zip"
    archive.export_all(whole)
    good, rng = whole.read_bytes(), random.Random(3)
    start = good.index(b"PK\x01\x02")
    with override(cache_dir=tmp_path / "other"):
        for _ in range(150):
            bad = bytearray(good)
            for _ in range(rng.choice((1, 2))):
                low, high = rng.choice(((start, len(good)), (0, 30)))
                bad[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
            whole.write_bytes(bad)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)
                    cache.load_all(whole)
            except ts.TesseraError:
                pass


def test_damaged_archives_are_refused_or_taken_in_part(kept, monkeypatch, tmp_path):
    expected = again(monkeypatch)
    whole = tmp_path / "whole.zip"
    archive.export_all(whole)
    good, rng = whole.read_bytes(), random.Random(5)
    for _ in range(60):
        bad = bytearray(good[: rng.choice((len(good), rng.randrange(len(good))))])
        for _ in range(rng.choice((0, 1, 8))):
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        whole.write_bytes(bad)
        shutil.rmtree(kept, ignore_errors=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                cache.load_all(whole)
        except ts.TesseraError:
            pass
        if rng.random() < 0.1:
            assert again(monkeypatch) == expected
