"""The files of tests that take longest, first: they begin first, so that no process is left with one at the
end.

By a run on 16 cores and by processor seconds; docs/decisions/074-tests-in-rooms.md says how they were
measured.
"""

from __future__ import annotations

from pathlib import Path

LONGEST = (
    "test_docs.py", "test_recipes.py", "test_bundle_c.py", "test_every_op.py", "test_bits.py",
    "test_random_programs.py", "test_golden.py", "test_plan.py", "test_cli.py", "test_ranks.py",
    "test_nest.py", "test_convolution_tiles.py", "test_calls.py", "test_names.py", "test_vmap.py",
    "test_operators.py", "test_vmap_bits.py", "test_eager.py", "test_simplify.py", "test_bundle.py",
    "test_every_dtype.py", "test_fuzz.py", "test_tile.py", "test_models_generation.py",
    "test_gpu_small.py", "test_fft_tiles.py", "test_gpu_sort.py", "test_spectral_operators.py",
    "test_schedule.py", "test_memory_plan.py", "test_fuse_contractions.py", "test_cache_trust.py",
    "test_tune.py", "test_attention_groups.py", "test_fallback.py", "test_gpu_fft.py", "test_narrow.py",
    "test_complex.py", "test_sorting.py", "test_project.py", "test_legalize.py", "test_compile_time.py",
    "test_onnx_integers.py", "test_small_matrices.py", "test_checkpoint.py", "test_gpu_programs.py",
    "test_primitives.py", "test_solvers.py", "test_matrix_units.py", "test_control.py",
    "test_conventions.py", "test_random.py", "test_docs_site.py", "test_narrow_elementwise.py",
    "test_flash_backward.py", "test_stdlib_attention.py", "test_kernel_grad_data.py", "test_image.py",
    "test_convolution.py", "test_kernel_grad.py", "test_keys.py", "test_nn_examples.py",
    "test_inspect_gpu.py", "test_gpu_attention.py", "test_gpu_same_operands.py",
)  # fmt: skip


def rank(path: Path) -> int:
    """Where a file stands among all: those that are not named come last, as they were."""
    return LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST)
