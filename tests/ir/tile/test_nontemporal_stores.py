"""bypass: stores that go past the caches write the same, wherever the result lies."""

import numpy as np
import pytest

from tessera.core.dims import symbol
from tessera.core.dtype import FORMATS, f32
from tessera.core.errors import VerifyError
from tessera.core.types import TensorType
from tessera.ir.target.cpu.emit import emit
from tessera.ir.target.cpu.program import program
from tessera.ir.tile.cpu.passes.nontemporal_stores import bypass
from tessera.ir.tile.interp import interpret
from tessera.ir.tile.ir import Builder, walk
from tessera.ir.tile.text import parse_kernel
from tessera.ir.tile.verify import verify
from tessera.runtime.kernel import CompiledKernel

M, N = symbol("M"), symbol("N")


def doubled(dtype=f32, shape=(M, N), width=64, back=False):
    """y[r] = x[r] + x[r], in pieces; with `back` the kernel reads y again, into z."""
    b = Builder("doubled")
    x = b.parameter("x", TensorType(dtype, shape))
    y = b.parameter("y", TensorType(dtype, shape), writable=True)
    row = b.program(shape[0])
    whole = shape[1] // width * width
    for start, stop, masked in ((0, whole, ()), (whole, shape[1], (1,))):
        with b.loop(start, stop, width) as columns:
            at, extent = (row, columns.variable), (1, width)
            piece = b.load(x, at, extent, axes=(1,), masked=masked)
            b.store(y, b.apply("or" if dtype.kind == "b" else "add", piece, piece), at, extent,
                    axes=(1,), masked=masked)  # fmt: skip
    if back:
        z = b.parameter("z", TensorType(dtype, (shape[0],)), writable=True)
        b.store(z, b.load(y, (row, 0), (1, 1), axes=()), (row,), (1,), axes=())
    return b.finish()


def hints(kernel):
    return [op.attributes.get("bypass") for op in walk(kernel.body) if op.name == "store"]


def test_only_stores_to_large_results_that_are_not_read_are_marked():
    small, large = (doubled(shape=(4, n)) for n in (64, 1 << 20))
    assert bypass(small, 1 << 20) is small
    assert hints(bypass(large, 1 << 20)) == [1 << 20] * 2
    assert hints(bypass(doubled(), 1 << 20)) == [1 << 20] * 2  # a call will tell
    read = bypass(doubled(shape=(4, 1 << 20), back=True), 1 << 20)
    assert hints(read) == [None] * 3


def test_the_mark_is_part_of_the_text_and_verified():
    kernel = bypass(doubled(), 4096)
    verify(kernel)
    again = parse_kernel(kernel.text)
    assert again.text == kernel.text != doubled().text
    assert hints(again) == [4096] * 2
    store = next(op for op in walk(kernel.body) if op.name == "store")
    store.attributes["bypass"] = "always"
    with pytest.raises(VerifyError, match="store: bypass is 'always', expected a whole number"):
        verify(kernel)


def test_code_of_small_results_has_none_of_it():
    marked = bypass(doubled(shape=(4, 64)), 0)
    assert emit(marked).count("!nontemporal") == 4
    assert "fence seq_cst" in emit(marked)
    assert "!nontemporal" not in emit(bypass(doubled(shape=(4, 8), width=8), 0))  # no vectors


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "i8", "i64", "bool"])
def test_results_lie_anywhere_and_have_the_same_bits(name):
    """Aligned or not, of rows that begin on a line or not, below the bound and above it."""
    dtype = FORMATS[name]
    kernel = bypass(doubled(dtype), 3000)
    code = CompiledKernel(program(kernel))
    rng = np.random.default_rng(0)
    size = np.dtype(dtype.np).itemsize
    for shape in ((3, 256), (5, 191), (1, 63), (2, 4096)):
        x = rng.integers(0, 2 if name == "bool" else 50, size=shape).astype(dtype.np)
        want = np.zeros_like(x)
        interpret(kernel, [x, want])
        for offset in (0, 1, 16):
            block = np.zeros(x.size + 128 + offset, dtype.np)
            first = -block.ctypes.data % 64 // size + offset
            y = block[first : first + x.size].reshape(shape)
            code.run([x, y])
            assert y.tobytes() == want.tobytes()
            assert not block[:first].any()
            assert not block[first + x.size :].any()
