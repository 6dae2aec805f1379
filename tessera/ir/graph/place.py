"""Data of the host as a value on any device, and back."""

from __future__ import annotations

from typing import Any

from tessera.core.deferred import Deferred
from tessera.core.device import GPUS, Device
from tessera.ir.graph.ir import Value, concrete, holding, host_data


def on_device(data: Any, dtype: Any, device: Device) -> Value:
    """A value of an array's data on a device: its storage is there, too."""
    v = concrete(data, dtype, device)
    if device.kind in GPUS:
        v = holding(v.type, _to_device(v.storage, gpu_of(device)), device)
    return v


def known_data(v: Value) -> Any:
    """The data of a value as a NumPy array, wherever it lies; None where the value is traced."""
    return None if v.storage is None else host_data(v)


def gpu_of(device: Device) -> Any:
    """The GPU that a device names."""
    return _gpu(device.index, device.kind)


# Loaded when a tensor first goes to a GPU.
_to_device = Deferred("tessera.runtime.cuda.memory:to_device")
_gpu = Deferred("tessera.runtime.cuda.device:gpu")
