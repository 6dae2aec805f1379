"""tessera run and inspect for ONNX files."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.cli.show import UsageError
from tessera.interop.onnx import OnnxModule, load
from tessera.interop.onnx.model import OnnxNode
from tessera.interop.onnx.rule import RULES


def run_model(path: str, rest: Sequence[str]) -> int:
    """Run a model on arrays from .npy files, and print or save its outputs."""
    args = _arguments(rest)
    model = _loaded(path)
    outputs = model.run(_inputs(model, args.input))
    for k, (name, x) in enumerate(outputs.items()):
        print(f"{name}: {_described(x)}")
        if args.output:
            folder = Path(args.output)
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{k}_{_plain(name)}.npy", np.asarray(x))
    return 0


def _arguments(rest: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tessera run MODEL.onnx", description="Run an ONNX model on arrays."
    )
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]PATH",
                        help="an array in a .npy file; without a name, for the next input")  # fmt: skip
    parser.add_argument("--output", metavar="FOLDER", help="write each output as a .npy file")
    return parser.parse_args(list(rest))


def _loaded(path: str) -> OnnxModule:
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}")
    return load(path)


def _inputs(model: OnnxModule, given: Sequence[str]) -> dict[str, Any]:
    names = [i.name for i in model.inputs]
    found: dict[str, Any] = {}
    for text in given:
        name, _, path = text.rpartition("=")
        if not name:
            free = [n for n in names if n not in found]
            if not free:
                raise UsageError(f"--input {text}: the model has no more inputs")
            name = free[0]
        found[name] = _array(path)
    missing = [n for n in names if n not in found]
    if missing:
        raise UsageError(f"the model needs --input for {', '.join(missing)}: {model.signature}")
    return found


def _array(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as e:
        raise UsageError(f"--input {path} is no .npy file: {e}") from None


def _described(x: Any) -> str:
    if isinstance(x, list):
        return f"sequence of {len(x)}"
    text = np.array2string(np.asarray(x), threshold=8, edgeitems=2, separator=", ")
    return f"{getattr(x, 'type', np.asarray(x).dtype)} {' '.join(text.split())}"


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def inspect_model(path: str) -> int:
    """Print what a model takes, gives, and is made of."""
    model = _loaded(path)
    nodes = list(_nodes(model.model.graph.nodes))
    counts = Counter(f"{n.domain}.{n.op}" if n.domain else n.op for n in nodes)
    known = {(n.domain, n.op) for n in nodes} & (RULES.keys() | model.model.functions.keys())
    lacking = sorted(
        {f"{n.domain}.{n.op}" if n.domain else n.op for n in nodes if (n.domain, n.op) not in known}
    )
    sizes = [a.nbytes for a in model.model.graph.initialisers.values()]
    facts = {
        "producer": model.model.producer,
        "operator sets": {k or "ai.onnx": v for k, v in model.model.opsets.items()},
        "inputs": [str(i) for i in model.inputs], "outputs": [str(o) for o in model.outputs],
        "initialisers": len(sizes), "bytes": sum(sizes), "nodes": dict(counts.most_common()),
        "no rule": lacking,
    }  # fmt: skip
    for name, value in facts.items():
        if value or name != "no rule":
            print(f"{name:14} {_line(value)}")
    return 0


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _nodes(nodes: Sequence[OnnxNode]) -> Iterator[OnnxNode]:
    for n in nodes:
        yield n
        for g in n.graphs():
            yield from _nodes(g.nodes)
