"""Where this rank keeps the shards of a mesh that it owns: on the CPU, or on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.core.deferred import Deferred
from tessera.core.device import CPU, Device
from tessera.core.errors import DeviceError
from tessera.core.flags import flags
from tessera.core.ranks import engine

_count = Deferred("tessera.runtime.cuda.device:count")
_gpu = Deferred("tessera.runtime.cuda.device:gpu")
_to_device = Deferred("tessera.runtime.cuda.memory:to_device")


def home() -> Device:
    """The device of this rank's shards; ranks of one machine take its GPUs in turn."""
    e, wanted = engine(), flags().mesh_device
    kind, _, index = (wanted or e.carries).partition(":")
    if e.carries not in ("cpu", kind):
        raise DeviceError(
            f"the engine {e.name} moves memory of {e.carries} devices, but shards are to lie on {wanted}: "
            f"leave out --device and TESSERA_MESH_DEVICE, or give {e.carries}"
        )
    if kind == "cpu":
        return CPU
    return Device(kind, int(index) if index else e.place[0] % _count(kind))


def rank_target() -> str:
    """What the programs of this rank are compiled for."""
    where = home()
    return flags().target if where.kind == "cpu" else str(where)


def at_home(x: Any, where: Device) -> Any:
    """A block where shards lie; zeros that take no memory stay on the host until they are used."""
    on_host = isinstance(x, np.ndarray)
    if where.kind == "cpu":
        return x if on_host else x.numpy()
    if on_host and x.size > 1 and not any(x.strides):
        return x
    place = _gpu(where.index, where.kind)
    return _to_device(x, place) if on_host else x.to(place)
