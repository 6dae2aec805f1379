"""Whole programs as users write them, beside PyTorch in f64: a language model that is trained, saved and
asked for text, and a reader of pictures with convolutions, recurrent layers and CTC.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import KVCache, f64, nn, op

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle
RUNS_ON = "numpy"
tnn, F = torch.nn, torch.nn.functional
WORDS, WIDTH, HEADS, SHARED, DEPTH, SEQ = 31, 16, 4, 2, 2, 10


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


class Block(nn.Module):
    norm1: nn.RMSNorm
    attn: nn.MultiHeadAttention
    norm2: nn.RMSNorm
    mlp: nn.SwiGLU

    def __init__(self, key: Any) -> None:
        a, b = ts.split(key)
        self.norm1, self.norm2 = (nn.RMSNorm(WIDTH, 1e-6, dtype=f64) for _ in range(2))
        self.attn = nn.MultiHeadAttention(
            WIDTH, HEADS, kv_heads=SHARED, causal=True, bias=False, rope=nn.Rope(WIDTH // HEADS),
            key=a, dtype=f64,
        )  # fmt: skip
        self.mlp = nn.SwiGLU(WIDTH, 24, key=b, dtype=f64)

    def __call__(self, x: Any, cache: Any = None) -> Any:
        h = self.attn(self.norm1(x), cache=cache)
        h, cache = (h, None) if cache is None else h
        x = x + h
        return x + self.mlp(self.norm2(x)), cache


class Llama(nn.Module):
    embed: nn.Embedding
    blocks: list[Block]
    norm: nn.RMSNorm
    head: nn.Linear

    def __init__(self, key: Any) -> None:
        a, b, *keys = ts.split(key, DEPTH + 2)
        self.embed = nn.Embedding(WORDS, WIDTH, key=a, dtype=f64)
        self.blocks = [Block(k) for k in keys]
        self.norm = nn.RMSNorm(WIDTH, 1e-6, dtype=f64)
        self.head = nn.Linear(WIDTH, WORDS, bias=False, key=b, dtype=f64)

    def __call__(self, ids: Any, caches: Any = None) -> Any:
        x, new = self.embed(ids), []
        for b, c in zip(self.blocks, caches or [None] * DEPTH, strict=True):
            x, c = b(x, c)
            new.append(c)
        y = self.head(self.norm(x))
        return y if caches is None else (y, new)


def rms(x: Any, w: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w


def turned(x: Any) -> Any:
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * rates
    a, b, c, s = x[..., :half], x[..., half:], angle.cos(), angle.sin()
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def llama(p: Any, ids: Any) -> Any:
    """The model in PyTorch, on the same names."""
    x, size = p["embed.weight"][ids], WIDTH // HEADS
    for i in range(DEPTH):
        w = {n.removeprefix(f"blocks.{i}."): v for n, v in p.items()}
        parts = (rms(x, w["norm1.weight"]) @ w["attn.qkv.weight"].T).split(
            [WIDTH, size * SHARED, size * SHARED], -1
        )
        q, k, v = (t.unflatten(-1, (-1, size)).transpose(1, 2) for t in parts)
        k, v = (t.repeat_interleave(HEADS // SHARED, 1) for t in (turned(k), v))
        a = F.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
        x = x + a.transpose(1, 2).flatten(2) @ w["attn.out.weight"].T
        h = rms(x, w["norm2.weight"])
        x = (
            x
            + (F.silu(h @ w["mlp.gate.weight"].T) * (h @ w["mlp.up.weight"].T))
            @ w["mlp.down.weight"].T
        )
    return rms(x, p["norm.weight"]) @ p["head.weight"].T


def weights(m: Any) -> dict[str, Any]:
    return {n: torch.tensor(np.asarray(v)).requires_grad_() for n, v in nn.state_dict(m).items()}


def test_a_language_model_is_trained_and_saved_as_in_pytorch(tmp_path: Path) -> None:
    """AdamW in two groups with a schedule, clipping, accumulation and an average of the parameters."""
    o, rng = ts.optim, np.random.default_rng(0)
    rate = o.warmup_cosine(1e-2, 2, 10)
    by_group = {"decay": o.adamw(rate, decay=0.1), "plain": o.adamw(rate, decay=0.0)}
    chosen = o.groups(by_group, lambda n, p: "decay" if p.ndim > 1 else "plain")
    opt = o.ema(o.accumulate(o.chain(o.clip_norm(0.5), chosen), 2), 0.9)

    @ts.jit
    def step(m: Any, state: ts.OptimizerState["m"], ids: Any) -> Any:
        def loss(m: Any) -> Any:
            scores = op.reshape(m(ids[:, :-1]), (-1, WORDS))
            return op.cross_entropy(scores, op.reshape(ids[:, 1:], (-1,)))

        value, grads = ts.value_and_grad(loss)(m)
        m, state = opt.update(grads, state, m)
        return value, m, state

    m = Llama(ts.key(0))
    state, p, done = opt.init(m), weights(m), 0
    matrices, rest = ([v for v in p.values() if (v.ndim > 1) is many] for many in (True, False))
    theirs = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
        {"params": rest, "weight_decay": 0.0}])  # fmt: skip
    for i, ids in enumerate(rng.integers(0, WORDS, (8, 3, SEQ))):
        value, m, state = step(m, state, ts.tensor(ids))
        t = torch.tensor(ids)
        want = F.cross_entropy(llama(p, t[:, :-1]).reshape(-1, WORDS), t[:, 1:].reshape(-1))
        (want / 2).backward()
        assert value.item() == pytest.approx(want.item(), rel=1e-12)
        if i % 2:
            tnn.utils.clip_grad_norm_(p.values(), 0.5)
            lr = 5e-3 * (done + 1) if done < 2 else 5e-3 * (1 + math.cos(math.pi * (done - 2) / 8))
            for g in theirs.param_groups:
                g["lr"] = lr
            theirs.step()
            theirs.zero_grad()
            done += 1
    for n, v in nn.state_dict(m).items():
        np.testing.assert_allclose(v, p[n].detach().numpy(), rtol=1e-10, atol=1e-12)

    ts.save(tmp_path / "run", {"model": m, "state": state})
    back = ts.load(tmp_path / "run", like={"model": m, "state": state})
    ids = ts.tensor(rng.integers(0, WORDS, (3, SEQ)))
    here, there = step(m, state, ids), step(back["model"], back["state"], ids)
    for x, y in zip(ts.tree.leaves(here), ts.tree.leaves(there), strict=True):
        assert x.numpy().tobytes() == y.numpy().tobytes()


@ts.jit
def decode(m: Any, ids: Any, caches: Any) -> Any:
    y, caches = m(ids, caches)
    return op.log_softmax(y[:, -1], axis=-1), caches


@pytest.mark.parametrize(
    "kind", [{}, {"per_sequence": True}, {"page": 4, "pages": 24}, {"window": 24}], ids=str
)
def test_greedy_text_is_that_of_pytorch(kind: Any) -> None:
    m = Llama(ts.key(3))
    p, prompt = weights(m), np.random.default_rng(1).integers(0, WORDS, (2, 5))
    room = 48 if "window" in kind else 24
    caches = [KVCache.empty(2, SHARED, room, WIDTH // HEADS, f64, **kind) for _ in range(DEPTH)]
    text, ids = torch.tensor(prompt), ts.tensor(prompt)
    for _ in range(6):
        said, caches = decode(m, ids, caches)
        want = llama(p, text)[:, -1].log_softmax(-1)
        np.testing.assert_allclose(said, want.detach().numpy(), rtol=1e-9, atol=1e-11)
        ids = op.argmax(said, axis=-1)[:, None]
        text = torch.cat([text, want.argmax(-1, keepdim=True)], 1)
        np.testing.assert_array_equal(ids.numpy(), text[:, -1:].numpy())


def test_beams_that_share_pages_are_those_of_pytorch() -> None:
    m, beams = Llama(ts.key(3)), 3
    p, prompt = weights(m), np.random.default_rng(2).integers(0, WORDS, (1, 5))
    size = WIDTH // HEADS
    caches = [KVCache.empty(1, SHARED, 24, size, f64, page=4, pages=40) for _ in range(DEPTH)]
    said, caches = decode(m, ts.tensor(prompt), caches)
    scores, ids = op.topk(said[0], beams)
    caches, found = [c.fork([0] * beams) for c in caches], [[int(i)] for i in ids.numpy()]
    for _ in range(3):
        said, caches = decode(m, op.reshape(ids, (beams, 1)), caches)
        scores, flat = op.topk(op.reshape(scores[:, None] + said, (-1,)), beams)
        parents, ids = flat // WORDS, flat % WORDS
        caches = [c.fork(parents) for c in caches]
        chosen = zip(parents.numpy(), ids.numpy(), strict=True)
        found = [[*found[int(b)], int(i)] for b, i in chosen]
    kept: list[tuple[float, list[int]]] = [(0.0, prompt[0].tolist())]
    for _ in range(4):
        grown = []
        for score, text in kept:
            logs = llama(p, torch.tensor([text]))[0, -1].log_softmax(-1).tolist()
            grown += [(score + x, [*text, j]) for j, x in enumerate(logs)]
        kept = sorted(grown, key=lambda k: -k[0])[:beams]
    assert found == [text[5:] for _, text in kept]
    np.testing.assert_allclose(scores, [s for s, _ in kept], rtol=1e-10)


class TorchReader(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = tnn.Conv2d(1, 4, 3, padding=1, bias=False), tnn.BatchNorm2d(4)
        self.conv2, self.bn2 = tnn.Conv2d(4, 5, 3, (2, 1), 1), tnn.BatchNorm2d(5, momentum=0.3)
        self.lstm = tnn.LSTM(10, 6, 2, bidirectional=True, batch_first=True)
        self.ln, self.head = tnn.LayerNorm(12), tnn.Linear(12, 7)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.leaky_relu(self.bn1(self.conv1(x)), 0.1), 2, (2, 1))
        x = F.silu(self.bn2(self.conv2(x)))
        y, _ = self.lstm(x.permute(0, 3, 1, 2).flatten(2))
        return self.head(self.ln(y)).log_softmax(-1)


class Reader(nn.Module):
    conv1: nn.Conv2d
    bn1: nn.BatchNorm
    conv2: nn.Conv2d
    bn2: nn.BatchNorm
    lstm: nn.LSTM
    ln: nn.LayerNorm
    head: nn.Linear

    def __init__(self, key: Any) -> None:
        a, b, c, d = ts.split(key, 4)
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1, bias=False, key=a, dtype=f64)
        self.conv2 = nn.Conv2d(4, 5, 3, (2, 1), 1, key=b, dtype=f64)
        self.bn1, self.bn2 = nn.BatchNorm(4, dtype=f64), nn.BatchNorm(5, momentum=0.3, dtype=f64)
        self.lstm = nn.LSTM(10, 6, 2, bidirectional=True, key=c, dtype=f64)
        self.ln, self.head = nn.LayerNorm(12, dtype=f64), nn.Linear(12, 7, key=d, dtype=f64)

    def __call__(self, x: Any, stats: Any, *, training: bool = True) -> Any:
        x, stats = self.bn1(self.conv1(x), stats, training=training)
        x = op.max_pool2d(op.leaky_relu(x, 0.1), 2, (2, 1))
        x, stats = self.bn2(self.conv2(x), stats, training=training)
        x = op.flatten(op.transpose(op.silu(x), (0, 3, 1, 2)), 2)
        y, _ = self.lstm(x)
        return op.log_softmax(self.head(self.ln(y)), axis=-1), stats


def test_a_reader_with_running_statistics_and_ctc_is_trained_as_in_pytorch() -> None:
    """SGD with Nesterov's momentum, a cycle of rates and clipping; then evaluation, samples alone, and
    the way back.
    """
    theirs, rng = TorchReader().double(), np.random.default_rng(0)
    ours, stats = nn.with_state(Reader(ts.key(0)))
    ours, stats = nn.load_state(ours, theirs.state_dict(), stats)
    o = ts.optim
    opt = o.chain(
        o.clip_norm(1.0), o.sgd(o.one_cycle(0.2, 5), momentum=0.9, nesterov=True, decay=1e-3)
    )
    slow = torch.optim.SGD(theirs.parameters(), 0.1, 0.9, nesterov=True, weight_decay=1e-3)
    rates = torch.optim.lr_scheduler.OneCycleLR(slow, 0.2, 5, cycle_momentum=False)

    @ts.jit
    def step(m: Any, stats: Any, state: Any, x: Any, *rest: Any) -> Any:
        def loss(m: Any) -> Any:
            y, new = m(x, stats)
            return op.ctc_loss(y, *rest), new

        (value, new), grads = ts.value_and_grad(loss, has_aux=True)(m)
        return value, new, *opt.update(grads, state, m)

    state, lengths, most = opt.init(ours), np.array([7, 6, 7]), np.array([3, 2, 1])
    for _ in range(5):
        x, labels = rng.normal(size=(3, 1, 8, 8)), rng.integers(1, 7, (3, 3))
        given = map(ts.tensor, (x, labels, lengths, most))
        value, stats, ours, state = step(ours, stats, state, *given)
        want = F.ctc_loss(theirs(torch.tensor(x)).transpose(0, 1),
            *map(torch.tensor, (labels, lengths, most)))  # fmt: skip
        slow.zero_grad()
        want.backward()
        tnn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        slow.step()
        rates.step()
        assert value.item() == pytest.approx(want.item(), rel=1e-12)
    for n, v in nn.state_dict(ours, stats).items():
        np.testing.assert_allclose(v, theirs.state_dict()[n].numpy(), rtol=1e-10, atol=1e-12)

    theirs.eval()
    x = rng.normal(size=(2, 1, 8, 8))
    want = theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(ours(ts.tensor(x), stats, training=False)[0], want, rtol=1e-9)

    def of_one(x: Any) -> Any:
        return ts.grad(lambda m: op.sum(m(x[None], stats, training=False)[0]))(ours).head.weight

    got = ts.vmap(of_one)(ts.tensor(x)).numpy()
    for i in range(2):
        theirs.zero_grad()
        theirs(torch.tensor(x[i : i + 1])).sum().backward()
        np.testing.assert_allclose(got[i], theirs.head.weight.grad.numpy(), rtol=1e-9, atol=1e-10)
    back = TorchReader().double()
    back.load_state_dict(
        {n: torch.tensor(np.asarray(v)) for n, v in nn.state_dict(ours, stats).items()}
    )
    np.testing.assert_allclose(back.eval()(torch.tensor(x)).detach().numpy(), want, rtol=1e-12)
