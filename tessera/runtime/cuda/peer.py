"""Copies between devices of one kind, in order with the work of both."""

from __future__ import annotations

from tessera.core.errors import DeviceError
from tessera.runtime.cuda.device import Gpu
from tessera.runtime.cuda.pool import PoolBlock


def copy(to: Gpu, target: int, source: Gpu, address: int, nbytes: int, owner: object) -> None:
    """Copy memory, which `owner` holds on the source, to another device; the host waits for nothing.

    The copy is work of the main stream there.  It comes after what the source was told to do so far, and
    the memory that it reads is not used again before it.
    """
    for g in (to, source):
        if g.capturing:
            raise DeviceError(
                f"{g.kind}: memory of another device cannot be copied while the main stream of {g} is "
                "captured; copy before or after"
            )
    to.reach(source)
    to.stream.wait(source.stream)
    to.make_current()
    driver, stream = to.driver, to.stream.handle
    code = driver.cuMemcpyPeerAsync(target, to.context, address, source.context, nbytes, stream)
    driver.check("cuMemcpyPeerAsync", code, f" from {source} to {to}")
    if isinstance(owner, PoolBlock):
        owner.used_elsewhere(to.stream)
    else:  # whoever gets foreign memory back orders itself after the main stream
        source.stream.wait(to.stream)
