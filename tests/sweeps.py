"""Sweeps over seeds and parameters: a run of all tests takes a part of each.

The newest commit chooses the part, and one commit after another covers the whole sweep. Every part
has each backend, store, target and damage at least once (`unit/test_sweeps.py` looks). A sweep runs
whole if you name it, its file or a directory above it, and with FTDASH_WHOLE_LISTS=1.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.commit_share import share_of

SHARES = {
    "tests/contracts/test_awkward_keys.py::"
    "test_similar_keys_stay_distinct_and_are_found_at_another_parallelism": 3,
    "tests/contracts/test_damaged_points.py::"
    "test_every_reader_names_a_damaged_file_and_none_loads_it": 5,
    "tests/contracts/test_damaged_points.py::test_every_reader_names_a_damaged_manifest": 5,
    "tests/contracts/test_keyed_state.py::"
    "test_states_match_dictionaries_over_time_snapshots_and_rescaling": 5,
    "tests/contracts/test_sink.py::test_a_later_restore_recovers_the_output_that_it_needs": 2,
    "tests/contracts/test_sink.py::test_a_restore_of_an_older_point_doubles_nothing": 2,
    "tests/contracts/test_sink.py::test_output_is_exact_wherever_the_process_is_killed": 3,
    "tests/contracts/test_sinks_of_changes.py::"
    "test_a_fresh_run_sets_old_rows_aside_and_keeps_its_own": 3,
    "tests/contracts/test_sinks_of_changes.py::"
    "test_the_remaining_rows_are_exact_whenever_writers_die": 5,
    "tests/contracts/test_state_increments.py::"
    "test_every_completed_checkpoint_can_be_restored_despite_failed_ones": 3,
    "tests/contracts/test_state_increments.py::"
    "test_no_checkpoint_of_a_large_table_writes_much_more_than_what_changed": 3,
    "tests/contracts/test_state_model.py::"
    "test_a_table_matches_a_dictionary_and_no_cut_changes_later": 5,
    "tests/contracts/test_state_model.py::"
    "test_cuts_may_be_read_on_another_thread_while_the_owner_writes": 5,
    "tests/contracts/test_state_model.py::test_values_may_be_null_or_of_any_length": 2,
    "tests/contracts/test_storage_errors.py::"
    "test_no_object_store_fault_at_any_request_is_mistaken_for_an_answer": 5,
    "tests/integration/test_structured_queries.py::"
    "test_a_fork_equals_a_query_that_never_took_the_wrong_turn": 3,
    "tests/integration/test_structured_queries.py::"
    "test_a_fork_of_a_query_that_reads_kafka_equals_one_that_never_took_the_wrong_turn": 2,
    "tests/processes/test_replaced_drivers.py::"
    "test_a_stopped_driver_is_replaced_and_changes_nothing_when_it_continues": 2,
    "tests/processes/test_zombies.py::"
    "test_a_stopped_and_replaced_slot_is_refused_when_it_continues": 2,
    "tests/unit/nexmark/test_answers.py::"
    "test_a_query_gives_the_same_result_as_duckdb_for_a_million_events": 4,
    "tests/unit/operators/test_changelog_aggregate.py::"
    "test_results_cover_exactly_the_remaining_rows": 3,
    "tests/unit/operators/test_combining.py::"
    "test_combining_changes_neither_the_results_nor_the_late_rows": 3,
    "tests/unit/operators/test_count_windows.py::"
    "test_count_windows_match_a_list_of_each_keys_rows_across_restores": 5,
    "tests/unit/operators/test_triggers.py::"
    "test_windows_fire_by_trigger_and_at_their_end_across_restores": 5,
    "tests/unit/operators/test_windowed_distinct.py::"
    "test_each_window_counts_its_distinct_values_across_restores": 5,
}
"""The run takes one of so many, in the order of the parameters. A number that shares no factor with
the length of an inner list of parameters takes each of that list's items."""


def left_out_by(
    nodeids: Iterable[str], shares: Mapping[str, int] = SHARES, commit: str | None = None
) -> set[str]:
    """Returns the tests that this commit leaves to others; by default, the newest commit."""
    sweeps: dict[str, list[str]] = defaultdict(list)
    for nodeid in nodeids:
        if (test := nodeid.partition("[")[0]) in shares:
            sweeps[test].append(nodeid)
    return {
        nodeid
        for test, sweep in sweeps.items()
        for nodeid in {*sweep} - {*share_of(sweep, shares[test], commit)}
    }
