"""The programs of the deployment guide: C, C++, Go and Rust as the page has them, built and run on its
bundle.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tessera as ts
from tessera import Tensor, op
from tessera.deploy.targets import usable
from tessera.native import INCLUDE, SOURCE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
COMPILER = shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(
    not (COMPILER and usable()), reason="no C compiler for this processor"
)


def programs(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def forward(p: Any, x: Tensor["batch", 4]) -> Any:
    return {"probabilities": op.softmax(op.matmul(x, p["w"]) + p["b"], axis=-1)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's bundle and the runtime, as `tessera bundle runtime` writes it."""
    out = tmp_path_factory.mktemp("page")
    weights = {"w": ts.ones((4, 3)), "b": ts.zeros((3,))}
    ts.bundle.save(forward, out / "forward.tess", Tensor["batch", 4], weights=weights)
    shutil.copytree(INCLUDE / "tessera", out / "tessera")
    shutil.copy(SOURCE, out / "tessera.c")
    return out


def run(folder: Path, *command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def runtime(folder: Path) -> str:
    run(folder, str(COMPILER), "-O1", "-D_GNU_SOURCE", "-I.", "-c", "tessera.c", "-o", "runtime.o")
    return "runtime.o"


def test_c(folder: Path):
    (program,) = programs("c")
    (folder / "page").mkdir(exist_ok=True)
    (folder / "page" / "program.c").write_text(program)
    built = "-pthread", "-I.", "page/program.c", "tessera.c", "-o", "in_c"
    run(folder, str(COMPILER), "-O0", *built)
    assert run(folder, "./in_c") == "0.333333\n"


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("g++"), reason="no C++ compiler")
def test_cpp(folder: Path):
    (fragment,) = programs("cpp")
    head, body = fragment.split("\n\n", 1)
    (folder / "page").mkdir(exist_ok=True)
    whole = f"#include <cstdio>\n{head}\nint main() {{\n{body}"
    whole += 'std::printf("%f\\n", static_cast<float *>(y.data())[0]);\nreturn 0;\n}\n'
    (folder / "page" / "program.cpp").write_text(whole)
    run(folder, "g++", "-std=c++17", "-I.", "page/program.cpp", runtime(folder), "-pthread", "-o",
        "in_cpp")  # fmt: skip
    assert run(folder, "./in_cpp") == "0.333333\n"


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("go"), reason="Go is not installed")
def test_go(folder: Path, tmp_path: Path):
    (program,) = programs("go")
    shutil.copytree(folder / "tessera", tmp_path / "tessera")
    for name in ("forward.tess", "tessera.c"):
        shutil.copy(folder / name, tmp_path / name)
    (tmp_path / "main.go").write_text(program)
    (tmp_path / "go.mod").write_text("module forward\n\ngo 1.16\n")
    kept = str(tmp_path / "built")
    run(tmp_path, "go", "build", "-o", "in_go", ".", CGO_ENABLED="1", GOCACHE=kept,
        GOFLAGS="-mod=mod")  # fmt: skip
    assert run(tmp_path, "./in_go") == "0.33333334\n"


@pytest.mark.deep
@pytest.mark.skipif(not shutil.which("rustc"), reason="Rust is not installed")
def test_rust(folder: Path, tmp_path: Path):
    """The bindings are those that bindgen writes, as far as the program uses them: tests/native/rust."""
    _, program = programs("rust")
    (tmp_path / "main.rs").write_text(program)
    shutil.copy(ROOT / "tests" / "native" / "rust" / "tessera.rs", tmp_path / "tessera.rs")
    linked = "-C", f"link-arg={folder / runtime(folder)}", "-C", "link-arg=-pthread"
    run(tmp_path, "rustc", "--edition", "2021", *linked, "main.rs", "-o", str(folder / "in_rust"))
    assert run(folder, "./in_rust") == "0.33333334\n"
