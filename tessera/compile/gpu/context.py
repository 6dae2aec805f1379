"""What the passes may ask of a compilation for a GPU."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.compile.passes import Context
from tessera.ir.target.triton.triton_source import Device
from tessera.runtime.triton_builder import has_roles


def context_of(
    target: str, device: Device, sizes: Mapping[str, int], donated: frozenset[int],
    buckets: bool = False,
) -> Context:  # fmt: skip
    """What the passes may ask of a compilation for a device."""
    roles = roles_on(device)
    return Context(
        target, sizes=sizes, donated=donated, buckets=buckets, roles=roles, device=device, texts={}
    )


def roles_on(device: Device) -> bool:
    """Whether groups of threads of a device can have roles."""
    return device[:2] == ("cuda", 90) and has_roles()
