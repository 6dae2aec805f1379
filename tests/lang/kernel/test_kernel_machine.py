"""Kernels as machine code: intrinsics that fold, move and multiply have the bits of the interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tessera import tile
from tessera.core.dtype import FORMATS
from tessera.ir.tile.cpu.legalize import expand
from tessera.ir.tile.interp import interpret, unwritten
from tests.lang.kernel import test_kernel_matrix as matrix
from tests.support.runners.tile_machine import Machine

SHAPE = (7, 11)


def samples(dtype):
    """Kernels of the matrix with their arguments: every intrinsic that is more than a scalar op."""
    x, y = matrix.draw(SHAPE, dtype, 1), matrix.draw(SHAPE, dtype, 2)
    mask = matrix.draw(SHAPE, "bool", 3)
    ids = np.random.default_rng(4).integers(0, 7, 9)
    floats = FORMATS[dtype].kind == "f"
    for how, axis in (("add", 0), ("add", 1), ("max", 0), ("min", 1), ("max", None)):
        yield matrix.folded, (x,), {"how": how, "axis": axis, "keepdims": False}
    for f in (tile.argmax, tile.argmin, tile.mean):
        yield matrix.named_fold, (x,), {"f": f, "axis": 1, "keepdims": False}
    for how, axis in (("add", 0), ("mul", 1), ("max", 1)):
        if dtype != "bf16" or how != "mul":
            yield matrix.scanned, (x,), {"how": how, "axis": axis}
    yield matrix.select, (mask, x, y), {}
    yield matrix.turned, (x,), {}
    yield matrix.spread, (x[0], y), {}
    yield matrix.columns, (x[:, 0].copy(), y[0]), {}
    yield matrix.product_of, (x, matrix.draw((11, 5), dtype, 5)), {}
    yield matrix.copied, (x,), {}
    yield matrix.stored, (x, y, mask), {}
    yield matrix.picked, (ids, x), {}
    yield matrix.elementwise_masked, (x, y, y, mask), {"f": tile.add, "arity": 2, "fill": 1}
    if floats:
        yield matrix.dropped, (x,), {"p": 0.25, "seed": 3}
        yield matrix.attended, (x, y, matrix.draw(SHAPE, dtype, 6)), {"causal": True}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32", "u8"])
def test_machine_code_has_the_bits_of_the_interpreter(dtype):
    cases = []
    for f, args, kwargs in samples(dtype):
        k = f.lower(*args, **kwargs)
        n = len(args)
        known = {}
        for m, a in zip(k.parameters, args, strict=False):
            known |= {str(s): v for s, v in zip(m.type.shape, a.shape, strict=True)}
        known = {name: known[name] for name in k.sizes}
        outs = [m.type.substitute(known) for m in k.parameters[n:]]
        cases.append((k, args, [unwritten(t.shape, t.dtype) for t in outs], known))
    machine = Machine([expand(k) for k, *_ in cases])
    for i, (k, args, outs, known) in enumerate(cases):
        want, got = ([np.array(a) for a in (*args, *outs)] for _ in range(2))
        interpret(k, want, known)
        machine.run(i, got)
        for x, y in zip(want, got, strict=True):
            assert x.tobytes() == y.tobytes(), (k.name, i)
