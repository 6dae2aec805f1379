"""The tensors of a call of an entry point, in the order of its inputs.

    run({"mask": m, "ids": i}, key)      batch.ids <- i, batch.mask <- m, key <- key
    run(i, m, key)                       the leaves alone, in the order of the inputs

An argument that is a tree is taken apart by the names of its leaves, so that another order of its keys
changes nothing and other keys are an error.  What is no tensor was fixed when the bundle was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessera.core import tree
from tessera.core.dtype import DType
from tessera.core.errors import OperandError
from tessera.ir.graph.ir import Value
from tessera.lang.trace import is_tensor

_TENSORS = (Value, np.ndarray)  # the usual ones, which are leaves
_MOST_NAMES = 12  # of leaves in an error
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class Taken(NamedTuple):
    """What an entry point takes: inputs by name, and what is fixed, as text, by name."""

    name: str
    inputs: Sequence[str]
    fixed: Mapping[str, str]

    @property
    def parameters(self) -> list[str]:
        """The parameters that have tensors."""
        return list(dict.fromkeys(n.partition(".")[0] for n in self.inputs))

    @property
    def told(self) -> str:
        """What is fixed, for the end of an error."""
        fixed = ", ".join(f"{n}={x}" for n, x in self.fixed.items())
        return f"; the bundle was made for {fixed}" if fixed else ""

    def below(self, parameter: str) -> list[str]:
        """The names of the leaves of a parameter, "" for one that is a tensor."""
        own = (n.partition(".") for n in self.inputs)
        return [rest for head, _, rest in own if head == parameter]


def dotted(path: str) -> str:
    """A path through a tree as words between dots."""
    return ".".join(re.findall(r"[A-Za-z0-9_]+", path))


def fixed_text(x: Any) -> str:
    """A value that is no tensor as text, the same in every process."""
    if isinstance(x, tuple):
        return f"({', '.join(map(fixed_text, x))})"
    if isinstance(x, DType):
        return x.name
    return repr(x) if isinstance(x, _PLAIN) else f"<{type(x).__name__}>"


def tensors_of(t: Taken, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The tensors of a call, in the order of the inputs; an error where arguments are other ones."""
    if not named and all(isinstance(a, _TENSORS) for a in args):
        return list(args)
    trees, others = _split(args)
    _check_fixed(t, others, named)
    given = dict(_given(t, named))
    if not given and all(map(_is_leaf, trees)):
        return trees  # how many there are is for who knows their types
    free = [p for p in t.parameters if p not in given]
    if len(trees) > len(free) and free and t.below(free[-1])[0].split(".")[0] == "0":  # def f(*xs)
        trees = [*trees[: len(free) - 1], tuple(trees[len(free) - 1 :])]
    if len(trees) != len(free):
        wanted = f"{len(t.parameters)}: {', '.join(t.parameters)}{t.told}"
        raise OperandError(f"{t.name}: got {len(trees) + len(given)} arguments, expected {wanted}")
    given |= dict(zip(free, trees, strict=True))
    return [x for p in t.parameters for x in _leaves(t, p, given[p])]


def _is_leaf(x: Any) -> bool:
    return tree.structure(x).kind is None


def _split(args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The arguments that have tensors, and the leaves that are none."""
    trees, others = [], []
    for a in args:
        leaves = tree.leaves(a)
        if any(map(is_tensor, leaves)):
            trees.append(a)
        others += [x for x in leaves if not is_tensor(x)]
    return trees, others


def _check_fixed(t: Taken, others: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Refuse what is no tensor, but for what was fixed and is not given by name."""
    fixed = [x for n, x in t.fixed.items() if n not in named and not _is_number(x)]
    if others and [fixed_text(x) for x in others] != fixed:
        raise OperandError(
            f"{t.name}: got {others[0]!r:.40}, which is no tensor and was fixed when the bundle was made; "
            f"leave it out, or make a bundle for it{t.told}"
        )


def _is_number(text: str) -> bool:
    """Whether a fixed value is a number, which by position stands for a tensor."""
    try:
        return text in ("True", "False") or complex(text) is not None
    except ValueError:
        return False


def _given(t: Taken, named: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """The arguments by name that have tensors."""
    for n, x in named.items():
        if n in t.fixed and fixed_text(x) == t.fixed[n]:
            continue
        if n in t.fixed:
            raise OperandError(
                f"{t.name}: {n} is {x!r:.40}, but was fixed at {t.fixed[n]} when the bundle was made; make a "
                "bundle for it"
            )
        if n not in t.parameters:
            raise OperandError(
                f"{t.name}: there is no argument {n!r}; it takes {', '.join(t.parameters) or 'none'}"
            )
        yield n, x


def _leaves(t: Taken, parameter: str, x: Any) -> list[Any]:
    """The tensors of an argument in the order of the inputs."""
    leaves, structure = tree.flatten(x)
    pairs = zip(map(dotted, tree.structure_paths(structure)), leaves, strict=True)
    own = [(n, leaf) for n, leaf in pairs if is_tensor(leaf)]
    wanted, names = t.below(parameter), [n for n, _ in own]
    if sorted(names) != sorted(wanted):
        raise OperandError(
            f"{t.name}: {parameter} has {_listed(names)}, expected {_listed(wanted)}"
        )
    if len(set(names)) < len(
        names
    ):  # two keys that are one name, such as "a.b" and {"a": {"b": ...}}
        return [leaf for _, leaf in own]
    found = dict(own)
    return [found[n] for n in wanted]


def _listed(names: Sequence[str]) -> str:
    """Names of leaves for an error."""
    if list(names) == [""]:
        return "no parts"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(names[:_MOST_NAMES]) or 'no tensors'}{more}"
