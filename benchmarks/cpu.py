"""Tessera's CPU target beside NumPy, PyTorch (eager and compiled) and JAX, on a few threads in f32.

    python benchmarks/cpu.py [--peers tessera,numpy,torch,compile,jax] [--threads 2] [--only NAME] [--record
    [FILE]]

Every peer has a process of its own, which compiles once for each workload and puts its data into new memory
in each round.  Peers are timed in turn, round after round; the others wait, and a pause lets their threads
fall asleep.  A row shows the median of the rounds' medians, the spread, and the ratio of the best peer to
Tessera.  Turns are short and rounds are many, since a core that others use too is slower by a fifth from
one moment to the next. A record is named after the machine and its cores unless said otherwise; with
--only, its other rows stay. The first call of a GPT is that of a new process that finds nothing on the
disk, by those who compile; it begins with the import of the peer, since some load what they need at once
and some when they need it. Run it with an interpreter that has the peers installed (make test-oracles sets
one up).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PEERS = ("tessera", "numpy", "torch", "compile", "jax")
THREADS = os.environ.get("BENCHMARK_THREADS", "2")  # of every peer
PAUSE, WARM, TURN = 0.1, 0.03, 0.1  # seconds before a turn, not timed, and timed
Function = Callable[..., Any]


# A workload is a function of the namespace of a peer (see `namespace`) and the shapes it takes.


def gelu_chain(p: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    return p.gelu(x * a + b) * c + x


def softmax(p: Any, x: Any) -> Any:
    return p.softmax(x)


def layernorm(p: Any, x: Any, g: Any, b: Any) -> Any:
    return p.layernorm(x, g, b)


def rmsnorm_residual(p: Any, x: Any, r: Any, g: Any) -> Any:
    y = x + r
    return y * p.rsqrt(p.mean(y * y) + 1e-6) * g


def matmul(p: Any, a: Any, b: Any) -> Any:
    return a @ b


def matmul_bias_gelu(p: Any, a: Any, b: Any, c: Any) -> Any:
    return p.gelu(a @ b + c)


def row_sums(p: Any, x: Any) -> Any:
    return p.sum(x, 1)


def column_sums(p: Any, x: Any) -> Any:
    return p.sum(x, 0)


def whole_sum(p: Any, x: Any) -> Any:
    return p.sum(x, None)


def fft_convolution(p: Any, x: Any, k: Any) -> Any:
    return p.irfft2(p.rfft2(x) * p.rfft2(k))


def conv2d(p: Any, x: Any, w: Any) -> Any:
    return p.conv2d(x, w)


def attention(p: Any, q: Any, k: Any, v: Any) -> Any:
    return p.attention(q, k, v, False)


def causal_attention(p: Any, q: Any, k: Any, v: Any) -> Any:
    return p.attention(q, k, v, True)


def add(p: Any, a: Any, b: Any) -> Any:
    return a + b


def gpt(p: Any, letters: Any, table: Any, places: Any, *weights: Any) -> Any:
    """The forward pass of a model like that of examples/gpt.py."""
    *blocks, last, out = weights

    def normal(x: Any, gain: Any) -> Any:
        return x * p.rsqrt(p.mean(x * x) + 1e-6) * gain

    x = p.rows(table, letters) + places
    batch, length, width = x.shape
    for at in range(0, len(blocks), 6):
        first, qkv, mix, second, up, down = blocks[at : at + 6]
        y = (normal(x, first) @ qkv).reshape((batch, length, 3, HEADS, width // HEADS))
        y = p.attention(*(p.swap(y[:, :, i]) for i in range(3)), True)
        x = x + p.swap(y).reshape((batch, length, width)) @ mix
        x = x + p.gelu(normal(x, second) @ up) @ down
    return normal(x, last) @ out


HEADS, WIDTH, LAYERS, LETTERS = 4, 256, 4, 96
BLOCK = ((WIDTH,), (WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH, 4 * WIDTH),
    (4 * WIDTH, WIDTH))  # fmt: skip
FIRST = "import and first call of a GPT"
GPT = ((LETTERS, WIDTH), (256, WIDTH), *BLOCK * LAYERS, (WIDTH,), (WIDTH, LETTERS))
WORKLOADS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "gelu chain 4096x4096": (gelu_chain, ((4096, 4096), (4096,), (4096,), (4096,))),
    "softmax 4096x4096": (softmax, ((4096, 4096),)),
    "layernorm 4096x4096": (layernorm, ((4096, 4096), (4096,), (4096,))),
    "rmsnorm+residual 8192x2048": (rmsnorm_residual, ((8192, 2048), (8192, 2048), (2048,))),
    "matmul 1024": (matmul, ((1024, 1024), (1024, 1024))),
    "matmul 2048x512x2048": (matmul, ((2048, 512), (512, 2048))),
    "matmul 32x4096x1024": (matmul, ((32, 4096), (4096, 1024))),
    "matmul 1x4096x4096": (matmul, ((1, 4096), (4096, 4096))),
    "matmul+bias+gelu 2048x1024x4096": (matmul_bias_gelu, ((2048, 1024), (1024, 4096), (4096,))),
    "attention 1x8x1024x64": (attention, ((1, 8, 1024, 64),) * 3),
    "causal attention 1x8x1024x64": (causal_attention, ((1, 8, 1024, 64),) * 3),
    "sum of 64M": (whole_sum, ((1 << 26,),)),
    "row sums 8192x8192": (row_sums, ((8192, 8192),)),
    "column sums 8192x8192": (column_sums, ((8192, 8192),)),
    "FFT convolution 1024x1024": (fft_convolution, ((1024, 1024), (1024, 1024))),
    "conv2d 8x64x56x56 3x3": (conv2d, ((8, 64, 56, 56), (64, 64, 3, 3))),
    "add of 8": (add, ((8,), (8,))),
    "GPT of 4 layers": (gpt, ((8, 256), *GPT)),
    FIRST: (gpt, ((8, 256), *GPT)),
}
# What a peer has no function for, or does not compile.
MISSING = {("numpy", "conv2d 8x64x56x56 3x3"), ("numpy", "GPT of 4 layers"), ("numpy", FIRST),
    ("torch", FIRST)}  # fmt: skip


class Namespace:
    """The functions that workloads use, in the words of a peer."""

    def __init__(self, **functions: Function):
        self.__dict__.update(functions)


def numpy_peer(f: Function) -> tuple[Function, Function]:
    from scipy import fft
    from scipy.special import erf

    threads = int(THREADS)

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1 + erf(x * np.float32(0.5**0.5)))

    def normal(x: Any) -> Any:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    def layernorm(x: Any, g: Any, b: Any) -> Any:
        c = x - x.mean(-1, keepdims=True)
        return c / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5) * g + b

    def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
        s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
        return normal(np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf) if causal else s) @ v

    p = Namespace(
        gelu=gelu, softmax=normal, layernorm=layernorm, rsqrt=lambda x: 1 / np.sqrt(x),
        attention=attention,
        mean=lambda x: x.mean(-1, keepdims=True), sum=lambda x, axis: x.sum(axis),
        rfft2=lambda x: fft.rfft2(x, workers=threads),
        irfft2=lambda x: fft.irfft2(x, workers=threads),
    )  # fmt: skip
    return (lambda *xs: f(p, *xs)), (lambda x: x)


def tessera_peer(f: Function) -> tuple[Function, Function]:
    import tessera as ts
    from tessera import op

    p = Namespace(
        gelu=op.gelu, softmax=op.softmax, layernorm=op.layernorm, rsqrt=op.rsqrt,
        mean=lambda x: op.mean(x, axis=-1, keepdims=True), sum=lambda x, axis: op.sum(x, axis),
        rfft2=op.rfftn, irfft2=op.irfftn,
        attention=lambda q, k, v, causal: op.attention(q, k, v, causal=causal),
        conv2d=lambda x, w: op.conv2d(x, w, padding=1),
        rows=op.embedding, swap=lambda x: op.transpose(x, (0, 2, 1, 3)),
    )  # fmt: skip
    return ts.jit(lambda *xs: f(p, *xs), target="cpu"), ts.tensor


def torch_peer(f: Function, compiled: bool = False) -> tuple[Function, Function]:
    import torch

    torch.set_num_threads(int(THREADS))
    nn = torch.nn.functional
    p = Namespace(
        gelu=nn.gelu, softmax=lambda x: torch.softmax(x, -1), rsqrt=torch.rsqrt,
        layernorm=lambda x, g, b: nn.layer_norm(x, x.shape[-1:], g, b),
        mean=lambda x: x.mean(-1, keepdim=True), sum=lambda x, axis: x.sum(axis),
        rfft2=torch.fft.rfft2, irfft2=torch.fft.irfft2,
        attention=lambda q, k, v, c: nn.scaled_dot_product_attention(q, k, v, is_causal=c),
        conv2d=lambda x, w: nn.conv2d(x, w, padding=1),
        rows=lambda table, x: nn.embedding(x, table), swap=lambda x: x.transpose(1, 2),
    )  # fmt: skip

    def run(*xs: Any) -> Any:
        return f(p, *xs)

    torch.set_grad_enabled(False)
    return (torch.compile(run) if compiled else run), torch.from_numpy


def jax_peer(f: Function) -> tuple[Function, Function]:
    import jax
    from jax import numpy as jnp

    def layernorm(x: Any, g: Any, b: Any) -> Any:
        c = x - x.mean(-1, keepdims=True)
        return c * jax.lax.rsqrt((c * c).mean(-1, keepdims=True) + 1e-5) * g + b

    def attention(q: Any, k: Any, v: Any, causal: bool) -> Any:
        heads_last = (x.swapaxes(1, 2) for x in (q, k, v))
        return jax.nn.dot_product_attention(*heads_last, is_causal=causal).swapaxes(1, 2)

    p = Namespace(
        attention=attention,
        conv2d=lambda x, w: jax.lax.conv_general_dilated(x, w, (1, 1), ((1, 1), (1, 1))),
        gelu=lambda x: jax.nn.gelu(x, approximate=False), softmax=jax.nn.softmax, rsqrt=jax.lax.rsqrt,
        layernorm=layernorm, mean=lambda x: x.mean(-1, keepdims=True),
        sum=lambda x, axis: x.sum(axis), rfft2=jnp.fft.rfft2, irfft2=jnp.fft.irfft2,
        rows=lambda table, x: table[x], swap=lambda x: x.swapaxes(1, 2),
    )  # fmt: skip
    jitted = jax.jit(lambda *xs: f(p, *xs))
    return (lambda *xs: jitted(*xs).block_until_ready()), jnp.asarray


MAKERS: dict[str, Callable[[Function], tuple[Function, Function]]] = {
    "tessera": tessera_peer,
    "numpy": numpy_peer,
    "torch": torch_peer,
    "compile": lambda f: torch_peer(f, compiled=True),
    "jax": jax_peer,
}


def serve(peer: str) -> None:
    """Prepare and time workloads of one peer in this process, as the lines of stdin say."""
    if hasattr(os, "sched_setaffinity"):  # JAX has no setting for the number of its threads
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(THREADS)])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    fresh: Callable[[], Callable[[], Any]] | None = None
    call: Callable[[], Any] | None = None
    inner = 1
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {}
        try:
            if "prepare" in request:
                fresh = call = None
                inner = 1000 if request["prepare"].startswith("add of") else 1
                fresh = prepared(peer, request["prepare"])
            elif "first" in request:
                reply = {"seconds": first_call(peer, request["first"])}
            else:
                assert fresh is not None
                call = (
                    fresh()
                )  # while the data of the last round is there, so that other memory is used
                reply = {"median": timed(call, inner)}
        except Exception as problem:  # a peer that cannot do it has no figure
            fresh, reply = None, {"problem": f"{type(problem).__name__}: {problem}"[:300]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def prepared(peer: str, name: str) -> Callable[[], Callable[[], Any]]:
    """A workload, compiled; it is given as a function that puts its data into new memory, since where that
    lies changes times by 5%.
    """
    f, _ = WORKLOADS[name]
    run, convert = MAKERS[peer](f)
    data = data_of(name)
    run(*map(convert, data))

    def fresh() -> Callable[[], Any]:
        xs = [convert(x.copy()) for x in data]
        return lambda: run(*xs)

    return fresh


def first_call(peer: str, name: str) -> float:
    """The seconds from the import of a peer to the first result of a workload."""
    f, _ = WORKLOADS[name]
    data = data_of(name)
    start = time.perf_counter()
    run, convert = MAKERS[peer](f)
    run(*map(convert, data))
    return time.perf_counter() - start


def data_of(name: str) -> list[Any]:
    """Arrays of random numbers, the same ones each time; letters and new weights for a GPT, whose
    activations would otherwise grow from layer to layer until products see numbers below the normal ones,
    which take a processor long.
    """
    f, shapes = WORKLOADS[name]
    rng = np.random.default_rng(0)
    if f is not gpt:
        return [rng.standard_normal(s, np.float32) for s in shapes]
    weights = [rng.normal(0, 0.02, s) if len(s) > 1 else np.ones(s) for s in shapes[1:]]
    return [rng.integers(0, LETTERS, shapes[0]), *(w.astype(np.float32) for w in weights)]


def timed(call: Callable[[], Any], inner: int) -> float:
    """The median time of calls, once threads are awake and memory is warm."""
    samples: list[float] = []
    stop = time.perf_counter() + WARM
    while True:
        call()
        if time.perf_counter() > stop:
            break
    stop = time.perf_counter() + TURN
    while time.perf_counter() < stop or len(samples) < 3:
        start = time.perf_counter()
        for _ in range(inner):
            call()
        samples.append((time.perf_counter() - start) / inner)
    return statistics.median(samples)


class Worker:
    """The process of a peer."""

    def __init__(self, peer: str, **settings: str):
        self.peer = peer
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TESSERA_THREADS")
        env = {**os.environ, "BENCHMARK_THREADS": THREADS, **dict.fromkeys(names, THREADS)}
        env |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}  # where there is a GPU, too
        env["PYTHONDONTWRITEBYTECODE"] = ""  # a source tree keeps bytecode, as installed peers do
        env |= settings
        command = [sys.executable, __file__, "--worker", peer]
        self.process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def ask(self, request: dict[str, str]) -> None:
        """Send a request, whose reply is read later."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        """The reply to the last request."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"problem": "the process has ended"}
        return found

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(name: str, workers: dict[str, Worker], rounds: int) -> dict[str, list[float]]:
    """The medians of a workload, round by round, peers in turn."""
    able = {p: w for p, w in workers.items() if (p, name) not in MISSING}
    for w in able.values():
        w.ask({"prepare": name})  # together: nothing is timed yet
    times: dict[str, list[float]] = {p: [] for p in workers}
    for p, w in list(able.items()):
        problem = w.reply().get("problem")
        if problem:
            print(f"{p} on {name}: {problem}", file=sys.stderr)
            del able[p]
    for turn in range(rounds):
        for p in list(able)[:: 1 if turn % 2 == 0 else -1]:  # nobody always follows the same peer
            time.sleep(PAUSE)
            able[p].ask({"time": name})
            times[p].append(able[p].reply()["median"])
    return times


def first_calls(name: str, peers: list[str], rounds: int) -> dict[str, list[float]]:
    """The seconds of first calls in new processes, peers in turn."""
    times: dict[str, list[float]] = {p: [] for p in peers}
    for _ in range(rounds):
        for p in peers:
            if (p, name) in MISSING:
                continue
            with tempfile.TemporaryDirectory() as empty:
                worker = Worker(p, TESSERA_CACHE_DIR=empty, TORCHINDUCTOR_CACHE_DIR=empty)
                worker.ask({"first": name})
                reply = worker.reply()
                worker.end()
            if "seconds" in reply:
                times[p].append(reply["seconds"])
            else:
                print(f"{p} on {name}: {reply['problem']}", file=sys.stderr)
    return times


def versions(peers: list[str]) -> dict[str, str]:
    """What was measured where."""
    found = {"python": platform.python_version(), "numpy": np.__version__}
    for peer, module in (("torch", "torch"), ("jax", "jax")):
        if peer in peers:
            found[module] = __import__(module).__version__
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [r for r in info.read_text().splitlines() if r.startswith("model name")]
        found["cpu"] = models[0].split(":", 1)[1].strip() if models else platform.machine()
    found["cores"] = str(os.cpu_count())
    return found


def row_of(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians and spreads of a workload, printed and for the record."""
    middle = {p: statistics.median(t) for p, t in times.items() if t}
    spread = {p: max(t) - min(t) for p, t in times.items() if t}
    rest = [t for p, t in middle.items() if p != "tessera"]
    ratio = min(rest) / middle["tessera"] if rest and "tessera" in middle else float("nan")
    cells = "".join(f"{middle[p] * 1e3:12.3f}" if p in middle else f"{'-':>12}" for p in times)
    print(f"{name:34}{cells}   {ratio:.2f}", flush=True)
    return {"ms": {p: round(t * 1e3, 4) for p, t in middle.items()},
            "spread_ms": {p: round(t * 1e3, 4) for p, t in spread.items()},
            "ratio": round(ratio, 3)}  # fmt: skip


def record_file() -> Path:
    """Where the record of this machine lies."""
    kind = {"x86_64": "x86", "AMD64": "x86"}.get(platform.machine(), platform.machine())
    own = "" if int(THREADS) == os.cpu_count() else f"-threads-{THREADS}"
    return Path(__file__).parent / "records" / f"cpu-{kind}-{os.cpu_count()}{own}.json"


def main() -> None:
    global THREADS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", default=THREADS, help="of every peer")
    parser.add_argument("--record", nargs="?", type=Path, const=Path(), help="a file, or its own")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        serve(given.worker)
        return
    THREADS = given.threads
    peers, start = given.peers.split(","), time.perf_counter()
    workers = {p: Worker(p) for p in peers}
    print(f"{'workload':34}" + "".join(f"{p:>12}" for p in peers) + "   best peer / tessera")
    file = record_file() if given.record == Path() else given.record
    rows: dict[str, Any] = {}
    if given.only and file is not None and file.exists():  # the other rows stay
        rows = json.loads(file.read_text())["rows"]
    about = {**versions(peers), "threads": THREADS, "rounds": str(given.rounds)}
    for n in [n for n in WORKLOADS if given.only in n]:
        times = first_calls(n, peers, 3) if n == FIRST else measure(n, workers, given.rounds)
        rows[n] = row_of(n, times)
        if file is not None:  # at once: a run may be cut off
            file.write_text(json.dumps({"versions": about, "rows": rows}, indent=1) + "\n")
    for w in workers.values():
        w.end()
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
