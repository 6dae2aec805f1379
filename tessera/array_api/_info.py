"""What the namespace can do: `__array_namespace_info__()`."""

from __future__ import annotations

from typing import Any

from tessera.array_api import _dtypes
from tessera.core.device import Device
from tessera.core.dtype import DType
from tessera.lang import device as _device

MAX_DIMS = 64  # of NumPy, which holds the data of eager tensors


class Info:
    """Capabilities, devices and dtypes."""

    def capabilities(self) -> dict[str, Any]:
        """Which optional behaviour is supported."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": MAX_DIMS,
        }

    def default_device(self) -> Device:
        """The device that new arrays go to."""
        return _device.current_device()

    def devices(self) -> list[Device]:
        """Every device that arrays can live on."""
        return _device.devices()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes that Python numbers and indices take."""
        return {
            "real floating": _dtypes.float32,
            "complex floating": _dtypes.complex64,
            "integral": _dtypes.int64,
            "indexing": _dtypes.int64,
        }

    def dtypes(
        self, *, device: Any = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The standard's dtypes of a kind, by name."""
        return {
            name: d
            for name, d in _dtypes.DTYPES.items()
            if kind is None or _dtypes.isdtype(d, kind)
        }


def __array_namespace_info__() -> Info:  # noqa: N807
    """What this namespace can do."""
    return Info()
