"""Prefill and decode of a GGUF model beside llama.cpp, in turn, each in a process of its own.

    python benchmarks/models.py MODEL.gguf --peer PYTHON [--threads 1] [--rounds 2] [--record FILE]

PYTHON is an interpreter that has llama.cpp by the package xllamacpp; without it only ours is measured.
With one thread the clock is the CPU's, which other work on the machine does not slow; with more it is the
wall's.  A figure is the least of all rounds: milliseconds for each of 128 tokens of a prompt, and for each
of 32 tokens after it.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PROMPT, NEW = 128, 32

PEER = """
import json, sys, time, random, xllamacpp as x
path, threads, prompt, new = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel = path, 512, 1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
server = x.Server(p)
clock = time.process_time if threads == 1 else time.perf_counter
def run(count, more):
    ids = [random.randrange(10, 40000) for _ in range(count)]
    begin = clock()
    server.handle_completions({"prompt": ids, "max_tokens": more, "temperature": 0, "cache_prompt": False, "ignore_eos": True})
    return clock() - begin
run(8, 2)
times = [(run(prompt, 1), run(8, 1 + new) - run(8, 1)) for _ in range(3)]
print(json.dumps({"prefill": 1e3 * min(t[0] for t in times) / prompt, "decode": 1e3 * min(t[1] for t in times) / new,
                  "what": x.get_system_info()}))
"""  # noqa: E501


def ours(path: str, threads: int) -> dict[str, float]:
    """Our figures, measured in this process."""
    import tessera as ts

    model = ts.models.load(path)
    clock = time.process_time if threads == 1 else time.perf_counter
    rng = np.random.default_rng(0)

    def run() -> tuple[float, float]:
        ids = rng.integers(10, 40000, PROMPT)
        state, begin = model.start(), clock()
        logits, state = model.advance(state, ids)
        middle = clock()
        for _ in range(NEW):
            logits, state = model.advance(state, [int(logits.argmax())])
        return middle - begin, clock() - middle

    with ts.threads(threads):
        run()
        times = [run() for _ in range(3)]
    return {
        "prefill": 1e3 * min(t[0] for t in times) / PROMPT,
        "decode": 1e3 * min(t[1] for t in times) / NEW,
    }


def child(command: list[str]) -> dict[str, float]:
    """The figures that a process prints last."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--peer", help="an interpreter that has xllamacpp")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--ours", action="store_true", help="measure ours alone and print it")
    args = parser.parse_args()
    if args.ours:
        print(json.dumps(ours(args.model, args.threads)))
        return
    rows: dict[str, list[dict[str, float]]] = {"tessera": [], "llama.cpp": []}
    mine = [sys.executable, __file__, args.model, "--threads", str(args.threads), "--ours"]
    theirs = [args.peer, "-c", PEER, args.model, str(args.threads), str(PROMPT), str(NEW)]
    for _ in range(args.rounds):
        rows["tessera"].append(child(mine))
        if args.peer:
            rows["llama.cpp"].append(child(theirs))
    best = {
        name: {k: round(min(r[k] for r in found), 2) for k in ("prefill", "decode")}
        for name, found in rows.items()
        if found
    }
    clock = "CPU" if args.threads == 1 else "wall"
    for name, found in best.items():
        print(
            f"{name:10} prefill {found['prefill']:7.2f} ms/token   decode {found['decode']:7.2f} ms/token "
            f"({clock})"
        )
    if args.record:
        what = rows["llama.cpp"][0]["what"] if rows["llama.cpp"] else None
        facts = {
            "machine": platform.processor() or platform.machine(),
            "threads": args.threads,
            "clock": clock,
        }
        facts |= {"model": Path(args.model).name, "llama.cpp": what, "prompt": PROMPT, "new": NEW}
        args.record.write_text(json.dumps(facts | {"best": best, "rounds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
