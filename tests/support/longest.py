"""The files of tests that take longest, first: they begin first, so that no process is left with one at the
end.

By processor seconds, children included; docs/decisions/074-tests-in-rooms.md says how they were measured.
"""

from __future__ import annotations

from pathlib import Path

LONGEST = (
    "test_recipes.py", "test_docs.py", "test_random_programs.py", "test_golden.py", "test_neural.py",
    "test_fuzz.py", "test_every_op.py", "test_stubs.py", "test_fallback.py", "test_mesh_failures.py",
    "test_fuse_contractions.py", "test_plan.py", "test_names.py", "test_gpu_programs.py",
    "test_checkpoint.py", "test_schedule.py", "test_nest.py", "test_cli.py", "test_memory_plan.py",
    "test_models_generation.py", "test_fuse_epilogues.py", "test_bits.py", "test_eager.py",
    "test_attention_groups.py", "test_contraction_blocks.py", "test_joins.py",
    "test_gradient_schedules.py", "test_phases.py", "test_spectral_operators.py", "test_bundle.py",
    "test_vmap_bits.py", "test_primitives.py", "test_inspect_gpu.py", "test_spectral.py",
    "test_solvers.py", "test_convolution_tiles.py", "test_layers.py", "test_out_of_range.py",
    "test_indexing.py", "test_ranks.py", "test_random.py", "test_matrix_units.py", "test_conventions.py",
    "test_fft_tiles.py", "test_mesh_memory.py", "test_tile.py", "test_profile.py",
    "test_stdlib_attention.py", "test_onnx.py", "test_gpu_scan.py", "test_nn_examples.py", "test_keys.py",
    "test_control.py", "test_kernel_grad_data.py", "test_found.py", "test_image.py",
    "test_check_compiled.py",
)  # fmt: skip


def rank(path: Path) -> int:
    """Where a file stands among all: those that are not named come last, as they were."""
    return LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST)
