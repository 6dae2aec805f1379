"""One-op kernels compiled for this CPU, for the tests of approximations."""

import ctypes
from functools import cache

import numpy as np

from tessera.core import dtype as dtypes
from tessera.core.approximate import FUNCTIONS
from tessera.core.dims import symbol
from tessera.core.types import TensorType
from tessera.ir.target.cpu.emit import emit
from tessera.ir.tile.ir import Builder
from tessera.runtime.code import LlvmSource, load

BLOCK = 1024


@cache
def kernel(name, dtype, unroll=1):
    """y = name(x...) on blocks of 1024 elements."""
    d = getattr(dtypes, dtype)
    n = symbol("N")
    b = Builder("run")
    xs = [b.parameter(f"x{i}", TensorType(d, (n,))) for i in range(FUNCTIONS[name].arity)]
    y = b.parameter("y", TensorType(d, (n,)), True)
    i = b.program(n // BLOCK)
    with b.loop(0, BLOCK, 16 * unroll) as loop:
        at, size = (i * BLOCK + loop.variable,), (16 * unroll,)
        b.store(y, b.apply(name, *(b.load(x, at, size) for x in xs)), at, size)
    return b.finish()


@cache
def compiled(name, dtype, unroll=1):
    """The machine code of that kernel."""
    return load(LlvmSource(name, emit(kernel(name, dtype, unroll)), ("run",)))


def run(name, *xs, unroll=1):
    """A function of FUNCTIONS through LLVM, on arrays of one dtype and shape."""
    size = xs[0].size
    padded = -(-size // BLOCK) * BLOCK
    full = [np.concatenate([x.ravel(), np.ones(padded - size, x.dtype)]) for x in xs]
    out = np.empty(padded, xs[0].dtype)
    call(compiled(name, "f32" if out.dtype == np.float32 else "f64", unroll), [*full, out])
    return out[:size].reshape(xs[0].shape)


def call(code, arrays):
    """Run a kernel over whole blocks."""
    n = arrays[0].size
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    sizes = (ctypes.c_int64 * 1)(n)
    code.call(ctypes.addressof(pointers), ctypes.addressof(sizes), 0, n // BLOCK, None)
