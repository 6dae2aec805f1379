"""PyTorch: functions of ours inside its programs, and its programs through our compiler."""

from __future__ import annotations

from tessera.interop.torch.exchange import from_torch as from_torch
from tessera.interop.torch.exchange import to_torch as to_torch
from tessera.interop.torch.wrapped import wrap as wrap
