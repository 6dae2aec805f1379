"""tools/structure.py counts what it says."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import structure  # noqa: E402

FILES = {
    "a/same.py": "from typing import Any\ndef set_it(x: Any) -> Any:\n    global y\n    return y\n",
    "core/same.py": "class A:\n    x: Any\ndef f(n):\n    return n.op.name == 'add'\n",
    "ops/b.py": "class A:\n    f = lambda n: n.op.name in ('add',)\n",
    "cli/c.py": "def f():\n    import_module('tessera.x')\n",
    "lang/d.py": "def f():\n    import_module('tessera.x')\n    g = lambda: Deferred('tessera.y:z')\n"
    + "#" * 111,
}
WANT = {
    "files; lines": 5,
    "modules that functions import by a string": 2,
    "`set_*` hooks": 1,
    "modules with a `global` statement": 1,
    "tests of `node.op.name` outside `ops/`": 1,
    "names of files in several folders": 1,
    "names of classes in several files": 1,
    "lines over 110 characters": 1,
}


def test_figures_are_of_what_they_name(tmp_path: Path) -> None:
    for name, text in FILES.items():
        path = tmp_path / "tessera" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    texts = structure.sources(tmp_path)
    trees = {p: structure.ast.parse(t) for p, t in texts.items()}
    found = {name: count(texts, trees) for name, count in structure.STATIC.items()}
    assert {name: found[name] for name in WANT} == WANT
    (words,) = (n for name, n in found.items() if "Any" in name)
    assert words == 1, "of core; imports and other packages aside"


def test_the_decision_has_the_table() -> None:
    rows = structure.PAGE.read_text().partition(structure.BEGIN)[2].partition(structure.END)[0]
    assert {line.split(" | ")[0].strip("| ") for line in rows.splitlines()[2:]} >= set(
        structure.STATIC
    )
