"""op.pyi: the stub is what the records say, and a type checker that reads it accepts right programs and
rejects wrong ones.
"""

from __future__ import annotations

import json
import re
import shutil
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


TRAINING = """
from typing import Any

import numpy as np

import tessera as ts
from tessera import dist, nn, op


def loss(p: dict[str, ts.Tensor], x: ts.Tensor) -> ts.Tensor:
    return op.mean(op.square(op.relu(x @ p["up"]) @ p["down"] - x))


params = {"up": ts.ones((4, 8)), "down": ts.tensor(np.zeros((8, 4), np.float32))}
x = ts.ones((2, 4))
optimizer = ts.optim.chain(ts.optim.clip_norm(1.0), ts.optim.adam(1e-3))
state = optimizer.init(params)


@ts.jit
def step(p: dict[str, ts.Tensor], state: Any, x: ts.Tensor) -> Any:
    value, grads = ts.value_and_grad(loss)(p, x)
    return value, optimizer.update(grads, state, p)


step(params, state, x)
rows = ts.vmap(lambda r: op.sum(r * r))(x)
mesh = dist.Mesh(["dp"], shape=(2,))
laid: ts.Tensor = dist.tensor((4, 4), dist.ShardSpec((0,), ("dp",)), mesh, ts.f32)
s = dist.strategy.zero3(mesh, "dp")
y: ts.Tensor = nn.Linear(4, 8, key=ts.key(0))(x)
ts.save("x.safetensors", params)
ts.bundle.save(loss, "f.tess", params, x)
model = ts.models.load
last = dist.all_reduce(x, op="max")
ts.optim.adamm(1e-3)  # wrong
ts.tensr(3)  # wrong
ts.tensor()  # wrong
nn.Liner(3, 4)  # wrong
dist.Mesh(["dp"], shap=(2,))  # wrong
dist.all_reduce()  # wrong
dist.all_redce(x)  # wrong
ts.jit(3)  # wrong
ts.save("x.safetensors")  # wrong
op.matmul(x)  # wrong
x.reshap(4, 2)  # wrong
t: str = op.argmax(x)  # wrong
op.einsum(x, x)  # wrong
ts.bundle.load()  # wrong
dist.strategy.zero4(mesh)  # wrong
"""
PROGRAMS = {"ops": PROGRAM, "training": TRAINING}


def lines(text: str) -> set[int]:
    """The lines that are marked wrong."""
    return {i for i, line in enumerate(text.split("\n"), 1) if "# wrong" in line}


@pytest.mark.slow
def test_mypy_finds_every_wrong_line_and_no_other(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}_program.py" for name in PROGRAMS}
    for name, text in PROGRAMS.items():
        files[name].write_text(text)
    # With the options of `make test`: others would check the whole package anew, now and in the
    # next `make test`.
    config = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
    ]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--no-error-summary",
        *config,
        *map(str, files.values()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    for name, text in PROGRAMS.items():
        found = {int(n) for n in re.findall(rf"{name}_program\.py:(\d+): error", done.stdout)}
        assert found == lines(text), done.stdout + done.stderr


def pyright() -> str | None:
    """The command, where it is installed with all that it needs."""
    found = shutil.which("pyright")
    if found is None:
        return None
    done = subprocess.run([found, "--version"], capture_output=True, check=False)
    return None if done.returncode else found


@pytest.mark.deep
def test_pyright_finds_every_wrong_line_and_no_other(tmp_path: Path) -> None:
    command = pyright()
    if command is None:
        pytest.skip("pyright is not installed")
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}_program.py").write_text(text)
    config = {"extraPaths": [str(ROOT), *(p for p in sys.path if p.endswith("site-packages"))]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    done = subprocess.run(
        [command, "--outputjson"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    told = [d for d in json.loads(done.stdout)["generalDiagnostics"] if d["severity"] == "error"]
    for name, text in PROGRAMS.items():
        mine = [d for d in told if Path(d["file"]).name == f"{name}_program.py"]
        assert {d["range"]["start"]["line"] + 1 for d in mine} == lines(text), mine
