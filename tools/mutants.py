"""Random one-line faults: operators, constants, guards and calls of the package, each changed in one place.

`draw` picks mutants from all packages, by seed; `tools/random_mutants.py` shows them to the tests.
A mutant changes what the code does, not what it says: annotations, docstrings, messages, assertions
and `__repr__` are left alone.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COMPARISONS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC: dict[type, str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "%", ast.Mod: "//",
    ast.LShift: ">>", ast.RShift: "<<", ast.BitAnd: "|", ast.BitOr: "&", ast.Pow: "*",
}  # fmt: skip
CALLS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor",
    "maximum": "minimum", "minimum": "maximum", "append": "extend", "issubset": "issuperset",
}  # fmt: skip
# Functions that only speak: what a person reads, not what a program computes.
SPEAKING = ("__repr__", "__str__", "_repr_html_", "summary", "describe")
RAISING = ("Error", "Warning")


class Mutant(NamedTuple):
    """One change of one place of a file."""

    path: str  # below tessera/
    line: int
    scope: str  # the qualified name of the innermost function, "" for the module
    start: int
    stop: int  # characters of the file that are replaced
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The file with the fault."""
        assert text[self.start : self.stop] == self.old, (self, text[self.start : self.stop])
        return text[: self.start] + self.new + text[self.stop :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.scope or 'module'}: {self.old!r} -> {self.new!r}"


class _Finder(ast.NodeVisitor):
    """Collects the mutants of a file."""

    def __init__(self, path: str, text: str):
        self.path, self.text = path, text
        self.found: list[Mutant] = []
        self.scopes: list[str] = []
        self.offsets = [0]
        for line in text.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.lines = text.splitlines()

    def at(self, line: int, column: int) -> int:
        """The character of a place that ast gives in bytes."""
        return self.offsets[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node begins and ends."""
        n: ast.expr = node  # type: ignore[assignment]
        assert n.end_lineno is not None
        assert n.end_col_offset is not None
        return self.at(n.lineno, n.col_offset), self.at(n.end_lineno, n.end_col_offset)

    def add(self, line: int, start: int, stop: int, new: str) -> None:
        """Keep a mutant."""
        scope = ".".join(self.scopes)
        self.found.append(Mutant(self.path, line, scope, start, stop, self.text[start:stop], new))

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """Replace the operator between two nodes."""
        a, b = self.span(left)[1], self.span(right)[0]
        i = self.text.find(old, a, b)
        if i >= 0 and "#" not in self.text[a:b]:
            self.add(right.lineno, i, i + len(old), new)

    # what is left alone

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Enter a function: its body, not its annotations."""
        if node.name in SPEAKING:
            return
        self.scopes.append(node.name)
        for d in (*node.args.defaults, *(x for x in node.args.kw_defaults if x is not None)):
            self.visit(d)
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        for s in body:
            self.visit(s)
        self.scopes.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Enter a class."""
        self.scopes.append(node.name)
        for s in node.body:
            self.visit(s)
        self.scopes.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Only the value: annotations say nothing at run time."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Assert(self, node: ast.Assert) -> None:
        """Nothing: an assertion is a check already."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """Nothing: messages are pinned where they matter."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Nothing inside a text that is put together."""

    def visit_Assign(self, node: ast.Assign) -> None:
        """Not `__all__`."""
        if not (isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"):
            self.generic_visit(node)

    # what is changed

    def visit_Compare(self, node: ast.Compare) -> None:
        """`<` becomes `<=`, `==` becomes `!=`, and so on."""
        left = node.left
        for o, right in zip(node.ops, node.comparators, strict=True):
            self.between(left, right, _WORDS[type(o)], COMPARISONS[type(o)])
            left = right
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """`+` becomes `-`, `*` becomes `+`, and so on."""
        textual = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        if type(node.op) in ARITHMETIC and not textual:
            self.between(node.left, node.right, _SIGNS[type(node.op)], ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """`and` becomes `or`."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for a, b in zip(node.values, node.values[1:], strict=False):
            self.between(a, b, old, new)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """`not x` becomes `x`, `-x` becomes `x`."""
        start, _ = self.span(node)
        inner, _ = self.span(node.operand)
        if isinstance(node.op, ast.Not | ast.USub) and self.text[start:inner].count("(") == 0:
            self.add(node.lineno, start, inner, "")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A number becomes the next one, True becomes False."""
        start, stop = self.span(node)
        if isinstance(node.value, bool):
            self.add(node.lineno, start, stop, str(not node.value))
        elif isinstance(node.value, int):
            self.add(node.lineno, start, stop, str(node.value + 1))
        elif isinstance(node.value, float) and node.value == node.value:
            self.add(node.lineno, start, stop, repr(node.value + 0.5))

    def visit_If(self, node: ast.If) -> None:
        """A guard is dropped, or taken always."""
        start, stop = self.span(node.test)
        self.add(node.lineno, start, stop, "False")
        if node.orelse:
            self.add(node.lineno, start, stop, "True")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        """A choice takes one side."""
        start, stop = self.span(node.test)
        self.add(node.lineno, start, stop, "True")
        self.add(node.lineno, start, stop, "False")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """`min` becomes `max`; two arguments of one kind change places."""
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if name.endswith(RAISING):
            return
        if name in CALLS:
            _, stop = self.span(node.func)
            self.add(node.lineno, stop - len(name), stop, CALLS[name])
        if len(node.args) == 2 and type(node.args[0]) is type(node.args[1]) in (
            ast.Name,
            ast.Attribute,
        ):
            (a, b), (c, d) = self.span(node.args[0]), self.span(node.args[1])
            t = self.text
            if t[a:b] != t[c:d]:
                self.add(node.lineno, a, d, t[c:d] + t[b:c] + t[a:b])
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        """A call that is made for its effect is not made."""
        if isinstance(node.value, ast.Call):
            start, stop = self.span(node)
            self.add(node.lineno, start, stop, "pass")
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        """A condition of a comprehension is dropped."""
        for test in node.ifs:
            self.add(test.lineno, *self.span(test), "True")
        self.generic_visit(node)


_WORDS: dict[type, str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_SIGNS: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.Pow: "**",
}  # fmt: skip


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Every mutant of a file, in the order of its text."""
    finder = _Finder(path, text)
    tree = ast.parse(text)
    for s in tree.body[1:] if ast.get_docstring(tree) is not None else tree.body:
        finder.visit(s)
    return finder.found


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _files(package: Path) -> Iterator[Path]:
    yield from sorted(package.rglob("*.py"))


def draw(package: Path, seed: int, count: int) -> list[Mutant]:
    """So many mutants of a package, at most one a line, files by their number of lines."""
    rng = random.Random(seed)
    files = [(f, f.read_text()) for f in _files(package)]
    weights = [t.count("\n") for _, t in files]
    chosen: dict[tuple[str, int], Mutant] = {}
    known: dict[Path, list[Mutant]] = {}
    while len(chosen) < count:
        f, text = rng.choices(files, weights)[0]
        if f not in known:
            known[f] = mutants_of(f.relative_to(package).as_posix(), text)
        found = known[f]
        m = rng.choice(found) if found else None
        if m is not None and _parses(m.apply(text)):
            chosen.setdefault((m.path, m.line), m)
    return list(chosen.values())
