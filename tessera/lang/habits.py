"""Habits from other libraries: what Tessera calls the attributes that NumPy's, PyTorch's and JAX's arrays have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from tessera.core.errors import NoAttributeError, located
from tessera.ops.define import FUNCTIONS

OURS = {
    "permute": "x.transpose(axes)", "view": "x.reshape(shape)", "unsqueeze": "op.expand_dims(x, axis)", "expand": "op.broadcast_to(x, shape)",
    "expand_as": "op.broadcast_to(x, y.shape)", "view_as": "x.reshape(y.shape)", "cuda": 'x.to("cuda")', "cpu": 'x.to("cpu")',
    "detach": "op.stop_gradient(x)", "backward": "ts.grad(f)(x)", "requires_grad": "ts.grad(f)(x)", "grad": "ts.grad(f)(x)",
    "requires_grad_": "ts.grad(f)(x)", "dim": "x.ndim", "numel": "x.size", "nelement": "x.size", "clone": "x, which never changes",
    "copy": "x, which never changes", "contiguous": "x, which is so already", "float": 'x.astype("f32")', "double": 'x.astype("f64")',
    "half": 'x.astype("f16")', "bfloat16": 'x.astype("bf16")', "long": 'x.astype("i64")', "int": 'x.astype("i32")', "bool": "x.astype(bool)",
    "type": "x.astype(dtype)", "softmax": "op.softmax(x, axis)", "matmul": "x @ y", "mm": "x @ y", "bmm": "x @ y", "dot": "x @ y",
    "ravel": "x.flatten()", "swapaxes": "op.swapaxes(x, a, b)", "repeat": "op.tile(x, counts)", "tile": "op.tile(x, counts)", "clip": "op.clip(x, low, high)",
    "clamp": "op.clip(x, low, high)", "fill": "ts.full_like(x, value)", "sort": "op.sort(x, axis)", "argsort": "op.argsort(x, axis)",
    "cumsum": "op.cumsum(x, axis)", "conj": "op.conj(x)", "round": "op.round(x)", "nonzero": "op.nonzero(x)", "take": "op.take(x, index, axis)",
    "gather": "op.take_along_axis(x, index, axis)", "index_select": "op.take(x, index, axis)", "masked_fill": "op.where(mask, value, x)",
    "chunk": "op.split(x, count, axis)", "split": "op.split(x, count, axis)", "norm": "op.norm(x)", "set": "x.at[index].set(value)",
    "block_until_ready": "x, which is ready", "device_buffer": "x.numpy()", "data_ptr": "x.__dlpack__()", "step": "opt.update(grads, state, params)",
    "zero_grad": "nothing: gradients are results", "put": "x.at[index].set(value)", "mul": "x.at[index].multiply(value)",
}  # fmt: skip


def absent(what: str, name: str, there: Iterable[str]) -> AttributeError:
    """The error of an attribute that an object does not have, with what to write instead."""
    if name.startswith("_"):  # protocols ask for such names, and for a plain answer
        return AttributeError(f"{what} has no attribute '{name}'")
    advice = _advice(name, there)
    return located(
        NoAttributeError(f"{what} has no attribute '{name}'" + (f"; {advice}" if advice else ""))
    )  # type: ignore[return-value]


def _advice(name: str, there: Iterable[str]) -> str:
    if name in OURS:
        return f"write {OURS[name]}"
    if name.endswith("_") and not name.startswith("_"):
        return "tensors are values: write x = x + y, or x = x.at[index].set(value)"
    if name in FUNCTIONS or name in _METHODS.split():
        return f"write op.{name}(x)"
    near = difflib.get_close_matches(name, [n for n in there if not n.startswith("_")], 1)
    return f"did you mean '{near[0]}'?" if near else ""


_METHODS = """abs acos all asin atan atan2 ceil concat cos cosh cross cumprod cummax cummin det diag diagonal div eig eigh einsum elu eq erf exp
expm1 expand_dims fft flip floor ge gelu glu gt hypot inv isfinite isinf isnan kron layernorm le leaky_relu lgamma log log10 log1p log2 log_softmax
logical_and logical_not logical_or logsumexp lt maximum minimum moveaxis ne neg norm one_hot outer pad pinv pow prelu qr reciprocal relu remainder
roll rsqrt scatter scatter_add searchsorted sigmoid sign silu sin sinh solve sqrt square stack svd tan tanh topk trace tril triu trunc unique where"""
_IN_PLACE = """add_ sub_ mul_ div_ pow_ neg_ abs_ exp_ log_ sqrt_ zero_ fill_ copy_ clamp_ clip_ relu_ sigmoid_ tanh_ squeeze_ unsqueeze_ t_ transpose_
normal_ uniform_ random_ scatter_ scatter_add_ index_add_ index_copy_ masked_fill_ resize_ set_ detach_"""


class _Absent:
    """Stands for a method of another library's arrays; whoever asks for it is told what to write.

    Descriptors for the usual names leave the attributes that exist as fast as they are, which __getattr__ would not.
    """

    def __init__(self, name: str):
        self._name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise absent("a tensor", self._name, ())


_NAMES = (*OURS, *_METHODS.split(), *_IN_PLACE.split())


class Habits:
    """The names that users of other libraries expect of a tensor."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        return [n for n in object.__dir__(self) if not isinstance(vars(Habits).get(n), _Absent)]


for _name in _NAMES:
    setattr(Habits, _name, _Absent(_name))
