"""tessera replay: repeat a recorded run, or run the file that a fault of the compiler left."""

from __future__ import annotations

import argparse
import json
import traceback
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tessera.cli.show import Console, Failure, Live, UsageError
from tessera.compile import compile_graph
from tessera.compile.fallback import HEAD
from tessera.core.errors import CompilerFault, TesseraError
from tessera.core.flags import override
from tessera.core.text import Reader
from tessera.core.types import TensorType
from tessera.ir.graph.interp import execute
from tessera.ir.graph.ir import Graph, on_host
from tessera.ir.graph.text import parse_graph
from tessera.ir.reader import parse
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Kernel
from tessera.lang.kernel.launch import compiled
from tessera.replay.again import replay


def replay_file(args: argparse.Namespace) -> int:
    """Repeat a run that ts.record wrote down, or compile a program that the compiler failed on again."""
    if zipfile.is_zipfile(args.file):
        return _replay_record(args)
    text = _read(args.file)
    facts = [
        line.removeprefix("// ").partition(": ") for line in text.splitlines() if line[:3] == "// "
    ]
    target, numerics = (next(v for k, _, v in facts if k == key) for key in ("target", "numerics"))
    types = [Reader(v).tensor_type() for k, _, v in facts if k == "input"]
    found = parse(text)
    with override(strict=True, verify=True, numerics=numerics):
        try:
            if isinstance(found, Kernel):
                print(f"{found.name}: {_replayed_kernel(found, types)}")
            else:
                graph = parse_graph(text)
                print(f"{graph.name}: {_replayed(graph, target, types)}")
        except CompilerFault as e:
            cause = "".join(traceback.format_exception(e.__cause__)) if e.__cause__ else ""
            raise Failure(f"{cause}{e.message}") from None
    return 0


def _replay_record(args: argparse.Namespace) -> int:
    """Repeat the calls of a record; 1 when bits differ."""
    with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
        found = replay(
            args.file, args.target, lambda i, n, f: live.update(f"call {i + 1} of {n}: {f}")
        )
    if args.json:
        print(json.dumps(asdict(found)))
    else:
        print(found)
    return 0 if found.difference is None else 1


def _read(path: str) -> str:
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    if not text.startswith(HEAD):
        raise UsageError(
            f"{path} is neither a record of ts.record nor a file that a fault of the compiler left"
        )
    return text


def _replayed(graph: Graph, target: str, types: list[TensorType]) -> str:
    """What became of a program that the compiler failed on once."""
    made = compile_graph(graph, target)
    if not all(t.static for t in types):
        return f"compiles for {target}; its sizes are not known, so it was not run"
    rng = np.random.default_rng(0)
    given = [_drawn(t, rng) for t in types]
    try:
        outs = [on_host(x) for x in made.run(given)]
    except CompilerFault:
        raise
    except TesseraError as e:
        return f"compiles for {target}; on random numbers it says: {e.message}"
    if target != "cpu":
        return f"compiles for {target} and runs"
    plain = execute(graph, given)
    same = all(a.tobytes() == b.tobytes() for a, b in zip(outs, plain, strict=True))
    bits = "the bits" if same else "OTHER bits than those"
    return f"compiles for {target} and runs, with {bits} that its ops have one by one"


def _replayed_kernel(kernel: Kernel, types: list[TensorType]) -> str:
    """What became of a hand-written kernel that the compiler failed on once."""
    made = compiled(kernel)
    if not all(t.static for t in types):
        return "compiles for cpu; its sizes are not known, so it was not run"
    rng = np.random.default_rng(0)
    given = [_drawn(t, rng) for t in types]
    outs = [x.copy() for x in given]
    interpret(kernel, given, {})
    made.run(outs, {})
    same = all(a.tobytes() == b.tobytes() for a, b in zip(outs, given, strict=True))
    bits = "the bits" if same else "OTHER bits than those"
    return f"compiles for cpu and runs, with {bits} of the Tile interpreter"


def _drawn(t: TensorType, rng: np.random.Generator) -> Any:
    shape: Any = t.shape
    data = rng.uniform(-1, 1, shape) if t.dtype.kind in "fc" else np.zeros(shape)
    return data.astype(t.dtype.np)
