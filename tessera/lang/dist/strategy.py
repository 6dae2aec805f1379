"""Strategies of parallel training as layouts of parameters, gradients, optimiser state and batch.

    s = dist.strategy.zero2(mesh, "dp") + dist.strategy.tensor(mesh, "tp", {"up": 1, "down": 0})
    params, state, step = s.params(params), s.state(opt.init(params)), s.step(loss, opt)
    value, params, state = step(params, state, s.batch(tokens))
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tessera.core import tree
from tessera.core.blame import blames_arguments, constructor_blames_arguments, wanting
from tessera.core.errors import OperandError, located
from tessera.core.mesh import Mesh
from tessera.core.shardspec import ShardSpec
from tessera.lang.dist.tensor import constrain, shard
from tessera.lang.jit import jit
from tessera.lang.transforms import value_and_grad

Rules = Mapping[str, int | None]
_FIELDS = ("batch_axes", "sequence_axes", "rules", "under", "of_params", "of_grads", "of_state")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@constructor_blames_arguments
@dataclass(frozen=True)
class Strategy:
    """Which mesh axis cuts what; strategies on one mesh are added with +."""

    mesh: Mesh
    batch_axes: tuple[str, ...] = ()  # that cut the first axis of the batch
    sequence_axes: tuple[str, ...] = ()  # that cut the second
    rules: tuple[tuple[str, str, int], ...] = ()  # (name of a parameter, mesh axis, its axis)
    under: tuple[tuple[str, str, int], ...] = ()  # the same for all parameters under a name
    of_params: tuple[str, ...] = ()  # mesh axes that cut parameters where they are kept
    of_grads: tuple[str, ...] = ()
    of_state: tuple[str, ...] = ()

    def __add__(self, other: Strategy) -> Strategy:
        if other.mesh != self.mesh:
            raise located(
                OperandError(f"strategy: one is on mesh {self.mesh}, the other on mesh {other.mesh}")
            )
        both: Any = {
            name: tuple(dict.fromkeys((*getattr(self, name), *getattr(other, name))))
            for name in _FIELDS
        }
        return replace(self, **both)

    # Layouts --------------------------------------------------------------------------------------

    def spec(self, path: str, shape: Sequence[int], axes: Sequence[str] = ()) -> ShardSpec:
        """The layout of a parameter: by the rules, and cut further by mesh axes along its longest axis."""
        cuts: dict[int, tuple[str, ...]] = {}
        names, rank = names_of(path), len(shape)
        named = [r for r in self.rules if _ends(names, r[0].split("."))]
        within = [r for r in self.under if r[0] in names]
        for _, mesh_axis, axis in (*named, *within):
            if -rank <= axis < rank:
                cuts[axis % rank] = (mesh_axis,)
        for a in axes:
            free = [k for k in range(len(shape)) if k not in cuts and shape[k] >= self.mesh.size(a)]
            if free:
                cuts[max(free, key=lambda k: (shape[k] % self.mesh.size(a) == 0, shape[k]))] = (a,)
        return ShardSpec(tuple(cuts), tuple(c[0] for c in cuts.values()))

    def _tree(self, x: Any, axes: Sequence[str]) -> list[ShardSpec]:
        leaves, structure = tree.flatten(x)
        paths = tree.structure_paths(structure, "")
        return [self.spec(p, v.shape, axes) for p, v in zip(paths, leaves, strict=True)]

    def params(self, params: Any) -> Any:
        """Parameters on the mesh."""
        leaves, structure = tree.flatten(params)
        return tree.unflatten(structure, _placed(leaves, self._tree(params, self.of_params), self.mesh))

    def state(self, state: Any) -> Any:
        """The state of an optimiser on the mesh."""
        leaves, structure = tree.flatten(state)
        return tree.unflatten(structure, _placed(leaves, self._tree(state, self.of_state), self.mesh))

    def batch(self, batch: Any) -> Any:
        """A batch on the mesh, cut along its first axis, and along its second by axes of sequences."""
        # Axes of experts come first: the tokens of a shard along them are then in one piece.
        own = {a for _, a, _ in self.under}
        first = tuple(sorted(self.batch_axes, key=lambda a: a not in own))
        cuts = [(k, c) for k, c in enumerate((first, self.sequence_axes)) if c]

        def spec(path: str, x: Any) -> ShardSpec:
            mine = [(k, c) for k, c in cuts if k < len(x.shape)]
            return ShardSpec(tuple(k for k, _ in mine), tuple(c for _, c in mine))

        return shard(batch, spec, self.mesh)

    # Training -------------------------------------------------------------------------------------

    def step(self, loss: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
        """The jitted function (params, state, *batch) -> (loss, params, state), which keeps these layouts.

        Parameters are gathered for the loss, gradients are summed into their layout, and each shard updates the
        part whose state it has.
        """

        def step(params: Any, state: Any, *batch: Any) -> Any:
            whole = self._laid(params, ())
            value, grads = value_and_grad(loss)(whole, *batch)
            grads = self._laid(grads, self.of_grads)
            params, state = optimizer.update(grads, state, params)
            return value, self._laid(params, self.of_params), self._laid(state, self.of_state)

        return jit(step)  # type: ignore[no-any-return]

    def _laid(self, x: Any, axes: Sequence[str]) -> Any:
        leaves, structure = tree.flatten(x)
        specs = self._tree(x, axes)
        made = [constrain(v, s) for v, s in zip(leaves, specs, strict=True)]
        return tree.unflatten(structure, made)


@blames_arguments
def names_of(path: str) -> list[str]:
    """The names on the way to a leaf of a tree."""
    return _NAME.findall(path)


def _ends(names: Sequence[str], wanted: Sequence[str]) -> bool:
    return list(names[-len(wanted) :]) == list(wanted)


def _placed(leaves: Sequence[Any], specs: Sequence[ShardSpec], mesh: Mesh) -> list[Any]:
    return [shard(v, s, mesh) for v, s in zip(leaves, specs, strict=True)]


@wanting
def data(mesh: Mesh, axis: str = "dp") -> Strategy:
    """Data parallel: the batch is cut, everything else is whole on every shard."""
    mesh.size(axis)
    return Strategy(mesh, batch_axes=(axis,))


@wanting
def zero1(mesh: Mesh, axis: str = "dp") -> Strategy:
    """Data parallel with the optimiser's state cut."""
    return replace(data(mesh, axis), of_state=(axis,))


@wanting
def zero2(mesh: Mesh, axis: str = "dp") -> Strategy:
    """Data parallel with state and gradients cut: gradients are reduced and scattered."""
    return replace(zero1(mesh, axis), of_grads=(axis,))


@wanting
def zero3(mesh: Mesh, axis: str = "dp") -> Strategy:
    """Data parallel with state, gradients and parameters cut: parameters are gathered for each step."""
    return replace(zero2(mesh, axis), of_params=(axis,))


fsdp = zero3


@wanting
def tensor(mesh: Mesh, axis: str = "tp", rules: Rules | None = None) -> Strategy:
    """Tensor parallel: parameters named in `rules` are cut along the axis given there; the others are whole.

    A name is the last one on the way to a parameter in its tree, or several of them: "up" or "mlp.up".
    """
    mesh.size(axis)
    if not rules:
        raise located(
            OperandError(
                "strategy.tensor: rules is empty; name parameters and the axis that is cut, as in "
                '{"up": 1, "down": 0}'
            )
        )
    given = tuple((name, axis, k) for name, k in rules.items() if k is not None)
    return Strategy(mesh, rules=given)


@wanting
def sequence(mesh: Mesh, axis: str = "sp") -> Strategy:
    """Context parallel: the second axis of the batch is cut, and dist.attention(axis=...) sends keys and values round."""
    mesh.size(axis)
    return Strategy(mesh, sequence_axes=(axis,))


@wanting
def expert(mesh: Mesh, axis: str = "ep", under: str = "experts") -> Strategy:
    """Expert parallel: parameters under a name are cut along their first axis, and so is the batch; see dist.experts."""
    mesh.size(axis)
    return Strategy(mesh, batch_axes=(axis,), under=((under, axis, 0),))


@wanting
def pipeline(mesh: Mesh, axis: str = "pp", under: str = "blocks") -> Strategy:
    """Pipeline parallel: layers that dist.stacked put under a name are cut by stage; see dist.pipeline."""
    mesh.size(axis)
    return Strategy(mesh, under=((under, axis, 1),))
