"""The commands that measure and those that look after the cache: tables, files, exit status, Ctrl-C."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import tessera
from tessera import cli
from tessera.cli.cache import examine
from tessera.core.flags import override
from tessera.runtime import folder
from tessera.runtime.code import Store

PROGRAM = """
import sys
import tessera as ts
from tessera import Tensor, f32, jit, op

@jit
def layer(x: Tensor["B", 32, f32], w: Tensor[32, 16, f32]):
    return op.tanh(x @ w)

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    layer(op.ones((4, 32)), op.ones((32, 16)))
    sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


# profile and bench


def test_profile_runs_a_file_and_shows_kernels_and_lines(capsys, program):
    assert cli.main(["profile", program, "--top", "5"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("arguments []\n")
    assert "layer_0" in out
    assert "program.py:8" in out
    assert "return op.tanh(x @ w)" in out


def test_profile_passes_arguments_and_the_status_of_the_program(capsys, program):
    assert cli.main(["profile", program, "--json", "--", "3", "--x"]) == 3
    out, err = capsys.readouterr()
    report = json.loads(out)  # nothing else is printed there
    assert err == "arguments ['3', '--x']\n"
    assert any(r["name"] == "layer_0" and r["flops"] >= 2 * 4 * 32 * 16 for r in report["kernels"])
    assert report["totals"]["kernels"] > 0


def test_profile_of_a_function_writes_its_files_and_is_a_gate(capsys, program, tmp_path):
    trace, flame, saved = (str(tmp_path / n) for n in ("t.json", "f.html", "s.json"))
    given = ["profile", f"{program}:layer", "--size", "B=8"]
    assert cli.main([*given, "--trace", trace, "--flame", flame, "--save", saved]) == 0
    assert json.loads(Path(trace).read_text())["traceEvents"]
    assert Path(flame).read_text().startswith("<!doctype html>")
    assert cli.main([*given, "--compare", saved, "--limit", "1e9"]) == 0
    assert "before ms" in capsys.readouterr().out
    whole = json.loads(Path(saved).read_text())
    for r in whole["kernels"]:
        r["runs"] = [t / 1e6 for t in r["runs"]]
    Path(saved).write_text(json.dumps(whole))
    assert cli.main([*given, "--compare", saved]) == 1
    assert f"times as long as in {saved}" in capsys.readouterr().err


def test_bench_measures_every_function_and_is_a_gate(capsys, program, tmp_path):
    saved = str(tmp_path / "bench.json")
    given = ["bench", program, "--budget", "5"]
    assert cli.main([*given, "--save", saved, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["function"] == "layer"
    assert row["flops"] == 2 * 64 * 32 * 16 + 64 * 16
    assert 0 < row["best"] <= row["median"]
    assert cli.main([*given, "--compare", saved, "--limit", "1e9"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[0] == "layer"
    whole = json.loads(Path(saved).read_text())
    whole["functions"][0]["best"] /= 1e6
    Path(saved).write_text(json.dumps(whole))
    assert cli.main([*given, "--compare", saved]) == 1
    assert capsys.readouterr().err.startswith("error: layer takes ")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["profile", "{0}:gone"], 2, "defines no 'gone'; it has layer"),
        (["profile", "{0}", "--trace", "/nowhere/t.json"], 2, "there is no folder /nowhere"),
        (["profile", "{0}", "--compare", "{0}"], 1, "is no profile that was saved"),
        (
            ["profile", "{0}", "--compare", "{0}.no"],
            1,
            "cannot be read (No such file or directory)",
        ),
        (["profile", "{0}", "--top", "0"], 2, "--top and --limit cannot be below"),
        (["bench", "{0}:layer", "--budget", "0"], 2, "--budget is above 0"),
        (["bench", "{0}:gone"], 2, "defines no 'gone'; it has layer"),
        (["bench", "{0}", "--compare", "{0}"], 1, "is no file that bench has saved"),
        (["bench", "{0}", "--save", "/nowhere/b.json"], 2, "there is no folder /nowhere"),
        (["cache", "trim", "--to", "much"], 2, "--to is 'much', expected a size such as 500MB"),
        (["cache", "import", "{0}"], 1, "is no file that the cache has exported"),
        (["cache", "import", "{0}.no"], 1, "cannot be read (No such file or directory)"),
        (["cache", "export", "/nowhere/c.zip"], 1, "/nowhere/c.zip cannot be written"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else None,
)
def test_what_cannot_be_done_is_said(capsys, program, arguments, status, message):
    assert cli.main([a.format(program) for a in arguments]) == status
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith("error: ")
    assert "Traceback" not in out + err


def _started(*args: str, **options) -> subprocess.Popen:
    root = str(Path(tessera.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-m", "tessera.cli", *args], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={"PATH": "/usr/bin", "PYTHONPATH": root, "HOME": os.environ["HOME"]},
        **options,
    )  # fmt: skip


def test_ctrl_c_ends_with_the_profile_until_then(tmp_path):
    path = tmp_path / "long.py"
    path.write_text(
        "import time, tessera as ts\nfrom tessera import op\nop.tanh(op.ones(9))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    flame = tmp_path / "flame.html"
    p = _started("profile", str(path), "--flame", str(flame))
    assert p.stdout.readline() == "ready\n"
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=60)
    assert p.returncode == 130
    assert "tanh" in out
    assert err == "error: interrupted\n"
    assert flame.exists()


def test_a_full_disk_is_said_and_leaves_nothing_behind(program, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    done = _started("profile", program, "--trace", str(out / "trace.json"),
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))  # fmt: skip
    printed, err = done.communicate(timeout=60)
    assert done.returncode == 1
    assert "trace.json cannot be written (File too large)" in err
    assert "Traceback" not in printed + err
    assert list(out.iterdir()) == []


# cache


@pytest.fixture
def kept(tmp_path: Path):
    """A cache with four entries of 1000 bytes and their heads, the oldest first."""
    with override(cache_dir=tmp_path / "cache"):
        store = Store(tmp_path / "cache" / "code")
        keys = [bytes([200 + i]) * 32 for i in range(4)]
        for i, key in enumerate(keys):
            store.put(key, bytes([i]) * 1000)
            os.utime(store.path(key), (i, i))
        yield store, keys


def test_cache_list_counts_what_is_there(capsys, kept):
    assert cli.main(["cache", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kinds"]["code"]["entries"] == 4
    assert found["bytes"] == sum(os.path.getsize(kept[0].path(k)) for k in kept[1])
    assert cli.main(["cache", "list"]) == 0
    assert "machine code of kernels" in capsys.readouterr().out


def test_cache_trim_removes_what_was_not_used_for_longest(capsys, kept):
    store, keys = kept
    assert store.get(keys[0]) is not None  # now the one that was used last
    assert cli.main(["cache", "trim", "--to", "2.5KB"]) == 0
    assert capsys.readouterr().out.startswith("2 files removed")
    assert [store.path(k).exists() for k in keys] == [True, False, False, True]


def test_the_cache_keeps_within_its_limit_by_itself(kept):
    store, keys = kept
    with override(cache_limit=3000), pytest.MonkeyPatch.context() as m:
        m.setattr(folder, "_PAUSE", 0.0)
        m.setattr(folder, "_next_look", 0.0)
        for i in range(2):  # a fresh entry that looks at the folder
            store.put(bytes([i]) * 32, b"x" * 1000)
    assert sum(e.bytes for e in folder.entries()) <= 3000
    assert store.get(bytes([1]) * 32) is not None
    assert store.get(keys[0]) is None


def test_files_that_were_being_written_are_nobodys_after_an_hour(kept):
    left = kept[0].folder / ".new-abc"
    left.write_bytes(b"half")
    folder.trim(1 << 30)
    assert left.exists()
    os.utime(left, (time.time() - 7200,) * 2)
    assert folder.trim(1 << 30) == (1, 4)


def test_cache_clear_removes_all_of_it(capsys, kept):
    assert cli.main(["cache", "clear", "--tuned"]) == 0
    assert capsys.readouterr().out.startswith("4 files removed")
    assert examine()["bytes"] == 0


def test_an_exported_cache_is_taken_over_and_damage_is_left_out(capsys, kept, tmp_path):
    store, keys = kept
    file, broken = str(tmp_path / "c.zip"), str(tmp_path / "broken.zip")
    assert cli.main(["cache", "export", file]) == 0
    assert capsys.readouterr().out.startswith(f"4 entries written to {file}")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(broken, "w") as new:
        for i, name in enumerate(old.namelist()):
            new.writestr(name, b"damaged" if i == 2 else old.read(name))
        new.writestr("../evil.code", b"x")
    with override(cache_dir=tmp_path / "other"):
        assert cli.main(["cache", "import", file]) == 0
        again = Store(tmp_path / "other" / "code")
        assert [again.get(k) for k in keys] == [store.get(k) for k in keys]
    with override(cache_dir=tmp_path / "third"):
        assert cli.main(["cache", "import", broken]) == 1
        assert "1 entries of" in capsys.readouterr().err
        assert len(folder.entries()) == 3
    assert not (tmp_path / "evil.code").exists()


@pytest.mark.parametrize(
    ("limit", "text"), [(0, "no limit"), (5 << 20, "limit 5"), (3 << 30, "limit 3")]
)
def test_the_list_of_the_cache_says_its_limit(limit, text, capsys):
    with override(cache_limit=limit):
        assert cli.main(["cache", "list"]) == 0
        assert cli.main(["cache", "list", "--json"]) == 0
    *_, line, found = capsys.readouterr().out.splitlines()
    assert line.rpartition(", ")[2].startswith(text)
    assert json.loads(found)["limit"] == limit
