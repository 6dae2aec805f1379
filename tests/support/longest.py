"""The files of tests that take longest, first: they begin first, so that no process is left with one at the
end.

By processor seconds, children included; docs/decisions/074-tests-in-rooms.md says how they were measured.
"""

from __future__ import annotations

from pathlib import Path

LONGEST = (
    "test_recipes.py", "test_random_programs.py", "test_eager.py", "test_fuzz.py", "test_bits.py",
    "test_docs.py", "test_mesh_failures.py", "test_every_op.py", "test_fuse_contractions.py",
    "test_schedule.py", "test_models_generation.py", "test_primitives.py", "test_cli.py",
    "test_memory_plan.py", "test_inspect_gpu.py", "test_spectral.py", "test_convolution_tiles.py",
    "test_random.py", "test_ranks.py", "test_layers.py", "test_fft_tiles.py", "test_mesh_memory.py",
    "test_mesh_programs.py", "test_profile.py", "test_vmap.py", "test_same_calls.py", "test_onnx.py",
    "test_sink.py", "test_keys.py", "test_contexts.py", "test_found.py",
)  # fmt: skip


def rank(path: Path) -> int:
    """Where a file stands among all: those that are not named come last, as they were."""
    return LONGEST.index(path.name) if path.name in LONGEST else len(LONGEST)
