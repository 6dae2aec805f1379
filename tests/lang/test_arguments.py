"""No knob is accepted and ignored: every parameter of every public function is read by it, or has a
reason.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import dist, op
from tessera.cli.arguments import parser
from tessera.core.errors import OperandError
from tessera.ir.graph.op import REGISTRY
from tessera.lang.jit import Jitted
from tessera.lang.kernel.decorate import KernelFunction, _Decorator

CLI = Path(__file__).parents[2] / "tessera" / "cli"
MODULES = {
    "ts": ts, "op": op, "op.random": op.random, "dist": dist, "ts.optim": ts.optim, "ts.tree": ts.tree,
    "ts.array_api": ts.array_api, "ts.stdlib": ts.stdlib, "ts.cache": ts.cache, "ts.graph": ts.graph,
    "ts.verify": importlib.import_module("tessera.lang.verify"),
}  # fmt: skip
# What is not read, and why.
NOT_READ = {
    ("argsort", "stable"): "sorting is always stable, which serves both values",
    ("sort", "stable"): "sorting is always stable, which serves both values",
    ("__get__", "owner"): "of Python's protocol",
    ("io_callback", "ordered"): "calls keep the order of the program, which serves both values",
    (
        "chosen",
        "arrays",
    ): "a kernel with a schedule of its own needs no data; tuned kernels read it",
    ("chosen", "device"): "a kernel with a schedule of its own is the same on every device",
}


def functions() -> Iterator[tuple[str, Any]]:
    for label, module in MODULES.items():
        for name in dir(module):
            if name.startswith("_") or (name == "torch" and find_spec("torch") is None):
                continue
            v = getattr(module, name)
            if inspect.isclass(v) and v.__module__.startswith("tessera"):
                yield from of_class(f"{label}.{name}", v)
            elif callable(v):
                yield f"{label}.{name}", v
    for c in (Jitted, KernelFunction, _Decorator):
        yield from of_class(c.__name__, c)


def of_class(label: str, c: type) -> Iterator[tuple[str, Any]]:
    for name, f in vars(c).items():
        if not name.startswith("_") or name in ("__init__", "__call__", "__get__"):
            yield f"{label}.{name}", getattr(f, "__func__", f)


def plain(f: Any) -> Any:
    g = inspect.unwrap(getattr(f, "front", f))
    ours = inspect.isfunction(g) and (g.__module__ or "").startswith("tessera")
    return g if ours and "<" not in g.__code__.co_filename else None


def unread(g: Any) -> set[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(g)))
    whole = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.Lambda))
    body = whole.body if isinstance(whole.body, list) else [whole.body]
    used = {n.id for b in body for n in ast.walk(b) if isinstance(n, ast.Name)}
    given = {n for n in inspect.signature(g).parameters if n not in ("self", "cls")}
    return {n for n in given - used if not n.startswith("_")}


def test_every_parameter_of_every_public_function_is_read():
    seen, found = set(), {}
    for label, f in functions():
        g = plain(f)
        if g is None or g in seen:
            continue
        seen.add(g)
        for name in unread(g):
            if (g.__name__, name) not in NOT_READ:
                found[label, name] = g.__module__
    assert len(seen) > 600
    assert found == {}


def test_every_option_of_the_command_line_is_read():
    text = "".join(p.read_text() for p in CLI.glob("*.py"))

    def options(p: argparse.ArgumentParser) -> Iterator[str]:
        for a in p._actions:
            if isinstance(a, argparse._SubParsersAction):
                for inner in a.choices.values():
                    yield from options(inner)
            elif a.dest != "help":
                yield a.dest

    assert {n for n in options(parser()) if not re.search(rf"args\.{n}\b", text)} == set()


def test_every_effect_of_an_op_is_one_that_passes_know():
    known = {"random", "state", "movement", "collective", "io"}
    assert {e for o in REGISTRY.values() for e in o.effects} <= known


def test_astype_copies_or_does_not():
    mine = np.ones(4, np.float32)
    x = ts.asarray(mine)
    copied, same = x.astype(ts.f32), x.astype(ts.f32, copy=False)
    mine[0] = 7
    assert same is x or same.numpy()[0] == 7
    assert copied.numpy()[0] == 1
    assert ts.jit(lambda v: v.astype(ts.f32) + 1)(x).numpy()[0] == 8


def test_a_stream_for_to_device_is_refused_by_name():
    with pytest.raises(OperandError, match="to_device: stream is 3, expected None"):
        op.ones((2,)).to_device("cpu", stream=3)
