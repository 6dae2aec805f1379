"""Data of the host as a value on any device, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tessera.core.device import GPUS, Device
from tessera.core.provided import Provided
from tessera.ir.graph.ir import Value, concrete, holding, host_data

TO_DEVICE: Provided[Callable[[Any, Device], Any]] = Provided(
    "memory of devices", "what copies an array of the host to a GPU"
)


def on_device(data: Any, dtype: Any, device: Device) -> Value:
    """A value of an array's data on a device: its storage is there, too."""
    v = concrete(data, dtype, device)
    if device.kind in GPUS:
        v = holding(v.type, TO_DEVICE.get()(v.storage, device), device)
    return v


def known_data(v: Value) -> Any:
    """The data of a value as a NumPy array, wherever it lies; None where the value is traced."""
    return None if v.storage is None else host_data(v)
