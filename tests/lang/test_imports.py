"""Imports as people type them: modules that are attributes are found, others have a counterpart."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from typing import Any

import numpy as np
import pytest

import tessera as ts
from tessera import op
from tessera.core.errors import NoAttributeError


@pytest.mark.parametrize("name", ["op", "optim", "dist", "tree", "tile", "onnx", "verify", "nn"])
def test_a_module_that_is_an_attribute_is_imported(name: str) -> None:
    assert importlib.import_module(f"tessera.{name}") is getattr(ts, name)


def test_names_are_imported_from_it() -> None:
    found: dict[str, Any] = {}
    exec(
        "from tessera.op import softmax\nfrom tessera.optim import adam\nimport tessera.op as p",
        found,
    )
    assert (found["softmax"], found["adam"], found["p"]) == (op.softmax, ts.optim.adam, op)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from tessera import numpy as jnp", "ts has no 'numpy'; write op"),
        ("import tessera.numpy as jnp", "ts has no 'numpy'; write op"),
        ("from tessera import random", "ts has no 'random'; write op.random"),
        ("import tessera.nn.functional as F", "nn has no attribute 'functional'; write op"),
        ("from tessera.nn import functional", "nn has no attribute 'functional'; write op"),
        ("from tessera.nn import Linear, Conv2D", "nn has no 'Conv2D'; did you mean nn.Conv2d?"),
        ("from tessera import lax", "ts has no 'lax'; write ts.scan, ts.cond, ts.while_loop"),
        ("import tessera.linalg", "ts has no 'linalg'; write op.solve"),
        ("import tessera.grad", "tessera.grad is no module; write from tessera import grad"),
        ("from tessera import randn", "ts has no 'randn'; write op.random.normal(key, shape)"),
        ("import tessera.nonsense_of_nobody", "No module named 'tessera.nonsense_of_nobody'"),
    ],
)
def test_an_import_of_another_library_is_told_what_to_write(line: str, said: str) -> None:
    with pytest.raises(ImportError) as e:
        exec(line)
    assert str(e.value).startswith(said)
    assert all(not n.startswith("tessera.numpy") for n in sys.modules)


def test_imports_of_what_is_optional_may_be_tried() -> None:
    try:
        from tessera import lax  # type: ignore[attr-defined]
    except ImportError:
        lax = None
    assert lax is None
    assert importlib.util.find_spec("tessera.core.no_such_file") is None


# Methods of other libraries' arrays ---------------------------------------------------------------

_METHODS = {
    "t": "x.T", "add": "x + y", "sub": "x - y", "absolute": "op.abs(x)", "allclose": "np.allclose(x, y)",
    "narrow": "x[start:stop]", "bincount": "op.bincount(x)", "diff": "op.diff(x)", "type_as": "x.astype(",
    "movedim": "op.moveaxis(x", "index_add": "x.at[index].add(value)", "stride": "leave it out",
    "flat": "x.reshape(-1)",
    "tobytes": "x.numpy().tobytes()", "new_zeros": "ts.zeros(shape, x.dtype)",
    "erfinv_": "tensors are values",
    "repeat_interleave": "op.repeat(x", "logaddexp": "op.logaddexp(x)", "amax": "x.max(axis)",
    "is_cuda": "x.device",
}  # fmt: skip


@pytest.mark.parametrize("name", _METHODS)
def test_a_method_of_another_library_has_a_counterpart(name: str) -> None:
    x = ts.ones((2, 3))
    with pytest.raises(NoAttributeError) as e:
        getattr(x, name)
    assert f"a tensor has no attribute '{name}'; " in e.value.message
    assert _METHODS[name] in e.value.message
    assert not hasattr(x, name)
    assert name not in dir(x)


def test_methods_of_tensors_are_all_there() -> None:
    """A name that is answered with advice hides none that exists."""
    x = ts.ones((2, 3))
    for name in ("full", "layout", "size", "sum", "cumsum", "at", "numpy", "reshape", "astype"):
        assert hasattr(type(x), name), name


def test_the_size_of_a_tensor_is_a_number_that_says_what_it_is() -> None:
    x = ts.ones((2, 3))
    assert (x.size, x.size + 1, repr(x.size)) == (6, 7, "6")
    for call, ours in ((lambda: x.size(), "x.shape"), (lambda: x.size(1), "x.shape[1]"),
        (lambda: x.size(dim=0), "x.shape[0]")):  # fmt: skip
        with pytest.raises(NoAttributeError) as e:
            call()
        assert e.value.message.endswith(f"write {ours}")


def test_a_dtype_equals_what_numpy_calls_it() -> None:
    x = ts.ones((2,))
    assert x.dtype == np.float32
    assert np.float32 == x.dtype
    assert np.dtype("float32") == x.dtype
    assert x.dtype == "float32"
    assert x.dtype == "f32"
    assert x.dtype != np.float64
    assert x.dtype != "nonsense"
    assert x.dtype != 32
    assert ts.f64 != ts.f32
    assert (ts.bf16 @ ts.saturate) != "bf16"
    assert {ts.f32: 1}[x.dtype] == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: op.concat(x, x), "concat: the axis is a tensor, f32[2,3]; tensors go in a list"),
        (lambda x: op.sum(x, x), "sum: the axis is a tensor, f32[2,3]; expected an integer"),
        (lambda x: int(x), "int: f32[2,3] is not a scalar; reduce it, as with x.sum(), or take an element"),
        (lambda x: bool(x), "bool: f32[2,3] is not a scalar; use op.any or op.all"),
        (lambda x: x.to("gpu"), "there is no device gpu:0; devices are cpu:0; a GPU is 'cuda' of NVIDIA"),
        (lambda x: op.embedding(ts.tensor([0, 1]), x), "the order is embedding(table, ids)"),
        (lambda x: op.dropout(x, 0.5), "dropout: x is float 0.5; the order is dropout(key, x, p)"),
        (lambda x: ts.nn.Sequential([op.relu])(x), "give the parts one by one, nn.Sequential(*parts)"),
        (lambda x: ts.optim.adam(learning_rate=0.1), "unexpected keyword argument 'learning_rate'; use 'lr'"),
    ],
    ids=["concat", "axis", "int", "bool", "gpu", "embedding", "dropout", "sequential", "lr"],
)  # fmt: skip
def test_a_mistake_of_order_or_kind_is_told_what_to_write(call: Any, said: str) -> None:
    with pytest.raises(ts.TesseraError) as e:
        call(ts.ones((2, 3)))
    assert said in e.value.message


def test_what_tuning_found_is_shown_in_a_line() -> None:
    found = ts.tune(lambda x: op.sum(x @ x.T), ts.ones((8, 8)), budget_ms=1)
    assert repr(found) == f"<tuning of <lambda>: {len(found)} kernels; print it for a table>"


def test_a_jitted_partial_has_a_name_and_is_called_again_and_again() -> None:
    """Calls that need no Python ask for the name; a partial has none."""
    f = ts.jit(functools.partial(lambda n, x: x * n, 3))
    for i in range(6):
        assert f(ts.tensor([1.0 + i])).item() == 3.0 + 3 * i
    assert f.name == f.__name__ == "<lambda>"


def test_a_module_with_forward_is_told_to_call_it_otherwise() -> None:
    class Net(ts.nn.Module):
        scale: float = 2.0

        def forward(self, x: Any) -> Any:
            return x * self.scale

    with pytest.raises(ts.TesseraError) as e:
        Net()(ts.ones((2,)))
    assert e.value.message == "Net has no __call__; name its method forward so"
