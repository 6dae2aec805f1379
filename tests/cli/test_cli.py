"""The command line: what it prints, its exit status, and errors without tracebacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tessera
from tessera import cli
from tessera.cli import bench
from tessera.cli.arguments import parser
from tessera.ir.graph.op import REGISTRY

PROGRAM = """
import sys
import tessera as ts
from tessera import Tensor, f32, jit, op

@jit
def layer(x: Tensor["B", 4, f32], w: Tensor[4, "N", f32]):
    return op.tanh(x @ w)

@jit
def bare(x):
    return x

def plain(x: Tensor["B", "2*B+1"]):
    return x.sum(-1)

number = 3

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    layer(ts.tensor([[1.0, 2.0]]), ts.tensor([[1.0]] * 4))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def test_version(capsys):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"tessera {tessera.__version__}\n"


def test_ops_lists_every_op(capsys):
    assert cli.main(["ops"]) == 0
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.split()}
    assert set(REGISTRY) <= shown


def test_ops_as_json_has_one_complete_row_per_op(capsys):
    assert cli.main(["ops", "--json"]) == 0
    rows = {r["name"]: r for r in json.loads(capsys.readouterr().out)}
    assert set(REGISTRY) <= set(rows)
    for r in rows.values():
        assert r["doc"], r["name"]
        assert r["meaning"], r["name"]
        assert r["targets"][0] == "numpy"
    assert {"linear", "transpose"} <= set(rows["matmul"].pop("rules"))
    assert rows["matmul"] == {
        "name": "matmul",
        "axes": "... m k, ... k n -> ... m n",
        "meaning": "loops, add",
        "dtypes": "unsigned integer float complex",
        "targets": ["numpy", "cpu"],
        "doc": "Matrix product over the last two axes; the axes before them broadcast.",
        "call": "op.matmul(a, b, *, tile_shape=None, schedule=None)",
        "family": "contraction",
    }
    assert rows["sort"]["targets"] == ["numpy", "cpu"]
    assert rows["lgamma"]["targets"] == ["numpy", "cpu"]
    assert rows["eigh"]["targets"] == ["numpy", "cpu (host)"]
    assert rows["einsum"]["meaning"] == "function"


def test_ops_by_family_and_by_text(capsys):
    assert cli.main(["ops", "--family", "sorting"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("sorting\n")
    assert "argsort" in out
    assert "matmul" not in out
    assert cli.main(["ops", "--find", "running", "--json"]) == 0
    assert {r["family"] for r in json.loads(capsys.readouterr().out)} == {
        "accumulate",
        "statistics",
    }
    assert cli.main(["ops", "--family", "sortin"]) == 2
    assert (
        capsys.readouterr().err
        == "error: no family of ops is named 'sortin'; did you mean sorting?\n"
    )


def test_ops_of_one_name(capsys):
    assert cli.main(["ops", "op.tanh"]) == 0
    out = capsys.readouterr().out
    assert "op.tanh(x, /)" in out
    assert "Hyperbolic tangent." in out
    assert "partials" in out


@pytest.mark.parametrize(
    "name", ["conv1d", "conv2d", "fft2", "ifftn", "idct", "trace", "norm", "sqrtm"]
)
def test_ops_names_functions_that_take_operators_too(capsys, name):
    assert cli.main(["ops", name]) == 0
    assert f"op.{name}(" in capsys.readouterr().out


def test_ops_of_an_unknown_name(capsys):
    assert cli.main(["ops", "tahn"]) == 2
    assert capsys.readouterr().err == "error: no op is named 'tahn'; did you mean tan?\n"
    assert cli.main(["ops", "qqqqq"]) == 2
    assert capsys.readouterr().err == "error: no op is named 'qqqqq'; `tessera ops` lists them\n"


def test_compile_prints_graph_ir_with_symbolic_sizes(capsys, program):
    assert cli.main(["compile", f"{program}:layer"]) == 0
    out = capsys.readouterr().out
    assert "tessera.matmul" in out
    assert "tessera.tanh" in out
    assert cli.main(["compile", f"{program}:plain", "--stop-at", "trace"]) == 0
    assert "tessera.sum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("", "{0} has layer, bare; name one: {0}:function"),
        (":missing", "{0} defines no 'missing'; it has layer, bare"),
        (":number", "'number' in {0} is int, not a function"),
        (
            ":bare",
            'bare has parameters without a Tensor annotation: x; write x: Tensor["B", 64, f32], '
            "or call bare when the file runs",
        ),
        (".txt", "there is no file {0}.txt"),
    ],
)
def test_compile_says_what_it_needs(capsys, program, suffix, message):
    assert cli.main(["compile", program + suffix]) == 2
    # The program may have been run first, for the arguments of its calls.
    assert capsys.readouterr().err.endswith(f"error: {message.format(program)}\n")


def test_compile_prints_the_levels_below(capsys, program):
    for level, word in (
        ("schedule", "schedule.kernel"), ("tile", "tile.load"), ("target", "define void @kernel"),
    ):  # fmt: skip
        assert cli.main(["compile", f"{program}:layer", "--stop-at", level]) == 0
        assert word in capsys.readouterr().out


def test_compile_stops_only_at_what_exists(capsys, program):
    with pytest.raises(SystemExit) as e:
        cli.main(["compile", program, "--stop-at", "atoms"])
    assert e.value.code == 2
    assert "invalid choice: 'atoms'" in capsys.readouterr().err


def test_run_passes_arguments_and_shows_the_line_of_an_error(capsys, program):
    before = sys.argv[:], sys.path[:]
    assert cli.main(["run", program, "a", "--b"]) == 1
    out, err = capsys.readouterr()
    assert out == "arguments ['a', '--b']\n"
    assert err.startswith("error: argument 'x' is f32[1,2]: axis 1 is 2, expected 4")
    assert f"at {program}:21: layer(" in err
    assert "Traceback" not in err
    assert (sys.argv, sys.path) == before


def test_run_of_a_file_with_a_syntax_error(capsys, tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("x = (\n")
    assert cli.main(["run", str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}, line 1: '(' was never closed\n"


@pytest.mark.parametrize(
    "command", ["compile", "run", "profile", "bench", "tune", "inspect", "check"]
)
def test_a_file_that_is_no_program_is_refused(capsys, tmp_path, command):
    for name, data, message in (
        ("bytes.py", b"\x00\xff\xfe\x01", "bytes.py"), ("latin.py", b"x = '\xe9'\n", "latin.py, line"),
        ("folder", None, "there is no file"),
    ):  # fmt: skip
        path = tmp_path / name
        path.mkdir() if data is None else path.write_bytes(data)
        assert cli.main([command, str(path)]) == 2
        out, err = capsys.readouterr()
        assert err.startswith("error: ")
        assert message in err
        assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "command", ["compile", "run", "profile", "bench", "tune", "inspect", "check"]
)
def test_what_a_program_raises_is_shown_without_our_frames(capsys, tmp_path, command):
    path = tmp_path / "raises.py"
    path.write_text("def f():\n    return {}['key']\n\nf()\n")
    assert cli.main([command, str(path)]) == 1
    err = capsys.readouterr().err
    assert err.endswith("KeyError: 'key'\n")
    assert f'File "{path}", line 4' in err
    assert f'File "{path}", line 2, in f' in err
    assert str(Path(tessera.__file__).parent) not in err
    assert "runpy" not in err


@pytest.mark.parametrize("command", ["compile", "bench", "tune", "inspect", "profile"])
@pytest.mark.parametrize("suffix", ["", ":f"])
def test_what_a_function_raises_while_it_is_traced_is_shown_without_our_frames(
    capsys, tmp_path, command, suffix
):
    if command == "profile" and not suffix:
        pytest.skip("it runs the file, which calls nothing")
    path = tmp_path / "raises.py"
    head = "import tessera as ts\nfrom tessera import Tensor, f32, op\n\n"
    path.write_text(f'{head}@ts.jit\ndef f(x: Tensor["B", f32]):\n    return (1).nothing(x)\n')
    assert cli.main([command, f"{path}{suffix}"]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f'Traceback (most recent call last):\n  File "{path}", line 6, in f\n')
    assert "AttributeError: 'int' object has no attribute 'nothing'" in err
    assert str(Path(tessera.__file__).parent) not in err


def test_doctor_reports_versions_settings_and_devices(capsys, monkeypatch):
    monkeypatch.setenv("TESSERA_LOG", "info")
    assert cli.main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["system"]["tessera"] == tessera.__version__
    assert report["packages"]["numpy"]["version"]
    assert report["settings"]["TESSERA_LOG"]["source"] == "environment"
    assert report["settings"]["TESSERA_VERIFY"]["source"] == "default"
    assert report["devices"][0] == "cpu:0"
    assert {n: t["works"] for n, t in report["targets"].items() if n in ("numpy", "cpu")} == {
        "numpy": True, "cpu": True,
    }  # fmt: skip
    assert report["cache"]["writable"] is True
    assert report["missing"] == []
    assert cli.main(["doctor"]) == 0
    assert "Nothing is missing." in capsys.readouterr().out


def _tessera(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tessera.cli", *args],
        env={"PATH": "/usr/bin", "PYTHONPATH": str(Path(tessera.__file__).parent.parent), **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_doctor_names_a_setting_that_cannot_be():
    done = _tessera("doctor", TESSERA_THREADS="many")
    assert done.returncode == 1
    assert "TESSERA_THREADS is 'many', expected a whole number of at least 0" in done.stdout
    assert done.stderr == ""


def test_doctor_names_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = _tessera("doctor", TESSERA_CACHE_DIR=str(tmp_path / "file" / "below"))
    assert done.returncode == 1
    assert "missing: a writable cache: " in done.stdout
    assert "set TESSERA_CACHE_DIR to a writable folder" in done.stdout
    assert "Traceback" not in done.stderr


def test_no_color_is_respected():
    forced = _tessera("doctor", FORCE_COLOR="1")
    assert "\x1b[1" in forced.stdout
    plain = _tessera("doctor", FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[3" not in plain.stdout  # colours; bold and underline may stay


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pro", ["profile"]),
        ("cache ex", ["export"]),
        ("profile --tr", ["--trace"]),
        ("profile file.py --fl", ["--flame"]),
        ("cache list --j", ["--json"]),
        ("profile fi", []),
    ],
)
def test_a_shell_completes(capsys, typed, offered):
    assert cli.main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = " ".join(f"'{w}'" for w in ["tessera", *typed.split()])
    asked = (
        f'COMP_WORDS=({words}); COMP_CWORD={len(typed.split())}; _tessera; echo "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == offered, done.stderr


def test_scripts_for_other_shells_name_every_command(capsys):
    for shell in ("zsh", "fish"):
        assert cli.main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert all(c in script for c in ("profile", "export", "doctor"))


def test_every_command_is_in_the_manual():
    manual = (Path(tessera.__file__).parent.parent / "docs" / "cli.md").read_text()
    (commands,) = [a for a in parser()._actions if a.choices]
    assert {c for c in commands.choices if f"`tessera {c}" not in manual} == set()


def test_every_command_has_help(capsys):
    for command in (
        "ops", "compile", "run", "profile", "bench", "tune", "cache", "cache list", "cache export",
        "cache import", "cache trim", "cache clear", "doctor", "version",
    ):  # fmt: skip
        with pytest.raises(SystemExit) as e:
            cli.main([*command.split(), "--help"])
        assert e.value.code == 0
        assert f"usage: tessera {command}" in capsys.readouterr().out


def test_sizes_that_no_function_has(program, capsys):
    for command in ("inspect", "bench", "tune", "profile"):
        assert cli.main([command, f"{program}:layer", "--size", "Q=5"]) == 2
        expected = "error: --size Q=5: no size is called Q; there are B, N\n"
        assert capsys.readouterr().err == expected


def test_errors_that_are_no_line_of_the_user_show_none(tmp_path):
    command = [sys.executable, "-m", "tessera.cli", "cache", "import", "nowhere.zip"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "error: cache: nowhere.zip cannot be read (No such file or directory)\n"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("option", ["--save", "--trace", "--flame"])
def test_a_full_disk_and_devices_stay_what_they_are(program, option, capsys):
    assert cli.main(["profile", f"{program}:layer", option, "/dev/full"]) == 1
    expected = "error: /dev/full cannot be written (No space left on device)\n"
    assert capsys.readouterr().err == expected
    assert cli.main(["cache", "export", "/dev/full"]) == 1
    assert "/dev/full is there already, and no file" in capsys.readouterr().err
    assert Path("/dev/full").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs /dev/full")
@pytest.mark.parametrize("buffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_what_cannot_be_printed_is_said_in_one_line(buffered):
    """At the print itself, or when Python would flush at its end, after which nobody can say anything."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tessera.cli", "version"], stdout=full, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUNBUFFERED": buffered}, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written (No space left on device)\n"


def test_warnings_of_the_compiler_show_no_lines_of_it(program, tmp_path):
    """A cache that cannot be used, by a store that cannot be written, costs time and not the profile."""
    (tmp_path / "file").write_text("")
    done = _tessera(
        "profile", f"{program}:layer", TESSERA_CACHE_DIR=str(tmp_path / "file" / "below")
    )
    assert done.returncode == 0
    assert done.stdout.count("layer_0") >= 1
    lines = done.stderr.splitlines()
    assert lines
    assert all(x.startswith("warning: ") for x in lines)
    assert "set TESSERA_CACHE_DIR to a writable folder" in done.stderr


def test_a_package_that_is_missing_is_named(program, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['llvmlite'] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli", "inspect", f"{program}:layer"], cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        "error: this needs llvmlite, which is not installed; get it with pip install llvmlite\n"
    )


DEMO = """
import sys
import tessera as ts
from tessera import op

def main():
    @ts.jit(target="cpu")
    def step(w, x):
        return ts.grad(lambda w: op.sum(op.tanh(x @ w)))(w)

    @ts.jit(target="cpu")
    def forward(w, x):
        return op.tanh(x @ w)

    n = int(sys.argv[1]) if sys.argv[1:] else 3
    step(op.ones((n, n)), op.ones((2, n)))
    forward(op.ones((n, n)), op.ones((2, n)))
    return 0

if __name__ == "__main__":
    sys.exit(main())
"""


def test_inspect_shows_what_a_program_compiles_when_it_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("demo.py").write_text(DEMO)
    assert cli.main(["inspect", "demo.py", "--", "5"]) == 0
    assert capsys.readouterr().out == "demo.html\n"
    page = Path("demo.html").read_text()
    assert "f32[5,5]" in page
    assert "step" in page
    assert "forward" in page
    assert cli.main(["inspect", "demo.py", "--out", "page.html"]) == 0
    assert capsys.readouterr().out == "page.html\n"
    assert cli.main(["inspect", "demo.py:forward", "--out", "f.html"]) == 0
    assert Path("f.html").is_file()
    assert cli.main(["inspect", "demo.py:nothing"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: demo.py defines no 'nothing'; it has no functions"


@pytest.mark.parametrize(("limit", "times", "status"),
    [(10, 1.05, 0), (10, 1.15, 1), (50, 1.4, 0), (50, 1.6, 1), (0, 1.01, 1), (0, 0.99, 0)])  # fmt: skip
def test_bench_fails_where_a_function_is_slower_than_the_limit(
    capsys, tmp_path, monkeypatch, limit, times, status
):
    """With a clock that says what it is told to."""
    program, before = tmp_path / "program.py", tmp_path / "before.json"
    program.write_text(
        "import tessera as ts\n\n@ts.jit\ndef f(x: ts.Tensor[3, ts.f32]):\n    return x + 1\n"
    )

    def measured(best):
        return lambda subject, budget: bench.BenchTimes(
            "f", best, best, 0.0, 1, best, 1.0, 1.0, 0.0
        )

    monkeypatch.setattr(bench, "_measured", measured(1e-3))
    assert cli.main(["bench", str(program), "--save", str(before)]) == 0
    monkeypatch.setattr(bench, "_measured", measured(times * 1e-3))
    found = cli.main(["bench", str(program), "--compare", str(before), "--limit", str(limit)])
    assert found == status
    assert ("f takes" in capsys.readouterr().err) == bool(status)
