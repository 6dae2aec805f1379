"""Trained ONNX files beside onnxruntime: do they agree, and which is faster.

    python benchmarks/onnx_models.py FOLDER_OR_FILE ... [--seconds 2] [--size NAME=N] [--json PATH]
    python benchmarks/onnx_models.py FOLDER --agree --json PATH [--limit 300]

Looks for *.onnx in folders and inside wheels (*.whl).  Both run on 2 threads, in turn, and the ratio is
the median time of onnxruntime over ours.  --agree compares results alone, the smallest files first, goes on
where an earlier run into the same PATH ended, and gives each file --limit seconds.  Needs onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import tessera as ts

# Sizes of open axes, by words in the name of an input or axis.
USUAL = {
    "batch": 1,
    "sequence": 128,
    "seq": 128,
    "height": 224,
    "width": 224,
    "length": 16000,
    "time": 100,
}


def files(places: list[str]) -> Iterator[tuple[str, Any]]:
    """The names of models, and their bytes or paths."""
    for place in map(Path, places):
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in found:
            if path.suffix == ".onnx":
                yield f"{path.parent.name}/{path.name}", path
            elif path.suffix == ".whl":
                with zipfile.ZipFile(path) as z:
                    for name in sorted(z.namelist()):
                        if name.endswith(".onnx"):
                            yield f"{path.name.split('-')[0]}/{Path(name).name}", z.read(name)


def bytes_of(data: Any) -> int:
    """The size of a model's file."""
    return data.stat().st_size if isinstance(data, Path) else len(data)


# What open axes are when a model refuses the usual sizes: of images, of other tensors.
TRIALS = (
    (224, 64),
    (640, 16),
    (320, 128),
    (512, 512),
    (64, 16000),
    (48, 80),
    (256, 1),
    (32, 32),
    (128, 257),
)


def size_of(shape: list[Any], axis: int, sizes: dict[str, int], trial: tuple[int, int]) -> int:
    """The size of an axis, open ones by their names."""
    s, rank = shape[axis], len(shape)
    if isinstance(s, int):
        return max(s, 1)
    if s in sizes:
        return sizes[s]
    if axis == 0:
        return 1
    for word, n in USUAL.items():
        if trial == TRIALS[0] and s and word in s.lower():
            return n
    if rank == 4 and axis == 1 and shape[3] not in (1, 3):
        return 3
    return trial[0] if rank == 4 else trial[1]


# Shapes that a model needs and its file does not say, by a word in the name of the file.
SHAPES = {
    "silero": {"input": (1, 576), "state": (2, 1, 128)},
    "sequence": {"input": (8, 576)},
    "v6.onnx": {"input": (8, 576)},
    "swift_f0": {"audio": (1, 16000)},
    "ppocr_mobile": {"x": (1, 3, 48, 192)},
    "v4_rec": {"x": (1, 3, 48, 320)},
    "common": {"input1": (1, 1, 64, 160)},
    "nudenet": {"images": (1, 3, 320, 320)},
    "slanet": {"x": (1, 3, 488, 488)},
}
NUMBERS = {"sr": 16000, "fmin": 50.0, "fmax": 2000.0}

_KINDS = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(float16)": np.float16, "tensor(bool)": np.bool_,
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8, "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16,
    "tensor(uint32)": np.uint32, "tensor(uint64)": np.uint64, "tensor(string)": np.object_,
}  # fmt: skip


def arrays(
    name: str, session: Any, sizes: dict[str, int], trial: tuple[int, int] = TRIALS[0]
) -> dict[str, Any]:
    """Random inputs that a session takes."""
    rng = np.random.default_rng(0)
    out = {}
    for i in session.get_inputs():
        shape = [size_of(i.shape, k, sizes, trial) for k in range(len(i.shape))]
        for word, shapes in SHAPES.items():
            shape = shapes.get(i.name, shape) if word in name else shape
        kind = np.dtype(_KINDS[i.type])
        if i.name in NUMBERS:
            out[i.name] = np.full(shape, NUMBERS[i.name], kind)
        elif kind.kind == "O":
            out[i.name] = np.full(shape, "a line of text", kind)
        elif kind.kind == "f":
            out[i.name] = rng.standard_normal(shape).astype(kind)
        elif kind.kind == "b" or "mask" in i.name:
            out[i.name] = np.ones(shape, kind)
        elif "len" in i.name and len(shape) < 2:
            out[i.name] = np.full(shape, trial[1], kind)
        else:
            out[i.name] = rng.integers(0, 256 if kind.itemsize == 1 else 2, shape).astype(kind)
    return out


def accepted(name: str, session: Any, sizes: dict[str, int]) -> tuple[dict[str, Any], list[Any]]:
    """Inputs that onnxruntime runs the model on, and its outputs."""
    error: Exception | None = None
    for trial in TRIALS:
        inputs = arrays(name, session, sizes, trial)
        try:
            return inputs, session.run(None, inputs)
        except Exception as e:
            error = error or e
    assert error is not None
    raise RuntimeError(f"onnxruntime refuses the inputs: {error}")


def median_times(first: Any, second: Any, seconds: float) -> tuple[float, float]:
    """Median times of two functions that are called in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times[0]) < 5:
        for f, found in zip((first, second), times, strict=True):
            start = time.perf_counter()
            f()
            found.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def worst(ours: dict[str, Any], theirs: list[Any]) -> float:
    """The largest difference, over the largest number of each output."""
    found = 0.0
    pairs = [*zip(ours.values(), theirs, strict=True)]
    while pairs:
        a, b = pairs.pop()
        if isinstance(b, list) and isinstance(a, list | tuple):
            if len(a) != len(b):
                return math.inf
            pairs += zip(a, b, strict=True)
            continue
        if isinstance(b, dict):
            pairs += [(a[k], v) for k, v in b.items()]
            continue
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape:
            return math.inf
        if x.dtype.kind in "OUS":
            found = max(found, float((x.astype(str) != y.astype(str)).any()))
        elif x.size and x.dtype.kind in "fiub":
            x, y = x.astype(np.float64), y.astype(np.float64)
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            x, y = np.where(same, 0, x), np.where(same & ~np.isfinite(y), 0, y)
            scale = max(float(np.abs(y).max()), 1e-3)
            gap = float(np.abs(np.where(same, 0, x - y)).max())
            found = max(found, gap / scale if np.isfinite(gap) else math.inf)
    return found


def session_of(data: Any) -> Any:
    """A session of onnxruntime on 2 threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 2, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    data = str(data) if isinstance(data, Path) else data
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def agrees(name: str, data: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """Whether one model gives what onnxruntime gives."""
    try:
        session = session_of(data)
        inputs, theirs = accepted(name, session, sizes)
    except Exception as e:
        return {"model": name, "not_run": f"{type(e).__name__}: {e}".splitlines()[0][:300]}
    model = ts.onnx.load(data)
    kinds = sorted({n.op for n in model.model.graph.nodes})
    shapes = {k: list(v.shape) for k, v in inputs.items()}
    found = {
        "model": name, "megabytes": round(bytes_of(data) / 1e6, 2), "inputs": shapes,
        "nodes": len(model.model.graph.nodes), "ops": kinds,
    }  # fmt: skip
    return {**found, "error": worst(model.run(inputs), theirs)}


def compare(name: str, data: Any, seconds: float, sizes: dict[str, int]) -> dict[str, Any]:
    """One model under both."""
    session = session_of(data)
    inputs, theirs = accepted(name, session, sizes)
    start = time.perf_counter()
    model = ts.onnx.load(data)
    ours = model.run(inputs)
    first = time.perf_counter() - start
    model.run(inputs)
    error = worst(ours, theirs)
    a, b = median_times(
        lambda: session.run(None, inputs),
        lambda: [np.asarray(v) for v in model.run(inputs).values()],
        seconds,
    )
    shapes = {k: list(v.shape) for k, v in inputs.items()}
    return {
        "model": name, "megabytes": round(bytes_of(data) / 1e6, 1), "inputs": shapes, "error": error,
        "onnxruntime_ms": round(a * 1e3, 3), "tessera_ms": round(b * 1e3, 3), "ratio": round(a / b, 3),
        "first_call_s": round(first, 2),
    }  # fmt: skip


class TooLong(Exception):
    """A model took longer than its limit."""


def _ring(*_: Any) -> None:
    raise TooLong("longer than its limit")


def agreement(places: list[str], path: Path, limit: int, only: str, sizes: dict[str, int]) -> None:
    """Compare results of all models, and keep what is known in a file."""
    rows = json.loads(path.read_text()) if path.exists() else []
    done = {r["model"] for r in rows}
    signal.signal(signal.SIGALRM, _ring)
    seen = set()
    for name, data in sorted(files(places), key=lambda x: (bytes_of(x[1]), x[0])):
        key = data.read_bytes() if isinstance(data, Path) else data
        if only not in name or key in seen or name in done:
            continue
        seen.add(key)
        signal.alarm(limit)
        try:
            row = agrees(name, data, sizes)
        except (Exception, TooLong) as e:
            row = {"model": name, "failed": f"{type(e).__name__}: {e}".splitlines()[0][:300]}
        signal.alarm(0)
        rows.append(row)
        print(json.dumps({k: v for k, v in row.items() if k != "ops"}), flush=True)
        path.write_text(json.dumps(rows, indent=1) + "\n")
    ran = [r for r in rows if "not_run" not in r]
    good = sum(r.get("error", math.inf) < (ROUNDED if is_quantised(r) else TOLERANCE) for r in ran)
    print(f"{good} of {len(ran)} agree; {len(rows) - len(ran)} that onnxruntime does not run")


TOLERANCE = 1e-3  # of the largest difference over the largest number of an output
ROUNDED = 3e-2  # the same where activations are rounded to 8 bits: ties fall either way


def is_quantised(row: dict[str, Any]) -> bool:
    """Whether a model computes in 8 bits."""
    return any(
        "Quantize" in o or "Integer" in o or o.startswith("QLinear") for o in row.get("ops", ())
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("places", nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", action="append", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--limit", type=int, default=300)
    given = parser.parse_args()
    sizes = {k: int(v) for k, v in (s.split("=") for s in given.size)}
    if given.agree:
        with ts.threads(2):
            agreement(given.places, given.json, given.limit, given.only, sizes)
        return
    rows = []
    seen = set()
    with ts.threads(2):
        for name, data in files(given.places):
            if given.only not in name or data in seen:
                continue
            seen.add(data)
            try:
                row = compare(name, data, given.seconds, sizes)
            except Exception as e:
                row = {"model": name, "failed": f"{type(e).__name__}: {e}".splitlines()[0][:300]}
            rows.append(row)
            print(json.dumps(row), flush=True)
    ratios = [r["ratio"] for r in rows if "ratio" in r]
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"geometric mean of onnxruntime's time over ours, {len(ratios)} models: {mean:.2f}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
