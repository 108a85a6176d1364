"""Mutants: Structured Streaming queries that other people wrote."""

from tests.mutants.mutant import Mutant

DOCTOR = "tests/unit/structured/test_doctor.py"
READING = "tests/unit/structured/test_reading.py"
FORK = "tests/unit/structured/test_fork.py"
MOVING = "tests/unit/structured/test_moving.py"
REPARTITION = "tests/web/test_watched_repartition.py"
DAMAGE = f"{DOCTOR}::test_the_doctor_names_a_staged_damage"

STRUCTURED: dict[str, tuple[Mutant, ...]] = {
    ("the doctor names what is wrong with a checkpoint directory of Spark, and invents nothing"): (
        Mutant(
            "pipelines/structured/doctor.py",
            "for v in each.files if v > planned + 1",
            "for v in each.files if v > planned + 100",
            f"{DAMAGE}[rewound by hand]",
        ),
        Mutant(
            "pipelines/structured/doctor.py",
            "for v in each.files if v > planned + 1",
            "for v in each.files if v > planned",
            f"{DOCTOR}::test_the_doctor_finds_nothing_in_healthy_directories",
        ),
        Mutant(
            "pipelines/structured/doctor.py",
            "f.file.modified_ms < batch.plan.planned_ms - slack_ms",
            "f.file.modified_ms < 0",
            f"{DAMAGE}[rewound by hand, and run again]",
        ),
        Mutant(
            "pipelines/structured/recovery.py",
            "unique_id is None or not file.unique_id or file.unique_id == unique_id",
            "True",
            f"{DAMAGE}[state of another attempt is there, that of the commit is not]",
        ),
        Mutant(
            "pipelines/structured/directory.py",
            '    found.take(tree.files("offsets"))\n',
            "",
            f"{READING}::test_a_batch_that_is_planned_during_the_listing_is_no_finding",
        ),
    ),
    (
        "a pipeline that takes over from a Spark query begins behind the input of the "
        "batch, and names each state that it cannot take over"
    ): (
        Mutant(
            "pipelines/structured/moving.py",
            "if e.batch_id <= newest}",
            "if e.batch_id < newest}",
            f"{MOVING}::test_files_that_were_read_up_to_the_batch_are_left_out",
        ),
        Mutant(
            "pipelines/structured/moving.py",
            "    left_behind = [_state_of(each) for each in query.operators]\n",
            "    left_behind: list[str] = []\n",
            f"{MOVING}::test_state_watermark_and_unknown_sources_are_named_as_left_behind",
        ),
        Mutant(
            "pipelines/connectors/kafka/topics.py",
            "        if oldest <= given <= newest:\n",
            "        if given <= newest:\n",
            "tests/contracts/test_kafka_topics.py::"
            "test_a_run_begins_at_given_offsets_and_elsewhere_at_the_chosen_start",
        ),
    ),
    (
        "a rewind of a Spark query leaves the original as it is, and no state or input log of the"
        " abandoned timeline reaches the fork"
    ): (
        Mutant(
            "pipelines/structured/recovery.py",
            "for version in range(batch.batch_id + 1, 0, -1):",
            "for version in range(batch.batch_id + 3, 0, -1):",
            f"{FORK}::test_a_fork_holds_one_batch_and_nothing_later",
        ),
        Mutant(
            "pipelines/structured/savepoints.py",
            'source_log_at(read_log(source, log), offset.positions["logOffset"])',
            "source_log_at(read_log(source, log), log.newest or 0)",
            f"{FORK}::test_the_log_of_a_file_source_ends_where_the_batch_ends",
        ),
        Mutant(
            "pipelines/structured/savepoints.py",
            "    if found.problems:\n",
            "    if False:\n",
            f"{FORK}::test_a_damaged_batch_leaves_no_half_fork",
        ),
        Mutant(
            "pipelines/structured/logs.py",
            "    return _files(log, {}, batch_id)\n",
            "    return {}\n",
            f"{FORK}::test_a_new_output_begins_with_the_rewound_log_without_its_entries",
        ),
        Mutant(
            "pipelines/structured/recovery.py",
            "            check_crc(content, crc)\n",
            "            pass\n",
            f"{FORK}::test_the_preflight_reads_every_file_of_the_batch",
        ),
        Mutant(
            "pipelines/structured/savepoints.py",
            "        target.delete_all()\n",
            "",
            f"{FORK}::test_a_purge_during_the_copy_is_refused_and_nothing_remains",
        ),
        Mutant(
            "pipelines/structured/savepoints.py",
            "            content = relocated(content, self._target)\n",
            "            pass\n",
            f"{FORK}::test_a_fork_refers_to_its_own_schema_files_and_to_no_later_batch",
        ),
        Mutant(
            "pipelines/structured/logs.py",
            "entry for entry in kept if entry.modified_ms < next_planned_ms",
            "entry for entry in kept",
            f"{FORK}::test_an_output_is_rewound_with_its_log",
        ),
    ),
    ("a repartition changes no row of the state, or no fork remains"): (
        Mutant(
            "pipelines/spark/structured.py",
            "    if lost.limit(1).count() or gained.limit(1).count():\n",
            "    if False:\n",
            "tests/integration/test_repartition.py::test_a_repartition_that_changes_a_row_is_undone",
        ),
        Mutant(
            "pipelines/structured/repartition.py",
            "is_alone = with_files == 1 and",
            "is_alone = with_files == 0 and",
            "tests/unit/structured/test_repartition.py::"
            "test_an_operator_with_files_in_only_one_partition_is_refused",
        ),
        Mutant(
            "ftdash/watching/services/forks.py",
            "    except BaseException:\n        target.delete_all()\n",
            "    except BaseException:\n        pass\n",
            f"{REPARTITION}::test_a_repartition_that_fails_leaves_no_fork",
        ),
        Mutant(
            "ftdash/watching/services/work.py",
            'row.asked.get("partitions") is None',
            "True",
            f"{REPARTITION}::test_a_fork_that_was_not_compared_is_removed_when_its_process_is_gone",
        ),
    ),
}
