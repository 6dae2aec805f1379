"""PyTorch: functions of ours inside its programs, and its programs through our compiler."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tessera.core.counterparts import lacking
from tessera.core.modules import answer
from tessera.interop.torch import rules as rules
from tessera.interop.torch.backend import register
from tessera.interop.torch.custom import custom_op as custom_op
from tessera.interop.torch.exchange import from_torch as from_torch
from tessera.interop.torch.exchange import to_torch as to_torch
from tessera.interop.torch.module import TorchModule as TorchModule
from tessera.interop.torch.module import import_module as import_module
from tessera.interop.torch.report import Report as Report
from tessera.interop.torch.report import report as report
from tessera.interop.torch.wrapped import wrap as wrap

if (
    find_spec("torch") is not None
):  # without it the rules are there, and every call says what to install
    register()


if not TYPE_CHECKING:  # for type checkers a name that is lacking is an error

    def __getattr__(name: str) -> object:
        raise lacking(
            "torch",
            name,
            ("custom_op", "from_torch", "import_module", "report", "to_torch", "wrap"),
        )


answer(__name__, "torch")
