"""Programs of a bundle on a GPU: modules loaded, weights sent once, launches prepared for any addresses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tessera.core.errors import DeviceError, FileError
from tessera.deploy.container import Container
from tessera.deploy.device_plan import (
    BoxParameter,
    CellPointer,
    DevicePlan,
    Named,
    PlannedLaunch,
    decode,
    spans_fit,
)
from tessera.deploy.manifest import BROKEN
from tessera.runtime.cuda import launch as driver
from tessera.runtime.cuda.device import Gpu, gpu
from tessera.runtime.cuda.memory import DeviceArray, empty, to_device
from tessera.runtime.cuda.module import DriverFunction, DriverModule
from tessera.runtime.cuda.tma import encoded

_ANYWHERE = 4096  # a launch puts the address in


def target_of(device: Gpu) -> str:
    """The target whose code a device runs."""
    return f"{device.kind}:{device.architecture}"


def fitting(names: Collection[str], entry: str, device: Gpu) -> str | None:
    """The target of a bundle's launches that a device can run; None when there is none."""
    own = target_of(device)
    for target in (own, f"{own}a"):
        if f"launches/{entry}/{target}" in names:
            return target
    return None


class DeployedProgram:
    """The launches of an entry point on one device."""

    def __init__(
        self, c: Container, entry: str, target: str, kind: str, index: int, data: memoryview
    ):
        self.gpu = gpu(index, kind)
        where = f"{entry}/{target}"
        try:
            self.plan = decode(c.read(f"launches/{where}"))
        except BROKEN as e:
            raise FileError(
                f"bundle: {c.path} holds launches that cannot be read ({e!r:.80})"
            ) from None
        binary = c.read(f"binary/{where}")
        if not spans_fit(self.plan, len(data), len(binary)):
            raise FileError(
                f"bundle: {c.path} holds launches of code or weights that are not there"
            )
        self._held = [
            to_device(np.frombuffer(data[at : at + n], np.uint8), self.gpu)
            for at, n in self.plan.data
        ]
        modules = [DriverModule(binary[at : at + n], self.gpu) for _, at, n in self.plan.codes]
        launches = [self._launch(x, modules) for x in self.plan.launches]
        self._launcher = driver.Launcher(launches, self.gpu)

    def _launch(self, x: PlannedLaunch, modules: Sequence[DriverModule]) -> driver.DeviceLaunch:
        function = modules[x.code].function(self.plan.codes[x.code][0], x.shared)
        given = [_parameter(p) for p in x.parameters]
        given += _added(function, x, len(given), len(self.plan.sizes) - 1)
        return driver.DeviceLaunch(function, (x.blocks, 1, 1), x.threads, tuple(given), name=x.name)

    def run(self, inputs: Sequence[Any]) -> list[DeviceArray]:
        """The outputs for these inputs, arrays of this device or of the host."""
        p = self.plan
        given = [self._here(x, t) for x, t in zip(inputs, p.inputs, strict=True)]
        made = [empty((n,), np.uint8, self.gpu) for n in p.results]
        rest = [self.gpu.pool.alloc(n) if n else None for n in (p.arena, p.scratch)]
        cells = [*given, *self._held, *made, *rest]
        addresses = [0 if x is None else x.ptr for x in cells]
        self._launcher.run(addresses[: self._launcher.cells])
        return [self._output(x, cells[x.cell]) for x in p.outputs]

    def _here(self, x: Any, wanted: Named) -> DeviceArray:
        if isinstance(x, DeviceArray):
            if x.gpu is self.gpu:
                return x
            raise DeviceError(f"{wanted.name}: it is on {x.gpu}, expected {self.gpu}")
        return to_device(x, self.gpu)

    def _output(self, x: Named, base: Any) -> DeviceArray:
        shape = tuple(int(n) for n in x.type.shape)
        dtype = np.dtype(x.type.dtype.np)
        if not np.prod(shape):
            return empty(shape, dtype, self.gpu)
        owner = base.owner if isinstance(base, DeviceArray) else base
        return DeviceArray(shape, dtype, self.gpu, base.ptr + x.offset, owner)


def _parameter(p: Any) -> driver.Parameter:
    if isinstance(p, CellPointer):
        return driver.Pointer(p.cell, p.offset)
    if isinstance(p, BoxParameter):
        data = encoded(_ANYWHERE, p.dtype, p.shape, p.strides, p.box, p.swizzle)
        return driver.TensorMap(data, p.cell, p.offset)
    return driver.FixedValue(p)


def _added(
    function: DriverFunction, x: PlannedLaunch, given: int, scratch: int
) -> list[driver.Parameter]:
    """What the compiler of the kernel adds: addresses of its own scratch, and of what profiles need."""
    known = function.parameters
    count = given + 2 if known is None else len(known)
    extra: list[driver.Parameter] = [driver.FixedValue(bytes(8)) for _ in range(count - given)]
    if extra and x.own_scratch:
        extra[0] = driver.Pointer(scratch)
    return extra


__all__ = ["DeployedProgram", "DevicePlan", "fitting", "target_of"]
