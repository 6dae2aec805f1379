"""Parameters by name: state dicts out of modules and into them, as in PyTorch.

nn.state_dict(model)                     {"blocks.0.attn.qkv.weight": Tensor, ...}
model = nn.load_state(model, tensors)    the same module with these values; shapes and names are checked
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes

from tessera.core import tree
from tessera.core.blame import blames_arguments, brief
from tessera.core.errors import OperandError, ShapeError, TreeError, located
from tessera.lang import op
from tessera.lang.create import asarray, tensor

_NARROW = {
    "torch.bfloat16": ml_dtypes.bfloat16,
    "torch.float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "torch.float8_e5m2": ml_dtypes.float8_e5m2,
}
Rename = Mapping[str, str] | Callable[[str], str | None]


@blames_arguments
def state_dict(module: Any, state: Any = None) -> dict[str, Any]:
    """The tensors of a module, and of the state of its layers, by their dotted names."""
    found = dict(zip(tree.names(module), tree.leaves(module), strict=True))
    if state is None:
        return found
    held = dict(zip(tree.names(state), tree.leaves(state), strict=True))
    return {**found, **held}


@blames_arguments
def load_state(
    module: Any,
    tensors: Mapping[str, Any],
    state: Any = None,
    *,
    strict: bool = True,
    rename: Rename | None = None,
    copy: bool = True,
) -> Any:
    """The module with the tensors of these names, in the dtypes of its own; with a state, both.

    Values are tensors, arrays or torch tensors.  rename turns names of the source into names of the module:
    patterns (regular expressions) with their replacements, applied in order, or a function, whose None
    leaves a tensor out. strict=False keeps what has no tensor and leaves tensors without a place.
    copy=False shares memory with arrays and torch tensors where it can: writing to them would change the
    module.
    """
    if not isinstance(tensors, Mapping):
        raise located(
            OperandError(
                f"load_state: tensors is {type(tensors).__name__} {brief(tensors, 40)}, "
                "expected a mapping from names to "
                "tensors; read a file with ts.load(path)"
            )
        )
    given = _renamed(tensors, rename)
    wanted = state_dict(module, state)
    if strict:
        _check_names(wanted, given)
    made = {n: _fitted(n, x, given[n], copy) if n in given else x for n, x in wanted.items()}
    loaded = _with(module, made)
    return loaded if state is None else (loaded, _with(state, made))


def _with(t: Any, values: Mapping[str, Any]) -> Any:
    return tree.unflatten(tree.structure(t), [values[n] for n in tree.names(t)])


def _renamed(tensors: Mapping[str, Any], rename: Rename | None) -> dict[str, Any]:
    if rename is None:
        return dict(tensors)
    made: dict[str, Any] = {}
    for n, x in tensors.items():
        new: str | None = n
        if callable(rename):
            new = rename(n)
        else:
            for pattern, by in rename.items():
                new = re.sub(pattern, by, new or "")
        if new is not None and new in made:
            raise located(TreeError(f"nn.load_state: rename gives two tensors the name '{new}'"))
        if new is not None:
            made[new] = x
    return made


def _check_names(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    missing = [n for n in wanted if n not in given]
    over = [n for n in given if n not in wanted]
    if missing or over:
        told = [f"no tensor for {_some(missing)}"] if missing else []
        told += [f"no place for {_some(over)}"] if over else []
        raise located(
            TreeError(
                f"nn.load_state: {' and '.join(told)}; rename={{pattern: replacement}} maps names, "
                "strict=False "
                "loads what fits"
            )
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _fitted(name: str, mine: Any, given: Any, copy: bool) -> Any:
    x = tensor_of(given)
    if tuple(x.shape) != tuple(mine.shape):
        raise located(
            ShapeError(
                f"nn.load_state: '{name}' is {x.type}, expected {mine.type} as in the module"
            )
        )
    if x.dtype is not mine.dtype:
        return op.cast(x, mine.dtype)
    return tensor(x.numpy()) if copy and x is not given and x.device.kind == "cpu" else x


def tensor_of(x: Any) -> Any:
    """A tensor of any library as one of ours, sharing memory where it can."""
    return asarray(_host(x.detach()) if hasattr(x, "detach") else x)


def _host(x: Any) -> Any:
    """The memory of a tensor of PyTorch as an array; NumPy has no names for its narrow floats."""
    x = (x if x.is_contiguous() else x.contiguous()).resolve_conj().resolve_neg()
    narrow = _NARROW.get(str(x.dtype))
    if narrow is None or x.device.type != "cpu":
        return x
    same_size = x.new_zeros(0).short() if x.element_size() == 2 else x.new_zeros(0).byte()
    return x.view(same_size.dtype).numpy().view(narrow)


@blames_arguments
def from_torch(state: Mapping[str, Any]) -> Any:
    """A state dict of PyTorch as a tree by its dotted names; runs of numbers 0, 1, ... become lists.

    Tensors share memory with PyTorch's where they can; write to neither afterwards.
    """
    if not isinstance(state, Mapping):
        raise located(
            OperandError(
                f"from_torch: state is {type(state).__name__} {brief(state, 40)}, "
                "expected a mapping from names to "
                "tensors, such as model.state_dict()"
            )
        )
    nested: dict[str, Any] = {}
    for name, x in state.items():
        *path, last = name.split(".")
        at = nested
        for step in path:
            at = at.setdefault(step, {})
            if not isinstance(at, dict):
                raise located(
                    TreeError(f"from_torch: '{name}' goes through a name that is a tensor itself")
                )
        if last in at:
            raise located(TreeError(f"from_torch: '{name}' is the name of a tensor and of a group"))
        at[last] = tensor_of(x)
    return _listed(nested)


def _listed(t: Any) -> Any:
    if not isinstance(t, dict):
        return t
    made = {k: _listed(v) for k, v in t.items()}
    numbers = [str(i) for i in range(len(made))]
    return [made[k] for k in numbers] if made and set(made) == set(numbers) else made
