"""The tests that are likely to notice a mutant, by the names that they share with its function.

The words of a mutant are the names of its function, of the
statements that mention it, of those that mention them, and of its module.  A test is near by the words of its
source, rare ones counting more.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]+")
HOPS = (
    4.0,
    2.0,
)  # weights of statements that mention the function, and of those that mention these
MOST = 25  # statements beyond which a mention says nothing


def _names(node: ast.stmt) -> Iterator[str]:
    """What a statement of a module defines: its name, its targets, the texts of its call."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    for x in ast.walk(node) if isinstance(node, ast.Assign | ast.Expr | ast.AnnAssign) else ():
        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store):
            yield x.id
        if isinstance(x, ast.Constant) and isinstance(x.value, str) and x.value.isidentifier():
            yield x.value


class Names:
    """The names that the statements of a package and its tests mention."""

    def __init__(self, package: Path, tests: Path):
        self.statements: list[tuple[str, tuple[str, ...]]] = []  # path, names
        self.mentions: dict[str, list[int]] = defaultdict(list)
        self.defined: dict[str, list[str]] = defaultdict(list)
        for f in sorted(package.rglob("*.py")):
            path, text = f.relative_to(package).as_posix(), f.read_text()
            lines = text.splitlines()
            for node in ast.parse(text).body:
                if isinstance(node, ast.Import | ast.ImportFrom):
                    continue
                of_class = [node.name] if isinstance(node, ast.ClassDef) else []
                for part in node.body if isinstance(node, ast.ClassDef) else [node]:
                    names = tuple(dict.fromkeys([*of_class, *_names(part)]))
                    self.defined[path].extend(names)
                    source = "\n".join(lines[part.lineno - 1 : part.end_lineno])
                    for word in set(_WORD.findall(source)):
                        self.mentions[word].append(len(self.statements))
                    self.statements.append((path, names))
        self.tests = {
            f.relative_to(tests.parent).as_posix(): Counter(_WORD.findall(f.read_text()))
            for f in sorted(tests.rglob("test_*.py"))
            if f.parent.name != "oracles"
        }
        self.found = Counter(w for words in self.tests.values() for w in words)

    def rare(self, word: str) -> float:
        """How much a word says: nothing when all tests have it."""
        return math.log(len(self.tests) / self.found[word]) if self.found[word] else 0.0

    def words(self, path: str, scope: str) -> dict[str, float]:
        """The words of a function, with their weights."""
        found: dict[str, float] = {}

        def take(words: Collection[str], weight: float) -> None:
            for w in words:
                for form, part in (
                    (w, 1.0),
                    (w.strip("_"), 1.0),
                    *((x, 0.3) for x in w.split("_") if len(x) > 3),
                ):
                    found[form] = max(found.get(form, 0.0), weight * part)

        stem = Path(path).stem if Path(path).stem != "__init__" else Path(path).parent.name
        take(self.defined[path], 1.2 / math.sqrt(len(self.defined[path]) + 1))
        take([stem], 2.0)
        take(Path(path).parts[:-1], 0.5)
        names = [x for x in scope.split(".") if x and not x.startswith("__")]
        take(names, 4.0)
        before = set(names)
        for weight in HOPS:
            after: set[str] = set()
            for name in before:
                places = self.mentions[name]
                if len(places) <= MOST:
                    after.update(n for i in places for n in self.statements[i][1])
            after -= before
            take(after, weight / math.sqrt(len(after) + 1))
            before |= after
        return {w: x * self.rare(w) for w, x in found.items() if self.rare(w) > 0}

    def files(self, path: str, words: dict[str, float]) -> list[str]:
        """Test files, nearest first."""
        folders = Path(path).parts[:-1]
        stem = Path(path).stem

        def score(test: str) -> float:
            mine = self.tests[test]
            shared = sum(x * (1 + 0.3 * math.log(mine[w])) for w, x in words.items() if mine[w])
            size = math.log(sum(mine.values()) + 50) ** 2
            same = sum(a == b for a, b in zip(folders, Path(test).parts[1:-1], strict=False))
            return (1 + 0.25 * same + 0.6 * (stem in test)) * shared / size

        return sorted(self.tests, key=lambda t: -score(t))
