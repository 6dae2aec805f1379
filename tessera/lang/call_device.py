"""Where a call of a jitted function runs: where its tensors are, or on what the target names."""

from __future__ import annotations

from tessera.core import tree
from tessera.core.device import ANYWHERE, CPU, GPUS, Device
from tessera.core.errors import DeviceError
from tessera.core.mesh import moving_to, told
from tessera.lang.arguments import Call, leaf_names


def device_of(name: str, c: Call, target: str) -> Device:
    """Where a call runs: where its tensors are, or on the GPU that the target names."""
    first, (kind, _, which) = -1, target.partition(":")
    on_gpu = kind in GPUS and (which or "0").isdecimal()
    on_mesh = any(v.device.kind == "mesh" for v in c.tensors)
    for i, v in enumerate(c.tensors):
        if v.device is ANYWHERE or ((on_gpu or on_mesh) and v.device.kind == "cpu"):
            continue  # it goes where the others are
        if first < 0:
            first = i
        elif v.device != c.tensors[first].device:
            raise _far_apart(name, c, first, i)
    if first >= 0 and c.tensors[first].device.kind != "cpu":
        return c.tensors[first].device
    return Device(kind, int(which or 0)) if on_gpu else CPU


def _far_apart(name: str, c: Call, i: int, j: int) -> DeviceError:
    """The error of a call with tensors on two devices."""
    names = leaf_names(c.names, tree.unflatten(c.structure, c.leaves))
    (a, v), (b, w) = ((names[k], c.tensors[k]) for k in (i, j))
    return DeviceError(
        f"{name}: argument '{a}' {v.type} is on {told(v.device)} but argument '{b}' {w.type} is on "
        f"{told(w.device)}; {moving_to(v.device)}"
    )
