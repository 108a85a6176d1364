"""Lists the slow tests that a plain `python -m pytest` leaves out; `--all` runs them too.

A plain run stays below ten minutes on two cores. CI sets FTDASH_REQUIRE_ALL=1, which implies
`--all`. A test that you name, or whose file or directory you name, always runs.
"""

import zlib
from collections.abc import Iterable, Mapping

SLOW = (
    "tests/bench",
    "tests/contracts/test_kafka_transactions.py",
    "tests/contracts/test_kafka_write_ahead.py",
    "tests/contracts/test_large_state.py",
    "tests/contracts/test_postgres.py::"
    "test_a_server_that_is_killed_and_started_between_prepare_and_commit_costs_nothing",
    "tests/contracts/test_postgres.py::"
    "test_a_server_that_takes_no_writes_while_another_takes_over_is_waited_for",
    "tests/integration",
    "tests/processes",
    "tests/contracts/test_postgres_two_phase.py::"
    "test_a_server_that_is_killed_and_started_keeps_what_was_prepared",
    "tests/simulation/test_checkers.py::test_a_checker_finds_the_defect_that_it_is_there_for",
    "tests/simulation/test_random_dataflows.py::test_a_seed_replays_a_run_in_another_process",
    "tests/simulation/test_random_dataflows.py::"
    "test_at_most_once_a_checkpoint_that_fails_is_asked_for_again_and_not_waited_for",
    "tests/simulation/test_random_dataflows.py::"
    "test_points_that_were_given_up_and_cannot_be_deleted_keep_every_promise",
    "tests/simulation/test_random_dataflows.py::"
    "test_random_dataflows_keep_every_promise_under_random_faults",
    "tests/unit/audit/test_kafka_audit.py",
    "tests/unit/audit/test_kafka_log_audit.py",
    "tests/unit/connectors/kafka/test_avro.py::"
    "test_what_is_not_in_the_wire_format_is_a_problem_without_a_question",
    "tests/unit/connectors/kafka/test_protobuf.py::"
    "test_whatever_the_bytes_are_each_record_is_a_row_or_a_problem",
    "tests/unit/embedded/test_accounts.py::"
    "test_passwords_stay_at_the_next_start_unless_new_ones_are_asked_for",
    "tests/unit/embedded/test_accounts.py::test_the_admin_may_act_and_the_operator_may_only_see",
    "tests/unit/flows/test_flight_data.py::test_every_row_of_the_year_is_there_once_in_order",
    "tests/unit/nexmark/test_answers.py::test_a_query_gives_the_answer_for_a_million_events",
    "tests/unit/runtime/master/test_crash_at_every_request.py",
    "tests/unit/runtime/subtask/test_found_splits.py::"
    "test_a_million_finished_files_fit_into_a_message_and_cost_a_checkpoint_nothing",
    "tests/unit/testing/test_async_requests.py::test_kills_change_no_result_of_an_http_service",
    "tests/unit/test_mutants.py::test_only_a_test_that_fails_kills",
    "tests/unit/test_mutants.py::test_the_parameters_of_a_mutants_test_exist",
    "tests/web/test_api_fuzz.py",
    "tests/web/test_audit_log.py::"
    "test_an_upgrade_chains_the_entries_that_are_there_and_then_protects_them",
    "tests/web/test_backups.py",
    "tests/web/test_browser.py",
    "tests/web/test_documentation_in_browser.py",
    "tests/web/test_documented_snippets.py::test_the_commands_of_a_page_run",
    "tests/web/test_flink_cli.py",
    "tests/web/test_flink_page_in_browser.py",
    "tests/web/test_fresh_code.py::"
    "test_a_renamed_operator_is_mapped_by_hand_on_the_page_of_the_restore",
    "tests/web/test_fresh_code.py::test_code_that_hangs_is_ended",
    "tests/web/test_pages_in_browser.py",
    "tests/web/test_projector_process.py",
    "tests/web/test_second_factor_in_browser.py",
    "tests/web/test_shortened_journals.py::"
    "test_rows_made_anew_from_what_is_left_are_what_they_were",
    "tests/web/test_starting.py::test_a_postgresql_that_is_too_old_ends_a_process_with_one_line",
    "tests/web/test_starting.py::test_a_process_that_cannot_work_ends_with_one_line",
    "tests/web/test_starting.py::"
    "test_a_setting_that_makes_no_sense_ends_every_command_with_one_line",
    "tests/web/test_starting.py::test_a_taken_port_ends_the_web_server_with_one_line",
    "tests/web/test_tasks.py",
    "tests/web/test_telemetry.py::"
    "test_what_a_worker_says_has_the_id_of_the_request_that_sent_the_errand",
    "tests/web/test_time_axes.py",
    "tests/web/test_trusted_proxies.py",
    "tests/web/test_watched_flink_killed.py",
)
"""Directories, files and tests (`file::test`)."""

SLOW_PARAMETERS = {
    "tests/contracts/test_sink.py": "kafka ",  # a Kafka transaction takes a second or two
}
"""In these files, only the tests whose parameters contain this text are slow."""

REPEATED = {
    "tests/contracts/test_damaged_chain_files.py::"
    "test_a_damaged_file_of_a_chain_is_written_again_by_the_next_checkpoint": 3,
    "tests/contracts/test_damaged_points.py::"
    "test_a_damaged_file_is_named_by_everybody_and_loaded_by_nobody": 4,
    "tests/contracts/test_damaged_points.py::"
    "test_a_manifest_whose_file_lies_elsewhere_is_refused_and_nothing_there_is_read": 4,
    "tests/contracts/test_keyed_state.py::"
    "test_states_are_dictionaries_through_time_snapshots_and_rescaling": 8,
    "tests/contracts/test_sink.py::test_a_restore_of_an_older_point_doubles_nothing": 4,
    "tests/contracts/test_sink.py::test_output_is_exact_after_dying_at_every_seam_in_turn": 4,
    "tests/contracts/test_sink.py::test_output_is_exact_wherever_the_process_is_killed": 4,
    "tests/contracts/test_sink.py::test_output_that_a_later_restore_needs_comes_back": 4,
    "tests/contracts/test_sink_leftovers.py::test_what_a_killed_writer_left_is_listed_and_ended": 4,
    "tests/contracts/test_sinks_of_changes.py::"
    "test_a_fresh_run_sets_rows_aside_and_its_own_changes_are_left": 3,
    "tests/contracts/test_sinks_of_changes.py::"
    "test_the_rows_that_are_left_are_there_whenever_writers_die": 4,
    "tests/contracts/test_state_increments.py::"
    "test_every_completed_checkpoint_can_be_restored_whatever_failed_between": 4,
    "tests/contracts/test_state_model.py::"
    "test_cuts_may_be_read_on_another_thread_while_the_owner_writes": 4,
    "tests/contracts/test_state_model.py::test_it_is_a_dictionary_and_every_cut_stays_as_it_was": 4,
    "tests/contracts/test_storage_errors.py::"
    "test_no_error_of_the_system_at_any_call_is_an_answer": 4,
    "tests/contracts/test_storage_errors.py::"
    "test_no_fault_of_an_object_store_at_any_request_is_an_answer": 4,
    "tests/unit/bus/test_lease.py::"
    "test_of_many_that_fence_off_and_acquire_at_once_one_holds_the_lease": 4,
    "tests/unit/operators/test_changelog_aggregate.py::"
    "test_the_results_are_those_of_the_rows_that_are_left": 3,
    "tests/unit/operators/test_combining.py::"
    "test_the_same_windows_leave_and_the_same_rows_are_late": 4,
    "tests/unit/operators/test_count_windows.py::"
    "test_every_so_many_rows_of_a_key_its_newest_rows_are_aggregated_over_restores": 4,
    "tests/unit/operators/test_session_join.py::"
    "test_every_pair_of_a_session_is_joined_once_and_what_stands_alone_as_the_kind_says": 4,
    "tests/unit/operators/test_temporal_join.py::test_each_row_gets_the_version_of_its_time": 4,
    "tests/unit/operators/test_top_n.py::test_what_is_left_are_the_first_rows_of_each_key": 4,
    "tests/unit/operators/test_triggers.py::"
    "test_windows_fire_when_their_trigger_says_so_and_at_their_end_over_restores": 4,
    "tests/unit/operators/test_windowed_distinct.py::"
    "test_each_window_counts_the_values_that_it_holds_over_restores": 4,
    "tests/unit/operators/test_windows.py::"
    "test_after_a_cut_of_subtasks_that_were_unequally_far_no_key_sees_time_go_back": 4,
    "tests/unit/protocol/test_spout.py::test_every_record_is_emitted_until_a_try_of_it_is_acked": 4,
    "tests/unit/state/test_collisions.py::"
    "test_a_table_is_a_dictionary_even_if_most_keys_collide": 4,
    "tests/unit/stream/test_more_windows.py::"
    "test_windows_of_processing_time_hold_what_came_in_them_over_restores": 4,
    "tests/unit/stream/test_parallelism.py::test_mixed_parallelisms_survive_kills": 3,
    "tests/web/test_alerts_and_incidents.py::"
    "test_under_any_silences_no_end_comes_without_a_beginning_and_no_message_is_lost": 4,
    "tests/web/test_honesty.py::"
    "test_each_page_names_who_is_silent_and_is_no_younger_than_who_filled_it": 3,
    "tests/web/test_own_api_rights.py::"
    "test_a_caller_reads_everything_and_changes_what_the_right_is_for": 3,
}
"""Tests that repeat for many seeds and parameters. A plain run takes one in so many."""

KILLS = (
    "tests/processes/test_acked.py::"
    "test_after_a_crash_nothing_is_lost_and_what_was_not_known_to_be_processed_comes_twice",
    "tests/processes/test_fault_points.py::"
    "test_a_driver_killed_after_the_manifest_goes_back_to_it_though_nobody_was_told",
    "tests/processes/test_fault_points.py::"
    "test_a_driver_killed_before_the_manifest_goes_back_to_the_checkpoint_before",
    "tests/processes/test_fault_points.py::"
    "test_all_slots_lost_at_once_are_one_failure_with_every_phase",
    "tests/processes/test_killed_processes.py::test_a_kill_is_answered_when_the_slot_has_died",
    "tests/processes/test_killed_processes.py::test_a_killed_slot_changes_nothing",
    "tests/processes/test_modes.py::"
    "test_at_least_once_what_passed_between_the_barriers_is_doubled_and_nothing_is_lost",
    "tests/processes/test_modes.py::"
    "test_at_most_once_what_a_crash_catches_on_its_way_is_lost_and_nothing_is_doubled",
    "tests/processes/test_savepoints.py::"
    "test_after_a_savepoint_a_crash_goes_back_to_it_and_repeats_nothing",
)
"""Tests in which a process of a run dies by `kill -9`. A plain run includes these in spite of
`SLOW`, so that you see recovery at work."""

KEPT = (*KILLS, "tests/bench/test_pairs.py")


def is_slow(
    nodeid: str,
    slow: Iterable[str] = SLOW,
    kept: Iterable[str] = KEPT,
    repeated: Mapping[str, int] = REPEATED,
) -> bool:
    """Returns True if the tables name the test, its file or a directory above it.

    Also returns True for the repetitions that are left out, which depends on the parameters alone.
    """
    test, _, parameters = nodeid.partition("[")
    file = test.partition("::")[0]
    if file in SLOW_PARAMETERS and SLOW_PARAMETERS[file] in parameters:
        return True
    if test in repeated and zlib.crc32(parameters.encode()) % repeated[test]:
        return True
    return _is_among(test, slow) and not _is_among(test, kept)


def runs_slow_tests(*, asked: bool, required: bool, named: bool) -> bool:
    """`asked`: by `--all`; `required`: by FTDASH_REQUIRE_ALL; `named`: the command names tests."""
    return asked or required or named


def _is_among(test: str, entries: Iterable[str]) -> bool:
    return any(test == entry or test.startswith((f"{entry}/", f"{entry}::")) for entry in entries)
