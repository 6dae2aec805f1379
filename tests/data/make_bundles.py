"""Made tests/data/bundle-v1-*.tess.  They are never made again: a later format gets files of its own.

Run with the name of a folder.  What the programs gave is in the folder, too, as tests/native/run.c reads it.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

import tessera as ts
from tessera import Tensor, op

W = ts.tensor(np.linspace(-1, 1, 96, dtype=np.float32).reshape(12, 8))


def layer(x: Tensor["n", 12], y: Tensor["2*n"]) -> Any:
    h = op.gelu(op.matmul(x, W))
    return {"probabilities": op.softmax(h), "turned": op.transpose(h, (1, 0)), "sum": op.sum(y)}


def waves(f: Any) -> Any:
    spectrum = op.fft(f)
    carry, steps = ts.scan(lambda c, v: (0.5 * c + v, c), ts.zeros((8,)), op.real(spectrum))
    return carry, steps, op.exp(f) % 1.5


def arguments() -> dict[str, tuple[Any, ...]]:
    r = np.random.default_rng(1)
    return {
        "layer": (r.normal(size=(3, 12)).astype(np.float32), r.normal(size=6).astype(np.float32)),
        "waves": (r.normal(size=(4, 8)).astype(np.float32),),
    }


def main(folder: Path) -> None:
    given = arguments()
    both = {"layer": (layer, Tensor["n", 12], Tensor["2*n"]), "waves": (waves, *given["waves"])}
    for name, entry in both.items():
        path = folder / f"bundle-v1-{name}.tess"
        ts.bundle.save({name: entry}, path, targets=["cpu:aarch64", "cpu:x86-64-v3"])
        outs = ts.tree.leaves(ts.jit(entry[0])(*given[name]))
        with (folder / f"bundle-v1-{name}.record").open("wb") as f:
            for x in map(np.asarray, (*given[name], *outs)):
                f.write(struct.pack(f"<{1 + x.ndim}q", x.ndim, *x.shape) + x.tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
