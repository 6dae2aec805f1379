"""torch.compile by Tessera beside inductor and eager PyTorch: time of a call, of a training step, and to
the first.

    python benchmarks/torch_backend.py [NAME ...] [--seconds 1] [--json PATH]

Each on 2 threads, in turn; a ratio is the median time of the other over ours.  Needs torch and, for
inductor, a C++ compiler; models of transformers need that package.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "2"
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

import tessera as ts
from tests.support.cases import torch_models as models

WAYS = {"eager": None, "inductor": "inductor", "tessera": "tessera"}


def mlp() -> tuple[Any, dict[str, Any]]:
    """Three layers with a wide middle."""
    torch.manual_seed(0)
    nn = torch.nn
    made = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.LayerNorm(1024), nn.Linear(1024, 512))
    return made, {"input": torch.randn(256, 512)}


def language(name: str) -> Callable[[], tuple[Any, dict[str, Any]]]:
    """A network of transformers in a size that takes milliseconds."""

    def make() -> tuple[Any, dict[str, Any]]:
        import transformers as hf

        torch.manual_seed(0)
        ids = torch.randint(0, 999, (4, 64))
        sizes = {
            "vocab_size": 1000,
            "hidden_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        if name == "bert":
            return hf.BertModel(hf.BertConfig(**sizes, intermediate_size=1024)), {"input_ids": ids}
        if name == "llama":
            config = hf.LlamaConfig(**sizes, intermediate_size=768, use_cache=False)
            return hf.LlamaForCausalLM(config), {"input_ids": ids}
        config = hf.GPT2Config(vocab_size=1000, n_embd=256, n_layer=2, n_head=4, use_cache=False)
        return hf.GPT2LMHeadModel(config), {"input_ids": ids}

    return make


def image(make: Callable[..., Any], key: str = "input", **sizes: Any) -> Any:
    """A network for images, with a batch of them."""

    def made() -> tuple[Any, dict[str, Any]]:
        torch.manual_seed(0)
        return make(**sizes), {key: torch.randn(4, 3, 64, 64)}

    return made


MODELS: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
    "mlp": mlp, "gpt2": language("gpt2"), "bert": language("bert"), "llama": language("llama"),
    "resnet": image(models.resnet, width=32, depth=1), "convnext": image(models.convnext, dim=48, depth=2),
    "efficientnet": image(models.efficientnet, width=24), "unet": image(models.UNet, "x", width=16),
    "vit": image(models.ViT, "x", size=64, patch=8, dim=192, depth=4, heads=3),
}  # fmt: skip


def runs(way: str | None, name: str, train: bool) -> Callable[[], Any]:
    """A call, or a step of training, of a model compiled in one way."""
    model, inputs = MODELS[name]()
    model = copy.deepcopy(model).train(train)
    for m in model.modules():
        if isinstance(m, torch.nn.Dropout):
            m.p = 0.0
    run = model if way is None else torch.compile(model, backend=way)

    def call() -> Any:
        if not train:
            with torch.no_grad():
                return run(**inputs)
        for p in model.parameters():
            p.grad = None
        loss = models.loss_of(run(**inputs))
        loss.backward()
        return loss

    return call


def measured(name: str, train: bool, seconds: float) -> dict[str, Any]:
    """The times of a model in every way, taken in turn, and how long each took to its first result."""
    torch._dynamo.reset()
    calls, first = {}, {}
    for way, backend in WAYS.items():
        call = runs(backend, name, train)
        start = time.perf_counter()
        call()
        first[way] = time.perf_counter() - start
        call()
        calls[way] = call
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    stop = time.perf_counter() + seconds * len(WAYS)
    while time.perf_counter() < stop or len(times["tessera"]) < 5:
        for way, call in calls.items():
            start = time.perf_counter()
            call()
            times[way].append(time.perf_counter() - start)
    ms = {way: 1e3 * statistics.median(t) for way, t in times.items()}
    return {
        "model": name, "train": train, "ms": ms, "best_ms": {w: 1e3 * min(t) for w, t in times.items()},
        "first_s": first,
        "rounds": len(times["tessera"]), "fallbacks": dict(ts.torch.report(reset=True).fallbacks),
        "eager_over_ours": ms["eager"] / ms["tessera"], "inductor_over_ours": ms["inductor"] / ms["tessera"],
    }  # fmt: skip


def mean(rows: list[dict[str, Any]], key: str) -> float:
    """The geometric mean of a ratio."""
    return math.exp(statistics.fmean(math.log(r[key]) for r in rows))


def main() -> None:
    """Measure, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MODELS))
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(2)
    ts.torch.report(reset=True)
    warnings.simplefilter("ignore")
    rows = []
    with ts.threads(2):
        for name in options.names or list(MODELS):
            for train in (False, True):
                r = measured(name, train, options.seconds)
                rows.append(r)
                times = "  ".join(
                    f"{w} {t:8.2f} ms (first {r['first_s'][w]:5.1f} s)" for w, t in r["ms"].items()
                )
                print(f"{name:13s} {'train' if train else 'eval ':5s} {times}", flush=True)
    summary = {
        key: mean(rows, key) for key in ("eager_over_ours", "inductor_over_ours")
    } | {
        "compile_over_inductor": math.exp(
            statistics.fmean(math.log(r["first_s"]["tessera"] / r["first_s"]["inductor"]) for r in rows)
        )
    }  # fmt: skip
    print("  ".join(f"{k} {v:.2f}" for k, v in summary.items()))
    if options.json:
        load = os.getloadavg()[0]
        about = {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": 2,
            "torch": torch.__version__,
        }
        record = {
            "about": {**about, "load_average": round(load, 1)},
            "summary": summary,
            "rows": rows,
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
