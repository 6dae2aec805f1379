"""The reference of the public names, generated from the code: signature, parameters, what it does, and an
example.

Examples are lines of the pages of docs/, which tests run.  The page docs/api.md says `<!-- api -->` where
all of it stands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import tessera as ts
from tessera import op
from tessera.core.dtype import DType, PolicyTerm
from tessera.core.errors import TesseraError

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "api.md"
# Prefix, module, and what it holds.
MODULES: tuple[tuple[str, Any, str], ...] = (
    ("ts", ts, "Tensors, transforms, devices, files and tools."),
    ("ts.tree", ts.tree, "Nested tuples, lists, dicts and dataclasses of tensors."),
    ("op.random", op.random, "Random numbers: functions of a key."),
    ("ts.nn", ts.nn, "Layers: modules that are trees of their parameters."),
    ("ts.optim", ts.optim, "Optimisers and schedules of the learning rate."),
    ("ts.data", ts.data, "Sources, loaders and augmentation."),
    ("ts.train", ts.train, "A training loop with metrics and checkpoints."),
    ("ts.dist", ts.dist, "Meshes, layouts and collectives."),
    ("ts.testing", ts.testing, "Checks for a user's own code."),
)


class Entry(NamedTuple):
    """A public name."""

    name: str  # with its module
    value: Any
    doc: str


def entries(prefix: str, module: Any) -> Iterator[Entry]:
    """The public names of a module that are its own."""
    for n in getattr(module, "__all__", None) or dir(module):
        value = _value(module, n)
        if n.startswith("_") or isinstance(value, ModuleType) or not _is_ours(value):
            continue
        if prefix == "ts.tree" and value.__module__ != "tessera.core.tree":
            continue
        yield Entry(f"{prefix}.{n}", value, _doc(value))


def _value(module: Any, name: str) -> Any:
    """What a name stands for; None where it is a module that needs a package which is not there."""
    try:
        return getattr(module, name, None)
    except TesseraError:
        return None


def _is_ours(x: Any) -> bool:
    if isinstance(x, DType | PolicyTerm):
        return True
    module = getattr(x, "__module__", None) or type(x).__module__
    return callable(x) and module.startswith("tessera")


def _doc(x: Any) -> str:
    if isinstance(x, DType):
        return f"The dtype {x}: {x.bits} bits an element."
    if isinstance(x, PolicyTerm):
        return f"Policy term: dtype @ {x}."
    if inspect.isclass(x) or inspect.isroutine(x):
        return inspect.getdoc(x) or ""
    return inspect.getdoc(x) or inspect.getdoc(type(x)) or ""


def _signature(x: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(x)
    except (TypeError, ValueError):
        return None


def call_of(e: Entry) -> str:
    """The name as it is called."""
    s = None if isinstance(e.value, DType | PolicyTerm) else _signature(e.value)
    if s is None:
        return e.name
    plain = [p.replace(annotation=p.empty) for p in s.parameters.values() if p.name != "self"]
    return re.sub(r" at 0x[0-9a-f]+", "", e.name + str(inspect.Signature(plain)))


def parameters_of(e: Entry) -> list[str]:
    """The parameters that have types, one line each."""
    s = None if isinstance(e.value, DType | PolicyTerm) else _signature(e.value)
    found = []
    for p in s.parameters.values() if s is not None else ():
        if p.name == "self" or p.annotation is p.empty:
            continue
        kind = (
            p.annotation
            if isinstance(p.annotation, str)
            else inspect.formatannotation(p.annotation)
        )
        default = "" if p.default is p.empty else f", `{_cell(repr(p.default))}` unless given"
        found.append(f"- `{p.name}`: `{_cell(kind)}`{default}")
    return found


def _cell(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))


def lines() -> list[tuple[str, str]]:
    """The lines of Python on the pages, each with its page."""
    out = []
    for page in sorted(DOCS.glob("*.md")):
        if page == PAGE:
            continue
        for block in re.findall(
            r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL
        ):
            out += [
                (x.strip(), page.name)
                for x in block.splitlines()
                if x.strip() and not x.startswith("#")
            ]
    return out


def example_of(e: Entry, found: list[tuple[str, str]]) -> str:
    """A line of a page that uses the name; for a dtype or a function that no page uses, a call of it."""
    short = e.name.removeprefix("ts.") if e.name.count(".") > 1 else e.name
    last = e.name.rpartition(".")[2] + "("
    for part, pattern in (
        (e.name, rf"(?<![\w.]){re.escape(e.name)}\b"),
        (short, rf"(?<![\w.]){re.escape(short)}\b"),
        (last, rf"(?<![\w.]){re.escape(last)}"),
    ):
        for text, page in found:
            if part not in text or not re.search(pattern, text):
                continue
            if not text.startswith(("from ", "import ", "def ")):
                return f"```py\n{text}\n```\n\n(from [{page}]({page}))"
    return f"```py\n{call_of(e)}\n```"


def reference() -> str:
    """The page."""
    found, out = lines(), list[str]()
    for prefix, module, text in MODULES:
        out.append(f"## {prefix}\n\n{text}\n")
        for e in entries(prefix, module):
            doc = re.sub(r"\n{2,}", "\n\n", e.doc.strip())
            parts = [
                f"### {e.name}",
                f"`{call_of(e)}`",
                doc,
                "\n".join(parameters_of(e)),
                example_of(e, found),
            ]
            parts += ["\n".join(methods_of(e))]
            out.append("\n\n".join(p for p in parts if p) + "\n")
    return "\n".join(out)


def methods_of(e: Entry) -> list[str]:
    """The public methods of a class, one line each."""
    if not inspect.isclass(e.value):
        return []
    found = []
    for n, f in sorted(vars(e.value).items()):
        doc = inspect.getdoc(f.fget if isinstance(f, property) else f) or ""
        if (
            not n.startswith("_")
            and (callable(f) or isinstance(f, property | staticmethod))
            and doc
        ):
            first = " ".join(doc.partition("\n\n")[0].split())
            found.append(f"- `.{n}`: {first}")
    return found


def undocumented() -> list[str]:
    """Public names without a sentence."""
    return [e.name for prefix, m, _ in MODULES for e in entries(prefix, m) if not e.doc.strip()]
