"""Convolutions on a GPU: the launches of each, by implicit products (implicit_gemm.py)."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.core.types import TensorType
from tessera.ir.schedule.ir import Primitive
from tessera.ir.tile.gpu import conv_plan, conv_weights, depthwise
from tessera.ir.tile.gpu.channels_last import ChannelsLast, pack_turned, pack_weights, taps_of
from tessera.ir.tile.gpu.conv_plan import ImplicitProduct, three
from tessera.ir.tile.gpu.depthwise import Depthwise
from tessera.ir.tile.gpu.implicit_gemm import ImplicitGemm, packed_type
from tessera.ir.tile.gpu.phases import merge_phases
from tessera.ir.tile.launch import Expansion, Launch, Threads


def conv(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of a convolution: images and weights are turned, then multiplied."""
    x, w = step.operands
    (y,) = step.results
    if 0 in types[y].shape:
        return None
    if types[w].shape[1] == 1:
        return depthwise.lower_forward(
            (x, w, y), Depthwise.of(types[x], types[w], types[y], step.params)
        )
    p = conv_plan.forward(types[x], types[w], types[y], step.params)
    window = three(types[w].shape[2:], 1)
    product = ImplicitGemm(p, p.taps.count)
    return Expansion(
        (
            Launch(ChannelsLast(p.images).kernel(), (x,), ("images",), Threads(4)),
            Launch(pack_weights(p, window), (w,), ("packed",), Threads(4)),
            Launch(product.kernel(), ("images", "packed"), (y,), product.threads),
        ),
        {"images": p.images.type, "packed": _packed([p])},
    )


def conv_input(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of the derivative in x: a product for each phase of the stride."""
    ct, w = step.operands
    (x,) = step.results
    pieces = conv_plan.backward(types[ct], types[w], types[x], step.params)
    window, images = three(types[w].shape[2:], 1), pieces[0].images
    launches = [
        Launch(ChannelsLast(images).kernel(), (ct,), ("images",), Threads(4)),
        Launch(pack_turned(pieces, window, images.dtype), (w,), ("packed",), Threads(4)),
    ]
    between = {"images": images.type, "packed": _packed(pieces)}
    into = x if len(pieces) == 1 else "phases"
    for p in pieces:
        product = ImplicitGemm(p, max(taps_of(pieces), 1))
        launches.append(Launch(product.kernel(), ("images", "packed"), (into,), product.threads))
    if into != x:
        made, stride = images.groups * pieces[0].results.made, three(step.params["stride"], 1)
        counts = pieces[0].taps.counts
        between[into] = TensorType(images.dtype, (images.count, len(pieces), made, *counts))
        kernel = merge_phases(
            images.count, made, three(types[x].shape[2:], 1), counts, stride, images.dtype
        )
        launches.append(Launch(kernel, (into,), (x,), Threads(4)))
    return Expansion(tuple(launches), between)


def weights(step: Primitive, types: Mapping[str, TensorType]) -> Expansion | None:
    """The launches of the derivative in the kernel."""
    x, ct = step.operands
    (w,) = step.results
    if 0 in types[ct].shape:
        return None
    if types[w].shape[1] == 1:
        return depthwise.lower_weights(
            (x, ct, w), Depthwise.of(types[x], types[w], types[ct], step.params)
        )
    return conv_weights.conv_weights(step, types)


def _packed(pieces: list[ImplicitProduct]) -> TensorType:
    return packed_type(pieces[0].images, pieces[0].results.made, max(taps_of(pieces), 1))


CONVOLUTIONS = {"conv": conv, "conv_input": conv_input, "conv_weights": weights}
