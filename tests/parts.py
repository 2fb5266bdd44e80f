"""The parts of the suite that ``make test`` leaves to ``make test-all``: ``pytest --part NAME`` runs one of them."""

import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import pytest
from hypothesis import settings

# Files, tests and patterns of both below tests/; a place with brackets is cases of tests. Tests that ask for a
# browser are the part of that name, and those with more than MOST examples (see `examples`) that of properties.
PARTS = {
    # Whole notebooks, and what they say of their numbers.
    "notebooks": (
        "test_notebooks.py::test_it_runs_and_its_numbers_hold",
        "test_notebooks.py::test_no_cell_prints_english_in_the_chinese_course",
        "test_notebooks.py::test_chapter_7_says_why_the_dynamic_scale_ends_elsewhere",
    ),
    # Whatever a person does in Chromium.
    "browser": (),
    # The site, built and read, and the code of its cookbook.
    "site": (
        "test_pages.py", "test_pages_live.py::test_every_picture_that_was_drawn_beforehand_is_the_widgets_own",
        "test_cookbook.py::test_the_code_prints_what_is_shown",
    ),
    # Clean environments and copies of the package; the tools and servers of others.
    "environments": (
        "test_publishing.py", "test_wheel.py", "test_portable.py", "test_strangers.py", "test_stored.py::test_bytes_*",
        "test_packed.py::test_bytes_*", "test_tapered.py::test_codes_and_roundings_are_softposits",
        "test_stored.py::test_files_*", "test_checkpoint.py::test_trained_weights_that_packages_ship",
        "test_one_file.py::test_the_one_file_records_where_only_torch_and_numpy_are",
        "test_lab.py::test_the_lab_is_served_with_its_token_and_ends_with_its_command",
        "test_lab.py::test_two_labs_started_at_once_have_a_port_each",
        "test_recorder.py::test_the_recorder_runs_from_a_bare_source_tree_with_numpy_and_torch_alone",
        "test_visible.py::test_type_checkers_know_every_name_and_its_type", "test_snippets.py::test_it_runs",
    ),
    # Processes of torch.distributed.
    "ranks": (
        "test_distributed.py", "test_parallel_gloo.py",
        "test_planted_faults.py::test_two_ranks_of_tensor_parallel_are_one_process_to_the_bit",
        "test_planted_faults.py::test_four_ranks_of_sequence_parallel_are_one_process_to_the_bit",
        "test_planted_faults.py::test_two_ranks_of_expert_parallel_are_one_process_to_the_bit",
        "test_model_families.py::test_a_drawn_model_on_two_ranks_multiplies_what_its_modules_define",
        "test_model_families.py::test_a_family_trains_under_fsdp2_in_the_bits_of_one_process",
        "test_nn_recipes_torch.py::test_amaxes_are_those_of_all_ranks",
        "test_parallel_runs.py::test_weights_and_losses_are_those_of_one_process_to_the_bit",
        "test_parallel_runs.py::*[*4]", "test_parallel_runs.py::test_order_matters_from_four_ranks_on",
        "test_parallel_runs.py::test_fully_shard_sends_what_stage_3_sends_and_pads_rows",
        "test_parallel_runs.py::test_a_port_that_is_taken_in_the_meantime_is_named_too",
        "test_parallel_runs.py::test_a_world_of_another_size_is_refused",
        "test_parallel_runs.py::test_nccl_without_gpus_is_refused",
        "test_parallel_runs.py::test_the_widget_shows_what_three_processes_did",
        "test_parallel_runs.py::test_two_nodes_are_one_run",
        "test_parallel_runs.py::test_on_three_ranks_it_matters_where_gradients_are_divided",
        "test_sweep.py::test_ranks_with_process_numbers_of_their_own_are_none_lost",
    ),
    # Processes that are killed, interrupted, starved or attacked.
    "kills": (
        "test_checkpoint.py::test_an_interrupt_ends_it_and_the_same_command_goes_on",
        "test_checkpoint.py::test_a_file_is_surveyed_within_memory_that_it_does_not_fit",
        "test_withstand.py", "test_interrupts.py", "test_exercises_process.py",
        "test_cli.py::test_an_output_that_takes_nothing_is_one_sentence",
        "test_checkpoint.py::test_ranks_and_kills_lead_to_the_same_bytes",
        "test_exercises_isolation.py::test_answers_use_up_little_and_the_next_is_heard",
        "test_lab.py::test_a_lab_that_is_killed_leaves_no_server",
        "test_parallel_runs.py::test_a_launcher_that_is_killed_leaves_no_process",
        "test_parallel_runs.py::test_a_rank_that_dies_is_named",
        "test_parallel_runs.py::test_a_run_that_hangs_ends_at_its_limit",
        "test_parallel_runs.py::test_ranks_end_with_the_process_that_started_them",
        "test_prove.py::test_a_command_that_is_killed_leaves_no_process",
        "test_prove.py::test_the_command_stops_at_an_interrupt",
        "test_runs.py::test_a_killed_process_leaves_a_whole_file_and_goes_on_to_the_same_bits",
        "test_runner.py::test_a_first_run_that_is_killed_leaves_no_manifest_and_no_figure",
        "test_runner.py::test_an_experiment_whose_process_dies_is_a_row_that_fails",
        "test_runner.py::test_an_interrupt_ends_all_that_run_side_by_side",
        "test_runner.py::test_an_interrupted_run_leaves_whole_files_and_the_next_one_no_strays",
        "test_sweep.py::test_a_rank_that_dies_loses_its_cell_alone",
        "test_sweep.py::test_twenty_kills_lose_nothing_that_was_done",
    ),
    # Kernels compiled anew, and kept; torch's compiler.
    "caches": (
        "test_kernel_cache.py", "test_benchmarks.py::test_the_benchmark_of_first_calls_runs_to_its_end_at_toy_size",
        "test_exercises_isolation.py::test_kernels_that_are_kept_are_not_compiled_again",
        "test_uncompiled.py::test_a_first_call_compiles_nothing",
        "test_watch_misuse.py::test_a_compiled_model_is_watched_*",
        "test_uncompiled.py::test_a_kernel_in_the_cache_makes_all_products",
        "test_dumps.py::test_a_compiled_model_is_refused_in_words",
        "test_nn_emulate_refused.py::test_what_was_compiled_before_a_block_is_emulated_cached_or_not",
        "test_optimizer_base.py::test_the_compiler_of_torch_is_imported_by_those_alone_who_compile",
        "test_shadow.py::test_torch_compile_is_refused_cached_or_not",
        "test_structure.py::test_a_long_compilation_says_how_far_it_is_and_is_cached",
        "test_structure.py::test_an_edit_of_a_callee_in_another_file_is_noticed",
        "test_two_paths.py::test_dumps_of_eager_and_compiled_*", "test_two_paths.py::test_fused_chains_*",
        "test_two_paths.py::test_what_compiling_changes_*", "test_two_paths.py::test_what_is_left_is_stated",
        "test_two_paths.py::test_when_results_are_stored_decides_on_bits",
    ),
    # Devices' kernels, compiled for the CPU and for CUDA.
    "device": (
        "test_device.py", "test_device_emulate.py", "test_cuda_kernels.py::test_every_kernel_compiles_where_*",
        "test_inference.py::test_a_users_accelerator",
        "test_tensorcore_fields.py::test_a_changed_field_changes_what_devices_compute",
    ),
    # That every other unit differs in the first rows of each unit's vectors, and that these are the oracles'.
    "vectors": (
        "test_vectors.py::test_every_decision_of_every_unit_shows_in_the_first_rows",
        "test_tensix.py::test_arrays_*", "test_tensix.py::test_every_decision_*", "test_tensix.py::test_the_lab_*",
        "test_tensix.py::test_a_fault_*", "test_tensix.py::test_it_is_found_*",
        "test_vectors.py::test_what_packs_otherwise_shows", "test_vectors.py::test_quantisers_are_the_oracles_*",
        "test_vectors.py::test_results_are_the_oracles",
    ),
    # Faults planted in simulators, and units of every algorithm under test.
    "conform": (
        "test_conform.py::test_faults_of_a_strangers_simulator_are_told_by_name",
        "test_conform.py::test_the_example_in_systemverilog",
        "test_conform.py::test_units_of_every_algorithm_are_told",
    ),
    # Other CPUs, imitated.
    "cpus": ("test_cpus.py::test_the_imitation_holds", "test_cpu_units.py"),
    # Properties on more than MOST examples.
    "properties": (),
    # That claims, exercises, bounds and every route of a unit notice faults: each is computed again with one in it.
    "mutants": (
        "experiments/test_*.py::test_a_mutant_is_killed",
        "experiments/test_*.py::test_what_mutants_compute_holds_without_their_faults",
        "test_bounds.py::test_a_mutant_of_*", "test_exercises.py::test_each_mutant_fails_with_its_own_message",
        "test_exercises.py::test_the_counterexample_is_minimal",
        "test_tensorcore_fields.py::test_a_changed_field_changes_every_route_alike",
    ),
    # The units of every GPU, and those that no GPU has, inferred from their outputs.
    "units": (
        "test_inference.py::test_a_unit_with_one_parameter_off_is_told_apart",
        "test_inference.py::test_answers_to_open_questions_are_recovered",
        "test_inference.py::test_arithmetic_that_no_gpu_of_the_table_has", "test_inference.py::test_every_*",
        "test_inference.py::test_random_units_are_recovered",
        "test_inference.py::test_the_length_of_an_instruction_is_found",
        "test_matrix_cores.py::test_infer_tells_every_two_cells_apart",
        "test_separation.py::test_classes_are_what_separation_cannot_part",
        "test_separation.py::test_separations_are_real",
    ),
    # Models of transformers, timm and torchvision, drawn ones and torch's samples: their products, layers and bytes.
    "models": (
        "test_families_answered.py", "test_memory_families.py", "test_model_families.py",
        "test_explain_drawn.py::test_reports_hold_in_runs_that_are_captured_otherwise",
        "test_nn_emulate_operators.py::test_torch_s_own_samples_*",
        "test_survey.py::test_on_drawn_models_more_choices_never_make_the_answer_worse",
    ),
    # Runs trained to their end, after a forecast of it.
    "forecasts": ("test_forecast.py::test_the_cookbook_has_the_outcome_of_every_run",),
    # What `make bench` measures, at a toy size.
    "benchmarks": (
        "test_benchmarks.py::test_every_other_benchmark_runs_to_its_end_at_toy_size",
        "test_benchmarks.py::test_the_peak_of_a_process_is_its_own",
    ),
    # What `make prove` proves, on a slice; every pair, tie and threshold, where a sample is tried besides; the oracle
    # on each of the 48,000 recorded results, as the kernels have them.
    "proofs": (
        "test_arithmetic.py::test_comparisons_of_every_pair", "test_arithmetic.py::test_every_pair_of_fp8",
        "test_codebooks_blockwise.py::test_every_threshold_is_where_the_definition_changes",
        "test_corpus.py::test_oracle", "test_integers.py::test_quantise_is_the_definition_at_every_tie",
        "test_prove.py::test_a_slice_of_every_proof",
    ),
}  # fmt: skip
# One case of each that stays in `make test`.
SMOKE = {
    "notebooks": "test_notebooks.py::test_it_runs_and_its_numbers_hold[13_check_a_gpu_yourself]",
    "ranks": "test_parallel_runs.py::test_weights_and_losses_are_those_of_one_process_to_the_bit[ddp-2]",
    "kills": "test_runner.py::test_a_first_run_that_is_killed_leaves_no_manifest_and_no_figure",
    "caches": "test_kernel_cache.py::test_machine_code_is_a_cpus_own",
    "device": "test_device.py::test_batches_and_orders_of_k[Ada-e4m3]",
    "mutants": "experiments/test_formats.py::test_a_mutant_is_killed[0.1 one code up]",
    "models": "test_model_families.py::test_a_drawn_model_multiplies_what_its_modules_define[vit-whole-0]",
    "units": "test_inference.py::test_every_fused_block_is_recovered_to_its_open_fields[A100 mma.k16 bf16->fp32]",
    "forecasts": "test_forecast.py::test_the_cookbook_has_the_outcome_of_every_run[MLP, SGD]",
    "conform": "test_conform.py::test_faults_of_a_strangers_simulator_are_told_by_name[fp16 ALIGNMENT=24]",
    "vectors": "test_vectors.py::test_every_decision_of_every_unit_shows_in_the_first_rows[H100 wgmma.k16 fp16->fp32]",
    "proofs": "test_integers.py::test_quantise_is_the_definition_at_every_tie[0.1-int8]",
    "site": "test_cookbook.py::test_the_code_prints_what_is_shown[bounds]",
}
MOST = 200  # examples that a property is tried on in `make test`


@cache
def _place(test: str, place: str) -> bool:
    return fnmatchcase(test, place) or fnmatchcase(test.partition("::")[0], place)


def is_at(item: Any, place: str) -> bool:
    """Whether a test stands at a place of ``PARTS``."""
    name = item.nodeid.removeprefix("tests/")
    return _place(name, place.replace("[", "[[]")) if "[" in place else _place(name.partition("[")[0], place)


def part_of(item: Any) -> str | None:
    """The part of a test; None for what ``make test`` runs alone."""
    if "chromium" in item.fixturenames:
        return "browser"
    if item.get_closest_marker("examples"):
        return "properties"
    return next((part for part, places in PARTS.items() if any(is_at(item, place) for place in places)), None)


def is_short(item: Any) -> bool:
    """Whether ``make test`` runs a test: in no part, a part's smoke test, or a property, on fewer examples."""
    part = part_of(item)
    return part in (None, "properties") or (part in SMOKE and is_at(item, SMOKE[part]))


def tried(count: int) -> int:
    """On how many examples a property is tried in this run."""
    return min(count, MOST) if os.environ.get("FPLAB_SHORT_TESTS") else count


def stride(step: int) -> int:
    """The step through a sample that is checked on fractions: `make test` takes a fourth of its rows."""
    return 4 * step if os.environ.get("FPLAB_SHORT_TESTS") else step


def examples(count: int) -> Callable[[Any], Any]:
    """Tries a property on so many examples, more than ``MOST``; in ``make test`` on that many."""
    return lambda test: pytest.mark.examples(settings(max_examples=tried(count))(test))
