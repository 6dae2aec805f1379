"""Which package may import which.  A stage knows the stage before it, never one after it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tessera.compile import artifact
from tessera.core.observe import Observed
from tessera.core.provided import Provided

ROOT = Path(__file__).parents[2] / "tessera"
FILES = sorted(ROOT.rglob("*.py"))


def table() -> dict[str, str]:
    """The table of docs/compiler.md: what each package may import."""
    text = (ROOT.parent / "docs" / "compiler.md").read_text()
    _, _, rest = text.partition("| package | what it holds | may import |\n")
    rows = [line.strip("| ").split(" | ") for line in rest.partition("\n\n")[0].splitlines()[1:]]
    return {n: "" if may.startswith("nothing") else may.replace(",", "") for n, _, may in rows}


MAY_IMPORT = table()
# What an installation always has; every other third-party package is optional.
REQUIRED = {"numpy", "ml_dtypes"}
STANDARD = sys.stdlib_module_names
# What a layer loads from one above it when the user asks for that: pictures, pages, hand-written kernels.
UPWARD = {
    "tessera": {"tessera.lang.kernel.traced", "tessera.inspect.pictures", "tessera.array_api"},
    "tessera.lang.jit": {"tessera.inspect.page"},
}


def package(module: str) -> str:
    """The row of the table that a module belongs to."""
    parts = module.split(".")[1:]
    if parts[:1] == ["ir"]:
        level = ".".join(parts[:2])
        return level if level in MAY_IMPORT else "ir"
    return parts[0] if parts else "tessera"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def named(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Modules that are imported by a string: Deferred("module:function") and import_module("module")."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Call) and n.args and isinstance(x := n.args[0], ast.Constant):
            called = n.func.attr if isinstance(n.func, ast.Attribute) else getattr(n.func, "id", "")
            if called in ("Deferred", "import_module") and str(x.value).startswith("tessera."):
                yield str(x.value).partition(":")[0], n


def strings(tree: ast.AST) -> Iterator[str]:
    """Modules that any string names, by their full name or by that below tessera."""
    for n in ast.walk(tree):
        if isinstance(n, ast.Constant) and isinstance(n.value, str):
            name = n.value.partition(":")[0]
            if "." in name:
                yield from {name, f"tessera.{name}"} & MODULES


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement of a tree.  Expressions have none in them and are most of it."""
    open_ = [tree]
    while open_:
        n = open_.pop()
        if isinstance(n, ast.stmt):
            yield n
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            open_ += getattr(n, part, ())


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """The full name of every module that is imported, with the statement."""
    for n in statements(tree):
        if isinstance(n, ast.Import):
            for a in n.names:
                yield a.name, n
        elif isinstance(n, ast.ImportFrom):
            base = n.module or ""
            for a in n.names:
                full = f"{base}.{a.name}"
                yield full if full in MODULES else base, n


MODULES = {module_of(p) for p in FILES} | {
    module_of(p / "__init__.py") for p in ROOT.rglob("*") if p.is_dir()
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text_of(path), str(path))


@cache
def imports_of(path: Path) -> list[tuple[str, ast.stmt]]:
    return list(imports(parsed(path)))


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def names_modules(path: Path) -> bool:
    """Whether a file can import by a string: what does so is in its text."""
    return any(word in text_of(path) for word in ("Deferred", "import_module"))


@cache
def named_in(path: Path) -> list[tuple[str, ast.Call]]:
    return list(named(parsed(path))) if names_modules(path) else []


def functions(path: Path) -> Iterator[ast.AST]:
    """The outermost functions and lambdas of a file, with all that is in them."""
    open_: list[ast.AST] = [parsed(path)]
    while open_:
        for n in ast.iter_child_nodes(open_.pop()):
            if isinstance(n, ast.FunctionDef | ast.Lambda):
                yield n
            else:
                open_.append(n)


FOLDERS = sorted({p.parent for p in FILES})


def every_file(check: Callable[[Path], None]) -> Callable[..., None]:
    """A check of one file as a test of each folder."""

    def test(folder: Path) -> None:
        for path in FILES:
            if path.parent == folder:
                check(path)

    test.__name__, test.__doc__ = check.__name__, check.__doc__
    ids = [str(f.relative_to(ROOT)) for f in FOLDERS]
    return pytest.mark.parametrize("folder", FOLDERS, ids=ids)(test)


@cache
def used_by(path: Path) -> frozenset[str]:
    """The modules of tessera that a file imports or names."""
    imported = {m for m, _ in imports_of(path) if m.split(".")[0] == "tessera"}
    said = {m for m, _ in named_in(path)}
    if module_of(path) != "tessera.core.moved":  # whose strings are for errors
        said |= set(strings(parsed(path)))
    return frozenset(imported | said - UPWARD.get(module_of(path), set()))


@every_file
def test_imports_follow_the_table(path: Path) -> None:
    mine = package(module_of(path))
    allowed = {mine, *MAY_IMPORT[mine].split()}
    assert {m: package(m) for m in used_by(path) if package(m) not in allowed} == {}


def test_the_table_allows_nothing_that_is_not_needed() -> None:
    used: dict[str, set[str]] = {}
    for path in FILES:
        used.setdefault(package(module_of(path)), set()).update(map(package, used_by(path)))
    assert {n: set(may.split()) for n, may in MAY_IMPORT.items()} == {
        n: used[n] - {n} for n in MAY_IMPORT
    }


def test_modules_in_strings_are_found() -> None:
    tree = ast.parse(
        "def f():\n    x = 'runtime.pool', 'tessera.lang.jit:jit', 'no.module', 'pool'"
    )
    assert set(strings(tree)) == {"tessera.runtime.pool", "tessera.lang.jit"}


def test_the_exceptions_are_still_needed() -> None:
    found = {module_of(p): {m for m, _ in named_in(p)} for p in FILES}
    for module, strings in UPWARD.items():
        assert strings <= found[module], module


@every_file
def test_modules_are_named_by_strings_in_tables_only(path: Path) -> None:
    """A function that is loaded late is a Deferred of the module; nothing is imported by a string inside
    a function.
    """
    if not names_modules(path):
        return
    hidden = {m for f in functions(path) for m, _ in named(f)} - UPWARD.get(module_of(path), set())
    assert hidden == set()


@every_file
def test_no_import_is_relative_or_hidden(path: Path) -> None:
    """Modules by their full names; of tessera at the top of the file only."""
    every = list(statements(parsed(path)))
    relative = [n.lineno for n in every if isinstance(n, ast.ImportFrom) and n.level]
    assert relative == []
    hidden = {
        f"line {n.lineno}: {m}"
        for f in every
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)
        for m, n in imports(f)
        if m.startswith("tessera")
    }
    assert hidden == set()


def test_each_optional_package_is_imported_in_one_file() -> None:
    users: dict[str, set[str]] = {}
    for path in FILES:
        for module, _ in imports_of(path):
            top = module.split(".")[0]
            if top not in STANDARD and top not in REQUIRED and top != "tessera":
                users.setdefault(top, set()).add(str(path.relative_to(ROOT)))
    assert {top: sorted(files) for top, files in users.items() if len(files) > 1} == {}


def test_the_table_has_no_cycle() -> None:
    """Dropping packages whose imports are all dropped leaves none."""
    left = {p: set(allowed.split()) for p, allowed in MAY_IMPORT.items()}
    while free := [p for p, allowed in left.items() if not allowed & set(left) - {p}]:
        for p in free:
            del left[p]
    assert left == {}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {module_of(p): {m for m, _ in at_run_time(p) if m.startswith("tessera")} for p in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            for other in graph.get(module, ()):
                visit(other, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def at_run_time(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Imports outside `if TYPE_CHECKING:`."""
    for n in parsed(path).body:
        if not (isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)):
            yield from imports(n)


def test_the_key_of_an_artefact_has_the_sources_that_the_compiler_imports() -> None:
    rows = {row.partition(".")[0] for row in MAY_IMPORT["compile"].split()} | {"compile"}
    assert set(artifact._COMPILER) == rows


# Module-level state that changes after import, by file: caches, the pool of threads, flags of the process.
GLOBALS = {
    "core/call_guard.py",  # whether compiled calls are counted
    "core/flags.py",  # defaults from the environment
    "core/garbage.py",  # collector paused by how many
    "core/source.py",  # folders of libraries that call us for the user
    "core/ranks.py",  # the engine of this process
    "data/loader.py",  # a worker process's data source
    "runtime/allocator.py",
    "runtime/folder.py",
    "runtime/memory.py",
    "runtime/pool.py",
}


def test_what_a_higher_layer_provides_has_one_form() -> None:
    """A lower layer declares a Provided slot; there is no set_* function and no `global` for it."""
    hooks, changed = [], set()
    for path in FILES:
        where = str(path.relative_to(ROOT))
        hooks += [
            f"{where}: {n.name}"
            for n in parsed(path).body
            if isinstance(n, ast.FunctionDef) and n.name.startswith("set_")
        ]
        if any(isinstance(n, ast.Global) for n in statements(parsed(path))):
            changed.add(where)
    assert hooks == []
    assert changed == GLOBALS


def test_every_slot_is_provided_and_documented() -> None:
    text = (ROOT.parent / "docs" / "compiler.md").read_text()
    for slot in Provided.slots.values():
        assert slot.value is not None, slot.name
        assert f"| {slot.name} | {slot.doc} |" in text, slot.name


def test_every_kind_of_work_that_can_be_observed_is_documented() -> None:
    text = (ROOT.parent / "docs" / "compiler.md").read_text()
    for kind in Observed.kinds.values():
        assert f"| {kind.name} | {kind.doc} |" in text, kind.name


def replaced(tree: ast.Module) -> Iterator[str]:
    """Attributes of imported names, and of classes outside of themselves, that functions assign to."""
    known = {
        a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names
    }
    known |= {n.name for n in tree.body if isinstance(n, ast.ClassDef)}
    every = list(statements(tree))
    for n in every:
        if isinstance(n, ast.AnnAssign | ast.Assign) and isinstance(n.value, ast.Name):
            targets = n.targets if isinstance(n, ast.Assign) else [n.target]
            if n.value.id in known:  # another name for one of them
                known |= {t.id for t in targets if isinstance(t, ast.Name)}
    for n in every:
        for t in n.targets if isinstance(n, ast.Assign) else ():
            for x in t.elts if isinstance(t, ast.Tuple) else [t]:
                if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name):
                    if x.value.id in known:
                        yield f"{x.value.id}.{x.attr}"


# Fields of a class or of a local of threads; none of them is a method.
FIELDS = {"Recorder._on", "DECISIONS.same", "LIVE.session", "ASIDE.stream"}


@every_file
def test_no_method_is_replaced_from_outside(path: Path) -> None:
    """What wants to see calls, launches or passes is an observer (core/observe.py)."""
    assert set(replaced(parsed(path))) <= FIELDS


def test_replaced_methods_are_found() -> None:
    text = "from a import B\nc: object = B\ndef f():\n    B.run = 1\n    c.go, d.x = 2, 3\n"
    assert sorted(replaced(ast.parse(text))) == ["B.run", "c.go"]
