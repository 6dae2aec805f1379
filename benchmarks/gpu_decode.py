"""One token of a Llama-shaped stack of 1B parameters (batch 1, bf16) on a GPU, beside torch with CUDA graphs.

    python benchmarks/gpu_decode.py [--tokens 30] [--record FILE]

What counts is how fast the weights are read: bytes of all matrices over the time of a token.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

import tessera as ts
from tessera import bf16, f32, op

LAYERS, WIDTH, HEADS, GROUPS, SIZE, HIDDEN, VOCABULARY, CONTEXT = (
    16,
    2048,
    32,
    8,
    64,
    8192,
    32768,
    1024,
)
FIRST = 1  # the token that is there
QKV = (HEADS + 2 * GROUPS) * SIZE


def start(seed: int = 0) -> dict[str, Any]:
    """Matrices by name, each row for one output, and the caches of keys and values."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return (rng.standard_normal(shape, np.float32) * 0.02).astype(bf16.np)

    p: dict[str, Any] = {"tokens": normal(VOCABULARY, WIDTH), "norm": np.ones(WIDTH, bf16.np)}
    for i in range(LAYERS):
        p |= {
            f"norm1.{i}": np.ones(WIDTH, bf16.np), f"norm2.{i}": np.ones(WIDTH, bf16.np),
            f"qkv.{i}": normal(QKV, WIDTH), f"mix.{i}": normal(WIDTH, HEADS * SIZE),
            f"gate.{i}": normal(2 * HIDDEN, WIDTH), f"down.{i}": normal(WIDTH, HIDDEN),
        }  # fmt: skip
    return p


def cache() -> dict[str, Any]:
    shape = (GROUPS, CONTEXT, SIZE)
    return {f"{n}.{i}": np.zeros(shape, bf16.np) for n in "kv" for i in range(LAYERS)}


def bytes_of(p: dict[str, Any]) -> int:
    """Bytes of the matrices."""
    return sum(x.nbytes for x in p.values() if x.ndim == 2)


ANGLES = CONTEXT ** (-np.arange(0, SIZE, 2) / SIZE)


# Tessera


def rms(x: Any, g: Any) -> Any:
    w = x.astype(f32)
    return (w * op.rsqrt(op.mean(w * w) + 1e-5) * g.astype(f32)).astype(bf16)


def token_of(p: dict[str, Any], memory: dict[str, Any], said: Any, at: Any) -> Any:
    """The caches with the token at a place, the tokens with the next one, and its place."""
    x = p["tokens"][said[at]]
    new = {}
    seen = op.arange(CONTEXT) <= at
    for i in range(LAYERS):
        h = p[f"qkv.{i}"] @ rms(x, p[f"norm1.{i}"])
        heads = op.reshape(h, (HEADS + 2 * GROUPS, SIZE))
        turned = turn(heads[: HEADS + GROUPS], at)
        q = op.reshape(turned[:HEADS], (GROUPS, HEADS // GROUPS, SIZE))
        k, v = turned[HEADS:], heads[HEADS + GROUPS :]
        for n, y in (("k", k), ("v", v)):
            place = op.reshape(y, (GROUPS, 1, SIZE))
            new[f"{n}.{i}"] = op.dynamic_update_slice(memory[f"{n}.{i}"], place, (0, at, 0))
        s = (q @ op.transpose(new[f"k.{i}"], (0, 2, 1))).astype(f32) / SIZE**0.5
        w = op.softmax(op.where(seen, s, -1e30)).astype(bf16)
        x = x + p[f"mix.{i}"] @ op.reshape(w @ new[f"v.{i}"], (HEADS * SIZE,))
        gate = p[f"gate.{i}"] @ rms(x, p[f"norm2.{i}"])
        h = op.silu(gate[:HIDDEN]) * gate[HIDDEN:]
        x = x + p[f"down.{i}"] @ h
    logits = p["tokens"] @ rms(x, p["norm"])
    token = op.reshape(op.argmax(logits), (1,))
    return new, op.dynamic_update_slice(said, token, (at + 1,)), at + 1


def turn(x: Any, at: Any) -> Any:
    """Pairs of numbers turned by angles that grow with the place."""
    angle = at.astype(f32) * ANGLES.astype(np.float32)
    c, s = op.cos(angle), op.sin(angle)
    pairs = op.reshape(x, (x.shape[0], 2, SIZE // 2)).astype(f32)
    signs = np.array([[-1.0], [1.0]], np.float32)
    turned = pairs * c + op.flip(pairs, 1) * (signs * s)
    return op.reshape(turned.astype(bf16), x.shape)


class WithTessera:
    """Tokens in Tessera: all that changes is given away and comes back in the same memory."""

    def __init__(self, p: dict[str, Any]):
        self.step = ts.jit(token_of, donate=("memory", "said", "at"))
        self.p = {n: ts.tensor(x, device="cuda") for n, x in p.items()}
        self.memory = {n: ts.tensor(x, device="cuda") for n, x in cache().items()}
        first = np.zeros(CONTEXT, np.int64)
        first[0] = FIRST
        self.said, self.at = (ts.tensor(x, device="cuda") for x in (first, np.int64(0)))

    def __call__(self, at: int) -> None:
        """One more token; the place is counted on the device, and `at` says the same."""
        self.memory, self.said, self.at = self.step(self.p, self.memory, self.said, self.at)

    def tokens(self, count: int) -> list[int]:
        """The tokens so far, without the first."""
        return [int(x) for x in self.said.numpy()[1 : count + 1]]

    @staticmethod
    def wait() -> None:
        from tessera.runtime.cuda.device import gpu

        gpu().synchronize()


# torch


class WithTorch:
    """The same in torch: compiled, and captured as one CUDA graph that reads and writes where things lie."""

    def __init__(self, p: dict[str, Any]):
        import torch

        self.torch = torch

        def there(x: Any) -> Any:
            return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16).cuda()

        self.p = {n: there(x) for n, x in p.items()}
        self.memory = {n: there(x) for n, x in cache().items()}
        self.angles = torch.tensor(ANGLES, dtype=torch.float32, device="cuda")
        self.places = torch.arange(CONTEXT, device="cuda")
        self.place = torch.zeros((), dtype=torch.int64, device="cuda")
        self.said = torch.zeros(CONTEXT, dtype=torch.int64, device="cuda")
        self.graph = self._captured()
        self.said[0] = FIRST
        self.place.zero_()

    def _captured(self) -> Any:
        """The graph of a step; what runs before, to compile it, leaves caches that the steps write over."""
        torch = self.torch
        compiled, aside = torch.compile(self._token), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(aside):
            for _ in range(3):
                self._step(compiled)
        aside.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            self._step(compiled)
        return graph

    def _step(self, token_of: Any) -> None:
        # Tensors of one number pick by index_select: as plain indices they would travel to the host.
        token = token_of(self.said.index_select(0, self.place[None]), self.place)
        self.place.add_(1)
        self.said.index_copy_(0, self.place[None], token[None])

    def _rms(self, x: Any, g: Any) -> Any:
        w = x.float()
        return (w * self.torch.rsqrt((w * w).mean() + 1e-5) * g.float()).bfloat16()

    def _turn(self, x: Any, at: Any) -> Any:
        angle = at.float() * self.angles
        c, s = angle.cos(), angle.sin()
        a, b = x[:, : SIZE // 2].float(), x[:, SIZE // 2 :].float()
        return self.torch.cat([a * c - b * s, a * s + b * c], 1).bfloat16()

    def _token(self, token: Any, at: Any) -> Any:
        f, p = self.torch.nn.functional, self.p
        x = p["tokens"].index_select(0, token)[0]
        for i in range(LAYERS):
            h = f.linear(self._rms(x, p[f"norm1.{i}"])[None], p[f"qkv.{i}"])[0]
            heads = h.view(HEADS + 2 * GROUPS, SIZE)
            turned = self._turn(heads[: HEADS + GROUPS], at)
            q = turned[:HEADS].view(GROUPS, HEADS // GROUPS, SIZE)
            for n, y in (("k", turned[HEADS:]), ("v", heads[HEADS + GROUPS :])):
                self.memory[f"{n}.{i}"].index_copy_(1, at[None], y[:, None])
            s = (q @ self.memory[f"k.{i}"].transpose(1, 2)).float() / SIZE**0.5
            w = s.masked_fill(self.places > at, -1e30).softmax(-1).bfloat16()
            y = (w @ self.memory[f"v.{i}"]).reshape(1, HEADS * SIZE)
            x = x + f.linear(y, p[f"mix.{i}"])[0]
            gate = f.linear(self._rms(x, p[f"norm2.{i}"])[None], p[f"gate.{i}"])[0]
            x = x + f.linear((f.silu(gate[:HIDDEN]) * gate[HIDDEN:])[None], p[f"down.{i}"])[0]
        return f.linear(self._rms(x, p["norm"])[None], p["tokens"])[0].argmax()

    def __call__(self, at: int) -> None:
        """One more token; the place is counted on the device, and `at` says the same."""
        self.graph.replay()

    def tokens(self, count: int) -> list[int]:
        return [int(x) for x in self.said[1 : count + 1].cpu()]

    def wait(self) -> None:
        self.torch.cuda.synchronize()


def main() -> None:
    """Tokens with both in turn, some at a time: each is the next one's input, and nobody looks at them
    before the end.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=20, help="in a round")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--peers", nargs="*", default=["tessera", "torch"])
    parser.add_argument("--record")
    args = parser.parse_args()
    p = start()
    runs = {n: {"tessera": WithTessera, "torch": WithTorch}[n](p) for n in args.peers}
    times: dict[str, list[float]] = {n: [] for n in runs}
    for number in range(args.rounds):
        for n, run in runs.items():
            run.wait()
            begin = time.perf_counter()
            for at in range(number * args.tokens, (number + 1) * args.tokens):
                run(at)
            run.wait()
            times[n].append(1e3 * (time.perf_counter() - begin) / args.tokens)
    table: dict[str, Any] = {"bytes": bytes_of(p)}
    for n, run in runs.items():
        ms = float(np.median(times[n][args.rounds // 2 :]))
        speed, tokens = table["bytes"] / ms / 1e9, run.tokens(args.rounds * args.tokens)
        table[n] = {"ms": ms, "TB/s": speed, "tokens": tokens}
        print(f"{n:8} {ms:7.3f} ms a token, {speed:.2f} TB/s of weights, tokens {tokens[:8]}")
    if args.record:
        with open(args.record, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
