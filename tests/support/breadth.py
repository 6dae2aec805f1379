"""What `make test` leaves to `make test-deep`, and `make test-oracles` to `make test-oracles-deep`.

These are cases beyond the first ones of a kind, where they take long: by the processor time of each test,
children included.  Cases that caught a seeded fault
(benchmarks/records/mutations.json) always run.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

RECORD = Path(__file__).parents[2] / "benchmarks" / "records" / "mutations.json"

# Files whose many cases of one kind take long: `make test` runs the first case of each kind and one
# in so many of the others;
# `make test-deep` runs the rest.  A kind is a test with the letters that its id begins with, such
# as the name of an op.
ONE_IN = {
    "test_attention_groups.py": 2, "test_attributes.py": 3, "test_batch_bits.py": 3, "test_bits.py": 4,
    "test_check_compiled.py": 2, "test_compiled_policies.py": 4, "test_contraction_blocks.py": 3,
    "test_conventions.py": 3, "test_convolution.py": 3, "test_convolution_tiles.py": 2,
    "test_corrections.py": 4, "test_eager.py": 24, "test_fallback.py": 4, "test_fft_tiles.py": 3,
    "test_flash_backward.py": 4, "test_fuse_contractions.py": 5, "test_golden_text.py": 2,
    "test_gradient_bits.py": 3, "test_gradient_schedules.py": 2, "test_joins.py": 2,
    "test_kernel_grad.py": 2, "test_legalize.py": 2, "test_narrow.py": 3, "test_narrow_elementwise.py": 3,
    "test_neural_torch.py": 4, "test_operators.py": 4, "test_ops_jax.py": 3,
    "test_out_of_range.py": 3,
    "test_primitives.py": 2, "test_random_programs.py": 24, "test_sharing.py": 2,
    "test_signed_zeros.py": 2, "test_software_pipeline.py": 2, "test_spectral_operators.py": 2,
    "test_stdlib_attention.py": 2, "test_stdlib_checks.py": 2, "test_thin.py": 3, "test_vmap_bits.py": 5,
}  # fmt: skip

# Tests of which `make test` runs the first case and then one in so many.
BREADTH: dict[str, int] = {
    "algebra/test_fuzz_operators.py::test_expressions_are_their_matrices": 2,
    "algebra/test_laws.py::test_random_expressions_have_derivations_that_replay": 4,
    "algebra/test_laws_budget.py::test_residuals_are_within_the_budget": 2,
    "algebra/test_laws_kinds.py::test_every_kind_is_simplified": 2,
    "algebra/test_operator_gradients.py::test_gradients_are_those_of_the_dense_matrix": 4,
    "algebra/test_operators.py::test_every_operation_and_query_is_that_of_the_matrix": 2,
    "algebra/test_solvers.py::test_the_size_of_a_right_side_is_no_matter": 3,
    "algebra/test_solvers.py::test_the_solution_is_that_of_lapack": 4,
    "attributes/test_attributes.py::test_an_op_is_what_others_say": 4,
    "checks/test_check_compiled.py::test_no_kernel_of_the_compiler_has_a_finding": 2,
    "checks/test_check_compiled.py::test_no_kernel_of_the_library_has_a_finding": 2,
    "compile/test_bits.py::test_a_row_has_the_same_bits_alone_in_a_chunk_and_in_a_batch": 2,
    "compile/test_bits.py::test_eager_code_has_the_same_bits": 3,
    "compile/test_compile_time.py::test_ops_one_within_another_are_cut_before_the_compiler_calls_itself_too_often": 2,  # noqa: E501
    "compile/test_eager.py::test_an_op_alone_is_the_op_among_neighbours": 6,
    "compile/test_eager.py::test_narrow_dtypes_too": 8,
    "compile/test_eager.py::test_one_build_for_all_sizes_has_the_bits_of_each": 2,
    "compile/test_fallback.py::test_a_fault_of_any_pass_on_programs_is_a_warning_that_names_it": 3,
    "compile/test_fallback.py::test_eager_ops_run_by_the_interpreter_with_the_same_bits": 2,
    "compile/test_fast.py::test_fast_is_near_the_oracle_and_leaves_the_law_alone": 2,
    "compile/test_golden_text.py::test_kernels_read_back": 2,
    "compile/test_gpu_attention.py::test_forward_has_its_kernels": 2,
    "compile/test_gpu_fft.py::test_bits_of_the_cpu": 4,
    "compile/test_gpu_fft.py::test_blocks_of_whole_lines_have_the_bits_of_the_cpu": 2,
    "compile/test_gpu_fft.py::test_what_a_thread_holds_changes_no_bit": 2,
    "compile/test_gpu_fft.py::test_where_a_block_holds_a_part_of_a_line": 3,
    "compile/test_gpu_offload.py::test_what_was_written_out_comes_back_with_its_bits": 3,
    "compile/test_gpu_policies.py::test_a_policy_brings_no_step_of_a_gpu_to_the_host": 2,
    "compile/test_gpu_same_operands.py::test_orders_of_one_line": 4,
    "compile/test_gpu_scan.py::test_a_running_fold_is_numpys": 4,
    "compile/test_gpu_scan.py::test_no_size_of_parts_changes_a_bit": 3,
    "compile/test_gpu_scatter.py::test_random_scatters": 2,
    "compile/test_gpu_small.py::test_factors_have_the_bits_of_the_cpu": 3,
    "compile/test_gpu_sort.py::test_distinct_and_nonzero_elements_are_found_on_the_device": 4,
    "compile/test_gpu_sort.py::test_lines_of_many_blocks": 5,
    "compile/test_gpu_sort.py::test_the_first_few_are_selected_in_rounds": 3,
    "compile/test_gpu_state.py::test_chunks_moves_and_neighbours_change_no_bit": 3,
    "compile/test_gpu_state.py::test_sequences_of_unequal_lengths": 2,
    "compile/test_gradient_bits.py::test_computing_again_does_not_change_the_gradient": 4,
    "compile/test_random_programs.py::test_all_levels_agree": 99,
    "compile/test_symbolic_bits.py::test_convolutions_have_the_same_bits_whatever_sizes_have_names": 2,
    "core/test_approximate.py::test_llvm_has_the_bits_of_numpy": 6,
    "core/test_index.py::test_a_transposed_convolution_with_more_padding_than_stride": 2,
    "core/test_signed_zeros.py::test_everyone_has_the_same_bits": 4,
    "core/test_size_arithmetic.py::test_a_symbolic_size_is_a_scalar": 3,
    "core/test_size_arithmetic.py::test_arithmetic_of_numbers_is_python_s_in_jit_too": 4,
    "deploy/test_bundle_orders.py::test_every_dtype_is_sorted_as_in_python": 2,
    "interop/test_onnx_integers.py::test_convolutions_of_bytes_are_exact": 4,
    "interop/test_onnx_integers.py::test_products_of_bytes_are_exact": 4,
    "interop/test_stablehlo.py::test_what_is_written_is_read_again": 2,
    "ir/schedule/test_attention_groups.py::test_a_group_has_the_bits_of_its_kernels": 2,
    "ir/schedule/test_contraction_blocks.py::test_a_left_factor_across_k_gives_the_same_bits_however_it_is_packed": 4,  # noqa: E501
    "ir/schedule/test_fuse_contractions.py::test_blocks_of_rows": 8,
    "ir/schedule/test_fuse_contractions.py::test_groups_agree_at_every_level": 2,
    "ir/schedule/test_fuse_epilogues.py::test_steps_with_epilogues_have_the_bits_of_steps_alone": 2,
    "ir/schedule/test_fuse_fft.py::test_every_level_has_the_bits_of_the_steps_alone": 2,
    "ir/schedule/test_gradient_schedules.py::test_every_schedule_gives_the_same_gradient": 4,
    "ir/schedule/test_schedule.py::test_folds_of_whole_numbers_are_numpys": 3,
    "ir/schedule/test_schedule.py::test_functions_of_floats": 3,
    "ir/target/test_flash_backward.py::test_printed_roles_compute_the_kernels": 2,
    "ir/target/test_gluon.py::test_results_do_not_depend_on_roles": 2,
    "ir/target/test_instruction_sets.py::test_kernels_compile_for_other_processors": 2,
    "ir/target/test_software_pipeline.py::test_a_product_with_turns_has_the_bits_of_the_levels_before": 3,
    "ir/tile/test_bounds.py::test_casts_too": 3,
    "ir/tile/test_bounds.py::test_what_lies_behind_a_tensor_stays": 2,
    "ir/tile/test_convolution_tiles.py::test_weights_have_the_bits_of_the_definition": 2,
    "ir/tile/test_legalize.py::test_rows": 2,
    "ir/tile/test_loop_kernels.py::test_random_loops_have_one_result_at_all_levels": 2,
    "ir/tile/test_matrix_units.py::test_one_kernel_of_bytes_serves_all_sizes_exactly": 2,
    "ir/tile/test_narrow.py::test_every_nest_gives_the_same_sums": 3,
    "ir/tile/test_narrow_elementwise.py::test_jitted_elementwise_ops_have_the_bits_of_eager_ones": 4,
    "ir/tile/test_primitives.py::test_running_folds_agree_at_every_level": 2,
    "ir/tile/test_primitives.py::test_scatters_agree_at_every_level": 2,
    "ir/tile/test_primitives.py::test_sorts_of_every_dtype": 2,
    "ir/tile/test_random_chains.py::test_machine_code_agrees_too": 2,
    "ir/tile/test_sharing.py::test_transforms_of_short_rows_of_an_intermediate": 4,
    "ir/tile/test_split_reduction.py::test_all_levels_agree": 2,
    "ir/tile/test_thin.py::test_many_rows": 3,
    "ir/tile/test_tile_scalars.py::test_casts_equal_rounding": 3,
    "ir/tile/test_tile_scalars.py::test_scalar_ops_equal_their_reference": 3,
    "lang/kernel/test_kernel_examples.py::test_a_kernel_is_what_numpy_says": 4,
    "lang/kernel/test_kernel_grad.py::test_forward_mode_is_that_of_the_function": 3,
    "lang/kernel/test_kernel_grad.py::test_the_gradient_is_that_of_the_function": 3,
    "lang/kernel/test_kernel_grad_data.py::test_a_long_loop_goes_on_from_checkpoints": 3,
    "lang/kernel/test_kernel_grad_data.py::test_the_gradient_is_the_slope": 2,
    "lang/kernel/test_kernel_machine.py::test_machine_code_has_the_bits_of_the_interpreter": 3,
    "lang/kernel/test_kernel_matrix.py::test_elementwise": 3,
    "lang/kernel/test_random_kernels.py::test_every_way_of_running_a_kernel_agrees": 5,
    "lang/kernel/test_user_kernels.py::test_a_kernel_is_what_numpy_says_and_raises_no_alarm": 2,
    "lang/test_fuzz.py::test_programs_keep_the_laws_on_the_machine": 10,
    "lang/test_fuzz.py::test_programs_keep_the_laws_on_the_references": 3,
    "lang/test_library_names.py::test_a_spectral_convolution_is_its_definition": 4,
    "lang/test_library_names.py::test_wavelets_are_orthogonal_and_come_back": 2,
    "lang/test_same_calls.py::test_the_same_call_has_the_same_answer": 3,
    "lang/test_state.py::test_decode_is_prefill_is_any_chunking": 2,
    "models/test_models_tokenizer.py::test_a_hostile_template_is_stopped": 2,
    "ops/test_batch_bits.py::test_a_matrix_in_a_batch_has_the_bits_of_the_matrix_alone": 2,
    "ops/test_compiled_policies.py::test_a_policy_brings_no_step_to_the_host": 2,
    "ops/test_complex.py::test_eager_code_has_the_bits_of_jit": 3,
    "ops/test_complex.py::test_folds": 4,
    "ops/test_conventions.py::test_corrections_of_statistics_at_symbolic_and_known_sizes": 2,
    "ops/test_conventions.py::test_the_first_of_equals_wins_and_a_nan_before_all": 4,
    "ops/test_convolution.py::test_eager_convolutions_and_their_gradients_have_the_bits_of_jitted_ones": 4,
    "ops/test_corrections.py::test_a_correction_that_is_not_whole_acts_everywhere": 4,
    "ops/test_every_op.py::test_second_derivatives_agree_in_every_order_of_modes": 4,
    "ops/test_neighbours.py::test_an_element_has_the_bits_that_it_has_alone": 2,
    "ops/test_pooling.py::test_avg_pool_is_the_mean_of_each_window": 2,
    "ops/test_random.py::test_a_continuous_law_is_that_of_scipy": 2,
    "ops/test_safe_derivatives.py::test_shares_of_sums_are_not_taken_from_a_rounded_logarithm": 2,
    "ops/test_small_matrices.py::test_a_matrix_knows_nothing_of_its_neighbours": 2,
    "ops/test_small_matrices.py::test_every_level_has_the_same_bits": 2,
    "ops/test_small_matrices.py::test_results_are_those_of_numpy": 3,
    "ops/test_small_matrices.py::test_substitution": 3,
    "ops/test_written_powers.py::test_an_exponent_has_one_result_however_it_is_given": 2,
    "oracles/test_nesting_jax.py::test_transforms_nest": 2,
    "oracles/test_neural_torch.py::test_conv_transpose": 3,
    "oracles/test_neural_torch.py::test_max_pool": 2,
    "plan/test_plan.py::test_a_plan_lists_the_collectives_of_the_run": 2,
    "plan/test_plan.py::test_large_models_are_planned_within_a_minute": 2,
    "project/test_recipes.py::test_eager_and_jitted_have_the_same_bits": 4,
    "runtime/test_cache_trust.py::test_no_damage_of_the_cache_is_an_error_or_a_wrong_result": 2,
    "runtime/test_cache_trust.py::test_no_damage_of_the_tuners_store_stops_a_program_or_the_tuner": 3,
    "stdlib/test_stdlib_attention.py::test_attention_and_its_derivatives_agree_with_float64": 3,
    "stdlib/test_stdlib_checks.py::test_no_tool_reports_anything": 2,
    "transform/test_budget.py::test_greedy_against_all_choices": 3,
    "transform/test_budget.py::test_what_is_kept_fits_and_the_bits_stay": 2,
    "transform/test_sink.py::test_every_op_keeps_its_bits": 3,
    "transform/test_vmap.py::test_vmap_of_vmap_is_the_loop_of_loops": 3,
    "transform/test_vmap_bits.py::test_complex_products_of_a_batch_have_the_bits_of_a_loop": 3,
    "transform/test_vmap_bits.py::test_gradients_of_other_products": 2,
    "transform/test_vmap_bits.py::test_other_dtypes": 2,
    "transform/test_vmap_bits.py::test_other_products": 2,
}  # fmt: skip


WIDE = 300  # examples of a property in `make test-deep`


def examples(n: int) -> settings:
    """So many examples of a property in `make test-deep`; a sixth, or as many as usual, in `make test`.

    Properties that caught a seeded fault state their number as settings(max_examples=...).
    """
    usual = settings.default.max_examples
    return settings(max_examples=n if usual >= WIDE else max(n // 6, usual))


def spare(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The tests that are breadth, by names and order alone, so that every machine and process chooses
    alike.
    """
    needed = {row["by"] for row in json.loads(RECORD.read_text())["outcomes"]}
    seen, count = set(), Counter[str]()
    for item in items:
        test = item.nodeid.partition("[")[0].removeprefix("tests/")
        share, every = ONE_IN.get(item.path.name, 1), BREADTH.get(test, 1)
        if max(share, every) == 1 or "[" not in item.name:
            continue
        kind = item.path.name, *re.findall(r"^\w+\[[a-zA-Z_]*", item.name)
        is_needed = item.nodeid in needed
        if kind in seen and not is_needed and zlib.crc32(item.name.encode()) % share:
            yield item
            continue
        seen.add(kind)
        if count[test] % every and not is_needed:
            yield item
        count[test] += 1
