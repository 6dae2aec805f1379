"""Text through MLIR's own parser and printer."""

from __future__ import annotations

import pytest


def through_mlir(text: str) -> str:
    """What MLIR prints for a text, in generic form."""
    mlir = pytest.importorskip("jaxlib.mlir.ir")
    with mlir.Context() as context:
        context.allow_unregistered_dialects = True
        module = mlir.Module.parse(text)
        assert module.operation.verify()
        printed: str = module.operation.get_asm(print_generic_op_form=True)
        return printed
