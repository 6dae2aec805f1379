"""Devices that exist here, and the one that new tensors go to."""

from __future__ import annotations

import warnings
from contextlib import ContextDecorator
from functools import cache
from typing import Any

from tessera.core.blame import blames_arguments, constructor_blames_arguments
from tessera.core.deferred import Deferred
from tessera.core.device import CPU, GPUS, Device
from tessera.core.dtype import as_dtype
from tessera.core.errors import DeviceError, DTypeError, OperandError
from tessera.core.flags import flags
from tessera.core.open_blocks import OpenBlocks
from tessera.runtime.cuda import driver


class Preferred:
    """A wish for a kind of device: the first that exists of these kinds."""

    def __init__(self, *kinds: str):
        self.kinds = kinds

    def __repr__(self) -> str:
        return f"Preferred({', '.join(self.kinds)})"


gpu = Preferred(*GPUS)


_DEVICES: OpenBlocks[tuple[object, Device]] = OpenBlocks(
    "tessera devices"
)  # who opened it, and where


@blames_arguments
def devices() -> list[Device]:
    """Every device that tensors can live on."""
    return [*(Device("cpu", i) for i in range(flags().cpu_devices)), *_gpus()]


_count = Deferred("tessera.runtime.cuda.device:count")


@cache
def _gpus() -> tuple[Device, ...]:
    kinds = [kind for kind in GPUS if driver.available(kind)]
    if not kinds:
        return ()
    return tuple(Device(kind, i) for kind in kinds for i in range(_count(kind)))


_OTHERS = ("gpu", "rocm", "xpu", "mps", "metal", "nvidia", "amd", "tpu")  # kinds of other libraries


def as_device(x: Any) -> Device:
    """The device that x names: a Device, "cpu" or "cpu:1"."""
    if isinstance(x, Preferred):
        return _first_of(x)
    if isinstance(x, Device):
        found = x
    elif isinstance(x, str):
        kind, _, index = x.partition(":")
        if index and not index.isdecimal():
            raise DeviceError(f"{x!r} is not a device; write a kind and a number, such as 'cpu:0'")
        found = Device(kind, int(index or 0))
    else:
        raise DeviceError(f"{x!r} is not a device; {_instead(x)}")
    if found not in devices():
        if _is_dtype(x):
            raise DeviceError(f"{x!r} is not a device; {_instead(x)}")
        if found.kind in GPUS and all(d.kind != found.kind for d in _gpus()):
            driver.load(found.kind)  # says why there is none
        raise DeviceError(
            f"there is no device {found}; devices are {', '.join(map(str, devices()))}"
            + ("; a GPU is 'cuda' of NVIDIA, 'hip' of AMD" if found.kind in _OTHERS else "")
        )
    return found


def _is_dtype(x: Any) -> bool:
    try:
        as_dtype(x)
    except DTypeError:
        return False
    return True


def _instead(x: Any) -> str:
    """What to write where x is no device; `x.to(dtype)` is a habit from PyTorch."""
    if _is_dtype(x):
        return f"for another dtype write x.astype({str(as_dtype(x))!r})"
    return "write a kind and a number, such as 'cpu:0'"


def _first_of(wish: Preferred) -> Device:
    for d in devices():
        if d.kind in wish.kinds:
            return d
    warnings.warn(
        f"no {' or '.join(wish.kinds)} device here; running on {CPU}", RuntimeWarning, stacklevel=4
    )
    return CPU


def current_device() -> Device:
    """Where new tensors go."""
    found = _DEVICES.innermost()
    return CPU if found is None else found[1]


@constructor_blames_arguments
class device(ContextDecorator):  # noqa: N801
    """Make new tensors on this device while the block runs; in the annotation of a state: it lies there."""

    def __init__(self, x: Any):
        self.wanted = x

    def __enter__(self) -> Device:
        found = as_device(self.wanted)
        _DEVICES.open((self, found))
        return found

    def __exit__(self, *error: object) -> None:
        _DEVICES.close_last(lambda block: block[0] is self)

    def __repr__(self) -> str:
        return f"device({'gpu' if self.wanted is gpu else self.wanted})"


def sent(x: Any, target: Device, stream: Any, non_blocking: bool) -> Any:
    """A tensor on another device, copied in order with the work of a stream."""
    moved = getattr(stream, "moved", None)
    if moved is None:
        raise OperandError(
            f"to: stream is {stream!r:.60}, expected a stream of a GPU, as ts.Stream(device={str(target)!r})"
        )
    return moved(x, target, non_blocking)


def gpu_of(target: str, device: Device) -> Device | None:
    """Where a target that names a GPU, or the architecture of one, takes what the host holds."""
    kind = target.partition(":")[0]
    if kind not in GPUS:
        return device if device.kind == "mesh" else None
    return device if device.kind != "cpu" else Device(kind)
