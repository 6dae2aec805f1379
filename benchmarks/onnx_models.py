"""Trained ONNX files beside onnxruntime: do they agree, and which is faster.

    python benchmarks/onnx_models.py FOLDER_OR_FILE ... [--seconds 2] [--size NAME=N] [--json PATH]

Looks for *.onnx in folders and inside wheels (*.whl).  Both run on 2 threads, in turn, and the ratio is
the median time of onnxruntime over ours.  Needs onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import math
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


def files(places: list[str]) -> Iterator[tuple[str, bytes]]:
    """The names and bytes of models."""
    for place in map(Path, places):
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in found:
            if path.suffix == ".onnx":
                yield path.name, path.read_bytes()
            elif path.suffix == ".whl":
                with zipfile.ZipFile(path) as z:
                    for name in sorted(z.namelist()):
                        if name.endswith(".onnx"):
                            yield f"{path.name.split('-')[0]}/{Path(name).name}", z.read(name)


def size_of(s: Any, axis: int, rank: int, sizes: dict[str, int]) -> int:
    """The size of an axis, open ones by their names."""
    if isinstance(s, int):
        return s
    if s in sizes:
        return sizes[s]
    for word, n in USUAL.items():
        if s and word in s.lower():
            return n
    if axis == 0:
        return 1
    return 224 if rank == 4 else 64


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
    "tensor(uint8)": np.uint8, "tensor(int8)": np.int8,
}  # fmt: skip


def arrays(name: str, session: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """Random inputs that a session takes."""
    rng = np.random.default_rng(0)
    out = {}
    for i in session.get_inputs():
        shape = [size_of(s, k, len(i.shape), sizes) for k, s in enumerate(i.shape)]
        for word, shapes in SHAPES.items():
            shape = shapes.get(i.name, shape) if word in name else shape
        kind = np.dtype(_KINDS[i.type])
        if i.name in NUMBERS:
            out[i.name] = np.full(shape, NUMBERS[i.name], kind)
        elif kind.kind == "f":
            out[i.name] = rng.standard_normal(shape).astype(kind)
        else:
            out[i.name] = rng.integers(0, 2, shape).astype(kind)
    return out


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
    for a, b in zip(ours.values(), theirs, strict=True):
        x, y = np.asarray(a), np.asarray(b)
        if x.shape != y.shape:
            return math.inf
        if x.size and x.dtype.kind in "fiub":
            scale = max(float(np.abs(y.astype(np.float64)).max()), 1e-6)
            gap = float(np.abs(x.astype(np.float64) - y.astype(np.float64)).max())
            found = max(found, gap / scale)
    return found


def compare(name: str, data: bytes, seconds: float, sizes: dict[str, int]) -> dict[str, Any]:
    """One model under both."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = 2, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    inputs = arrays(name, session, sizes)
    theirs = session.run(None, inputs)
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
        "model": name, "megabytes": round(len(data) / 1e6, 1), "inputs": shapes, "error": error,
        "onnxruntime_ms": round(a * 1e3, 3), "tessera_ms": round(b * 1e3, 3), "ratio": round(a / b, 3),
        "first_call_s": round(first, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("places", nargs="+")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--size", action="append", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes = {k: int(v) for k, v in (s.split("=") for s in given.size)}
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
