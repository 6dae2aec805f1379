"""How the compiler reads, in figures: what a first call goes through, and what hides or repeats a name.

    python tools/structure.py                           the figures of this tree
    python tools/structure.py --before FOLDER           beside those of another checkout
    python tools/structure.py --before FOLDER --write   into docs/decisions/080-structure.md

Static figures are of the files of `tessera/`.  A first call is `softmax(gelu(x @ w) @ x) + cumsum(x)` in a
process of its own with an empty cache: files entered are those in which a Python function ran, and a move is
a call from one file into another.  For CUDA the program is lowered for sm_90, which needs no GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "decisions" / "080-structure.md"
BEGIN, END = "<!-- tools/structure.py -->\n", "<!-- end -->\n"
Trees = dict[Path, ast.Module]


def sources(root: Path) -> dict[Path, str]:
    """The text of every file of the package, by its path in it."""
    package = root / "tessera"
    return {p.relative_to(package): p.read_text() for p in sorted(package.rglob("*.py"))}


def functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Every function of a module, lambdas too."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    return (n for n in ast.walk(tree) if isinstance(n, kinds))


def imports_by_string(trees: Trees) -> int:
    """Modules of tessera that functions import by a string; the command line and `tessera` itself aside."""
    found = set()
    for path, tree in trees.items():
        if path.parts[0] in ("cli", "__init__.py"):
            continue
        for f in functions(tree):
            for n in ast.walk(f):
                if isinstance(n, ast.Call) and n.args:
                    called = getattr(n.func, "attr", getattr(n.func, "id", ""))
                    text = ast.unparse(n.args[0])
                    if called in ("import_module", "Deferred") and text.startswith(
                        ("'tessera", "f'tessera")
                    ):
                        found.add((path, n.lineno))
    return len(found)


def hooks(trees: Trees) -> int:
    """Functions `set_...` of modules."""
    top = [n for tree in trees.values() for n in tree.body if isinstance(n, ast.FunctionDef)]
    return sum(n.name.startswith("set_") for n in top)


def global_modules(trees: Trees) -> int:
    """Modules with a `global` statement."""
    return sum(any(isinstance(n, ast.Global) for n in ast.walk(tree)) for tree in trees.values())


def tests_of_names(texts: dict[Path, str]) -> int:
    """Tests of the name of an op, outside of the ops."""
    word = re.compile(r"\.op\.name (?:==|!=|in|not in) ")
    return sum(len(word.findall(t)) for p, t in texts.items() if p.parts[0] != "ops")


def reused_files(trees: Trees) -> int:
    """Names of files that are in several folders."""
    names = Counter(p.name for p in trees if p.name not in ("__init__.py", "__main__.py"))
    return sum(n > 1 for n in names.values())


def reused_classes(trees: Trees) -> int:
    """Names of classes that are in several files."""
    names = Counter(
        name
        for tree in trees.values()
        for name in {n.name for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
    )
    return sum(n > 1 for n in names.values())


COMPILER = ("compile", "accelerator", "core", "ir", "ops", "transform", "runtime")


def any_words(texts: dict[Path, str]) -> int:
    """Times that `Any` is written in the compiler, imports aside."""
    own = (t for p, t in texts.items() if p.parts[0] in COMPILER or len(p.parts) == 1)
    lines = (line for t in own for line in t.split("\n"))
    return sum(len(re.findall(r"\bAny\b", x)) for x in lines if "import" not in x)


def long_lines(texts: dict[Path, str]) -> int:
    """Lines of more than 110 characters."""
    return sum(len(line) > 110 for t in texts.values() for line in t.split("\n"))


STATIC: dict[str, Callable[[dict[Path, str], Trees], int]] = {
    "files; lines": lambda texts, trees: len(trees),
    "modules that functions import by a string": lambda texts, trees: imports_by_string(trees),
    "`set_*` hooks": lambda texts, trees: hooks(trees),
    "modules with a `global` statement": lambda texts, trees: global_modules(trees),
    "tests of `node.op.name` outside `ops/`": lambda texts, trees: tests_of_names(texts),
    "names of files in several folders": lambda texts, trees: reused_files(trees),
    "names of classes in several files": lambda texts, trees: reused_classes(trees),
    "`Any` in the compiler (below `lang`)": lambda texts, trees: any_words(texts),
    "lines over 110 characters": lambda texts, trees: long_lines(texts),
}

CALL = """
import json, os, sys
import numpy as np
import tessera as ts
from tessera import op
folder = os.path.dirname(ts.__file__) + os.sep
r = np.random.default_rng(0)
x, w = (ts.tensor(r.normal(size=s).astype(np.float32)) for s in ((64, 32), (32, 64)))
f = ts.jit(lambda x, w: op.softmax(op.gelu(x @ w) @ x) + op.cumsum(x, 0), target=sys.argv[1])
files, moves, stack = set(), 0, [""]
def see(frame, event, arg):
    global moves
    if event == "call":
        name = frame.f_code.co_filename
        if name.startswith(folder):
            files.add(name)
            moves += stack[-1] not in ("", name)
            stack.append(name)
        else:
            stack.append(stack[-1])
    elif event == "return" and len(stack) > 1:
        stack.pop()
sys.setprofile(see)
f(x, w) if sys.argv[1] == "cpu" else str(f.lower(x, w).target)
sys.setprofile(None)
print(json.dumps([len(files), moves]))
"""


def first_call(root: Path, target: str, again: bool = False) -> tuple[int, int]:
    """The files that a first call enters, and its moves between files; `again` in a second process."""
    command, said = [sys.executable, "-c", CALL, target], ""
    with tempfile.TemporaryDirectory() as cache:
        own = {"PYTHONPATH": str(root), "TESSERA_CACHE_DIR": cache, "TESSERA_THREADS": "2"}
        for _ in range(1 + again):
            said = subprocess.check_output(command, env=os.environ | own, cwd=cache, text=True)
    files, moves = json.loads(said.split("\n")[-2])
    return files, moves


def figures(root: Path) -> dict[str, str]:
    """What a tree looks like, row by row."""
    texts = sources(root)
    trees = {p: ast.parse(t) for p, t in texts.items()}
    out = {}
    kinds = (
        ("on the CPU", "cpu", False), ("on the CPU, from the disk", "cpu", True),
        ("lowered for sm_90", "cuda:sm_90", False),
    )  # fmt: skip
    for name, target, again in kinds:
        files, moves = first_call(root, target, again)
        out[f"a first call {name}: files entered; moves between files"] = f"{files:,}; {moves:,}"
    out |= {name: f"{count(texts, trees):,}" for name, count in STATIC.items()}
    lines = sum(t.count("\n") for t in texts.values())
    out["files; lines"] += f"; {lines:,}"
    return out


def table(before: dict[str, str] | None, after: dict[str, str]) -> str:
    """The figures as Markdown."""
    if before is None:
        return "\n".join(["| | now |", "|---|---|", *(f"| {k} | {v} |" for k, v in after.items())])
    rows = (f"| {k} | {before[k]} | {v} |" for k, v in after.items())
    return "\n".join(["| | before | after |", "|---|---|---|", *rows])


def main() -> int:
    """Print the figures, or write them into the decision."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--before", type=Path, help="another checkout")
    p.add_argument("--write", action="store_true", help="write the decision's table")
    given = p.parse_args()
    made = table(given.before and figures(given.before.resolve()), figures(ROOT))
    print(made)
    if given.write:
        head, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}{made}\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
