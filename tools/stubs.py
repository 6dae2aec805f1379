"""Writes tessera/lang/op.pyi: what an editor and a type checker read of `op`.

`op` collects the ops of some fifty modules, and adding an op is a record in one of them. The stub lists
every public name with its signature and its sentence. `python -m tools.stubs --check` fails where it is out
of date, and so does a test.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import subprocess
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tessera.lang import op

PATH = Path(__file__).parent.parent / "tessera" / "lang" / "op.pyi"
HEAD = '''"""op.<name>: every op, and the functions written with them, under one name.

Written by tools/stubs.py from the records of the ops; do not edit.
"""
'''
# What functions of the language give is the language's tensor.
RETURNS = {"Value": ("tessera.lang.tensor", "Tensor")}


def defining(word: str, module: str) -> str:
    """The module that a name was imported from, and so on to the one that defines it."""
    found = imported(module).get(word)
    if found is None:
        return module
    return defining(word, found) if found.startswith("tessera") else found


@cache
def imported(module: str) -> dict[str | None, str]:
    """The names that a module imports from others, each with the first that it comes from."""
    out: dict[str | None, str] = {}
    for n in ast.walk(parsed(module)):
        if isinstance(n, ast.ImportFrom):
            for a in n.names:
                out.setdefault(a.asname, n.module or "")
                out.setdefault(a.name, n.module or "")
    return out


@cache
def parsed(module: str) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(Path(sys.modules[module].__file__ or "").read_text())


class Stub:
    """The lines of a stub and the names that it imports."""

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.lines: list[str] = []

    def name(self, word: str, where: dict[str, Any], returns: bool) -> str:
        """A name in an annotation, imported from where it is defined; Any for one that clashes."""
        if hasattr(builtins, word):
            return word
        module, found = RETURNS.get(word, ("", "")) if returns else ("", "")
        if not module:
            module, found = defining(word, where["__name__"]), word
        if self.imports.setdefault(found, module) != module:
            self.imports.setdefault("Any", "typing")
            return "Any"
        return found

    def annotation(self, text: Any, where: dict[str, Any], returns: bool = False) -> str:
        """An annotation with the names that the stub imports."""
        if text is inspect.Parameter.empty:
            return self.name("Any", {"__name__": __name__}, False)
        tree = ast.parse(str(text), mode="eval")
        for n in ast.walk(tree):
            if isinstance(n, ast.Name):
                n.id = self.name(n.id, where, returns)
        return ast.unparse(tree)

    def function(self, name: str, f: Callable[..., Any]) -> None:
        """`def name(...) -> ...: "sentence"`."""
        where = inspect.unwrap(f).__globals__
        signature = inspect.signature(f)
        words, only = [], False
        for p in signature.parameters.values():
            star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
            if p.kind is p.KEYWORD_ONLY and not only:
                words.append("*")
            only = only or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
            default = "" if p.default is p.empty else " = ..."
            words.append(f"{star}{p.name}: {self.annotation(p.annotation, where)}{default}")
        result = self.annotation(signature.return_annotation, where, returns=True)
        first = " ".join((inspect.getdoc(f) or "").partition("\n\n")[0].split())
        doc = first.replace("\\", "\\\\")
        self.lines.append(f'def {name}({", ".join(words)}) -> {result}:\n    """{doc}"""\n')

    def text(self) -> str:
        """The whole file; ruff formats it."""
        modules: dict[str, list[str]] = {}
        for found, module in self.imports.items():
            modules.setdefault(module, []).append(found)
        lines = [f"from {m} import {', '.join(sorted(ns))}" for m, ns in sorted(modules.items())]
        return "\n".join([HEAD, *lines, "from tessera.lang import random as random\n", *self.lines])


def written() -> str:
    """The stub, before it is formatted."""
    stub = Stub()
    for name in sorted(op.__all__):
        x = getattr(op, name)
        if not isinstance(x, types.ModuleType):
            stub.function(name, x)
    return stub.text()


def formatted(text: str) -> str:
    """As ruff writes it."""

    def ruff(*words: str, given: str) -> str:
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(PATH), "-"]
        return subprocess.run(
            command, input=given, capture_output=True, text=True, check=True
        ).stdout

    return ruff("format", given=ruff("check", "--fix", "-q", "--select", "I", given=text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where the stub is out of date")
    text = formatted(written())
    if parser.parse_args().check:
        return int(PATH.read_text() != text)
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
