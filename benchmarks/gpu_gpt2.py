"""One training step of GPT-2 124M (batch 16, 1024 tokens, bf16, AdamW) on a GPU, beside torch.

    python benchmarks/gpu_gpt2.py [--steps 20] [--record FILE]

Times are medians of steps, interleaved; the losses of both come from the same start and the same data.  A
first step begins when parameters and data are on the device: in a process whose stores of code are empty
(cold), and in one that finds what the first has left (warm).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

import tessera as ts
from tessera import bf16, f32, op

LAYERS, WIDTH, HEADS, VOCABULARY, CONTEXT, BATCH = 12, 768, 12, 50304, 1024, 16
RATE, DECAY = 3e-4, 0.1


def start(seed: int = 0) -> dict[str, Any]:
    """Parameters by name, as NumPy arrays."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 0.02) -> Any:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    p = {"tokens": normal(VOCABULARY, WIDTH), "places": normal(CONTEXT, WIDTH, scale=0.01)}
    for i in range(LAYERS):
        p |= {
            f"norm1.{i}": np.ones(WIDTH, np.float32), f"shift1.{i}": np.zeros(WIDTH, np.float32),
            f"qkv.{i}": normal(WIDTH, 3 * WIDTH), f"qkv_bias.{i}": np.zeros(3 * WIDTH, np.float32),
            f"mix.{i}": normal(WIDTH, WIDTH), f"mix_bias.{i}": np.zeros(WIDTH, np.float32),
            f"norm2.{i}": np.ones(WIDTH, np.float32), f"shift2.{i}": np.zeros(WIDTH, np.float32),
            f"up.{i}": normal(WIDTH, 4 * WIDTH), f"up_bias.{i}": np.zeros(4 * WIDTH, np.float32),
            f"down.{i}": normal(4 * WIDTH, WIDTH), f"down_bias.{i}": np.zeros(WIDTH, np.float32),
        }  # fmt: skip
    return p | {"norm": np.ones(WIDTH, np.float32), "shift": np.zeros(WIDTH, np.float32)}


def batch(step: int) -> tuple[Any, Any]:
    """Tokens and the ones after them: a few patterns, so that there is something to learn."""
    rng = np.random.default_rng([7, step])
    first = rng.integers(0, 997, (BATCH, 1))
    pace = rng.integers(1, 13, (BATCH, 1))
    row = (first + pace * np.arange(CONTEXT + 1)) % 997
    return row[:, :-1], row[:, 1:]


# Tessera


def loss_of(params: dict[str, Any], inputs: Any, targets: Any) -> Any:
    """The mean loss, with products in bf16."""
    p = {n: x.astype(bf16) for n, x in params.items()}
    x = op.embedding(p["tokens"], inputs) + p["places"]
    for i in range(LAYERS):
        x = x + _attend(p, i, op.layernorm(x, p[f"norm1.{i}"], p[f"shift1.{i}"]))
        y = op.layernorm(x, p[f"norm2.{i}"], p[f"shift2.{i}"])
        h = op.gelu(y @ p[f"up.{i}"] + p[f"up_bias.{i}"], approximate="tanh")
        x = x + (h @ p[f"down.{i}"] + p[f"down_bias.{i}"])
    x = op.reshape(op.layernorm(x, p["norm"], p["shift"]), (BATCH * CONTEXT, WIDTH))
    return op.cross_entropy((x @ p["tokens"].T).astype(f32), op.reshape(targets, (-1,)))


def _attend(p: dict[str, Any], i: int, x: Any) -> Any:
    b, s, d = x.shape
    qkv = op.reshape(x @ p[f"qkv.{i}"] + p[f"qkv_bias.{i}"], (b, s, 3, HEADS, d // HEADS))
    q, k, v = (op.transpose(qkv[:, :, j], (0, 2, 1, 3)) for j in range(3))
    y = op.transpose(op.attention(q, k, v, causal=True), (0, 2, 1, 3))
    return op.reshape(y, (b, s, d)) @ p[f"mix.{i}"] + p[f"mix_bias.{i}"]


OPTIMIZER = ts.optim.adamw(RATE, decay=DECAY)


def step_of(params: Any, state: Any, inputs: Any, targets: Any) -> Any:
    """Loss, parameters and state after one step."""
    loss, grads = ts.value_and_grad(loss_of)(params, inputs, targets)
    params, state = OPTIMIZER.update(grads, state, params)
    return loss, params, state


class WithTessera:
    """The steps in Tessera."""

    def __init__(self, p: dict[str, Any]):
        self.step = ts.jit(step_of, donate=("params", "state"))
        self.params = {n: ts.tensor(x, device="cuda") for n, x in p.items()}
        self.state = ts.tree.map(
            lambda x: x.to("cuda"), OPTIMIZER.init({n: ts.tensor(x) for n, x in p.items()})
        )

    def __call__(self, inputs: Any, targets: Any) -> Any:
        loss, self.params, self.state = self.step(self.params, self.state, inputs, targets)
        return loss

    @staticmethod
    def data(x: Any) -> Any:
        return ts.tensor(x, device="cuda")

    @staticmethod
    def wait() -> None:
        ts.devices()
        from tessera.runtime.cuda.device import gpu

        gpu().synchronize()


# torch


class WithTorch:
    """The same in torch, compiled."""

    def __init__(self, p: dict[str, Any]):
        import torch

        self.torch = torch
        self.p = {n: torch.tensor(x, device="cuda", requires_grad=True) for n, x in p.items()}
        self.optimizer = torch.optim.AdamW(
            self.p.values(), lr=RATE, weight_decay=DECAY, fused=True, eps=1e-8
        )
        self.loss = torch.compile(self._loss)

    def _loss(self, inputs: Any, targets: Any) -> Any:
        torch, f = self.torch, self.torch.nn.functional
        p = {n: x.to(torch.bfloat16) for n, x in self.p.items()}
        x = f.embedding(inputs, p["tokens"]) + p["places"]
        for i in range(LAYERS):
            y = f.layer_norm(x, (WIDTH,), p[f"norm1.{i}"], p[f"shift1.{i}"])
            qkv = (y @ p[f"qkv.{i}"] + p[f"qkv_bias.{i}"]).view(
                BATCH, CONTEXT, 3, HEADS, WIDTH // HEADS
            )
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            a = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            a = a.transpose(1, 2).reshape(BATCH, CONTEXT, WIDTH)
            x = x + (a @ p[f"mix.{i}"] + p[f"mix_bias.{i}"])
            y = f.layer_norm(x, (WIDTH,), p[f"norm2.{i}"], p[f"shift2.{i}"])
            h = f.gelu(y @ p[f"up.{i}"] + p[f"up_bias.{i}"], approximate="tanh")
            x = x + (h @ p[f"down.{i}"] + p[f"down_bias.{i}"])
        x = f.layer_norm(x, (WIDTH,), p["norm"], p["shift"])
        logits = (x @ p["tokens"].T).float()
        return f.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))

    def __call__(self, inputs: Any, targets: Any) -> Any:
        loss = self.loss(inputs, targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def data(self, x: Any) -> Any:
        return self.torch.tensor(x, device="cuda")

    def wait(self) -> None:
        self.torch.cuda.synchronize()


def main() -> None:
    """Train with both, and tell times and losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peers", nargs="*", default=["tessera", "torch"])
    parser.add_argument(
        "--warm", action="store_true", help="tell the time of a first step, as JSON, and end"
    )
    parser.add_argument("--record")
    args = parser.parse_args()
    if args.warm:
        print(json.dumps(first_step(args.peers[0])[1]))
        return
    with tempfile.TemporaryDirectory() as stores:
        os.environ |= {n: f"{stores}/{n}" for n in STORES}
        table = trained(args.peers, args.steps)
        for name in args.peers:
            again = [sys.executable, __file__, "--warm", "--peers", name]
            told = subprocess.run(again, check=True, capture_output=True, text=True).stdout
            table[name]["warm_s"] = json.loads(told.splitlines()[-1])
            print(
                f"{name}: first step after {table[name]['warm_s']:.2f} s in a process that finds the code"
            )
    if args.record:
        with open(args.record, "w") as file:
            json.dump(table, file, indent=1)


STORES = ("TESSERA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
KINDS: dict[str, Any] = {"tessera": WithTessera, "torch": WithTorch}


def first_step(name: str) -> tuple[Any, float, float]:
    """What trains, the seconds from its first call to the end of the step, and the loss."""
    run = KINDS[name](start())
    data = [run.data(x) for x in batch(0)]
    run.wait()
    begin = time.perf_counter()
    loss = float(run(*data))
    run.wait()
    return run, time.perf_counter() - begin, loss


def trained(names: list[str], steps: int) -> dict[str, dict[str, Any]]:
    """Times and losses of each."""
    runs, first, losses = {}, {}, {}
    times: dict[str, list[float]] = {n: [] for n in names}
    for name in names:
        runs[name], first[name], loss = first_step(name)
        losses[name] = [loss]
        print(f"{name}: first step after {first[name]:.2f} s, loss {loss:.4f}", flush=True)
    for i in range(1, steps):
        for name, run in runs.items():
            data = [run.data(x) for x in batch(i)]
            run.wait()
            begin = time.perf_counter()
            loss = run(*data)
            run.wait()
            times[name].append(time.perf_counter() - begin)
            losses[name].append(float(loss))
    table = {
        n: {"ms": 1e3 * float(np.median(times[n][2:])), "first_s": first[n], "losses": losses[n]}
        for n in runs
    }
    for n, row in table.items():
        at = row["losses"]
        print(f"{n:8} {row['ms']:8.2f} ms a step, losses {at[0]:.4f} to {at[-1]:.4f}")
    return table


if __name__ == "__main__":
    main()
