"""ONNX: `ts.onnx.load` reads a model and runs it, `ts.onnx.save` writes a function as one."""

from __future__ import annotations

from typing import Any

from tessera.core.blame import blames_arguments
from tessera.core.modules import answer
from tessera.interop.onnx import rules as rules
from tessera.interop.onnx.export import save as save
from tessera.interop.onnx.gradient import with_bodies
from tessera.interop.onnx.model import DataDependentError as DataDependentError
from tessera.interop.onnx.model import OnnxError as OnnxError
from tessera.interop.onnx.module import OnnxModule as OnnxModule
from tessera.interop.onnx.proto import read

__all__ = ["DataDependentError", "OnnxError", "OnnxModule", "load", "save"]


@blames_arguments
def load(source: Any) -> OnnxModule:
    """The model in a file, in bytes or in a ModelProto."""
    return OnnxModule(with_bodies(read(source)))


answer(__name__, "onnx")
