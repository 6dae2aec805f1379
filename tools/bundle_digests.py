"""Digests of a fixed set of bundles: two machines with the same versions of LLVM and Triton give the same
list.

    python -m tools.bundle_digests [--target T ...] [--record FILE] [--compare FILE] [--keep FOLDER]

Programs, sizes and weights are fixed; the weights come from Tessera's own generator, whose bits no machine
changes. Where the list of another machine is given, every section that differs is named, and `--keep` keeps
the bundles that differ, for `tessera bundle diff`.  Targets for GPUs are built where Triton is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import Tensor, op
from tessera.deploy.container import Container

CPU = ("cpu:aarch64", "cpu:x86-64-v3", "cpu:x86-64-v4")
GPU = ("cuda:sm_90", "hip:gfx942")
HEADS, WIDTH, WORDS = 4, 32, 61


def normal(seed: int, *shape: int) -> Any:
    return op.random.normal(op.random.key(seed), shape) * 0.25


def gpt_weights() -> Any:
    def block(k: int) -> Any:
        return {
            "qkv": normal(k, WIDTH, 3 * WIDTH), "out": normal(k + 1, WIDTH, WIDTH),
            "up": normal(k + 2, WIDTH, 4 * WIDTH),
            "down": normal(k + 3, 4 * WIDTH, WIDTH), "gain1": normal(k + 4, WIDTH),
            "gain2": normal(k + 5, WIDTH),
        }  # fmt: skip

    return {"embed": normal(1, WORDS, WIDTH), "blocks": [block(10), block(20)]}


def gpt(p: Any, tokens: Any) -> Any:
    """The next token of a small GPT, and its logits."""
    s = tokens.shape[0]
    h = op.take(p["embed"], tokens, axis=0)
    for b in p["blocks"]:
        q, k, v = (
            op.transpose(op.reshape(x, (s, HEADS, WIDTH // HEADS)), (1, 0, 2))
            for x in op.split(op.matmul(op.layernorm(h, b["gain1"]), b["qkv"]), 3, axis=-1)
        )
        a = op.reshape(op.transpose(op.attention(q, k, v, causal=True), (1, 0, 2)), (s, WIDTH))
        h = h + op.matmul(a, b["out"])
        h = h + op.matmul(op.gelu(op.matmul(op.layernorm(h, b["gain2"]), b["up"])), b["down"])
    logits = op.matmul(h, op.transpose(p["embed"], (1, 0)))[-1]
    return op.argmax(logits), logits


def cnn(p: Any, x: Any) -> Any:
    y = op.max_pool(op.relu(op.conv2d(x, p[0], padding=1)), 2)
    y = op.mean(op.relu(op.conv2d(y, p[1], padding=1)), axis=(2, 3))
    return op.softmax(op.matmul(y, p[2]), axis=-1)


def heat(f: Any) -> Any:
    """A step of the heat equation on a torus, by its spectrum."""
    n = f.shape[-1]
    k = ts.tensor([float(i if i <= n // 2 else i - n) for i in range(n)])
    factor = op.exp((k[:, None] * k[:, None] + k[None] * k[None]) * -0.01)
    return op.real(op.ifft2(op.fft2(f) * factor))


def kronecker(p: Any, x: Any) -> Any:
    return op.kronecker(op.dense(p[0]), op.dense(p[1])) @ x


def loops(p: Any, x: Any) -> Any:
    """A recurrence with a branch in its body, and a loop that data end."""

    def step(c: Any, row: Any) -> Any:
        c = op.tanh(op.matmul(c, p) + row)
        return ts.cond(
            op.sum(c) > 0.0, lambda y: op.cumsum(y, axis=-1) * 0.5, lambda y: y - 1.0, c
        ), c

    carry, ys = ts.scan(step, ts.zeros((2, 5)), op.broadcast_to(x[:, None, :], (x.shape[0], 2, 5)))
    last = ts.while_loop(lambda s: op.sum(s * s) < 50.0, lambda s: s * 2.0 + 1.0, carry)
    return last, ys


def scores(p: Any, users: Any, seen: Any, x: Any) -> Any:
    """A recommender: embeddings, a mean over what was seen, narrow floats, the ten best items."""
    mean = op.mean(op.take(p["items"], seen, axis=0), axis=1)
    h = op.concat(
        [op.take(p["users"], users, axis=0), mean, x.astype(ts.bf16).astype(ts.f32)], axis=-1
    )
    h = op.rmsnorm(op.silu(op.matmul(h, p["w"])), p["gain"])
    s = op.matmul(h, op.transpose(p["items"], (1, 0)))
    return op.softmax(s, axis=-1), op.max(s, axis=-1), op.argmax(s, axis=-1)


def tower(p: Any, x: Any) -> Any:
    """Symbolic sizes; single and double floats; integers; sines, powers and rests."""
    y = op.matmul(x, op.transpose(x, (1, 0)))
    z = op.sin(x) ** 2.0 + op.exp(-x) % 1.5
    return (
        op.logsumexp(y, axis=-1),
        op.sum(z.astype(ts.f64)),
        (x * 100.0).astype(ts.i32) // 7,
        op.erf(z) + p,
    )


def table() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any, bool]]:
    """Function, arguments, weights, and whether GPUs have code for it."""
    ids = ts.tensor(np.arange(12, dtype=np.int32))
    kernels = [normal(2, 8, 3, 3, 3), normal(3, 16, 8, 3, 3), normal(4, 16, 10)]
    rec = {
        "users": normal(5, 40, 16), "items": normal(6, 50, 16), "w": normal(7, 40, 16), "gain": normal(8, 16),
    }  # fmt: skip
    seen = ts.tensor((np.arange(12 * 5, dtype=np.int32) * 7 % 50).reshape(12, 5))
    return {
        "gpt": (gpt, (ids,), gpt_weights(), True), "cnn": (cnn, (ts.zeros((2, 3, 16, 16)),), kernels, True),
        "heat": (heat, (ts.zeros((32, 32)),), None, True),
        "kronecker": (kronecker, (ts.zeros((48,)),), [normal(9, 8, 8), normal(30, 6, 6)], True),
        "loops": (loops, (ts.zeros((4, 5)),), normal(31, 5, 5), False),
        "scores": (scores, (ids, seen, ts.zeros((12, 8))), rec, True),
        "tower": (tower, (Tensor["B", "S"],), normal(32, 1), False),
    }  # fmt: skip


def make(name: str, path: Path, targets: Sequence[str]) -> dict[str, Any]:
    """Write a bundle of the set; its digest, those of its sections, and what made it."""
    f, args, weights, _ = table()[name]
    digest = ts.bundle.save({name: (f, *args)}, path, targets=targets, weights=weights)
    c = Container(path)
    parts = {s.name: s.digest.hex()[:16] for s in c.sections}
    return {"digest": digest, "tools": json.loads(c.read("manifest"))["tools"], "sections": parts}


def differences(mine: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """The sections that differ or are on one side only, of the bundles that both lists have from the same
    tools.
    """
    out = []
    for name in sorted({*mine} & {*other}):
        if mine[name]["tools"] != other[name]["tools"]:
            continue
        a, b = mine[name]["sections"], other[name]["sections"]
        out += [f"{name}: {s}" for s in sorted({*a, *b}) if a.get(s) != b.get(s)]
        if mine[name]["digest"] != other[name]["digest"] and a == b:
            out.append(f"{name}: the header")
    return out


def chosen(targets: Sequence[str]) -> dict[str, list[str]]:
    """The targets of each bundle: those of processors and those of GPUs are bundles of their own."""
    out = {}
    for name, (_, _, _, on_gpus) in table().items():
        for kind in ("cpu", "cuda", "hip"):
            own = [t for t in targets if t.startswith(f"{kind}:")]
            if own and (on_gpus or kind == "cpu"):
                out[f"{name} {kind}"] = own
    return out


def compared(mine: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What a comparison with the list of another machine says."""
    both = sorted({*mine["bundles"]} & {*other["bundles"]})
    same = [n for n in both if mine["bundles"][n]["tools"] == other["bundles"][n]["tools"]]
    left = {n: [x["bundles"][n]["tools"] for x in (mine, other)] for n in both if n not in same}
    found = differences(mine["bundles"], other["bundles"])
    different = sorted({x.partition(":")[0] for x in found})
    return {
        "with": other["machine"], "bundles": len(same), "equal": len(same) - len(different),
        "different": found,
        "not compared, other tools": left,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", action="append", help="all unless given; GPUs only with Triton")
    parser.add_argument("--record")
    parser.add_argument("--compare")
    parser.add_argument("--keep")
    given = parser.parse_args()
    gpus = GPU if importlib.util.find_spec("triton") else ()
    whole: dict[str, Any] = {"machine": platform.machine(), "bundles": {}}
    with tempfile.TemporaryDirectory() as at:
        for name, targets in chosen(given.target or [*CPU, *gpus]).items():
            made = make(name.split()[0], Path(at) / f"{name}.tess", targets)
            whole["bundles"][name] = made
            print(f"{name:14} {made['digest']}", flush=True)
        different: list[str] = []
        if given.compare:
            told = compared(whole, json.loads(Path(given.compare).read_text()))
            whole["compared"], different = told, told["different"]
            print(json.dumps(told, indent=1))
        if given.keep:
            Path(given.keep).mkdir(parents=True, exist_ok=True)
            for name in {x.partition(":")[0] for x in different}:
                shutil.copy(Path(at) / f"{name}.tess", given.keep)
    if given.record:
        Path(given.record).write_text(json.dumps(whole, indent=1) + "\n")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
