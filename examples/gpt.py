"""Train a small transformer on the stories in examples/data, one character at a time.

    python examples/gpt.py                        about twenty seconds
    python examples/gpt.py --steps 2000 --layers 4

The model is a function of a dict of tensors; `step` is traced once, differentiated, compiled to machine
code, and then called for every batch.  Read `model` first: it is the whole transformer.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import tessera as ts
from tessera import op

DATA = Path(__file__).parent / "data"


def init(key, vocabulary, context, width, layers):
    """The parameters: random matrices scaled by their number of rows, gains of one."""
    keys = iter(ts.split(key, 3 + 4 * layers))

    def matrix(rows, columns, scale=1.0):
        return op.random.normal(next(keys), (rows, columns)) * (scale / rows**0.5)

    def block():
        return {
            "norm1": op.ones((width,)),
            "qkv": matrix(width, 3 * width),
            "mix": matrix(width, width, scale=0.5),
            "norm2": op.ones((width,)),
            "up": matrix(width, 4 * width),
            "down": matrix(4 * width, width, scale=0.5),
        }

    return {
        "tokens": matrix(vocabulary, width),
        "positions": matrix(context, width),
        "blocks": [block() for _ in range(layers)],
        "norm": op.ones((width,)),
        "out": matrix(width, vocabulary),
    }


def attend(p, x, heads):
    """Causal self-attention of a batch of sequences."""
    batch, length, width = x.shape
    qkv = op.reshape(x @ p["qkv"], (batch, length, 3, heads, width // heads))
    q, k, v = (op.transpose(qkv[:, :, i], (0, 2, 1, 3)) for i in range(3))
    y = op.attention(q, k, v, causal=True)
    return op.reshape(op.transpose(y, (0, 2, 1, 3)), (batch, length, width)) @ p["mix"]


def model(params, tokens, *, heads):
    """The scores of every next character: (batch, length) -> (batch, length, vocabulary)."""
    x = op.embedding(params["tokens"], tokens) + params["positions"][: tokens.shape[1]]
    for p in params["blocks"]:
        x = x + attend(p, op.rmsnorm(x, p["norm1"]), heads)
        x = x + op.gelu(op.rmsnorm(x, p["norm2"]) @ p["up"], approximate="tanh") @ p["down"]
    return op.rmsnorm(x, params["norm"]) @ params["out"]


def read_stories():
    """The text as numbers, and the characters that they stand for."""
    text = "\n\n".join(path.read_text() for path in sorted(DATA.glob("*.txt")))
    characters = sorted(set(text))
    number = {c: i for i, c in enumerate(characters)}
    return np.array([number[c] for c in text]), characters


def batches(rng, text, batch, context):
    """Random windows of the text, and the same windows one character later."""
    while True:
        start = rng.integers(0, len(text) - context, size=(batch, 1))
        window = text[start + np.arange(context + 1)]
        yield window[:, :-1], window[:, 1:]


def generate(key, params, forward, start, count, context, temperature=0.7):
    """`count` characters after `start`, drawn from the model's own predictions."""
    tokens = list(start)
    for k in ts.split(key, count):
        seen = tokens[-context:]
        padded = np.array([seen + [0] * (context - len(seen))])
        scores = forward(params, padded)[0, len(seen) - 1] / temperature
        tokens.append(int(op.random.categorical(k, scores)))
    return tokens


def train(args, console):
    """Train, report, and return the first and the last average loss."""
    rng = np.random.default_rng(args.seed)
    text, characters = read_stories()
    first_key, last_key = ts.split(ts.key(args.seed))
    params = init(first_key, len(characters), args.context, args.width, args.layers)
    optimizer = ts.optim.adam(ts.optim.warmup_cosine(args.rate, args.steps // 20, args.steps))
    state = optimizer.init(params)

    def loss_of(params, inputs, targets):
        return op.cross_entropy(model(params, inputs, heads=args.heads), targets)

    @ts.jit(target="cpu")
    def step(params, state, inputs, targets):
        loss, grads = ts.value_and_grad(loss_of)(params, inputs, targets)
        params, state = optimizer.update(grads, state, params)
        return loss, params, state

    size = sum(p.size for p in ts.tree.leaves(params))
    console.print(
        f"{len(text):,} characters, {len(characters)} different; {size:,} parameters "
        f"in {args.layers} layers"
    )
    data = batches(rng, text, args.batch, args.context)
    begin = time.perf_counter()
    graph = step.lower(params, state, *next(data)).graph
    console.print(
        f"compiled the training step in {time.perf_counter() - begin:.2f} s: "
        f"{len(graph.nodes):,} nodes of Graph IR"
    )
    losses = []
    begin = time.perf_counter()
    with progress(console) as bar:
        task = bar.add_task("training", total=args.steps, loss="", speed="")
        for done, (inputs, targets) in zip(range(1, args.steps + 1), data, strict=False):
            loss, params, state = step(params, state, inputs, targets)
            losses.append(loss.item())
            speed = done * args.batch * args.context / (time.perf_counter() - begin)
            bar.update(task, advance=1, loss=f"{losses[-1]:.3f}", speed=f"{speed:,.0f}")
    report(console, args, losses, speed)

    @ts.jit(target="cpu")
    def forward(params, tokens):
        return model(params, tokens, heads=args.heads)

    start = [characters.index(c) for c in "The tile"]
    tokens = generate(last_key, params, forward, start, args.sample, args.context)
    console.print("\n[bold]What it writes after 'The tile':[/]")
    console.print("".join(characters[t] for t in tokens), markup=False, highlight=False)
    return losses


def progress(console):
    """A bar with the loss and the speed beside it."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"), TextColumn("{task.fields[speed]} tokens/s"),
        TimeRemainingColumn(), console=console,
    )  # fmt: skip


def average(losses):
    """The mean, over enough steps that one batch does not matter."""
    return sum(losses) / len(losses)


def ends(losses):
    """The average loss of the first and of the last twentieth of the steps."""
    few = max(len(losses) // 20, 1)
    return average(losses[:few]), average(losses[-few:])


def report(console, args, losses, speed):
    """Loss and speed in words."""
    first, last = ends(losses)
    console.print(
        f"loss {first:.3f} -> {last:.3f} nats a character in {args.steps} steps, "
        f"{speed:,.0f} tokens/s"
    )


def main():
    parser = argparse.ArgumentParser(description="Train a small transformer on short stories.")
    parser.add_argument("--steps", type=int, default=600, help="training steps")
    parser.add_argument("--layers", type=int, default=2, help="transformer blocks")
    parser.add_argument("--width", type=int, default=64, help="size of a token's vector")
    parser.add_argument("--heads", type=int, default=4, help="attention heads")
    parser.add_argument("--context", type=int, default=64, help="characters that it sees")
    parser.add_argument("--batch", type=int, default=16, help="sequences in a step")
    parser.add_argument("--rate", type=float, default=6e-3, help="highest learning rate")
    parser.add_argument("--sample", type=int, default=240, help="characters to write at the end")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.steps < 1 or args.layers < 1 or args.width % args.heads:
        parser.error("needs at least one step and one layer, and a width that the heads divide")
    console = Console()
    losses = train(args, console)
    first, last = ends(losses)
    if args.steps > 1 and not last < first:
        console.print(f"[bold red]The loss did not go down: {first:.3f} -> {last:.3f}[/]")
        return 1
    console.print(
        "\n[bold]Where to look next:[/]\n"
        "  examples/gpt.py       the program that you just ran\n"
        "  docs/tour.md          the same ideas, one at a time\n"
        "  .venv/bin/tessera ops every op, with its rules"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
