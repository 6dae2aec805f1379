"""op.pyi: the stub is what the records say, and a type checker that reads it accepts right programs and rejects wrong ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import stubs

ROOT = Path(__file__).parents[2]


def test_the_stub_is_up_to_date() -> None:
    assert stubs.PATH.read_text() == stubs.formatted(stubs.written()), "run python -m tools.stubs"


PROGRAM = """
import tessera as ts
from tessera import op

x = ts.ones((2, 3))
y = op.softmax(x @ x.mT, axis=-1)
z = op.layernorm(op.gelu(y) + 1.0)
total: ts.Tensor = op.sum(z)
a = op.dense(x)
b = op.einsum("ij,kj->ik", x, x)
s = op.reshape(b, (4,))
op.gelu()  # wrong
op.softmax(x, axs=-1)  # wrong
op.sofmax(x)  # wrong
op.sum(x, keepdims="yes")  # wrong
n: int = op.exp(x)  # wrong
op.sin(x).appl(3)  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_reads_signatures(tmp_path: Path) -> None:
    """mypy finds every line marked wrong, and no other."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        "--follow-imports=silent",
        str(file),
    ]
    config = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    done = subprocess.run(
        [*command, *config], capture_output=True, text=True, cwd=ROOT, check=False
    )
    found = {int(n) for n in re.findall(r"program\.py:(\d+): error", done.stdout)}
    wrong = {i for i, line in enumerate(PROGRAM.split("\n"), 1) if "# wrong" in line}
    assert found == wrong, done.stdout + done.stderr
