"""What Triton's, NumPy's and CUDA's names for the functions of a kernel are called here.

An error of a name that is none says what to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from tessera.lang.kernel.table import INTRINSICS

_FLAT = "tile.reshape(x, (-1,))"
_NONE = "nothing: "
_SIZES = _NONE + "sizes are known or proved"
_WAITS = _NONE + "instances do not wait for each other; tile.accumulate folds into memory"

# A name that is expected, and what to write instead.
WRITE: dict[str, str] = {
    # Triton
    "program_id": _NONE + "the grid follows from what is loaded; tile.program_of('m') is the number "
    "of this instance along an axis, tile.program(n) makes one more axis of n instances",
    "num_programs": _NONE + "it is the count that tile.program was given",
    "cdiv": "(a + b - 1) // b", "clamp": "tile.minimum(tile.maximum(x, low), high)",
    "clip": "tile.minimum(tile.maximum(x, low), high)",
    "cumsum": "tile.scan(x, 'add', axis)", "cumprod": "tile.scan(x, 'mul', axis)",
    "cummax": "tile.scan(x, 'max', axis)", "cummin": "tile.scan(x, 'min', axis)",
    "associative_scan": "tile.scan(x, fn, axis)", "xor_sum": "tile.reduce(x, 'xor', axis)",
    "reduce_or": "tile.reduce(x, 'or', axis)",
    "histogram": "tile.accumulate(counts, ones, at=(ids,))",
    "bincount": "tile.accumulate(counts, ones, at=(ids,))",
    "to": "tile.cast(x, dtype)", "astype": "tile.cast(x, dtype)", "float": "tile.cast(x, f32)",
    "half": "tile.cast(x, f16)", "view": "tile.reshape(x, shape)",
    "trans": "tile.transpose(x, axes)", "permute": "tile.transpose(x, axes)",
    "swapaxes": "tile.transpose(x, axes)", "moveaxis": "tile.transpose(x, axes)",
    "ravel": _FLAT, "flatten": _FLAT, "squeeze": "tile.reshape(x, shape)",
    "expand_dims": "x[:, None]", "unsqueeze": "x[:, None]", "broadcast_to": "tile.broadcast(x, shape)",
    "cat": "tile.concat((x, y), axis)", "concatenate": "tile.concat((x, y), axis)",
    "interleave": "tile.reshape(tile.join(x, y), shape)",
    "hstack": "tile.concat((x, y), axis=1)", "vstack": "tile.concat((x, y), axis=0)",
    "zeros_like": "x * 0, or tile.zeros(x.shape, x.dtype)", "ones_like": "tile.ones(x.shape, x.dtype)",
    "full_like": "tile.full(x.shape, value, x.dtype)", "empty_like": "tile.empty(x.shape, x.dtype)",
    "rand": "tile.random_uniform(like, seed)",
    "randn": _NONE + "Box and Muller's formula makes it of tile.random_uniform",
    "randint": "tile.random_uniform(like, seed)", "philox": "tile.random_uniform(like, seed)",
    "dropout": "tile.dropout_in_kernel(x, p=, seed=)",
    "device_print": "tile.print(...)", "device_assert": "tile.check(condition, message)",
    "static_print": _NONE + "print around the kernel", "static_assert": "assert",
    "static_range": "range", "debug_barrier": "tile.barrier()", "syncthreads": "tile.barrier()",
    "make_block_ptr": "tile.load(x, at=, shape=)", "advance": "tile.load(x, at=, shape=)",
    "make_tensor_descriptor": "tile.load(x, at=, shape=)",
    "inline_asm_elementwise": "kernel.assembly(name, takes, gives, reference, ptx=)",
    "map_elementwise": _NONE + "functions of tiles are called as they are",
    "atomic_add": "tile.accumulate(x, value, at=)",
    **{f"atomic_{h}": f"tile.accumulate(x, value, at=, how={h!r})"
       for h in ("max", "min", "and", "or", "xor")},
    "atomic_cas": _WAITS, "atomic_xchg": _WAITS,
    "multiple_of": _SIZES, "max_contiguous": _SIZES, "max_constancy": _SIZES, "assume": _SIZES,
    "swizzle2d": _NONE + "the order of the grid is the compiler's",
    "umulhi": _NONE + "cast to i64 before the product", "div_rn": "x / y, which is rounded once",
    "fdiv": "x / y",
    "sqrt_rn": "tile.sqrt(x), which is rounded once", "constexpr": _NONE + "arguments after * are static",
    # NumPy and PyTorch
    "matmul": "tile.dot(a, b)", "einsum": "tile.dot, or a product and tile.sum",
    "outer": "x[:, None] * y[None, :]",
    "inner": "tile.sum(x * y)", "vdot": "tile.sum(x * y)", "amax": "tile.max(x, axis)",
    "amin": "tile.min(x, axis)",
    "var": "tile.mean((x - tile.mean(x, axis, keepdims=True)) ** 2, axis)",
    "std": "tile.sqrt of tile.mean((x - tile.mean(x, axis, keepdims=True)) ** 2, axis)",
    "norm": "tile.sqrt(tile.sum(x * x, axis))", "median": _NONE + "it is in the middle of tile.sort(x, axis)",
    "softmax": "e = tile.exp(x - tile.max(x, axis, keepdims=True)); e / tile.sum(e, axis, keepdims=True)",
    "logsumexp": "tile.reduce(x, 'logaddexp', axis)",
    "relu": "tile.maximum(x, 0)", "silu": "x * tile.sigmoid(x)", "swish": "x * tile.sigmoid(x)",
    "gelu": "0.5 * x * (1 + tile.erf(x * 0.5 ** 0.5))", "softplus": "tile.logaddexp(x, 0)",
    "tril": "tile.where(rows >= cols, x, 0)", "triu": "tile.where(rows <= cols, x, 0)",
    "roll": "tile.gather(x, index, axis)", "take": "tile.gather(x, index, axis)",
    "take_along_axis": "tile.gather(x, index, axis)", "linspace": "low + tile.arange(n, dtype) * step",
    "eye": "tile.arange(n)[:, None] == tile.arange(n)", "power": "x ** y", "subtract": "x - y",
    "multiply": "x * y", "divide": "x / y", "true_divide": "x / y", "negative": "-x",
    "equal": "x == y", "not_equal": "x != y", "less": "x < y", "greater": "x > y",
    "less_equal": "x <= y", "greater_equal": "x >= y", "item": "x[0]",
    "size": _NONE + "multiply the sizes of x.shape", "fill": "tile.full(shape, value, dtype)",
    "narrow": "x[start:stop]",
    "numpy": _NONE + "a tile has numbers in ts.interpret(step=True) alone; tile.print says them",
    "tolist": _NONE + "a tile has numbers in ts.interpret(step=True) alone; tile.print says them",
}  # fmt: skip


def _wanted(name: str) -> str:
    """What to write for a name of another library; "" where nothing is known."""
    said = WRITE.get(name, "")
    if said.startswith(_NONE):
        return f"there is none: {said.removeprefix(_NONE)}"
    return said and f"write {said}"


def no_function(name: str) -> str:
    """The message for a function that `tile` has not."""
    near = difflib.get_close_matches(name, INTRINSICS, 1)
    advice = _wanted(name) or (
        f"did you mean tile.{near[0]}?" if near else "dir(tile) has them all"
    )
    return f"tile has no {name!r}; {advice}"


def no_attribute(name: str, there: Iterable[str]) -> str:
    """The message for an attribute that tiles have not."""
    advice = f"write tile.{name}(x)" if name in INTRINSICS else _wanted(name)
    return f"a tile has no {name!r}; " + (advice or f"it has {', '.join(there)}")


def unknown_function(f: Any) -> str:
    """The message for a function of Python that is called on tiles."""
    name = getattr(f, "__name__", str(f))
    advice = f"write tile.{name}" if name in INTRINSICS else _wanted(name) or "use tile.*"
    return f"{name} is a Python function that knows no tiles; {advice}"
