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
    "test_a_server_restart_between_prepare_and_commit_loses_no_rows",
    "tests/contracts/test_postgres.py::test_a_commit_refused_during_a_failover_succeeds_on_retry",
    "tests/integration",
    "tests/processes",
    "tests/contracts/test_postgres_two_phase.py::"
    "test_prepared_transactions_survive_a_server_restart",
    "tests/simulation/test_checkers.py::test_each_checker_finds_the_defect_that_is_planted_for_it",
    "tests/simulation/test_random_dataflows.py::test_a_seed_replays_a_run_in_another_process",
    "tests/simulation/test_random_dataflows.py::"
    "test_at_most_once_a_failed_checkpoint_is_requested_again_without_waiting",
    "tests/simulation/test_random_dataflows.py::"
    "test_abandoned_points_that_cannot_be_deleted_break_no_promise",
    "tests/simulation/test_random_dataflows.py::"
    "test_random_dataflows_keep_every_promise_under_random_faults",
    "tests/unit/audit/test_kafka_audit.py",
    "tests/unit/audit/test_kafka_log_audit.py",
    "tests/unit/connectors/kafka/test_avro.py::"
    "test_bytes_outside_the_wire_format_are_rejected_without_a_registry_request",
    "tests/unit/connectors/kafka/test_protobuf.py::"
    "test_each_record_of_arbitrary_bytes_is_a_row_or_a_problem",
    "tests/unit/flows/test_flight_data.py::test_every_row_of_the_year_is_there_once_in_order",
    "tests/unit/nexmark/test_answers.py::"
    "test_a_query_gives_the_same_result_as_duckdb_for_a_million_events",
    "tests/unit/runtime/master/test_crash_at_every_request.py",
    "tests/unit/runtime/subtask/test_found_splits.py::"
    "test_a_million_finished_files_fit_into_a_message_and_are_packed_once",
    "tests/unit/testing/test_async_requests.py::test_kills_change_no_result_of_an_http_service",
    "tests/unit/test_mutants.py::test_only_a_test_that_fails_kills",
    "tests/unit/test_mutants.py::test_the_parameters_of_a_mutants_test_exist",
    "tests/web/test_api_fuzz.py",
    "tests/web/test_audit_log.py::"
    "test_an_upgrade_chains_the_existing_entries_and_then_protects_them",
    "tests/web/test_backups.py",
    "tests/web/test_browser.py",
    "tests/web/test_documentation_in_browser.py",
    "tests/web/test_documented_snippets.py::test_the_commands_of_a_page_run",
    "tests/web/test_flink_cli.py",
    "tests/web/test_flink_page_in_browser.py",
    "tests/web/test_fresh_code.py::test_a_renamed_operator_is_mapped_by_hand_on_the_restore_page",
    "tests/web/test_fresh_code.py::test_hanging_code_is_ended_after_the_timeout",
    "tests/web/test_pages_in_browser.py",
    "tests/web/test_projector_process.py",
    "tests/web/test_second_factor_in_browser.py",
    "tests/web/test_shortened_journals.py::"
    "test_a_rebuild_from_the_remaining_segments_gives_the_same_rows",
    "tests/web/test_starting.py::test_a_postgresql_that_is_too_old_ends_a_process_with_one_line",
    "tests/web/test_starting.py::test_a_process_that_cannot_work_ends_with_one_line",
    "tests/web/test_starting.py::test_an_invalid_setting_ends_each_process_with_one_line",
    "tests/web/test_starting.py::test_a_taken_port_ends_the_web_server_with_one_line",
    "tests/web/test_tasks.py",
    "tests/web/test_telemetry.py::"
    "test_the_log_of_a_worker_has_the_id_of_the_request_that_sent_the_errand",
    "tests/web/test_time_axes.py",
    "tests/web/test_trusted_proxies.py",
    "tests/web/test_two_servers.py",
    "tests/web/test_watched_flink_killed.py",
)
"""Directories, files and tests (`file::test`)."""

SLOW_PARAMETERS = {
    "tests/contracts/test_sink.py": "kafka ",  # a Kafka transaction takes a second or two
}
"""In these files, only the tests whose parameters contain this text are slow."""

REPEATED = {
    "tests/contracts/test_damaged_chain_files.py::"
    "test_the_next_checkpoint_rewrites_a_damaged_file_of_a_chain": 3,
    "tests/contracts/test_damaged_points.py::"
    "test_every_reader_names_a_damaged_file_and_none_loads_it": 4,
    "tests/contracts/test_damaged_points.py::"
    "test_a_manifest_that_names_an_outside_file_is_refused_and_not_followed": 4,
    "tests/contracts/test_keyed_state.py::"
    "test_states_match_dictionaries_over_time_snapshots_and_rescaling": 8,
    "tests/contracts/test_sink.py::test_a_restore_of_an_older_point_doubles_nothing": 4,
    "tests/contracts/test_sink.py::test_output_is_exact_after_dying_at_every_seam_in_turn": 4,
    "tests/contracts/test_sink.py::test_output_is_exact_wherever_the_process_is_killed": 4,
    "tests/contracts/test_sink.py::test_a_later_restore_recovers_the_output_that_it_needs": 4,
    "tests/contracts/test_sink_leftovers.py::"
    "test_leftovers_of_a_killed_writer_are_listed_and_ended": 4,
    "tests/contracts/test_sinks_of_changes.py::"
    "test_a_fresh_run_sets_old_rows_aside_and_keeps_its_own": 3,
    "tests/contracts/test_sinks_of_changes.py::"
    "test_the_remaining_rows_are_exact_whenever_writers_die": 4,
    "tests/contracts/test_state_increments.py::"
    "test_every_completed_checkpoint_can_be_restored_despite_failed_ones": 4,
    "tests/contracts/test_state_model.py::"
    "test_cuts_may_be_read_on_another_thread_while_the_owner_writes": 4,
    "tests/contracts/test_state_model.py::"
    "test_a_table_matches_a_dictionary_and_no_cut_changes_later": 4,
    "tests/contracts/test_storage_errors.py::"
    "test_no_system_error_at_any_call_is_mistaken_for_an_answer": 4,
    "tests/contracts/test_storage_errors.py::"
    "test_no_object_store_fault_at_any_request_is_mistaken_for_an_answer": 4,
    "tests/unit/bus/test_lease.py::"
    "test_one_holds_the_lease_when_many_take_over_and_acquire_at_once": 4,
    "tests/unit/operators/test_changelog_aggregate.py::"
    "test_results_cover_exactly_the_remaining_rows": 3,
    "tests/unit/operators/test_combining.py::"
    "test_combining_changes_neither_the_results_nor_the_late_rows": 4,
    "tests/unit/operators/test_count_windows.py::"
    "test_count_windows_match_a_list_of_each_keys_rows_across_restores": 4,
    "tests/unit/operators/test_session_join.py::"
    "test_a_session_join_emits_each_pair_once_and_unmatched_rows_by_join_kind": 4,
    "tests/unit/operators/test_temporal_join.py::"
    "test_each_row_gets_the_version_valid_at_its_event_time": 4,
    "tests/unit/operators/test_top_n.py::test_the_first_n_rows_of_each_key_remain": 4,
    "tests/unit/operators/test_triggers.py::"
    "test_windows_fire_by_trigger_and_at_their_end_across_restores": 4,
    "tests/unit/operators/test_windowed_distinct.py::"
    "test_each_window_counts_its_distinct_values_across_restores": 4,
    "tests/unit/operators/test_windows.py::"
    "test_no_key_sees_time_go_back_after_a_restore_of_uneven_watermarks": 4,
    "tests/unit/protocol/test_spout.py::test_every_record_is_emitted_until_a_try_of_it_is_acked": 4,
    "tests/unit/state/test_collisions.py::"
    "test_a_table_behaves_like_a_dictionary_even_if_most_keys_collide": 4,
    "tests/unit/stream/test_more_windows.py::"
    "test_processing_time_windows_keep_their_rows_over_restores": 4,
    "tests/unit/stream/test_parallelism.py::test_mixed_parallelisms_survive_kills": 3,
    "tests/web/test_alerts_and_incidents.py::"
    "test_no_silence_loses_a_message_or_sends_an_end_without_a_beginning": 4,
    "tests/web/test_own_api_rights.py::"
    "test_each_caller_may_read_and_change_only_what_its_rights_allow": 3,
}
"""Tests that repeat for many seeds and parameters. A plain run takes one in so many."""

KILLS = (
    "tests/processes/test_acked.py::"
    "test_a_crash_loses_nothing_and_doubles_only_records_not_known_as_acked",
    "tests/processes/test_fault_points.py::"
    "test_a_driver_killed_after_the_manifest_restores_it_even_if_unannounced",
    "tests/processes/test_fault_points.py::"
    "test_a_driver_killed_before_the_manifest_restores_the_checkpoint_before",
    "tests/processes/test_fault_points.py::"
    "test_all_slots_lost_at_once_are_one_failure_with_every_phase",
    "tests/processes/test_killed_processes.py::"
    "test_a_kill_request_is_answered_after_the_slot_has_died",
    "tests/processes/test_killed_processes.py::test_a_killed_slot_changes_nothing",
    "tests/processes/test_modes.py::"
    "test_at_least_once_doubles_records_between_the_barriers_and_loses_none",
    "tests/processes/test_modes.py::"
    "test_at_most_once_loses_records_in_flight_at_a_crash_and_doubles_none",
    "tests/processes/test_savepoints.py::"
    "test_a_crash_after_a_savepoint_restores_it_and_repeats_nothing",
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
