"""The pipeline: every pass of every level for each target, in the order in which they run.

This is the table of contents of the compiler.  A line is a level, the name by which the record, `--stop-at`
and warnings know the pass, the function, and what it does.  The driver (driver.py) runs the lines from top
to bottom: passes of the Graph and Schedule levels on the whole program, those of the Tile and Target levels
kernel by kernel, so that one kernel is built while the next one is lowered.  To add a pass, write its
function in a file of its level and add its line here (docs/compiler.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tessera.compile.passes import GRAPH, SCHEDULE, TARGET, TILE, Pass, has_roles, is_fast
from tessera.core.deferred import Deferred
from tessera.transform.decompose import decompose_on_cpu, decompose_on_gpu
from tessera.transform.factor_small import factor_small
from tessera.transform.hoist import hoist
from tessera.transform.inline import inline_all
from tessera.transform.make_moves import make_moves
from tessera.transform.policies import legalize_policies
from tessera.transform.refuse_moves import refuse_moves_on_cpu, refuse_moves_on_gpu
from tessera.transform.simplify import simplify
from tessera.transform.sink import sink_on_cpu, sink_on_gpu
from tessera.transform.split_complex import split_complex
from tessera.transform.write_in_place import write_in_place

SPECIALIZE = "specialize"  # the first pass that needs the sizes of a call

# fmt: off
# What all targets share.
SHARED: tuple[Pass, ...] = (
    Pass(GRAPH, "inline", inline_all, "replace calls of modules and jitted functions by their bodies"),
    # Laws see through calls once they are inlined.
    Pass(GRAPH, "simplify", simplify,
         "fold constants, apply algebraic laws, merge equal nodes, drop dead ones"),
    # After simplify, which leaves fewer nodes to prove invariant.
    Pass(GRAPH, "hoist", hoist, "move what is the same at every step of a loop in front of it"),
)

CPU: tuple[Pass, ...] = (
    *SHARED,
    Pass(GRAPH, "refuse_moves", refuse_moves_on_cpu, "warn of moves to the host, where everything is"),
    # Before decompose, which recognises primitives: these have no policies.
    Pass(GRAPH, "policies", legalize_policies, "turn policies of dtypes into casts and plain ops"),
    # Before decompose: what solves has ops of others in it.
    Pass(GRAPH, "factor_small", factor_small,
         "factor matrices of a few rows, and solve with them, by kernels in place of LAPACK"),
    # Before decompose, which would make them choices at every place of a tensor.
    Pass(GRAPH, "write_in_place", write_in_place,
         "let a write of a small part, as an append to a cache, leave the rest of the tensor alone"),
    Pass(GRAPH, "decompose", decompose_on_cpu, "replace ops that are defined by other ops by those"),
    # After decompose, which leaves ops that have formulas.
    Pass(GRAPH, "split_complex", split_complex,
         "compute complex tensors as pairs of real ones, but where transforms and factorisations have them"),
    # Last: what the other passes made is simplified again.  Its rules meet each other, so they are one
    # fixpoint.
    Pass(GRAPH, "sink", sink_on_cpu,
         "simplify; move broadcasts and reshapes behind elementwise ops; matrix-vector products become rows; "
         "products of one factor are joined"),

    Pass(SCHEDULE, "fuse", Deferred("tessera.ir.schedule.lower:fuse"),
         "lower the graph to kernels: fuse elementwise chains, epilogues and reductions of the same rows"),
    Pass(SCHEDULE, "fuse_contractions",
         Deferred("tessera.ir.schedule.passes.fuse_contractions:fuse_contractions"),
         "group contraction, rows and contraction, as in attention, block by block of their rows"),
    Pass(SCHEDULE, "fuse_fft", Deferred("tessera.ir.schedule.passes.fuse_fft:fuse_fft"),
         "fuse transforms along one axis with what stands between them"),
    # After the others, which look for kernels of their own.
    Pass(SCHEDULE, "fuse_epilogues", Deferred("tessera.ir.schedule.passes.fuse_epilogues:fuse_epilogues"),
         "compute what follows a convolution point by point where its sums are finished"),
    Pass(SCHEDULE, "relax_order", Deferred("tessera.ir.schedule.passes.relax_order:relax_order"),
         "let folds have any order and products fuse with sums", when=is_fast),
    # Last: a nest belongs to a kernel in its final form.
    Pass(SCHEDULE, "tune", Deferred("tessera.compile.cpu.nests:tuned_nests"),
         "give kernels the loop nests that the tuner has found for them", given=("sizes",)),
    # After tune: what the user says counts.
    Pass(SCHEDULE, "assign", Deferred("tessera.ir.schedule.passes.assign:assign"),
         "give kernels the schedules that the user named them for", given=("schedules", "target")),

    # The first lowering that serves a step makes its launches.
    Pass(TILE, "lower_loop", Deferred("tessera.ir.tile.cpu.lower:lower_loop"),
         "lower a scan or while loop with a short body to one kernel"),
    Pass(TILE, "lower_primitive", Deferred("tessera.ir.tile.cpu.lower:lower_primitive"),
         "lower a primitive (convolution, transform, sort, scan, ...) to its kernels"),
    Pass(TILE, "lower_group", Deferred("tessera.ir.tile.cpu.lower:lower_group"),
         "lower a group to one kernel that keeps what passes between in cache"),
    Pass(TILE, "lower_contraction", Deferred("tessera.ir.tile.cpu.lower:lower_contraction"),
         "lower a contraction to packed panels and micro-kernels, or to matrix registers"),
    # The three for rows go from the special to the general.
    Pass(TILE, "split_reduction", Deferred("tessera.ir.tile.cpu.lower:split_reduction"),
         "split a long reduction of few rows into two launches"),
    Pass(TILE, "transpose_blocks", Deferred("tessera.ir.tile.cpu.lower:transpose_blocks"),
         "read a transposed operand block by block"),
    Pass(TILE, "lower_rows", Deferred("tessera.ir.tile.cpu.lower:lower_rows"),
         "lower a kernel of rows, several rows at a time where its nest says so"),
    Pass(TILE, "nontemporal_stores", Deferred("tessera.ir.tile.cpu.lower:nontemporal_stores"),
         "store large results past the caches"),
    Pass(TILE, "prefetch_rows", Deferred("tessera.ir.tile.cpu.lower:prefetch_rows"),
         "prefetch the rows of later iterations"),

    Pass(TARGET, "emit", Deferred("tessera.compile.cpu.build:emit_llvm"),
         "print a kernel as LLVM IR, with matrix and transpose instructions where the processor has them"),
    Pass(TARGET, "build", Deferred("tessera.compile.cpu.build:begin_build"),
         "build machine code in a child process while the next kernel is lowered", given=("loading",)),
)

GPU: tuple[Pass, ...] = (
    *SHARED,
    Pass(GRAPH, "make_moves", make_moves, "copy what moves to the host and back, beside the kernels"),
    Pass(GRAPH, "refuse_moves", refuse_moves_on_gpu,
         "warn of moves to the host that a program does not make"),
    # Before decompose, as on the CPU.
    Pass(GRAPH, "policies", legalize_policies, "turn policies of dtypes into casts and plain ops"),
    # Before decompose, as on the CPU.
    Pass(GRAPH, "factor_small", factor_small,
         "factor matrices of a few rows, and solve with them, by kernels in place of a library"),
    # Attention and small updates stay whole: a GPU has kernels for them.
    Pass(GRAPH, "decompose", decompose_on_gpu,
         "replace ops that are defined by other ops by those, but for attention and updates of a small part"),
    # After decompose, as on the CPU.
    Pass(GRAPH, "split_complex", split_complex,
         "compute complex tensors as pairs of real ones, but where transforms and factorisations have them"),
    Pass(GRAPH, "sink", sink_on_gpu, "simplify; move broadcasts and reshapes behind elementwise ops"),

    Pass(SCHEDULE, "fuse", Deferred("tessera.ir.schedule.lower:fuse_for_gpu"),
         "lower the graph to kernels, which compute cheap values again rather than keep them"),
    Pass(SCHEDULE, "fuse_contractions",
         partial(Deferred("tessera.ir.schedule.passes.fuse_contractions:fuse_contractions"), wide=False),
         "group contraction, rows and contraction"),
    Pass(SCHEDULE, "collapse_axes", Deferred("tessera.ir.schedule.passes.collapse_axes:collapse_axes"),
         "fold several axes at once"),
    Pass(SCHEDULE, "fuse_horizontal", Deferred("tessera.ir.schedule.passes.fuse_horizontal:fuse_horizontal"),
         "fuse adjacent kernels of the same rows"),
    Pass(SCHEDULE, "assign", Deferred("tessera.ir.schedule.passes.assign:assign"),
         "give kernels the schedules that the user named them for", given=("schedules", "target")),
    # From here on a program is for the sizes of a call.
    Pass(SCHEDULE, SPECIALIZE, Deferred("tessera.ir.schedule.passes.specialize:specialize"),
         "put the sizes of a call in place of symbols", given=("sizes",)),
    Pass(SCHEDULE, "strided", Deferred("tessera.ir.schedule.passes.strided:strided"),
         "let attention read and write tensors where they lie, without copies"),
    # Products first: what absorbs a vector or a gate is a single product.
    Pass(SCHEDULE, "group_gemms", Deferred("tessera.ir.schedule.passes.group_gemms:group_gemms"),
         "group small products into one launch"),
    Pass(SCHEDULE, "fuse_prologue", Deferred("tessera.ir.schedule.passes.fuse_prologue:fuse_prologue"),
         "compute the vector of a matrix-vector product in its own launch", when=has_roles),
    # After fuse_prologue, which makes the products that it looks at.
    Pass(SCHEDULE, "fuse_gated_epilogue",
         Deferred("tessera.ir.schedule.passes.fuse_gated_epilogue:fuse_gated_epilogue"),
         "compute what reads the rows of such a product in pairs with it", when=has_roles),
    Pass(SCHEDULE, "update_in_place", Deferred("tessera.ir.schedule.passes.update_in_place:update_in_place"),
         "replace small parts of tensors where they lie", given=("sizes", "donated")),
    # Last: the parts of a kernel could not be joined with others.
    Pass(SCHEDULE, "split_kernels", Deferred("tessera.ir.schedule.passes.split_kernel:split_kernels"),
         "split groups and kernels whose parts need nothing of each other"),

    # The first lowering that serves a step makes its launches.
    Pass(TILE, "lower_attention", Deferred("tessera.ir.tile.gpu.lower_steps:lower_attention"),
         "lower attention and its derivative to flash attention", given=("roles",)),
    Pass(TILE, "lower_written", Deferred("tessera.ir.tile.gpu.lower_steps:lower_written"),
         "lower a kernel of the kernel language"),
    Pass(TILE, "lower_update", Deferred("tessera.ir.tile.gpu.lower_steps:lower_update"),
         "lower updates in place to one kernel"),
    Pass(TILE, "lower_grouped_gemms", Deferred("tessera.ir.tile.gpu.lower_steps:lower_grouped_gemms"),
         "lower products that share a launch"),
    Pass(TILE, "lower_gemv", Deferred("tessera.ir.tile.gpu.lower_steps:lower_gemv"),
         "lower a matrix-vector product with its prologue and epilogue"),
    Pass(TILE, "lower_primitive", Deferred("tessera.ir.tile.gpu.lower:lower_primitive"),
         "lower a primitive (sort, scatter, scan, ...) to its kernels"),
    Pass(TILE, "lower_bucket", Deferred("tessera.ir.tile.gpu.buckets:lower_bucket"),
         "lower a kernel whose rows are counted at the call, where a program has met many sizes"),
    Pass(TILE, "lower_contraction", Deferred("tessera.ir.tile.gpu.lower:lower_contraction"),
         "lower a contraction to a product of tiles"),
    Pass(TILE, "split_reduction", Deferred("tessera.ir.tile.gpu.lower:split_reduction"),
         "split a long reduction of few rows into two launches"),
    Pass(TILE, "lower_rows", Deferred("tessera.ir.tile.gpu.lower:lower_rows"),
         "lower a kernel of rows to tiles of rows and columns"),
    Pass(TILE, "assign_threads", Deferred("tessera.ir.tile.gpu.lower:assign_threads"),
         "give launches the warps and stages of the user's schedule"),

    # Before emit, which prints the wait.
    Pass(TARGET, "dependent_launch", Deferred("tessera.ir.target.triton.dependent_launch:dependent_launch"),
         "let a short launch begin while the one before it ends", when=has_roles),
    Pass(TARGET, "emit", Deferred("tessera.ir.target.triton.emit_source:emit_source"),
         "print a kernel as Triton, or as Gluon where warps are specialised", given=("device", "texts")),
    Pass(TARGET, "build", Deferred("tessera.compile.gpu.bind:build_code"),
         "build all kernels with Triton, side by side; an architecture's are built when asked for",
         batch=True),
)
# fmt: on

PIPELINES: dict[str, tuple[Pass, ...]] = {"numpy": SHARED, "cpu": CPU, "cuda": GPU, "hip": GPU}


def passes_of(target: str, *levels: str) -> tuple[Pass, ...]:
    """The passes of a target, of these levels alone if any are named."""
    found = PIPELINES[target.partition(":")[0]]
    return tuple(p for p in found if not levels or p.level in levels)


def split_at_sizes(passes: Sequence[Pass]) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
    """The passes that serve all sizes, and those from SPECIALIZE on."""
    at = next((i for i, p in enumerate(passes) if p.name == SPECIALIZE), len(passes))
    return tuple(passes[:at]), tuple(passes[at:])
