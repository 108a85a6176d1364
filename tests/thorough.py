"""Which tests a plain `python -m pytest` leaves out, because they take long; `--all` runs them too.

CI gives `--all` by FTDASH_REQUIRE_ALL=1. A test that you name, or whose file or directory you name,
always runs.
"""

from collections.abc import Iterable

SLOW = (
    "tests/bench",
    "tests/contracts/test_kafka_transactions.py",
    "tests/contracts/test_kafka_write_ahead.py",
    "tests/contracts/test_large_state.py",
    "tests/integration",
    "tests/processes",
    "tests/simulation/test_checkers.py::test_a_checker_finds_the_defect_that_it_is_there_for",
    "tests/simulation/test_random_dataflows.py::"
    "test_random_dataflows_keep_every_promise_under_random_faults",
    "tests/unit/audit/test_kafka_audit.py",
    "tests/unit/audit/test_kafka_log_audit.py",
    "tests/unit/nexmark/test_answers.py::test_a_query_gives_the_answer_for_a_million_events",
    "tests/web/test_audit_log.py::"
    "test_an_upgrade_chains_the_entries_that_are_there_and_then_protects_them",
    "tests/web/test_backups.py",
    "tests/web/test_browser.py",
    "tests/web/test_documentation_in_browser.py",
    "tests/web/test_flink_cli.py",
    "tests/web/test_flink_page_in_browser.py",
    "tests/web/test_pages_in_browser.py",
    "tests/web/test_projector_process.py",
    "tests/web/test_second_factor_in_browser.py",
    "tests/web/test_starting.py::test_a_postgresql_that_is_too_old_ends_a_process_with_one_line",
    "tests/web/test_starting.py::test_a_process_that_cannot_work_ends_with_one_line",
    "tests/web/test_starting.py::"
    "test_a_setting_that_makes_no_sense_ends_every_command_with_one_line",
    "tests/web/test_starting.py::test_a_taken_port_ends_the_web_server_with_one_line",
    "tests/web/test_tasks.py",
    "tests/web/test_time_axes.py",
    "tests/web/test_trusted_proxies.py",
    "tests/web/test_watched_flink_killed.py",
)
"""Directories, files and tests (`file::test`)."""

SLOW_PARAMETERS = {
    "tests/contracts/test_sink.py": "kafka ",  # a transaction of Kafka takes a second or two
    "tests/web/test_documented_snippets.py": "operate",  # makes two installations
}
"""Of these files, the tests with such a parameter."""

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
"""Tests in which a process of a run dies by `kill -9`. A plain run has these in spite of `SLOW`, so
that you see recovery at work."""

KEPT = (*KILLS, "tests/bench/test_pairs.py")


def is_slow(nodeid: str, slow: Iterable[str] = SLOW, kept: Iterable[str] = KEPT) -> bool:
    """Whether the tables name the test, its file or a directory above it."""
    test, _, parameters = nodeid.partition("[")
    file = test.partition("::")[0]
    if file in SLOW_PARAMETERS and SLOW_PARAMETERS[file] in parameters:
        return True
    return _is_among(test, slow) and not _is_among(test, kept)


def runs_slow_tests(*, asked: bool, required: bool, named: bool) -> bool:
    """`asked`: by `--all`; `required`: by FTDASH_REQUIRE_ALL; `named`: the command names tests."""
    return asked or required or named


def _is_among(test: str, entries: Iterable[str]) -> bool:
    return any(test == entry or test.startswith((f"{entry}/", f"{entry}::")) for entry in entries)
