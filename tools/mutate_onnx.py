"""Damages ONNX files, loads and runs them: each gives results or a TesseraError, within bounds of memory
and time.

    python -m tools.mutate_onnx --count 50000 --seed 1 [--record FILE]

The files are cases of the onnx package, one for each node type, and a model with data in another file.
Copies are damaged in their bytes or in their messages: types, shapes, names, attributes, operator sets,
graphs within graphs, functions that call themselves, data outside of the model's folder.  A copy is a
function of its seed and number.  Copies run in batches that are processes of their own, with a limit of
memory; what loads also runs, on the inputs of its case.  A file outside of the folder that is opened, and a
process that is started, count as faults.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import tessera as ts
from tessera.core.flags import override
from tools import damage
from tools import onnx_conformance as suite

SECONDS = 30.0  # of the processor that one file may take
HUGE = [0, 1, -1, 2, 7, 255, 2**31 - 1, -(2**31), 2**40, 2**62, 2**63 - 1, -(2**63)]
NAMES = [
    "",
    "x",
    "y",
    "\0",
    "é",
    "a" * 300,
    "../x",
    "/etc/passwd",
    "ai.onnx.ml",
    "com.microsoft",
    "tessera",
]
PLACES = [
    "../secret.bin",
    "/etc/passwd",
    "..",
    ".",
    "",
    "weights.bin/..",
    "link.bin",
    "./../secret.bin",
    "\0",
    "weights.bin",
    "a" * 5000,
]
NUMBERS = ["-1", "0", "8", "1e3", "99999999999999999999", "", "٣", "0x10", " 4"]
WATCHED = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
    "os.remove",
    "shutil.rmtree",
)


def external_model() -> Any:
    """y = x + w, where w lies in weights.bin."""
    t = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    t.ClearField("raw_data")
    t.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "24")):
        t.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("x", 1, [2, 3])
    y = helper.make_tensor_value_info("y", 1, [2, 3])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [t])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


class Files:
    """What is damaged, and the folder that copies are written to."""

    def __init__(self, folder: Path, cases: list[Any]):
        self.folder = folder / "models"
        self.folder.mkdir()
        self.secret = folder / "secret.bin"
        self.secret.write_bytes(bytes(64))
        (self.folder / "weights.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
        (self.folder / "link.bin").symlink_to(self.secret)
        self.cases: list[tuple[Any, list[Any]]] = [
            (onnx.ModelProto.FromString(c.model), c.data[0][0] if c.data else []) for c in cases
        ]
        self.external = external_model()
        self.opened: list[str] = []  # what an audit of the interpreter saw and none may do

    def audit(self, event: str, args: Any) -> None:
        """Note files outside of the folder and processes."""
        if event in WATCHED:
            self.opened.append(event)
        elif (
            event == "open"
            and isinstance(args[0], str)
            and args[0] in (str(self.secret), "/etc/passwd")
        ):
            self.opened.append(f"open {args[0]}")


# Damage of bytes


def damaged_bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes with some changed, cut, doubled, or replaced by large numbers."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at = rng.randrange(max(len(out), 1))
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del out[at : at + rng.choice([1, 4, 64, len(out)])]
            case 2:
                out[at:at] = out[at : at + rng.choice([1, 16, 256])]
            case 3:
                out[at : at + 9] = b"\xff" * rng.choice([1, 8, 9]) + b"\x01"
            case _:
                out[at:at] = rng.randbytes(rng.choice([1, 8, 40]))
    return bytes(out)


# Damage of messages


def messages(m: Any) -> list[Any]:
    """A message and all inside of it."""
    found = [m]
    for field, value in m.ListFields():
        if field.type != field.TYPE_MESSAGE:
            continue
        for v in [value] if hasattr(value, "ListFields") else value:
            found += messages(v)
    return found


def damaged_field(rng: random.Random, m: Any) -> None:
    """Some field of a message changed, cleared, doubled or put in another order."""
    fields = m.ListFields()
    if not fields:
        return
    field, value = rng.choice(fields)
    name = field.name
    if field.type == field.TYPE_MESSAGE and hasattr(value, "ListFields"):
        if rng.random() < 0.5:
            m.ClearField(name)
        return
    if hasattr(value, "append") or hasattr(value, "add"):
        items = list(value)
        match rng.randrange(4):
            case 0:
                items = items[: rng.randrange(len(items) + 1)]
            case 1:
                items.insert(rng.randrange(len(items) + 1), rng.choice(items))
            case 2:
                rng.shuffle(items)
            case _:
                if field.type != field.TYPE_MESSAGE:
                    items[rng.randrange(len(items))] = scalar(rng, items[0])
        items = [copy.deepcopy(x) for x in items]
        m.ClearField(name)
        try:
            getattr(m, name).extend(items)
        except (ValueError, TypeError, UnicodeError):
            return
        return
    try:
        setattr(m, name, scalar(rng, value))
    except (ValueError, TypeError, UnicodeError):
        m.ClearField(name)


def scalar(rng: random.Random, like: Any) -> Any:
    """Another value of the same type."""
    if isinstance(like, bool):
        return not like
    if isinstance(like, int):
        return rng.choice([*HUGE, like + 1, like - 1, rng.randrange(30)])
    if isinstance(like, float):
        return rng.choice([0.0, -1.0, 1e30, float("nan"), float("inf"), like * 2])
    if isinstance(like, bytes):
        return damaged_bytes(rng, like) if like else rng.randbytes(4)
    return rng.choice([*NAMES, like + "x", like[:-1]])


def damaged_message(rng: random.Random, f: Files, model: Any) -> Any:
    """A model with one to three of its messages damaged."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        match rng.randrange(8):
            case 0 if model.graph.node:
                other, _ = rng.choice(f.cases)
                if other.graph.node:
                    rng.choice(model.graph.node).op_type = rng.choice(other.graph.node).op_type
            case 1 if model.graph.node:
                names = [i.name for i in model.graph.input] + [
                    o for n in model.graph.node for o in n.output
                ]
                node = rng.choice(model.graph.node)
                if node.input:
                    node.input[rng.randrange(len(node.input))] = rng.choice([*names, ""])
            case 2 if model.opset_import:
                rng.choice(model.opset_import).version = rng.choice([*range(1, 32), *HUGE])
            case 3:
                nested(rng, model)
            case 4:
                recursive(model)
            case _:
                damaged_field(rng, rng.choice(messages(model)))
    return model


def nested(rng: random.Random, model: Any) -> None:
    """The graph inside of itself, in a branch, some levels deep."""
    inner = copy.deepcopy(model.graph)
    for _ in range(rng.choice([1, 3, 30])):
        outer = helper.make_graph([], "outer", [], list(inner.output))
        node = helper.make_node("If", ["x"], [o.name for o in inner.output])
        node.attribute.append(helper.make_attribute("then_branch", inner))
        node.attribute.append(helper.make_attribute("else_branch", inner))
        outer.node.append(node)
        inner = outer
        if inner.ByteSize() > 1 << 16:
            break
    del model.graph.node[:]
    model.graph.node.extend(inner.node)


def recursive(model: Any) -> None:
    """A function that calls itself in place of the first node."""
    if not model.graph.node:
        return
    node = model.graph.node[0]
    ins, outs = (
        [f"i{k}" for k in range(len(node.input))],
        [f"o{k}" for k in range(len(node.output))],
    )
    body = [helper.make_node("Again", ins, outs, domain="own")]
    opsets = list(model.opset_import)
    model.functions.append(helper.make_function("own", "Again", ins, outs, body, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    node.op_type, node.domain = "Again", "own"


# Kinds


def load_bytes(f: Files, rng: random.Random) -> None:
    """A file whose bytes are damaged."""
    model, inputs = rng.choice(f.cases)
    use(ts.onnx.load(damaged_bytes(rng, model.SerializeToString())), inputs)


def load_messages(f: Files, rng: random.Random) -> None:
    """A file that is a message, but says something else."""
    model, inputs = rng.choice(f.cases)
    made = damaged_message(rng, f, copy.deepcopy(model))
    use(ts.onnx.load(made.SerializeToString()), inputs)


def load_external(f: Files, rng: random.Random) -> None:
    """A file with data in another file, or said to be."""
    made = copy.deepcopy(f.external)
    said = {e.key: e for e in made.graph.initializer[0].external_data}
    for _ in range(rng.choice([1, 1, 2])):
        match rng.randrange(4):
            case 0:
                said["location"].value = rng.choice([*PLACES, str(f.secret)])
            case 1:
                said[rng.choice(["offset", "length"])].value = rng.choice(NUMBERS)
            case 2 if made.graph.initializer:  # which damage may have taken away
                damaged_field(rng, rng.choice(messages(made.graph.initializer[0])))
            case _:
                damaged_field(rng, rng.choice(messages(made)))
    path = f.folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    m = ts.onnx.load(path)
    use(m, [np.ones((2, 3), np.float32)])


def use(m: Any, inputs: list[Any]) -> None:
    """Run a model on the inputs of its case, as many as it takes."""
    with override(target="numpy"):
        m.run({i.name: x for i, x in zip(m.model.graph.inputs, inputs, strict=False)})


KINDS: dict[str, Callable[[Files, random.Random], None]] = {
    "bytes": load_bytes,
    "messages": load_messages,
    "messages again": load_messages,
    "external data": load_external,
}


def attempt(f: Files, seed: int, number: int) -> str:
    """What becomes of one copy: ran, refused, or a fault, which is told."""
    rng = random.Random(f"{seed} {number}")
    kind = list(KINDS)[number % len(KINDS)]
    f.opened.clear()
    copy = f"{kind} {seed} {number}"
    found = damage.attempted(lambda: KINDS[kind](f, rng), copy, "ran", SECONDS)
    if f.opened:
        found = "fault"
        print(f"{copy}: {f.opened}", flush=True)
    return f"{kind}: {found}"


def run(count: int, seed: int, first: int = 0) -> Counter[str]:
    """All copies, in batches."""
    cases = suite.one_of_each(suite.node_cases(without=suite.SLOW))

    def batch(seed: int, numbers: range, results: Any) -> None:
        np.seterr(all="ignore")
        with tempfile.TemporaryDirectory() as folder:
            files = Files(Path(folder), cases)
            sys.addaudithook(files.audit)
            damage.limit_memory()
            results.put(Counter(attempt(files, seed, n) for n in numbers))

    return damage.in_batches(batch, count, seed, first)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(damage.main(__doc__, run))
