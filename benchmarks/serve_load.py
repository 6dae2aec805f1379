"""Load on a server: clients that ask one after the other for a while, with p50 and p99 of what they wait.

    python benchmarks/serve_load.py MODEL [--clients 200] [--seconds 60] [--tokens 16] [--record FILE]

The server is a process of its own on a free port of this machine.  Every client repeats one of a few
requests with a seed, and each reply is compared with the first one to the same request, to the bit.
Resident memory of the server is read before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = 24  # different requests: with more clients, several ask for the same at once


def request(i: int, tokens: int) -> dict[str, Any]:
    """One of the different requests; a third of them share a beginning."""
    start = "You are a careful assistant who answers in a few plain words. " * (i % 3 == 0)
    text = f"{start}Question {i}: what is {i} times {i + 3}? Answer:"
    return {"prompt": text, "max_tokens": tokens, "temperature": 0.8 * (i % 2), "seed": i,
        "logprobs": 1}  # fmt: skip


async def ask(port: int, body: dict[str, Any]) -> tuple[int, bytes]:
    """Status and body of a reply, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    raw = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\nConnection: close\r\n\r\n"  # noqa: E501
    writer.write(head.encode() + raw)
    await writer.drain()
    status = int((await reader.readline()).split()[1])
    while (await reader.readline()).strip():
        pass
    reply = await reader.read()
    writer.close()
    return status, reply


class Load:
    """What all clients see."""

    def __init__(self, port: int, args: argparse.Namespace):
        self.port, self.args = port, args
        self.end = time.perf_counter() + args.seconds
        self.waits: list[float] = []
        self.first: dict[int, Any] = {}
        self.errors: dict[int, int] = {}
        self.different = 0

    async def client(self, number: int) -> None:
        """Ask again and again."""
        i = number
        while time.perf_counter() < self.end:
            begin = time.perf_counter()
            status, raw = await ask(self.port, request(i % KINDS, self.args.tokens))
            if status == 200:
                self.waits.append(time.perf_counter() - begin)
                choice = json.loads(raw)["choices"]
                self.different += self.first.setdefault(i % KINDS, choice) != choice
            else:
                self.errors[status] = self.errors.get(status, 0) + 1
                await asyncio.sleep(0.2)
            i += 7

    async def run(self) -> None:
        """All clients."""
        await asyncio.gather(*(self.client(i) for i in range(self.args.clients)))


def memory(pid: int) -> int:
    """Resident bytes of a process, 0 where the system does not say."""
    path = Path(f"/proc/{pid}/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


def percentile(xs: list[float], p: float) -> float:
    """A percentile of sorted numbers."""
    return xs[min(int(len(xs) * p), len(xs) - 1)] if xs else float("nan")


def main() -> None:
    """Start a server, load it, print and record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--record")
    args = parser.parse_args()
    command = [sys.executable, "-m", "tessera", "serve", args.model, "--port", "0", "--max-waiting",
        str(args.clients)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().split("/ and")[0].rsplit(":", 1)[1])
            warm = argparse.Namespace(**vars(args) | {"clients": 20, "seconds": 0.1})
            asyncio.run(Load(port, warm).run())  # programs compile, for all sizes of batches
            before, load = memory(server.pid), Load(port, args)
            begin = time.perf_counter()
            asyncio.run(load.run())
            took, after = time.perf_counter() - begin, memory(server.pid)
        finally:
            server.terminate()
    waits = sorted(load.waits)
    found = {
        "clients": args.clients, "seconds": round(took, 1), "replies": len(waits),
        "tokens_per_reply": args.tokens,
        "tokens_per_second": round(len(waits) * args.tokens / took, 1),
        "p50_s": round(percentile(waits, 0.5), 3),
        "p99_s": round(percentile(waits, 0.99), 3), "errors": load.errors,
        "replies_that_differ": load.different,
        "memory_before_mib": before >> 20, "memory_after_mib": after >> 20, "status": server.returncode,
        "machine": platform.machine(), "cores": os.cpu_count(), "load_average": os.getloadavg()[0],
    }  # fmt: skip
    print(json.dumps(found, indent=1))
    if args.record:
        Path(args.record).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
