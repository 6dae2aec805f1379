"""StableHLO text run by jax's CPU client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest


def run_text(text: str, inputs: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """The outputs of main: parsed and verified by MLIR, compiled and run by XLA."""
    jax = pytest.importorskip("jax")
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        code = str(module)
    device = jax.devices("cpu")[0]
    options = xla_client.CompileOptions()
    options.executable_build_options.debug_options.xla_backend_optimization_level = 0
    program = device.client.compile_and_load(
        code.encode(), xla_client.DeviceList((device,)), options
    )
    with jax.enable_x64(True):
        arrays = [jax.device_put(np.array(x), device) for x in inputs]
    return [np.asarray(x) for x in program.execute(arrays)]
