"""The project around the code: packaging, light imports, the demo, the shape of files."""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from pathlib import Path

import tessera
from tests.support.runners.each import each

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted((ROOT / "tessera").rglob("*.py"))
NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING)


def python(*args):
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, env={"PYTHONPATH": str(ROOT), "COLUMNS": "100",
        "OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_version_is_stated_once_everywhere():
    assert PROJECT["project"]["version"] == tessera.__version__
    log = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(tessera.__version__)}", log, re.MULTILINE)


def test_importing_tessera_imports_nothing_heavy():
    done = python("-c", "import tessera, sys; print(*sorted(sys.modules))")
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert not loaded & {"scipy", "rich", "llvmlite", "torch", "jax", "triton", "onnx", "pytest"}


def test_the_licence_is_the_whole_text():
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_make_test_installs_no_oracle():
    light = " ".join(PROJECT["project"]["dependencies"])
    light += " ".join(PROJECT["project"]["optional-dependencies"]["test"])
    assert not re.search("torch|jax|triton|tensorflow|cupy", light)
    makefile = (ROOT / "Makefile").read_text()
    recipe = re.search(r"^\$\(VENV\)/\.installed-test:.*\n(?:\t.*\n)+", makefile, re.MULTILINE)
    assert recipe is not None
    assert "oracles" not in recipe[0]


def test_the_makefile_has_the_targets_that_the_readme_names():
    makefile = (ROOT / "Makefile").read_text()
    named = set(
        re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    )
    assert {"demo", "test", "test-oracles"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_ci_runs_the_tests_then_the_site_then_the_oracles():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111, "not executable"
    commands = re.findall(r"^ *(make [a-z-]+)$", script.read_text(), re.MULTILINE)
    assert commands == ["make test", "make docs", "make test-oracles"]
    assert "set -euo pipefail" in script.read_text()


def test_the_demo_learns_and_says_where_to_look_next():
    done = python("examples/gpt.py", "--steps", "15", "--layers", "1", "--width", "16",
                  "--batch", "4", "--context", "16", "--sample", "12")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = map(float, re.search(r"loss ([\d.]+) -> ([\d.]+)", done.stdout).groups())
    assert last < first
    assert "tokens/s" in done.stdout
    for path in re.findall(r"(?:docs|examples)/[\w./-]+", done.stdout):
        assert (ROOT / path).exists(), path


def test_the_demo_refuses_sizes_that_do_not_fit():
    done = python("examples/gpt.py", "--width", "10", "--heads", "4")
    assert done.returncode == 2
    assert "a width that the heads divide" in done.stderr


def test_the_stories_are_plain_text_of_a_useful_length():
    stories = [p.read_bytes() for p in sorted((ROOT / "examples" / "data").glob("*.txt"))]
    assert 40_000 < sum(map(len, stories)) < 60_000
    assert all(s.isascii() for s in stories)


@each(SOURCES, by=lambda p: str(p.parent.relative_to(ROOT)))
def test_a_module_has_one_idea(path):
    text = path.read_text()
    assert text.count("\n") <= 600, "find the second idea and move it out"
    if text.strip():
        # What follows the docstring need not be read.
        first = next(
            t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type not in NO_CODE
        )
        assert first.type == tokenize.STRING, "a module says what it is in one sentence"
        assert ast.literal_eval(first.string).strip()


def test_there_is_no_unfinished_code():
    words = re.compile("TODO|FIXME|XXX|raise NotImplementedError")
    unfinished = [str(p) for p in SOURCES if words.search(p.read_text())]
    assert unfinished == []


def is_number(x):
    """Whether an expression is written with numbers alone."""
    if isinstance(x, ast.BinOp):
        return is_number(x.left) and is_number(x.right)
    if isinstance(x, ast.UnaryOp):
        return is_number(x.operand)
    return isinstance(x, ast.Constant) and type(x.value) in (int, float)


def unexplained(text):
    """Constants of a module that are numbers, without a comment in their lines or in the line above."""
    lines = text.split("\n")
    for n in ast.parse(text).body:
        if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name):
            name, own = n.targets[0].id, lines[n.lineno - 1 : n.end_lineno]
            above = lines[n.lineno - 2].startswith("#")
            if re.fullmatch("_?[A-Z][A-Z0-9_]*", name) and is_number(n.value):
                if not above and "#" not in "".join(own):
                    yield name


def test_a_number_says_where_it_comes_from():
    found = {str(p.relative_to(ROOT)): [*unexplained(p.read_text())] for p in SOURCES}
    assert {p: names for p, names in found.items() if names} == {}
    assert [
        *unexplained("# It is.\nA = 1\nB = 2\nC = 3  # so\nD = -(1 << 4)\nE = (\n    5  # so\n)")
    ] == ["B", "D"]
