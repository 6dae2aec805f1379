"""A process in which Triton interprets: random Tile kernels, printed, beside the Tile interpreter.

    TRITON_INTERPRET=1 python -m tests.oracles.triton_interpreter FOLDER COUNT

Left out is what Triton's interpreter does otherwise than its compiler: bf16 and float8 round differently
there, it has no remainder of floats, and its products are NumPy's, which sum in another order.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from itertools import product as product_of
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings

from tessera.core.dims import product, substitute
from tessera.core.dtype import f32, f64, i64
from tessera.core.types import TensorType
from tessera.ir.target.triton.emit import emit, scratch_bytes
from tessera.ir.target.triton.writer import plain_name
from tessera.ir.tile.interp import interpret, sizes_of
from tessera.ir.tile.ir import Builder, Kernel, walk
from tests.support.cases.exchanges import exchanges
from tests.support.cases.tile_kernels import Program, programs

_OTHERWISE = ("bf16", "f8E", "tile.dot")
_OF_FLOATS = ("mod", "fmod", "floor_div")


def main(folder: Path, count: int) -> None:
    """Compare, and tell how many agreed."""
    seen, different = [0], []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=True, phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(programs())
    def compare(p: Program) -> None:
        if is_otherwise(p.kernel):
            return
        seen[0] += 1
        want = p.run()
        got = run(p.kernel, p.fresh(), folder)
        if not all(same(a, b) for a, b in zip(want, got, strict=True)):
            different.append(emit(p.kernel))

    compare()
    exchanged = ((k, arrays) for k, arrays, _ in exchanges(40, seed=6) if not is_otherwise(k))
    for kernel, arrays in (*picks(), *statistics(), *exchanged):
        seen[0] += 1
        want = [a.copy() for a in arrays]
        interpret(kernel, want, {})
        if not all(map(same, want, run(kernel, arrays, folder))):
            different.append(emit(kernel))
    print(json.dumps({"programs": seen[0], "different": different}))


def statistics() -> Iterator[tuple[Kernel, list[Any]]]:
    """Our functions of statistics, at their zeros, poles and edges, with numbers below 0 and without."""
    some = np.concatenate(
        [np.arange(-6, 6.25, 0.25), [1e-3, 1e-30, 40.3, 1e10, 1e37, np.inf, np.nan]]
    )
    near = np.concatenate([some, np.nextafter(some, np.inf), some * 0.99, -some / 7])
    for name, dtype in product_of(("lgamma", "digamma", "gamma", "erfinv", "erfcinv"), (f32, f64)):
        for x in (near.astype(dtype.np), np.abs(near).astype(dtype.np)):
            t, b = TensorType(dtype, x.shape), Builder(name)
            m, y = b.parameter("x", t), b.parameter("y", t, True)
            b.store(y, b.apply(name, b.load(m, (0,), x.shape)), (0,), x.shape)
            yield b.finish(), [x, np.zeros_like(x)]


def picks() -> Iterator[tuple[Kernel, list[Any]]]:
    """Numbered rows and columns of a matrix, some of them outside, read and written, in boxes of all
    widths.
    """
    x = np.arange(63, dtype=np.float32).reshape(9, 7)
    for count, width, turned in product_of((1, 3, 8), (1, 3, 4), (False, True)):
        numbers = np.array([8, -1, 3, 12, 0, 5, 2, 7])[:count]
        for writes in (False, True):
            b = Builder("picks")
            m = b.parameter("x", TensorType(f32, (7, 9) if turned else (9, 7)), writes)
            at = b.load(b.parameter("at", TensorType(i64, (count,))), (0,), (count,))
            y = b.parameter(
                "y", TensorType(f32, (width, count) if turned else (count, width)), not writes
            )
            own = (1, count) if turned else (count, 1)
            place = {int(turned): b.reshape(at, own)}
            corner, box = ((2, 0), (width, 1)) if turned else ((0, 2), (1, width))
            whole = tuple(int(n) for n in y.type.shape)
            if writes:
                b.scatter(
                    m, b.load(y, (0, 0), whole), place, corner, box, (0, 1), (0, 1), distinct=True
                )
            else:
                b.store(y, b.gather(m, place, corner, box, (0, 1), (0, 1), 5), (0, 0), whole)
            made = -np.arange(count * width, dtype=np.float32).reshape(whole)
            yield b.finish(), [(x.T if turned else x).copy(), numbers, made]


def is_otherwise(kernel: Kernel) -> bool:
    """Whether a kernel has what Triton's interpreter does otherwise."""
    remainders = (
        op.operands[0].dtype.kind == "f"
        for op in walk(kernel.body)
        if op.attributes.get("scalar") in _OF_FLOATS
    )
    if any(word in kernel.text for word in _OTHERWISE) or any(remainders):
        return True
    return "libdevice." in emit(kernel)  # device functions, which the interpreter has not


def run(kernel: Kernel, arrays: list[Any], folder: Path) -> list[Any]:
    """A kernel by Triton's interpreter."""
    sizes = sizes_of(kernel, arrays)
    count = int(substitute(product(tuple(n for _, n in kernel.grid)), sizes)) if kernel.grid else 1
    given = [_tensor(a) for a in arrays]
    scratch = int(substitute(scratch_bytes(kernel), sizes))
    more = [torch.zeros(max(count, 1) * scratch, dtype=torch.int8)] if scratch else []
    if count:
        f = load(emit(kernel), plain_name(kernel.name), folder)
        f[(count,)](*given, *(sizes[n] for n in kernel.sizes), *more)
    return [_array(t, a) for t, a in zip(given, arrays, strict=True)]


def load(text: str, name: str, folder: Path) -> Any:
    """The kernel that a text defines."""
    module = f"kernel_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    path = folder / f"{module}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(module, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return getattr(made, name)


def _tensor(a: Any) -> Any:
    if a.dtype.name == "int4":
        return torch.from_numpy(a.astype(np.int8))
    return torch.from_numpy(a.view(np.uint8).copy() if a.dtype == bool else a.copy())


def _array(t: Any, like: Any) -> Any:
    data = t.numpy()
    return data.astype(like.dtype) if like.dtype.name == "int4" else data.view(like.dtype)


def ties_zeros(kernel: Kernel) -> bool:
    """Whether a kernel takes the larger or smaller of two zeros, of which the interpreter keeps the first."""
    return any(op.attributes.get("scalar") in ("max", "min") for op in walk(kernel.body))


def same(a: Any, b: Any, signs: bool = True) -> bool:
    """Whether two arrays have the same bits, up to the payload of NaN, and to signs of zeros if asked."""
    if a.dtype.kind != "f":
        return bool((a == b).all())
    equal = (a == b) & ((np.signbit(a) == np.signbit(b)) | (not signs))
    return bool((equal | (np.isnan(a) & np.isnan(b))).all())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), int(sys.argv[2]))
