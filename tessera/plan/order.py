"""Orders of a pipeline: what each device runs, forward and backward, of which microbatch and part of the
model.
"""

from __future__ import annotations

from typing import NamedTuple


class MicrobatchTask(NamedTuple):
    """A pass of one microbatch through one part of the model; parts are numbered along the model."""

    back: bool
    micro: int
    part: int


def order_of(
    schedule: str, position: int, devices: int, microbatches: int, chunks: int
) -> list[MicrobatchTask]:
    """The tasks of the device at a position of the pipeline, in the order in which it runs them."""
    if schedule == "gpipe":
        ahead = microbatches * chunks
    elif chunks == 1:
        ahead = min(devices - position - 1, microbatches)
    else:
        ahead = min((devices - position - 1) * 2 + (chunks - 1) * devices, microbatches * chunks)
    count = microbatches * chunks
    forward = [_task(False, k, position, devices, chunks) for k in range(count)]
    back = [_task(True, k, position, devices, chunks) for k in range(count)]
    made = forward[:ahead]
    for f, b in zip(forward[ahead:], back, strict=False):
        made += [f, b]
    return made + back[count - ahead :]


def _task(back: bool, k: int, position: int, devices: int, chunks: int) -> MicrobatchTask:
    """The k-th pass: microbatches go through the parts of a device in groups of as many as there are
    devices.
    """
    group, inside = divmod(k, devices * chunks)
    chunk, micro = divmod(inside, devices)
    chunk = chunks - 1 - chunk if back else chunk
    if chunks == 1:
        return MicrobatchTask(back, k, position)
    return MicrobatchTask(back, group * devices + micro, chunk * devices + position)
