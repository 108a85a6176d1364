"""Scenarios of failure: the faults of the soak that cause each, and the tests that show it.

An id is a subject and a number that never changes; a number that is missing is not in use. A
scenario with faults happens in a soak of enough length. A test shows those that a soak cannot:
they need a pipeline that fails, a second installation, or a step in the middle of a call. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.soak.schedule import Fault


@dataclass(frozen=True, slots=True)
class Scenario:
    """`tests` are node ids below `tests/`."""

    says: str
    faults: tuple[Fault, ...] = ()
    tests: tuple[str, ...] = ()


OF_A_CHECKPOINT = (
    Fault.SLOT_KILLED_ALIGNING,
    Fault.SLOT_KILLED_CUTTING,
    Fault.SLOT_KILLED_UPLOADING,
    Fault.SLOT_KILLED_UPLOADED,
    Fault.SLOT_KILLED_COMMITTING,
    Fault.SLOT_KILLED_COMMITTED,
)
OF_A_RESTORE = (
    Fault.SLOT_KILLED_RESTORING,
    Fault.SLOT_KILLED_OPENED,
    Fault.SLOT_KILLED_RESTORED,
)
OF_A_RECOVERY = (
    Fault.DRIVER_KILLED_RESTARTING,
    Fault.DRIVER_KILLED_REWINDING,
    Fault.DRIVER_KILLED_REWOUND,
)
AWAY = (
    Fault.REDIS_AWAY,
    Fault.POSTGRES_AWAY,
    Fault.KAFKA_AWAY,
    Fault.REDIS_AWAY_LONG,
    Fault.POSTGRES_AWAY_LONG,
    Fault.KAFKA_AWAY_LONG,
)

ALGORITHM = {
    "ALG-1": Scenario(
        "a cut under skew holds exactly the records up to the positions of the sources",
        tests=(
            "unit/protocol/test_alignment.py::"
            "test_snapshot_covers_exactly_the_records_before_the_barrier",
            "simulation/test_random_dataflows.py::"
            "test_random_dataflows_keep_every_promise_under_random_faults",
        ),
    ),
    "ALG-2": Scenario(
        "two branches of one stream meet again, and a slot dies while they align",
        faults=(Fault.SLOT_KILLED_ALIGNING,),
        tests=(
            "processes/test_barrier_paths.py::"
            "test_every_record_arrives_once_and_in_order_over_each_of_two_paths",
        ),
    ),
    "ALG-4": Scenario(
        "checkpoints complete while sources are silent, empty or at their end",
        tests=(
            "processes/test_barrier_paths.py::"
            "test_checkpoints_still_commit_while_splits_are_silent_empty_or_ended",
        ),
    ),
    "ALG-5": Scenario(
        "random dataflows in simulated time",
        tests=(
            "simulation/test_random_dataflows.py::"
            "test_random_dataflows_keep_every_promise_under_random_faults",
        ),
    ),
    "ALG-7": Scenario(
        "a checkpoint is declined while operators downstream align",
        tests=(
            "unit/runtime/subtask/test_alignment_cap.py::"
            "test_a_declined_checkpoint_is_cancelled_downstream_and_the_next_one_is_exact",
        ),
    ),
    "ALG-8": Scenario(
        "unaligned checkpoints with full buffers, a crash and a restore",
        faults=(Fault.SETTINGS, Fault.SLOT_KILLED),
        tests=(
            "processes/test_modes.py::"
            "test_unaligned_barriers_persist_overtaken_records_for_the_restore",
        ),
    ),
    "ALG-9": Scenario(
        "an alignment starts to overtake after its timeout",
        tests=(
            "processes/test_modes.py::"
            "test_a_barrier_starts_to_overtake_after_the_alignment_timeout",
        ),
    ),
    "ALG-10": Scenario(
        "a sink stands still, and records wait in bounded buffers",
        faults=(Fault.POSTGRES_HUNG, Fault.KAFKA_HUNG),
        tests=(
            "unit/runtime/subtask/test_backpressure.py::"
            "test_a_full_output_does_not_keep_a_subtask_from_answering_a_barrier",
        ),
    ),
    "ALG-11": Scenario(
        "windows and watermarks over failures",
        faults=(Fault.SLOT_KILLED, *OF_A_RESTORE),
        tests=(
            "processes/test_event_times.py::"
            "test_windows_and_joins_are_exact_after_a_kill_and_at_another_parallelism",
        ),
    ),
    "ALG-12": Scenario(
        "an impossible graph is refused",
        tests=(
            "unit/domain/test_graph.py::test_an_impossible_graph_is_refused_by_uid",
            "unit/test_stream.py::test_an_impossible_graph_is_refused_when_it_is_built",
        ),
    ),
    "ALG-13": Scenario(
        "records that are acknowledged one by one",
        tests=(
            "processes/test_acked.py::"
            "test_a_crash_loses_nothing_and_doubles_only_records_not_known_as_acked",
            "unit/protocol/test_spout.py::"
            "test_a_late_ack_of_a_timed_out_try_does_not_settle_the_next_one",
        ),
    ),
}

COORDINATOR = {
    "COO-1": Scenario(
        "the order of checkpoints that are due at the same time",
        tests=(
            "unit/protocol/test_triggering.py::"
            "test_a_savepoint_goes_before_a_checkpoint_requested_earlier",
        ),
    ),
    "COO-2": Scenario(
        "a checkpoint times out, and an acknowledgement comes late",
        faults=(Fault.DISK_SLOW, Fault.OBJECTS_SLOW, Fault.UPLOADS_SLOW),
        tests=(
            "processes/test_disks.py::"
            "test_a_slow_upload_expires_its_checkpoint_and_does_not_count_later",
        ),
    ),
    "COO-3": Scenario(
        "a decline and a failure of the store abort a checkpoint once, and count",
        faults=(Fault.DISK_FAILING, Fault.OBJECTS_FAULTY),
        tests=(
            "unit/protocol/test_coordination.py::"
            "test_the_first_decline_aborts_and_the_others_are_late",
            "unit/protocol/test_tolerance.py::test_too_many_failures_in_a_row_exceed_the_tolerance",
        ),
    ),
    "COO-4": Scenario(
        "a slot of an older attempt wakes and speaks",
        faults=(Fault.SLOT_STOPPED,),
        tests=(
            "processes/test_zombies.py::"
            "test_a_stopped_and_replaced_slot_is_refused_when_it_continues",
        ),
    ),
    "COO-5": Scenario(
        "acknowledgements that are repeated, foreign or late",
        tests=(
            "unit/protocol/test_coordination.py::"
            "test_late_repeated_and_foreign_acknowledgements_change_nothing",
        ),
    ),
    "COO-6": Scenario(
        "the driver dies before the manifest is durable",
        faults=(Fault.DRIVER_KILLED_ACKNOWLEDGED,),
    ),
    "COO-7": Scenario(
        "the driver dies after the manifest is durable",
        faults=(Fault.DRIVER_KILLED_PUBLISHED,),
    ),
    "COO-8": Scenario(
        "two drivers want the same run",
        faults=(Fault.WORKER_KILLED, Fault.BROKER_KILLED),
        tests=(
            "processes/test_one_driver_per_run.py::"
            "test_a_second_driver_of_the_same_run_is_turned_away_and_disturbs_nothing",
            "processes/test_replaced_drivers.py::"
            "test_a_driver_that_continues_beside_its_successor_disturbs_nothing",
        ),
    ),
    "COO-9": Scenario(
        "a newer checkpoint completes while an older one is under way",
        tests=(
            "unit/protocol/test_coordination.py::"
            "test_a_completed_checkpoint_subsumes_older_ones_but_no_savepoint_or_final",
        ),
    ),
    "COO-10": Scenario(
        "a crash in the middle of deleting old checkpoints",
        faults=(Fault.ALL_KILLED,),
        tests=(
            "unit/runtime/master/test_crash_at_every_step.py::"
            "test_the_next_driver_finishes_a_deletion_that_a_death_interrupted",
        ),
    ),
    "COO-11": Scenario(
        "the final checkpoint after sources have ended",
        faults=(Fault.STOP_AND_RESTORE,),
        tests=("unit/protocol/test_triggering.py::test_a_failed_final_checkpoint_is_tried_again",),
    ),
}

STATE = {
    "STO-1": Scenario(
        "a crash at every step of writing a checkpoint",
        faults=(Fault.SLOT_KILLED_UPLOADING, Fault.SLOT_KILLED_UPLOADED),
        tests=(
            "unit/runtime/master/test_crash_at_every_step.py::"
            "test_a_death_at_any_step_leaves_the_last_or_previous_point_and_no_litter",
        ),
    ),
    "STO-2": Scenario(
        "a torn file or a flipped bit in a checkpoint",
        faults=(Fault.CHECKPOINT_DAMAGED,),
        tests=(
            "contracts/test_damaged_points.py::"
            "test_every_reader_names_a_damaged_file_and_none_loads_it",
        ),
    ),
    "STO-4": Scenario(
        "a checkpoint fails after it has shared files with an older one",
        faults=(Fault.DISK_FULL, Fault.OBJECTS_AWAY),
        tests=(
            "contracts/test_state_increments.py::"
            "test_every_completed_checkpoint_can_be_restored_despite_failed_ones",
        ),
    ),
    "STO-5": Scenario(
        "files of a chain are deleted or merged while others need them",
        tests=(
            "unit/protocol/test_shared_files_by_seed.py::"
            "test_no_retained_checkpoint_loses_a_file_and_no_unused_file_stays",
        ),
    ),
    "STO-7": Scenario(
        "a full, failing, read-only or forbidden store",
        faults=(
            Fault.DISK_FULL,
            Fault.DISK_FULL_LONG,
            Fault.DISK_READ_ONLY,
            Fault.DISK_FAILING,
            Fault.SLOT_WRITES_NOTHING,
            Fault.OBJECTS_DENIED,
            Fault.OBJECTS_AWAY_LONG,
        ),
        tests=(
            "contracts/test_storage_errors.py::"
            "test_no_system_error_at_any_call_is_mistaken_for_an_answer",
        ),
    ),
    "STO-8": Scenario(
        "states against a model, with snapshots and restores at random moments",
        tests=(
            "contracts/test_keyed_state.py::"
            "test_states_match_dictionaries_over_time_snapshots_and_rescaling",
        ),
    ),
    "STO-9": Scenario(
        "savepoints of every released format",
        tests=(
            "processes/test_migration.py::test_a_run_continues_where_a_stored_savepoint_was_taken",
        ),
    ),
    "STO-10": Scenario(
        "two jobs in one directory",
        tests=(
            "unit/runtime/master/test_crash_at_every_step.py::"
            "test_a_run_sweeps_only_its_own_files_in_a_shared_directory",
        ),
    ),
    "STO-11": Scenario(
        "a million keys, large values, a gigabyte of state",
        faults=(Fault.SAVEPOINT,),
        tests=(
            "contracts/test_large_state.py::test_a_million_keys_keep_their_digest_over_a_restore",
            "contracts/test_large_state.py::test_a_value_of_64_mib_is_restored_byte_for_byte",
        ),
    ),
}

RECOVERY = {
    "REC-1": Scenario(
        "slots are killed at random moments",
        faults=(Fault.SLOT_KILLED, *OF_A_CHECKPOINT),
        tests=(
            "processes/test_nemesis.py::"
            "test_a_run_recovers_from_random_slot_kills_and_leaves_nothing_behind",
        ),
    ),
    "REC-2": Scenario(
        "each kind of process is killed, and each server also hangs or answers with errors",
        faults=(
            Fault.SLOT_KILLED,
            Fault.DRIVER_KILLED,
            Fault.EXECUTOR_KILLED,
            Fault.WORKER_KILLED,
            Fault.WEB_KILLED,
            Fault.BEAT_KILLED,
            Fault.PROJECTOR_KILLED,
            Fault.BROKER_KILLED,
            Fault.BROKER_FLUSHED,
            *AWAY,
            Fault.REDIS_HUNG,
            Fault.POSTGRES_HUNG,
            Fault.KAFKA_HUNG,
            Fault.REDIS_REFUSING,
            Fault.POSTGRES_REFUSING,
            Fault.KAFKA_REFUSING,
        ),
    ),
    "REC-3": Scenario(
        "a failure at each moment, also of the restore itself",
        faults=(*OF_A_CHECKPOINT, *OF_A_RESTORE, *OF_A_RECOVERY),
        tests=(
            "processes/test_kill_matrix.py::"
            "test_a_restore_that_dies_three_times_in_a_row_succeeds_in_the_end",
        ),
    ),
    "REC-4": Scenario(
        "a record that fails each time",
        faults=(Fault.RECORD_POISONED,),
        tests=(
            "processes/test_deterministic_failures.py::"
            "test_a_poison_record_is_named_with_split_and_offset_and_ends_the_run",
        ),
    ),
    "REC-6": Scenario(
        "partitions, half-open connections, delays and losses",
        faults=(
            Fault.SERVERS_CUT_OFF,
            Fault.SLOT_CUT_OFF,
            Fault.BAD_LINES,
            Fault.BAD_LINES_LONG,
            Fault.SERVERS_LATE,
        ),
        tests=(
            "processes/test_partitions.py::"
            "test_a_slow_network_that_loses_packets_only_delays_the_run",
        ),
    ),
    "REC-7": Scenario(
        "a failure before the first checkpoint",
        tests=(
            "processes/test_fault_points.py::"
            "test_a_failure_before_the_first_checkpoint_starts_the_run_over",
        ),
    ),
    "REC-8": Scenario(
        "the newest checkpoint cannot be read",
        faults=(Fault.CHECKPOINT_DAMAGED,),
        tests=(
            "processes/test_killed_processes.py::"
            "test_without_fallback_a_damaged_newest_point_ends_the_run_with_the_reason",
        ),
    ),
    "REC-10": Scenario(
        "a stop with a savepoint whose commits fail",
        tests=(
            "processes/test_fault_points.py::"
            "test_a_stop_whose_commits_fail_ends_with_its_savepoint_and_commits_once",
        ),
    ),
    "REC-11": Scenario(
        "a crash after a savepoint and before the next checkpoint",
        faults=(Fault.SAVEPOINT,),
        tests=(
            "processes/test_savepoints.py::"
            "test_a_crash_after_a_savepoint_restores_it_and_repeats_nothing",
        ),
    ),
    "REC-12": Scenario(
        "restores that claim their point, and restores that do not",
        faults=(Fault.STOP_AND_RESTORE,),
        tests=(
            "processes/test_savepoints.py::"
            "test_a_claimed_savepoint_is_deleted_once_newer_points_replace_it",
            "processes/test_savepoints.py::"
            "test_without_a_claim_the_original_may_be_deleted_after_one_checkpoint",
        ),
    ),
    "REC-13": Scenario(
        "everything is killed at once",
        faults=(Fault.ALL_KILLED,),
        tests=(
            "processes/test_nemesis.py::"
            "test_a_run_survives_the_kill_of_all_processes_at_once_five_times",
        ),
    ),
}

RESCALES = {
    "RSC-1": Scenario(
        "a chain of rescales",
        faults=(Fault.RESCALE,),
        tests=(
            "processes/test_savepoints.py::test_a_chain_of_rescales_gives_the_output_of_one_run",
        ),
    ),
    "RSC-3": Scenario(
        "an impossible parallelism, removed and renamed operators",
        faults=(Fault.CODE,),
        tests=(
            "unit/protocol/test_compatibility.py::"
            "test_a_parallelism_that_does_not_fit_the_key_groups_is_refused",
        ),
    ),
    "RSC-4": Scenario(
        "partitions are added while the run reads",
        faults=(Fault.PARTITION_ADDED,),
        tests=(
            "unit/runtime/subtask/test_found_splits.py::"
            "test_every_record_is_read_once_while_splits_appear_and_the_parallelism_changes",
        ),
    ),
    "RSC-5": Scenario(
        "a rescale of unaligned checkpoints",
        faults=(Fault.SETTINGS, Fault.RESCALE),
        tests=(
            "integration/test_exactly_once_on_spark.py::test_unaligned_an_older_point_is_restored"
            "_at_another_parallelism_and_output_does_not_double",
        ),
    ),
}

SINKS = {
    "SNK-1": Scenario(
        "a crash at each step of a commit",
        faults=(
            *OF_A_CHECKPOINT,
            Fault.DRIVER_KILLED_ACKNOWLEDGED,
            Fault.DRIVER_KILLED_PUBLISHED,
            Fault.SLOT_KILLED_OPENED,
        ),
        tests=("contracts/test_sink.py::test_output_is_exact_wherever_the_process_is_killed",),
    ),
    "SNK-2": Scenario(
        "a recovery finds prepared transactions",
        faults=(Fault.SLOT_KILLED_COMMITTING, Fault.SLOT_KILLED_OPENED),
        tests=("contracts/test_sink.py::test_a_later_restore_recovers_the_output_that_it_needs",),
    ),
    "SNK-4": Scenario(
        "an outage outlasts the timeout of a transaction, which ends the run or needs a log",
        faults=(Fault.KAFKA_AWAY, Fault.KAFKA_HUNG, Fault.KAFKA_AWAY_LONG),
        tests=(
            "contracts/test_kafka_transactions.py::"
            "test_too_long_an_outage_is_reported_with_its_range_but_a_log_survives_it",
        ),
    ),
    "SNK-5": Scenario(
        "a commit is repeated because its answer was lost",
        faults=(Fault.SLOT_KILLED_COMMITTED, Fault.SERVERS_CUT_OFF),
        tests=(
            "contracts/test_postgres_two_phase.py::"
            "test_a_commit_repeated_after_newer_ones_is_recognised_as_done",
        ),
    ),
    "SNK-7": Scenario(
        "prepared transactions of others",
        faults=(Fault.PREPARED_EXHAUSTED,),
        tests=(
            "contracts/test_postgres_two_phase.py::"
            "test_a_strangers_transaction_with_our_name_is_not_listed_as_ours",
            "contracts/test_sink_leftovers.py::test_leftovers_are_attributed_to_the_right_run",
        ),
    ),
    "SNK-8": Scenario(
        "no more prepared transactions are possible",
        faults=(Fault.PREPARED_EXHAUSTED,),
        tests=(
            "contracts/test_postgres_two_phase.py::"
            "test_a_server_without_prepared_transactions_is_refused_with_a_next_step",
        ),
    ),
    "SNK-9": Scenario(
        "hashes in Redis under a replay and an older writer",
        tests=(
            "contracts/test_redis_hashes.py::test_a_late_commit_of_an_older_checkpoint_hides_nothing",
            "contracts/test_redis_hashes.py::test_a_key_of_another_type_is_named_and_nothing_is_lost",
        ),
    ),
    "SNK-10": Scenario(
        "files appear whole, and those of dead attempts go",
        faults=(Fault.SLOT_KILLED_COMMITTING, Fault.SLOT_KILLED_COMMITTED, Fault.ALL_KILLED),
        tests=("contracts/test_sink.py::test_output_is_exact_after_dying_at_every_seam_in_turn",),
    ),
    "SNK-12": Scenario(
        "a checkpoint fails and the next one completes",
        faults=(Fault.DISK_FULL, Fault.PREPARED_EXHAUSTED),
        tests=(
            "unit/protocol/test_commit.py::"
            "test_aborted_output_is_released_with_the_next_checkpoint_oldest_first",
        ),
    ),
    "SNK-13": Scenario(
        "two jobs write to the same place",
        tests=(
            "processes/test_takeovers.py::"
            "test_a_run_that_loses_its_output_to_a_newer_run_ends_and_is_not_restarted",
            "processes/test_two_installations.py::"
            "test_a_run_that_loses_its_target_to_another_installation_ends_for_good",
        ),
    ),
}

LOAD_AND_INPUT = {
    "LOD-1": Scenario(
        "checkpoints that take longer than their interval do not pile up",
        faults=(Fault.DISK_SLOW, Fault.OBJECTS_SLOW),
        tests=("unit/protocol/test_triggering.py::test_missed_intervals_are_not_made_up_for",),
    ),
    "LOD-2": Scenario(
        "hours of faults, while nothing grows",
        faults=tuple(Fault),
        tests=("unit/test_soak.py::test_every_figure_has_one_bound_with_its_reason",),
    ),
    "LOD-3": Scenario(
        "more slots are wanted than there are",
        tests=(
            "integration/test_yarn.py::"
            "test_a_run_without_room_can_be_cancelled_and_with_room_a_package_runs_despite_a_kill",
        ),
    ),
    "LOD-4": Scenario(
        "the clock goes back or forward by an hour",
        faults=(Fault.CLOCK_STEP,),
        tests=(
            "unit/runtime/subtask/test_clock_steps.py::"
            "test_the_coordinator_keeps_its_interval_and_timeout",
        ),
    ),
    "BAD-1": Scenario(
        "malformed records, awkward keys and values, hostile code and input",
        faults=(Fault.RECORD_POISONED,),
        tests=(
            "processes/test_dead_letters.py::"
            "test_each_record_is_in_one_of_the_two_topics_once_after_kills",
            "contracts/test_awkward_keys.py::"
            "test_a_type_that_cannot_be_a_key_is_refused_by_column_name",
            "contracts/test_damaged_points.py::"
            "test_a_decompression_bomb_is_refused_even_if_its_digest_matches",
        ),
    ),
    "SEC-1": Scenario(
        "hostile savepoints, paths, messages, names and pages",
        tests=(
            "contracts/test_damaged_points.py::"
            "test_a_manifest_that_names_an_outside_file_is_refused_and_not_followed",
            "unit/runtime/master/test_control_server.py::"
            "test_a_stranger_without_the_token_is_reported_and_gets_nothing",
            "web/test_ui_access.py::test_no_post_without_the_csrf_token_does_anything",
            "web/test_ui_markup.py::test_names_labels_and_exceptions_are_escaped_on_every_page",
        ),
    ),
}

SCENARIOS: Mapping[str, Scenario] = {
    **ALGORITHM,
    **COORDINATOR,
    **STATE,
    **RECOVERY,
    **RESCALES,
    **SINKS,
    **LOAD_AND_INPUT,
}

GAME_DAYS: Mapping[str, Fault] = {
    "KILL_SLOT": Fault.SLOT_KILLED,
    "KILL_SLOT_ALIGNING": Fault.SLOT_KILLED_ALIGNING,
    "KILL_SLOT_CUTTING": Fault.SLOT_KILLED_CUTTING,
    "KILL_SLOT_UPLOADING": Fault.SLOT_KILLED_UPLOADING,
    "KILL_SLOT_UPLOADED": Fault.SLOT_KILLED_UPLOADED,
    "KILL_SLOT_COMMITTING": Fault.SLOT_KILLED_COMMITTING,
    "KILL_SLOT_COMMITTED": Fault.SLOT_KILLED_COMMITTED,
    "KILL_SLOT_RESTORING": Fault.SLOT_KILLED_RESTORING,
    "KILL_SLOT_OPENED": Fault.SLOT_KILLED_OPENED,
    "KILL_SLOT_RESTORED": Fault.SLOT_KILLED_RESTORED,
    "KILL_DRIVER": Fault.DRIVER_KILLED,
    "KILL_DRIVER_ACKNOWLEDGED": Fault.DRIVER_KILLED_ACKNOWLEDGED,
    "KILL_DRIVER_PUBLISHED": Fault.DRIVER_KILLED_PUBLISHED,
    "KILL_DRIVER_RESTARTING": Fault.DRIVER_KILLED_RESTARTING,
    "KILL_DRIVER_REWINDING": Fault.DRIVER_KILLED_REWINDING,
    "KILL_DRIVER_REWOUND": Fault.DRIVER_KILLED_REWOUND,
    "KILL_WORKER": Fault.WORKER_KILLED,
    "FREEZE_SLOT": Fault.SLOT_STOPPED,
    "SLOW_STORAGE": Fault.UPLOADS_SLOW,
    "FULL_DISK": Fault.SLOT_WRITES_NOTHING,
}
"""Maps the name of each `ftdash.gameday.models.Fault` to the same fault of the soak."""
