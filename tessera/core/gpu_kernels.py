"""Kernels that GPUs have for ops as they are, by the names that the records of the ops say (`kernel=`)."""

from __future__ import annotations

ATTENDS = ("attention", "attention_grad")  # attention and its derivative
UPDATE = "update"  # a part of a tensor is replaced where it is
LARGEST_HEAD = 512  # numbers of a head that has kernels: two tiles of 256 columns fit shared memory
