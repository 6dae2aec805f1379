"""A compiled variant of a jitted function: its program, what it returns, and how a call runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tessera.compile.executable import Executable
from tessera.core import tree
from tessera.core.constraints import solve
from tessera.core.device import ANYWHERE, CPU, Device
from tessera.core.types import TensorType
from tessera.ir.graph.interp import execute, interpret
from tessera.ir.graph.ir import Value, holding, on_host
from tessera.ir.graph.numbers import checking
from tessera.lang.arguments import Call
from tessera.lang.debug import blame
from tessera.lang.stream import Stream


class Variant:
    """A compiled variant."""

    __slots__ = (
        "checked", "device", "donated", "executable", "record", "seen", "single", "structure", "types",
    )  # fmt: skip

    def __init__(
        self,
        executable: Executable,
        structure: tree.Structure,
        donated: tuple[int, ...] = (),
        device: Device = CPU,
        checked: bool = False,
    ):
        self.executable, self.structure, self.device = executable, structure, device
        self.checked = checked  # whether its results are looked at for NaN
        self.donated = donated  # numbers of the arguments whose memory may be used
        self.single = structure.kind is None
        self.types = [v.type for v in executable.written.outputs]
        self.seen = -1  # the configuration of the last call through Python
        self.record: Any = (
            False if checked else None
        )  # of calls that need no Python; False: there is none

    def run(self, data: Sequence[Any]) -> list[Any]:
        """The outputs; under ts.checked() a NaN among them is an error of the op that made it."""
        outs = self.executable.run(data)
        if self.checked:
            blame(self.types, outs, self.device, lambda: self.check(data))
        return outs

    def check(self, data: Sequence[Any]) -> list[Any]:
        """The outputs, op by op, as the target runs single ops."""
        written = self.executable.written
        if self.device.kind != "cpu":  # looked at here, computed there
            execute(written, [*map(on_host, data)])
            return self.executable.run(data)
        run = interpret if type(self.executable) is Executable else execute
        return run(written, data)


def wrap(entry: Variant, data: Sequence[Any]) -> Any:
    """Run a variant on arrays; its results as the function returns them."""
    # A check looks at the program as it was written, op by op.
    run = entry.run if not checking() else entry.check
    return results(entry, run(data))


def results(entry: Variant, outs: Sequence[Any]) -> Any:
    """Arrays as the function returns them: tensors in its tree."""
    if entry.single:
        t, x = entry.types[0], outs[0]
        return holding(t if t.static else TensorType(t.dtype, x.shape), x, entry.device)
    values = [
        holding(t if t.static else TensorType(t.dtype, x.shape), x, entry.device)
        for t, x in zip(entry.types, outs, strict=True)
    ]
    return tree.unflatten(entry.structure, values)


def queued(stream: Stream, entry: Variant, tensors: Sequence[Value], user: str) -> Any:
    """The results that a stream will bring."""
    types, g = entry.types, entry.executable.written
    if not all(t.static for t in types):
        given = [(str(v), v.shape, x.shape) for v, x in zip(g.inputs, tensors, strict=True)]
        sizes = solve(given, g.guards)
        types = [t.substitute(sizes) for t in types]
    outs = stream.call(entry.executable, tensors, types, user)
    return tree.unflatten(entry.structure, outs)


def apart(result: Any, c: Call) -> Any:
    """Results with memory of their own: arrays among the arguments may be written to later."""
    lent = [
        v.storage
        for v in c.tensors
        if v.device is ANYWHERE and type(v.storage) is np.ndarray and v.ndim
    ]
    if not lent:
        return result
    if isinstance(result, Value):
        return _owned(result, lent)
    leaves, structure = tree.flatten(result)
    return tree.unflatten(structure, [_owned(v, lent) for v in leaves])


def _owned(v: Value, lent: Sequence[np.ndarray[Any, Any]]) -> Value:
    if not isinstance(v.storage, np.ndarray):
        return v
    if v.storage.base is None and all(v.storage is not x for x in lent):
        return v
    shared = any(np.may_share_memory(v.storage, x) for x in lent)
    return holding(v.type, np.array(v.storage), v.device) if shared else v
