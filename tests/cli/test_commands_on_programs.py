"""compile, inspect, profile, check, tune and bench on 36 programs: each ends well, and none with a
traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tessera import cli
from tests.cli.programs_for_commands import HEAD, PROGRAMS

COMMANDS = {
    "compile": [],
    "check": [],
    "profile": ["--top", "3"],
    "inspect": ["--out", "page.html"],
    "tune": ["--budget", "20"],
    "bench": ["--budget", "2"],
}
# Cheap to compile, and one of each kind: the others are deep.
QUICK = (
    "dictionary",
    "donated",
    "kernel_with_a_number",
    "static_argument",
    "several",
    "scalar",
    "mesh",
    "partial",
    "module",
)


def run(name: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    function, text = PROGRAMS[name]
    path = folder / f"{name}.py"
    path.write_text(HEAD + text)
    function = function or ("second" if command == "compile" else "")
    where = f"{path}:{function}" if function else str(path)
    status = cli.main([command, where, *COMMANDS[command]])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err, err
    # A check may have findings: they are its answer.
    assert status == 0 or (command, status) == ("check", 1), err
    return out


def cases() -> list[object]:
    found = []
    for name in PROGRAMS:
        for command in COMMANDS:
            marks = () if name in QUICK and command != "tune" else pytest.mark.deep
            found.append(pytest.param(name, command, marks=marks, id=f"{name}-{command}"))
    return found


@pytest.mark.parametrize(("name", "command"), cases())
def test_a_command_on_a_program(
    name: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    out = run(name, command, tmp_path, capsys)
    assert out.strip()
    if command == "inspect":
        assert (tmp_path / "page.html").stat().st_size > 10_000


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) == 36


def test_arguments_come_from_the_first_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A function without annotations is compiled for what the program calls it with, statics included."""
    out = run("static_argument", "compile", tmp_path, capsys)
    assert "tensor<5xf32>" in out
    (tmp_path / "never.py").write_text(
        HEAD + "@ts.jit\ndef f(x):\n    return x\n\nif __name__ == '__main__':\n    pass\n"
    )
    assert cli.main(["compile", f"{tmp_path}/never.py:f"]) == 2
    assert "parameters without a Tensor annotation: x" in capsys.readouterr().err
    function = f"{tmp_path}/static_argument.py:f"
    assert cli.main(["compile", function, "--size", "B=3"]) == 2
    assert "--size B=3: the sizes are those of the calls" in capsys.readouterr().err


def test_arguments_after_two_dashes_reach_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sized.py").write_text(
        HEAD + "import sys\n@ts.jit\ndef f(x):\n    return x + 1\n\n"
        "if __name__ == '__main__':\n    f(ts.ones((int(sys.argv[1]),)))\n"
    )
    assert cli.main(["compile", f"{tmp_path}/sized.py:f", "--", "11"]) == 0
    assert "11" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["compile", "check", "tune", "inspect"])
def test_a_program_that_ends_while_it_is_read_is_told(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended without a word."""
    path = tmp_path / "ends.py"
    path.write_text(HEAD + "import sys\nf = ts.jit(lambda x: x + 1)\nf(ts.ones(3))\nsys.exit(3)\n")
    assert cli.main([command, str(path)]) == 2
    assert "ends with exit status 3 while it is read; put what it does" in capsys.readouterr().err


METHODS = """
class {name}(nn.Module):
    w: ts.Tensor
    def __init__(self):
        self.w = ts.ones((4, 4))
    @ts.jit
    def forward(self, x):
        return op.{op}(x @ self.w)
"""
CALLS = """
other = Other()
if __name__ == "__main__":
    for n in (Net(), other):
        n.forward(ts.ones((2, 4)))
"""


@pytest.mark.parametrize(
    ("function", "op"),
    [("Net.forward", "tanh"), ("Other.forward", "erf"), ("other.forward", "erf")],
)
def test_a_method_is_named_with_its_class_or_its_instance(
    function: str, op: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "methods.py"
    classes = [METHODS.format(name=n, op=o) for n, o in (("Net", "tanh"), ("Other", "erf"))]
    path.write_text("".join([HEAD, "from tessera import nn\n", *classes, CALLS]))
    assert cli.main(["compile", f"{path}:{function}", "--stop-at", "graph"]) == 0
    out = capsys.readouterr().out
    assert [o for o in ("tanh", "erf") if f'"tessera.{o}"' in out] == [op]
    assert cli.main(["compile", f"{path}:Net.backward"]) == 2
    assert "methods.py defines no 'Net.backward'" in capsys.readouterr().err
