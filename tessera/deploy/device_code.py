"""Code of a bundle for GPUs, which Triton builds without one."""

from __future__ import annotations

import json

from tessera.compile import compile_graph
from tessera.compile.gpu.offline import OfflineExecutable
from tessera.core.errors import DeviceError
from tessera.deploy.entries import Traced


def device_sections(e: Traced, target: str) -> list[tuple[str, str, bytes]]:
    """The source and the binary of every kernel; steps without a kernel are an error."""
    made = compile_graph(e.graph, target, e.numerics)
    if not isinstance(made, OfflineExecutable):
        raise DeviceError(f"bundle: {e.name} could not be compiled for {target}")
    if not e.graph.static:
        raise DeviceError(
            f"bundle: {e.name} has symbolic sizes, which code for {target} cannot have yet; give them as "
            "numbers"
        )
    shapes = [v.shape for v in e.graph.inputs]
    hosted = made.hosted_at(shapes)
    if hosted:
        steps = "; ".join(f"{n}: {why}" for n, why in hosted.items())
        raise DeviceError(f"bundle: {e.name} has steps without code for {target}: {steps}")
    sources = made.target_at(shapes)
    codes = made.code_at(shapes)
    rows = [
        {"name": n, "source": str(sources[n]) if n in sources else "", "bytes": len(x)}
        for n, x in codes.items()
    ]
    text = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    where = f"{e.name}/{target}"
    return [
        ("device", f"device/{where}", text), ("device", f"binary/{where}", b"".join(codes.values())),
    ]  # fmt: skip
