"""Modules that have other names now: importing an old name is an error that says the new one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Below tessera; what was in a folder is in the folder that it became.
MOVED = {
    "accelerator": "compile.gpu",
    "algebra.constructors.displacement": "ops.toeplitz",
    "build": "compile.cpu.build",
    "checks.prove": "core.prove",
    "checks.ranges": "ir.tile.ranges",
    "checks.scope": "ir.tile.scope",
    "core.usual": "core.call_guard",
    "executable": "compile.executable",
    "fallback": "compile.fallback",
    "image": "compile.artifact",
    "interpreted": "compile.interpreted",
    "ir.schedule.apart": "ir.schedule.split_kernel",
    "ir.schedule.at": "ir.schedule.specialize",
    "ir.schedule.collapse": "ir.schedule.collapse_axes",
    "ir.schedule.filters": "ir.schedule.fuse_fft",
    "ir.schedule.group": "ir.schedule.fuse_contractions",
    "ir.schedule.hidden": "ir.schedule.mask_analysis",
    "ir.schedule.loosen": "ir.schedule.relax_order",
    "ir.schedule.merge": "ir.schedule.fuse_horizontal",
    "ir.schedule.passes": "ir.schedule.sweeps",
    "ir.schedule.questions": "ir.schedule.fusion_analysis",
    "ir.target.cpu.turns": "ir.target.cpu.software_pipeline",
    "ir.target.gluon.double": "ir.target.gluon.flash_backward_match",
    "ir.target.gluon.doubles": "ir.target.gluon.flash_backward_emit",
    "ir.target.gluon.emit": "ir.target.gluon.flash_forward_emit",
    "ir.target.gluon.pipeline": "ir.target.gluon.flash_forward_match",
    "ir.target.gluon.stream": "ir.target.gluon.gemv_match",
    "ir.target.gluon.vectors": "ir.target.gluon.gemv_emit",
    "ir.tile.abreast": "ir.tile.multi_row",
    "ir.tile.ahead": "ir.tile.prefetch_rows",
    "ir.tile.asks": "ir.tile.prefetch",
    "ir.tile.bypass": "ir.tile.nontemporal_stores",
    "ir.tile.expand": "ir.tile.legalize",
    "ir.tile.gpu.random": "ir.tile.draws",
    "ir.tile.gpu.spread": "ir.tile.gpu.split_reduction",
    "ir.tile.place": "ir.tile.nest_cursor",
    "ir.tile.reverse": "ir.tile.autodiff",
    "ir.tile.spread": "ir.tile.split_reduction",
    "ir.tile.turned": "ir.tile.transpose_blocks",
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
        raise ModuleNotFoundError(f"{name} is tessera.{new} now; import that", name=name)


def tell_moved() -> None:
    """Have imports of old names say the new ones."""
    sys.meta_path.append(_Moved())
