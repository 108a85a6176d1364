"""Mutants: which process may act, what is kept, and where a run continues."""

from tests.mutants.mutant import Mutant

REPORTED = "tests/unit/runtime/slot/test_reported_failures.py"

RECOVERY: dict[str, tuple[Mutant, ...]] = {
    "any bytes from a peer, a file or a disk are a value or the error that callers handle": (
        Mutant(
            "pipelines/structured/formats.py",
            "    except UnicodeDecodeError as error:\n",
            "    except KeyError as error:\n",
            (
                "tests/unit/test_outside_input.py::"
                "test_a_file_of_a_spark_query_is_read_or_reported_as_damaged"
            ),
        ),
        Mutant(
            "ftdash/flink_clusters/bodies.py",
            "    except UNDECODABLE:\n",
            "    except msgspec.DecodeError:\n",
            ("tests/unit/test_outside_reports.py::test_any_error_of_a_cluster_is_a_line_or_empty"),
        ),
        Mutant(
            "ftdash/deployment/backups.py",
            "    return member.isreg() and not member.issparse() and member.name in FILES\n",
            "    return True\n",
            "tests/unit/test_outside_reports.py::test_a_malicious_archive_is_no_backup",
        ),
        Mutant(
            "pipelines/packages/wheel.py",
            "    except BROKEN_ARCHIVE as error:\n",
            "    except zipfile.BadZipFile as error:\n",
            (
                "tests/unit/test_outside_files.py::"
                "test_any_content_is_a_value_or_the_error_that_callers_handle"
            ),
        ),
    ),
    "a run that a person cancels before it has slots ends at once and answers its requests": (
        Mutant(
            "pipelines/spark/stage.py",
            "            if is_cancelled():\n",
            "            if False:\n",
            "tests/unit/spark/test_start.py::test_a_cancelled_run_stops_waiting_for_yarn",
        ),
        Mutant(
            "pipelines/runtime/master/driving.py",
            "    except StartGivenUp:\n        return master.cancel_unstarted()\n",
            "    except StartGivenUp:\n        raise\n",
            (
                "tests/unit/runtime/master/test_driving.py::"
                "test_a_run_cancelled_before_it_has_slots_ends_and_answers_its_requests"
            ),
        ),
    ),
    (
        "a record that always fails is set aside once, with the checkpoint it "
        "belongs to, or processed"
    ): (
        Mutant(
            "pipelines/protocol/repeated_failures.py",
            "if record.position in self._poison:",
            "if False:",
            (
                "tests/unit/protocol/test_poison_records.py::"
                "test_a_quarantined_record_is_not_blamed_for_later_failures"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/split_screen.py",
            "        self._commit(self._log.take_restored())\n",
            "",
            (
                "tests/unit/runtime/subtask/test_quarantine.py::"
                "test_restored_quarantine_records_are_committed_even_without_isolation"
            ),
        ),
    ),
    "a quarantined record is replayed once": (
        Mutant(
            "pipelines/connectors/files/quarantine.py",
            "return [_named(split) for split in found if self._is_of_others(split.name)]",
            "return [_named(split) for split in found]",
            (
                "tests/unit/connectors/files/test_replayed_quarantine.py::"
                "test_only_files_of_other_runs_are_found_and_records_come_back_unchanged"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/quarantine.py",
            "{name.removeprefix(REPLAYED_PREFIX) for name in known}",
            "set()",
            (
                "tests/unit/connectors/files/test_replayed_quarantine.py::"
                "test_a_known_file_is_not_found_again_and_none_if_looking_is_off"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/reserving_reader.py",
            "if batch is None and self._quarantine.is_exhausted:",
            "if batch is None:",
            (
                "tests/unit/runtime/subtask/test_replaying_reader.py::"
                "test_the_source_waits_while_its_quarantine_is_temporarily_empty"
            ),
        ),
    ),
    (
        "a start over is undone only while its run has committed nothing, and then exactly what it"
        " set aside is back"
    ): (
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "self._command is not None or self._has_put_back or self._context.spec.puts_back",
            "self._command is not None or self._has_put_back",
            "tests/processes/test_undone_starts.py"
            "::test_a_separate_run_puts_back_output_that_an_ended_run_set_aside",
        ),
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "return completed is not None or any(True for _ in own)",
            "return completed is not None",
            (
                "tests/unit/runtime/test_undone_starts.py::"
                "test_an_unreported_point_of_a_dead_driver_counts_as_committed"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "if self._is_publishing():",
            "if False:",
            (
                "tests/unit/runtime/test_undone_starts.py::"
                "test_an_undo_is_refused_while_a_manifest_is_being_written"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "if newest is None or newest.sequence < begun.sequence:",
            "if newest is None:",
            (
                "tests/unit/runtime/master/test_earlier_output.py::"
                "test_falling_back_to_an_older_point_sets_the_newer_output_aside"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/next_start.py",
            "lineage=tuple(lineage), source_records=0",
            "lineage=(), source_records=0",
            (
                "tests/processes/test_undone_starts.py::"
                "test_undoing_a_start_puts_files_back_and_a_restore_continues"
            ),
        ),
    ),
    "an older attempt changes nothing": (
        Mutant(
            "pipelines/protocol/commit.py",
            "if is_newest and not self._is_over:",
            "if not self._is_over:",
            (
                "tests/unit/protocol/test_fencing.py::test_only_the_newest_attempt_is_a"
                "dmitted_and_permitted"
            ),
        ),
        Mutant(
            "pipelines/protocol/commit.py",
            "return self.admit(attempt) or CommitPermit(attempt, checkpoint_id)",
            "return CommitPermit(attempt, checkpoint_id)",
            (
                "tests/unit/protocol/test_fencing.py::test_only_the_newest_attempt_is_a"
                "dmitted_and_permitted"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/chains/chain.py",
            'check(permit.attempt == mine, "sinks commit for their own attempt", permit=permit)',
            'check(bool(mine), "sinks commit for their own attempt", permit=permit)',
            (
                "tests/unit/runtime/subtask/test_gate_feed.py::"
                "test_a_sink_commits_only_with_a_permit_of_its_own_attempt"
            ),
        ),
        Mutant(
            "pipelines/bus/lease.py",
            "        self.check_held()\n        make_directory(self._directory.attempts)",
            "        make_directory(self._directory.attempts)",
            (
                "tests/unit/bus/test_lease.py::"
                "test_a_holder_whose_lock_file_vanished_stops_once_another_takes_over"
            ),
        ),
        Mutant(
            "pipelines/bus/lease.py",
            "return is_held and attempt == self.attempts_so_far()",
            "return is_held",
            "tests/unit/bus/test_lease.py::test_an_attempt_is_current_until_the_next_is_numbered",
        ),
        Mutant(
            "pipelines/channels/handshake.py",
            "if claim.attempt != attempt:",
            "if claim.attempt > attempt:",
            "tests/unit/channels/test_handshake.py::test_a_stranger_is_refused_on_both_sides",
        ),
        Mutant(
            "pipelines/runtime/slot/vigil.py",
            "if stopped_ms > self._timeout_ms:",
            "if False:",
            (
                "tests/unit/runtime/slot/test_vigil.py::"
                "test_a_process_that_was_stopped_objects_despite_older_messages"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "            if not self._owns_run(attempt):\n                return NOT_OWNED\n",
            "",
            (
                "tests/unit/runtime/master/test_checkpoint_host.py::test_after_the_leas"
                "e_is_lost_nothing_is_published_or_announced"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "        if not self._owns_run(attempt):\n            return False\n",
            "",
            (
                "tests/unit/runtime/master/test_checkpoint_host.py::test_a_driver_that_"
                "lost_the_lease_deletes_nothing_of_its_successor"
            ),
        ),
    ),
    (
        "a driver that hangs is replaced, a living one is not, and a replaced driver that "
        "continues changes nothing"
    ): (
        Mutant(
            "pipelines/protocol/driver_watch.py",
            "gap_ms = min(now_ms - self._looked_ms, GAP_SHARE_MAX * timeout_ms)",
            "gap_ms = now_ms - self._looked_ms",
            (
                "tests/unit/protocol/test_driver_watch.py::test_only_a_driver_that_has_"
                "not_moved_for_the_timeout_is_hung"
            ),
        ),
        Mutant(
            "pipelines/protocol/driver_watch.py",
            "gap_ms = min(now_ms - self._looked_ms, GAP_SHARE_MAX * timeout_ms)",
            "gap_ms = now_ms - self._looked_ms",
            "tests/web/test_hung_drivers.py::test_no_driver_is_replaced_after_the_machine_slept",
        ),
        Mutant(
            "pipelines/bus/lease.py",
            (
                "            if _recorded_owner(run_directory) != owner:\n"
                '                raise BlockingIOError("the run has another owner")\n'
            ),
            "",
            "tests/unit/bus/test_lease.py::test_a_driver_can_be_fenced_off_only_once",
        ),
        Mutant(
            "pipelines/bus/lease.py",
            "return _version_of(self._file) in (self._record, None)",
            "return True",
            (
                "tests/processes/test_replaced_drivers.py::"
                "test_a_driver_that_continues_beside_its_successor_disturbs_nothing"
            ),
        ),
    ),
    (
        "a journal in segments reads as one after any death, and an old segment is "
        "deleted only when every reader is past it"
    ): (
        Mutant(
            "pipelines/bus/journal_segments.py",
            "if each.end > read_up_to or each.closed_s >= closed_before_s:",
            "if each.closed_s >= closed_before_s:",
            (
                "tests/unit/bus/test_journal_segments.py::"
                "test_readers_of_segments_find_the_same_events_as_in_one_file"
            ),
        ),
        Mutant(
            "pipelines/bus/journal_segments.py",
            "RecordQuarantined: None,",
            "RecordQuarantined: 1,",
            (
                "tests/unit/bus/test_journal_segments.py::"
                "test_readers_of_segments_find_the_same_events_as_in_one_file"
            ),
        ),
    ),
    "no retained point loses a file, nothing unused stays": (
        Mutant(
            "pipelines/protocol/retention.py",
            "left = candidates.union(*(leaving.files for leaving in done)) - self.needed",
            "left = candidates.union(*(leaving.files for leaving in done))",
            (
                "tests/unit/protocol/test_shared_files.py::test_a_file_that_a_newer_che"
                "ckpoint_refers_to_outlives_the_one_that_wrote_it"
            ),
        ),
        Mutant(
            "pipelines/protocol/retention.py",
            "return has_ended and not self._is_of_unread(name)",
            "return has_ended",
            (
                "tests/unit/protocol/test_shared_files.py::"
                "test_an_unreadable_point_keeps_every_file_that_it_may_refer_to"
            ),
        ),
        Mutant(
            "pipelines/protocol/retention.py",
            "oldest = whole[self._count - 1].order()",
            "oldest = whole[0].order()",
            (
                "tests/unit/protocol/test_retention.py::"
                "test_the_newest_points_and_all_savepoints_are_never_deleted"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/run_opening.py",
            (
                "            if note.run == self._note.run:\n"
                "                continue\n"
                "            points"
            ),
            "            points",
            (
                "tests/unit/runtime/master/test_kept_rows.py::"
                "test_rows_stay_until_no_point_of_any_run_names_them"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/run_opening.py",
            "if rows.name not in needed:",
            "if True:",
            (
                "tests/unit/runtime/master/test_kept_rows.py::"
                "test_rows_stay_until_no_point_of_any_run_names_them"
            ),
        ),
    ),
    "a failure in a slot is heard of, even if its message cannot be told": (
        Mutant(
            "pipelines/runtime/slot/subtask_reports.py",
            "            self._send(\n                Failed(vertex=vertex",
            "            str(\n                Failed(vertex=vertex",
            f"{REPORTED}::test_a_failure_whose_report_cannot_be_sent_is_reported_in_a_short_one",
        ),
        Mutant(
            "pipelines/domain/texts.py",
            '    try:\n        return str(error)\n    except Exception:\n        return ""\n',
            "    return str(error)\n",
            f"{REPORTED}::test_a_failure_is_reported_even_if_its_message_cannot_be_told",
        ),
    ),
    "a slot that looks at what its threads execute does not stand still": (
        Mutant(
            "pipelines/runtime/slot/subtask_reports.py",
            "    gc.disable()\n",
            "",
            (
                "tests/unit/runtime/slot/test_sampled_frames.py::"
                "test_no_collection_begins_while_the_frames_of_threads_are_read"
            ),
        ),
    ),
    "a failure that would come back ends the run, with its record named": (
        Mutant(
            "pipelines/domain/texts.py",
            "    return storable(text)\n",
            "    return text\n",
            (
                "tests/processes/test_deterministic_failures.py"
                "::test_a_poison_record_is_named_with_split_and_offset_and_ends_the_run"
            ),
        ),
        Mutant(
            "pipelines/protocol/repeated_failures.py",
            "return tries >= self._tries_min and over_ms >= self._over_min_ms",
            "return tries >= self._tries_min",
            (
                "tests/unit/protocol/test_repeated_failures.py::"
                "test_a_bad_record_is_found_at_the_first_try_after_the_required_time"
            ),
        ),
    ),
    "the number of records to replay is a difference of positions": (
        Mutant(
            "pipelines/runtime/subtask/sources/spout_reader.py",
            'SPOUT_ACKED: self._counts["acked_count"] - before,',
            "SPOUT_ACKED: 0,",
            (
                "tests/unit/runtime/subtask/test_acked_positions.py"
                "::test_the_position_is_the_emitted_records_minus_those_beyond_it"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/slots/metrics_board.py",
            "self._reached_records = max(before, restored_records)",
            "self._reached_records = before + restored_records",
            (
                "tests/unit/runtime/master/test_replay_figures.py::"
                "test_the_records_to_replay_are_the_difference_of_two_positions"
            ),
        ),
    ),
    "all slots and attempts begin with the same input": (
        Mutant(
            "pipelines/connectors/positions.py",
            (
                "    if place not in listed:\n"
                "        listed[place] = look()\n"
                "    return listed[place]"
            ),
            "    return look()",
            (
                "tests/unit/connectors/test_beginning.py::"
                "test_a_known_listing_shows_the_same_files_after_the_directory_changed"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/run_context.py",
            "and uid not in self._found.splits",
            "",
            (
                "tests/unit/runtime/master/test_run_beginning.py::"
                "test_a_log_is_inspected_only_once_for_all_attempts_and_drivers"
            ),
        ),
        Mutant(
            "pipelines/connectors/positions.py",
            "    if listed is None:\n        return look()",
            "    if listed is None or listed:\n        return look()",
            (
                "tests/processes/test_growing_sources.py::test_all_slots_read_the_files"
                "_that_the_driver_has_listed"
            ),
        ),
    ),
    "every record of every split is read once, at any parallelism": (
        Mutant(
            "pipelines/connectors/split_progress.py",
            "frontier = max(position.frontier for position in old)",
            "frontier = min(position.frontier for position in old)",
            (
                "tests/unit/connectors/test_positions.py::test_every_record_is_read_onc"
                "e_and_splits_ascend_across_rescales"
            ),
        ),
        Mutant(
            "pipelines/connectors/split_progress.py",
            (
                "share.splits.extend(split for split in positions.splits if "
                "owner(split.name) == subtask)"
            ),
            "share.splits.extend(positions.splits)",
            (
                "tests/unit/runtime/subtask/test_found_splits.py::test_every_record_is_"
                "read_once_while_splits_appear_and_the_parallelism_changes"
            ),
        ),
    ),
    "a source names lost records and never skips them": (
        Mutant(
            "pipelines/connectors/positions.py",
            "if oldest > split.offset:",
            "if False:",
            (
                "tests/contracts/test_growing_source.py::test_lost_records_are_reported_and_not_skipped"
            ),
        ),
        Mutant(
            "pipelines/connectors/redis/stream_entries.py",
            "return self.max_deleted + 1 if is_lost else 0",
            "return 0",
            (
                "tests/unit/connectors/redis/test_stream_extent.py::"
                "test_a_deletion_below_an_older_hole_is_noticed_if_no_read_entry_remains"
            ),
        ),
    ),
    (
        "a file is read once, however late it appears, and a million finished "
        "ones fit into a checkpoint"
    ): (
        Mutant(
            "pipelines/connectors/split_progress.py",
            "        yield pack_of(some)",
            "        yield pack_of(some[1:])",
            "tests/unit/connectors/test_split_packs.py::test_a_pack_returns_every_name_unchanged",
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/found_splits.py",
            "        self._known.update(split.name for split in found)\n",
            "",
            (
                "tests/unit/runtime/subtask/test_found_splits.py::test_every_record_is_"
                "read_once_while_splits_appear_and_the_parallelism_changes"
            ),
        ),
    ),
    "nothing outside the configured roots is touched": (
        Mutant(
            "pipelines/storage/roots.py",
            "        if not is_inside:\n            raise self._outside(location)\n",
            "",
            "tests/unit/storage/test_roots.py::test_the_store_touches_no_directory_outside_its_root",
        ),
        Mutant(
            "pipelines/storage/roots.py",
            "self.parts[: len(root.parts)] == root.parts",
            "self.key.startswith(root.key)",
            "tests/unit/storage/test_roots.py::test_the_store_touches_no_object_outside_its_root",
        ),
    ),
    (
        "a checkpoint that was reported as failed is never a recovery point of its run, "
        "and is deleted before its output is rolled back"
    ): (
        Mutant(
            "pipelines/runtime/master/start/next_start.py",
            "        self._delete_given_up()\n        self._say_what_comes_again(start)\n",
            "        self._say_what_comes_again(start)\n",
            (
                "tests/unit/runtime/test_given_up_points.py::"
                "test_a_given_up_point_is_deleted_before_output_is_rolled_back"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "            if may_be_complete:\n",
            "            if False:\n",
            (
                "tests/unit/runtime/test_given_up_points.py::"
                "test_a_given_up_point_is_deleted_before_output_is_rolled_back"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/checkpoint_host.py",
            "        self._files.discard_given_up(context.fence.current)\n",
            "",
            (
                "tests/unit/runtime/test_given_up_points.py::"
                "test_a_given_up_point_is_deleted_once_the_storage_answers_again"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/job_master.py",
            "        found.given_up,\n",
            "",
            (
                "tests/unit/runtime/test_given_up_points.py::"
                "test_a_later_driver_deletes_a_given_up_point_and_restores_the_previous"
            ),
        ),
        Mutant(
            "pipelines/storage/filesystem.py",
            (
                "            with contextlib.suppress(FileNotFoundError):\n"
                "                make_durable(directory)\n"
            ),
            "",
            (
                "tests/unit/runtime/master/test_crash_at_every_step.py::"
                "test_an_abandoned_point_is_either_whole_or_deleted_after_a_death[fails]"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/run_opening.py",
            "point.checkpoint_id in ids or point.location == location",
            "point.location == location",
            (
                "tests/unit/runtime/master/test_run_opening.py::"
                "test_a_checkpoint_reported_as_failed_is_no_point_despite_its_manifest"
            ),
        ),
        Mutant(
            "pipelines/bus/journal_segments.py",
            "    CheckpointFailed: UNPUBLISHED_KEPT,",
            "    ",
            (
                "tests/unit/runtime/master/test_run_opening.py::"
                "test_a_checkpoint_reported_as_failed_is_no_point_despite_its_manifest"
            ),
        ),
    ),
    (
        "backoff is a phase of its own, a person may end it, and that of a cured incident delays"
        " no other failure"
    ): (
        Mutant(
            "ftdash/supervision/drivers.py",
            "return due if run.driver_due_at is None else min(due, run.driver_due_at)",
            "return due",
            (
                "tests/web/test_supervision.py::test_the_wait_before_another_driver_is_shown_and"
                "_a_person_may_end_it"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/attempt/watchers.py",
            "max(0.0, min(waited_ms, passed_ms))",
            "0.0",
            (
                "tests/unit/runtime/master/test_recovery_watch.py::"
                "test_a_deliberate_wait_of_the_supervision_is_backoff_and_not_detection"
            ),
        ),
        Mutant(
            "pipelines/protocol/restart.py",
            "self._due_ms = min(self._due_ms, now_ms)",
            "pass",
            "tests/unit/protocol/test_restart.py::test_a_retry_discards_the_pending_restart_time",
        ),
        Mutant(
            "pipelines/protocol/restart.py",
            "if self._was_stable(now_ms) or self._is_unrelated(cause):",
            "if self._was_stable(now_ms):",
            "tests/unit/protocol/test_restart.py::"
            "test_backoff_of_a_cured_incident_delays_no_unrelated_failure",
        ),
        Mutant(
            "pipelines/protocol/restart.py",
            "        self._last_ms += waited_ms\n",
            "",
            "tests/unit/protocol/test_recovery.py::"
            "test_deliberate_waits_count_as_backoff_and_in_no_other_step",
        ),
        Mutant(
            "pipelines/runtime/master/attempt/failures.py",
            "        self._restart.on_retried(now_ms)\n",
            "",
            "tests/unit/runtime/master/test_job_master.py::"
            "test_a_retry_ends_the_wait_before_a_restart_and_the_wait_is_its_own_phase",
        ),
    ),
    "a damaged point is never restored silently": (
        Mutant(
            "pipelines/protocol/restart.py",
            "        if problem is None:\n",
            "        if True:\n",
            (
                "tests/unit/protocol/test_recovery.py::test_the_newest_whole_point_is_c"
                "hosen_and_every_newer_one_is_named"
            ),
        ),
        Mutant(
            "pipelines/storage/filesystem.py",
            (
                "        problem = problem_of_file(directory, file)\n"
                "        if problem is not None:\n"
                "            raise CorruptSnapshot(problem)\n"
                "        yield"
            ),
            "        yield",
            (
                "tests/contracts/test_damaged_points.py::"
                "test_every_reader_names_a_damaged_file_and_none_loads_it[files-canonic"
                "al-value-.parquet-missing]"
            ),
        ),
    ),
    (
        "a checkpoint never refers to a file that was found damaged before its manifest, "
        "and a recovery uses no such point while another one is undamaged"
    ): (
        Mutant(
            "pipelines/protocol/retention.py",
            "return self._was_refused or bool(self.damaged_among(confirmed))",
            "return bool(self.damaged_among(confirmed))",
            (
                "tests/unit/protocol/test_damaged_files.py::"
                "test_after_a_refusal_checkpoints_are_full_until_an_undamaged_one_completes"
            ),
        ),
        Mutant(
            "pipelines/protocol/retention.py",
            "return sorted(self.every_newest_first(), key=lambda point: point in self._damaged)",
            "return self.every_newest_first()",
            (
                "tests/unit/protocol/test_damaged_files.py::test_a_recovery_takes_no_da"
                "maged_point_while_a_whole_one_exists"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/damage_memory.py",
            (
                "return BUILD_ON_NOTHING if begins_anew or confirmed_id not in whole "
                "else confirmed_id"
            ),
            "return confirmed_id",
            (
                "tests/contracts/test_damaged_chain_files.py::"
                "test_the_next_checkpoint_rewrites_a_damaged_file_of_a_chain"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/damage_memory.py",
            (
                "return BUILD_ON_NOTHING if begins_anew or confirmed_id not in whole "
                "else confirmed_id"
            ),
            "return confirmed_id",
            (
                "tests/processes/test_damaged_chains.py::"
                "test_once_damage_is_found_no_checkpoint_needs_the_file_even_after_a_kill"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/damage_memory.py",
            "names = self._files.damaged_among(shared_names(manifest.subtasks))",
            "names: list[str] = []",
            (
                "tests/unit/runtime/master/test_damage_memory.py::"
                "test_a_manifest_with_a_damaged_file_is_refused_and_the_next_one_is_full"
            ),
        ),
    ),
    "a driver reads its points at once when another process finds damage in one, "
    "and believes only what it reads": (
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "        if self._waiting:\n            return now_ms\n",
            "",
            (
                "tests/unit/runtime/master/test_verification.py::"
                "test_requests_during_a_verification_share_the_next_one"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/requests/command_desk.py",
            "self._verifier.on_request(command.request_id)",
            "pass",
            (
                "tests/processes/test_damaged_chains.py::"
                "test_once_damage_is_found_no_checkpoint_needs_the_file_even_after_a_ki"
                "ll[another process-hashmap]"
            ),
        ),
        Mutant(
            "pipelines/bus/inbox.py",
            "if is_driven(run):",
            "if True:",
            (
                "tests/unit/bus/test_damage_notice.py::"
                "test_ended_runs_and_runs_without_the_point_are_not_asked"
            ),
        ),
        Mutant(
            "ftdash/jobs/damage.py",
            "if not run.is_terminal",
            "if run.is_terminal",
            (
                "tests/web/test_found_damage.py::test_the_driver_of_the_run_that_wrote_th"
                "e_point_is_asked_once"
            ),
        ),
    ),
    "state is taken over by uid, or refused by name": (
        Mutant(
            "pipelines/protocol/compatibility.py",
            "        *_left_behind(manifest, held, dropped, undeclared, target),\n",
            "",
            (
                "tests/unit/protocol/test_compatibility.py::"
                "test_dropping_the_state_of_a_missing_operator_needs_permission"
            ),
        ),
        Mutant(
            "pipelines/points/preflight.py",
            "        _compatibility(found),\n",
            "",
            (
                "tests/unit/points/test_preflight.py::"
                "test_a_missing_operator_is_named_and_its_state_may_be_dropped"
            ),
        ),
    ),
    "input that is gone is passed over only where a person accepted exactly that gap, and the"
    " ledger says so": (
        Mutant(
            "pipelines/points/input.py",
            "if each.gap.text in accepted]",
            "]",
            (
                "tests/unit/points/test_gaps.py::test_a_gap_that_grew_or_shrank_is_not_the_accepted_one"
            ),
        ),
        Mutant(
            "pipelines/audit/auditor.py",
            "(behind is not None and split.first == behind)",
            "behind is not None",
            (
                "tests/unit/audit/test_input_audit.py::"
                "test_only_the_exact_gap_that_was_accepted_is_no_difference"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/next_start.py",
            "start.ledger, self._gaps_of(start))",
            "start.ledger)",
            (
                "tests/processes/test_accepted_gaps.py::"
                "test_a_run_passes_an_accepted_gap_and_its_ledger_records_it"
            ),
        ),
    ),
    "a renamed operator continues with its state if a person maps it, or is refused": (
        Mutant(
            "pipelines/runtime/master/attempt/attempts.py",
            "renamed_uids=spec.renamed_uids if start and start.location == spec.restore_from else",
            "renamed_uids={} if start else",
            (
                "tests/processes/test_process_functions.py::"
                "test_renamed_operators_keep_their_state_even_if_the_restore_is_killed"
            ),
        ),
        Mutant(
            "pipelines/domain/snapshots.py",
            "msgspec.structs.replace(each, channel=_channel(each.channel, new_names))",
            "each",
            (
                "tests/unit/protocol/test_compatibility.py::test_vertices_channels_and_"
                "parallelisms_are_renamed_too"
            ),
        ),
        Mutant(
            "pipelines/protocol/compatibility.py",
            "if any(each.has_output or each.outputs for each in held[old]):\n",
            "if False:\n",
            "tests/unit/protocol/test_compatibility.py::test_an_impossible_renaming_is_refused",
        ),
        Mutant(
            "pipelines/points/preflight.py",
            "        _new_names(unfit, question),\n",
            "",
            (
                "tests/unit/points/test_preflight.py::"
                "test_a_renamed_operator_is_guessed_and_can_be_mapped_by_hand"
            ),
        ),
        Mutant(
            "pipelines/protocol/compatibility.py",
            "    return {old: each for old, each in found.items() if taken.count(each) == 1}",
            "    return found",
            (
                "tests/unit/protocol/test_compatibility.py::"
                "test_no_renaming_is_guessed_in_case_of_doubt"
            ),
        ),
        Mutant(
            "ftdash/points/services/restore.py",
            "            renamed_uids=wanted.renamed,\n",
            "",
            (
                "tests/web/test_fresh_code.py::"
                "test_a_renamed_operator_is_mapped_by_hand_on_the_restore_page"
            ),
        ),
    ),
    "no attempt starts with a certificate that its slots would refuse; the message says why": (
        Mutant(
            "pipelines/channels/handshake.py",
            "for side in sides * GREETINGS:",
            "for side in sides:",
            (
                "tests/unit/channels/test_tls.py"
                "::test_a_certificate_that_has_expired_is_refused_before_any_slot_is_started"
            ),
        ),
    ),
    "a connection without the attempt's token is refused": (
        Mutant(
            "pipelines/channels/handshake.py",
            "return Refusal.WRONG_TOKEN",
            "return None",
            "tests/unit/channels/test_handshake.py::test_a_stranger_is_refused_on_both_sides",
        ),
        Mutant(
            "pipelines/channels/handshake.py",
            ('if not hmac.compare_digest(verdict[1:], _proof(secret, b"server", hello, answer)):'),
            "if False:",
            (
                "tests/unit/channels/test_handshake.py::"
                "test_a_client_rejects_a_server_without_the_token"
            ),
        ),
        Mutant(
            "pipelines/channels/guarded_port.py",
            "if claim.slot in self._admitted:",
            "if False:",
            (
                "tests/unit/channels/test_slot_network.py::test_a_slot_connects_only_once_per_attempt"
            ),
        ),
        Mutant(
            "pipelines/channels/guarded_port.py",
            (
                "                if error.errno in SHORTAGES:\n"
                "                    self._pause(error)\n"
                "                    continue\n"
            ),
            "",
            (
                "tests/unit/channels/test_guarded_port.py::"
                "test_a_port_accepts_callers_again_after_a_shortage_of_files"
            ),
        ),
        Mutant(
            "pipelines/channels/handshake.py",
            "context.verify_mode = ssl.CERT_REQUIRED",
            "context.verify_mode = ssl.CERT_NONE",
            (
                "tests/unit/channels/test_tls.py::test_a_certificate_of_another_authori"
                "ty_is_refused_by_either_end"
            ),
        ),
    ),
    "a point shows the same rows whichever backend wrote it": (
        Mutant(
            "pipelines/points/contents.py",
            "rows=sum(handle.rows for handle in handles),",
            "rows=handles[0].rows,",
            (
                "tests/unit/points/test_browsing.py::"
                "test_the_contents_of_a_point_are_listed_by_operator_and_state"
            ),
        ),
        Mutant(
            "pipelines/points/browsing.py",
            "first = max(0, skipped - row)",
            "first = 0",
            (
                "tests/contracts/test_looking_into_points.py::test_every_kind_of_point_"
                "shows_the_same_rows_page_by_page"
            ),
        ),
    ),
    ("the recommended point is usable and costs the least to restore"): (
        Mutant(
            "pipelines/points/verdict.py",
            "return self in (Fitness.VERIFIED, Fitness.UNREAD)",
            "return self is not Fitness.GONE",
            (
                "tests/unit/points/test_recommendation.py::"
                "test_newer_unusable_points_are_named_with_the_reason"
            ),
        ),
        Mutant(
            "pipelines/points/verdict.py",
            "best = max(usable",
            "best = min(usable",
            (
                "tests/unit/points/test_recommendation.py::"
                "test_the_recommended_point_is_usable_and_no_better_one_exists"
            ),
        ),
    ),
    (
        "an operator with a parallelism of its own keeps its state, positions and output over a"
        " rescale of the run or of itself"
    ): (
        Mutant(
            "pipelines/domain/nodes.py",
            "return replace(connection, unkeyed=EdgeKind.REBALANCE)",
            "return connection",
            (
                "tests/unit/domain/test_parallelisms.py::test_a_chain_breaks_where_the_paralleli"
                "sm_changes_and_records_are_dealt_there"
            ),
        ),
        Mutant(
            "pipelines/domain/snapshots.py",
            "return self.parallelisms.get(uid, self.parallelism)",
            "return self.parallelism",
            (
                "tests/unit/stream/test_parallelism.py::test_each_key_keeps_its_state_over_a_res"
                "cale_of_the_run_and_of_the_operator"
            ),
        ),
    ),
}
