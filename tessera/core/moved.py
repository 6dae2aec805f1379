"""Modules that have other names now: importing an old name is an error that says the new one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from tessera.core.imports import AttributeFinder

# Below tessera; what was in a folder is in the folder that it became.
MOVED = {
    "accelerator": "compile.gpu",
    "algebra.constructors.displacement": "ops.toeplitz",
    "build": "compile.cpu.build",
    "checks.prove": "core.prove",
    "checks.ranges": "ir.tile.ranges",
    "checks.scope": "ir.tile.scope",
    "compile.code": "ir.target.code",
    "compile.gpu.clock": "runtime.gpu.clock",
    "compile.gpu.device_program": "ir.schedule.device_program",
    "compile.gpu.kept": "ir.tile.gpu.attention_launches",
    "compile.gpu.launch_order": "runtime.gpu.launch_order",
    "compile.gpu.lower_steps": "ir.tile.gpu.lower_steps",
    "compile.gpu.passes": "ir.schedule.passes",
    "compile.gpu.program": "runtime.gpu.bound_program",
    "compile.gpu.triton_sources": "ir.target.triton.triton_source",
    "core.usual": "core.call_guard",
    "executable": "compile.executable",
    "fallback": "compile.fallback",
    "image": "compile.artifact",
    "interpreted": "compile.interpreted",
    "ir.schedule.apart": "ir.schedule.passes.split_kernel",
    "ir.schedule.assign": "ir.schedule.passes.assign",
    "ir.schedule.at": "ir.schedule.passes.specialize",
    "ir.schedule.blocks": "ir.schedule.nests.blocks",
    "ir.schedule.choose": "ir.schedule.nests.choose",
    "ir.schedule.collapse": "ir.schedule.passes.collapse_axes",
    "ir.schedule.collapse_axes": "ir.schedule.passes.collapse_axes",
    "ir.schedule.filters": "ir.schedule.passes.fuse_fft",
    "ir.schedule.fuse_contractions": "ir.schedule.passes.fuse_contractions",
    "ir.schedule.fuse_epilogues": "ir.schedule.passes.fuse_epilogues",
    "ir.schedule.fuse_fft": "ir.schedule.passes.fuse_fft",
    "ir.schedule.fuse_horizontal": "ir.schedule.passes.fuse_horizontal",
    "ir.schedule.group": "ir.schedule.passes.fuse_contractions",
    "ir.schedule.hidden": "ir.schedule.mask_analysis",
    "ir.schedule.legality": "ir.schedule.nests.legality",
    "ir.schedule.loosen": "ir.schedule.passes.relax_order",
    "ir.schedule.matrix": "ir.schedule.nests.matrix",
    "ir.schedule.merge": "ir.schedule.passes.fuse_horizontal",
    "ir.schedule.nest": "ir.schedule.nests.nest",
    "ir.schedule.questions": "ir.schedule.fusion_analysis",
    "ir.schedule.relax_order": "ir.schedule.passes.relax_order",
    "ir.schedule.space": "ir.schedule.nests.space",
    "ir.schedule.specialize": "ir.schedule.passes.specialize",
    "ir.schedule.split_kernel": "ir.schedule.passes.split_kernel",
    "ir.target.cpu.turns": "ir.target.cpu.software_pipeline",
    "ir.target.gluon.double": "ir.tile.gpu.flash_backward_match",
    "ir.target.gluon.doubles": "ir.target.gluon.flash_backward_emit",
    "ir.target.gluon.emit": "ir.target.gluon.flash_forward_emit",
    "ir.target.gluon.flash_backward_match": "ir.tile.gpu.flash_backward_match",
    "ir.target.gluon.flash_forward_match": "ir.tile.gpu.flash_forward_match",
    "ir.target.gluon.gemv_match": "ir.tile.gpu.gemv_match",
    "ir.target.gluon.pipeline": "ir.tile.gpu.flash_forward_match",
    "ir.target.gluon.stream": "ir.tile.gpu.gemv_match",
    "ir.target.gluon.vectors": "ir.target.gluon.gemv_emit",
    "ir.tile.abreast": "ir.tile.cpu.multi_row",
    "ir.tile.ahead": "ir.tile.cpu.passes.prefetch_rows",
    "ir.tile.asks": "ir.tile.cpu.gemm.prefetch",
    "ir.tile.bypass": "ir.tile.cpu.passes.nontemporal_stores",
    "ir.tile.chains": "ir.tile.cpu.gemm.chains",
    "ir.tile.channels": "ir.tile.cpu.conv.channels",
    "ir.tile.complexes": "ir.tile.cpu.complexes",
    "ir.tile.contraction": "ir.tile.cpu.gemm.contraction",
    "ir.tile.conv_input": "ir.tile.cpu.conv.conv_input",
    "ir.tile.conv_pixels": "ir.tile.cpu.conv.conv_pixels",
    "ir.tile.conv_weights": "ir.tile.cpu.conv.conv_weights",
    "ir.tile.convolution": "ir.tile.cpu.conv.convolution",
    "ir.tile.copies": "ir.tile.cpu.copies",
    "ir.tile.draws": "ir.tile.cpu.draws",
    "ir.tile.epilogue": "ir.tile.cpu.conv.epilogue",
    "ir.tile.expand": "ir.tile.cpu.legalize",
    "ir.tile.fft": "ir.tile.cpu.fft",
    "ir.tile.filter": "ir.tile.cpu.filter",
    "ir.tile.gpu.blocks": "ir.schedule.gpu_blocks",
    "ir.tile.gpu.random": "ir.tile.cpu.draws",
    "ir.tile.gpu.spread": "ir.tile.gpu.split_reduction",
    "ir.tile.group": "ir.tile.cpu.group",
    "ir.tile.legalize": "ir.tile.cpu.legalize",
    "ir.tile.loops": "ir.tile.cpu.loops",
    "ir.tile.lower": "ir.tile.cpu.lower",
    "ir.tile.matrix": "ir.tile.cpu.gemm.matrix",
    "ir.tile.movement": "ir.tile.cpu.movement",
    "ir.tile.multi_row": "ir.tile.cpu.multi_row",
    "ir.tile.narrow": "ir.tile.cpu.gemm.narrow",
    "ir.tile.nest_cursor": "ir.tile.cpu.gemm.nest_cursor",
    "ir.tile.nontemporal_stores": "ir.tile.cpu.passes.nontemporal_stores",
    "ir.tile.place": "ir.tile.cpu.gemm.nest_cursor",
    "ir.tile.pools": "ir.tile.cpu.conv.pools",
    "ir.tile.positions": "ir.tile.cpu.positions",
    "ir.tile.prefetch": "ir.tile.cpu.gemm.prefetch",
    "ir.tile.prefetch_rows": "ir.tile.cpu.passes.prefetch_rows",
    "ir.tile.primitives": "ir.tile.cpu.primitives",
    "ir.tile.reading": "ir.tile.cpu.gemm.reading",
    "ir.tile.reverse": "ir.tile.autodiff",
    "ir.tile.rows": "ir.tile.cpu.rows",
    "ir.tile.scan": "ir.tile.cpu.scan",
    "ir.tile.scatter": "ir.tile.cpu.scatter",
    "ir.tile.sort": "ir.tile.cpu.sort",
    "ir.tile.split_reduction": "ir.tile.cpu.split_reduction",
    "ir.tile.spread": "ir.tile.cpu.split_reduction",
    "ir.tile.transpose_blocks": "ir.tile.cpu.transpose_blocks",
    "ir.tile.turned": "ir.tile.cpu.transpose_blocks",
    "ir.tile.vector_accesses": "ir.tile.cpu.passes.vector_accesses",
    "ir.tile.windows": "ir.tile.cpu.conv.windows",
    "ir.tile.writes": "ir.tile.cpu.writes",
    "lang.kernel.slopes": "lang.kernel.scalar_grad",
    "machine": "compile.cpu.executable",
    "ops.attention_slopes": "ops.attention_grad",
    "ops.telling": "ops.callbacks",
    "prepared": "compile.cpu.bound_program",
    "runtime.blocks": "runtime.allocator",
    "runtime.blocks_ir": "runtime.allocator_ir",
    "transform.turn": "transform.gemv_to_row",
}


class _Moved(MetaPathFinder):
    """Asked last, for modules that nothing else finds."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        new = MOVED.get(name.removeprefix("tessera."))
        if new is None or not name.startswith("tessera."):
            return None
        # Without its name: `from tessera.ir.tile import fft` would take that for a missing attribute.
        raise ModuleNotFoundError(f"{name} is tessera.{new} now; import that")


def tell_moved() -> None:
    """Have imports of old names say the new ones, and those of attributes find them."""
    sys.meta_path += [_Moved(), AttributeFinder("tessera")]
