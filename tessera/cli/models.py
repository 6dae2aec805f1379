"""tessera generate and tessera chat: text from a language model on the terminal."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

from tessera.cli.show import Failure
from tessera.models.loading import load
from tessera.models.writer import Writer


def generate(args: argparse.Namespace) -> int:
    """Print the continuation of a prompt as it is generated."""
    model = _writer(args.model)
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    if args.chat:
        pieces = model.chat([{"role": "user", "content": prompt}], **_options(args))
    else:
        pieces = model.stream(prompt, **_options(args))
    _print(pieces)
    return 0


def chat(args: argparse.Namespace) -> int:
    """Talk with a model: a line of input, its reply, until the input ends."""
    model = _writer(args.model)
    messages = [{"role": "system", "content": args.system}] if args.system else []
    shown = sys.stdin.isatty()
    while (line := _line(shown)) is not None:
        if not line.strip():
            continue
        messages.append({"role": "user", "content": line})
        messages.append(
            {"role": "assistant", "content": _print(model.chat(messages, **_options(args)))}
        )
    return 0


def _writer(path: str) -> Writer:
    model = load(path)
    if not isinstance(model, Writer):
        raise Failure(f"{path} is a model that writes no text")
    return model


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options = {
        "temperature": args.temperature, "top_k": args.top_k, "top_p": args.top_p, "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty, "seed": args.seed,
    }  # fmt: skip
    given = {name: v for name, v in options.items() if v is not None}
    return given | {"max_new_tokens": args.max_new_tokens, "stop": args.stop}


def _line(shown: bool) -> str | None:
    """A line of input, None at its end."""
    if shown:
        print("> ", end="", flush=True)
    line = sys.stdin.readline()
    return line.rstrip("\n") if line else None


def _print(pieces: Iterator[str]) -> str:
    """Print pieces as they come, their speed for who watches; an interrupt ends a reply, not the program."""
    out, begin = [], time.perf_counter()
    try:
        for piece in pieces:
            out.append(piece)
            print(piece, end="", flush=True)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    print()
    if sys.stderr.isatty():
        seconds = time.perf_counter() - begin
        print(f"[{len(out) / seconds:.1f} pieces/s]", file=sys.stderr)
    return "".join(out)
