"""Mutants: which process may act, what is kept, and where a run continues."""

from tests.mutants.mutant import Mutant

RECOVERY: dict[str, tuple[Mutant, ...]] = {
    "any bytes from a peer, a file or a disk are a value or the error that callers handle": (
        Mutant(
            "pipelines/structured/formats.py",
            "    except UnicodeDecodeError as error:\n",
            "    except KeyError as error:\n",
            ("tests/unit/test_outside_input.py::test_what_once_raised_another_error_is_damaged"),
        ),
    ),
    "a run that a person cancels before it has slots ends at once and answers its requests": (
        Mutant(
            "pipelines/spark/stage.py",
            "            if is_cancelled():\n",
            "            if False:\n",
            (
                "tests/unit/spark/test_start.py::test_a_run_that_is_cancelled_does_not_wait_for"
                "_yarn_any_more"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/driving.py",
            "    except StartGivenUp:\n        return master.cancel_unstarted()\n",
            "    except StartGivenUp:\n        raise\n",
            (
                "tests/unit/runtime/master/test_driving.py::test_a_run_that_is_cancelled_before_it"
                "_has_slots_ends_and_answers"
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
                "tests/unit/protocol/test_poison_records.py::test_a_record_that_is_quar"
                "antined_is_not_blamed_for_what_comes_after"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/split_screen.py",
            "        self._commit(self._log.take_restored())\n",
            "",
            (
                "tests/unit/runtime/subtask/test_quarantine.py::test_what_the_restored_"
                "point_had_prepared_is_committed_where_nothing_is_isolated_any_more"
            ),
        ),
    ),
    "a quarantined record is replayed once": (
        Mutant(
            "pipelines/connectors/files/quarantine.py",
            ("return [_named(split) for split in found if self._is_of_others(split.name)]"),
            "return [_named(split) for split in found]",
            (
                "tests/unit/connectors/files/test_replayed_quarantine.py::test_it_finds"
                "_what_other_runs_have_set_aside_and_gives_each_record_as_it_was"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/quarantine.py",
            "{name.removeprefix(REPLAYED_PREFIX) for name in known}",
            "set()",
            (
                "tests/unit/connectors/files/test_replayed_quarantine.py::test_what_is_"
                "known_is_not_found_again_and_nothing_is_without_looking"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/reserving_reader.py",
            "if batch is None and self._quarantine.is_exhausted:",
            "if batch is None:",
            (
                "tests/unit/runtime/subtask/test_replaying_reader.py::test_the_source_w"
                "aits_while_its_quarantine_has_nothing_at_the_moment"
            ),
        ),
    ),
    (
        "a start over is undone only while its run has committed nothing, and then exactly what it"
        " set aside is back"
    ): (
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "self._asked is not None or self._has_put_back or self._context.spec.puts_back",
            "self._asked is not None or self._has_put_back",
            "tests/processes/test_undone_starts.py"
            "::test_a_run_of_its_own_puts_back_what_a_run_that_is_over_has_set_aside",
        ),
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "return completed is not None or any(True for _ in own)",
            "return completed is not None",
            (
                "tests/unit/runtime/test_undone_starts.py::test_a_point_that_a_dead_driver_publi"
                "shed_without_a_word_counts_as_committed"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "if self._is_publishing():",
            "if False:",
            (
                "tests/unit/runtime/test_undone_starts.py::test_a_checkpoint_whose_manifest_is_b"
                "eing_written_may_be_complete"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/requests/start_undo.py",
            "if newest is None or newest.sequence < begun.sequence:",
            "if newest is None:",
            (
                "tests/unit/runtime/master/test_earlier_output.py::test_an_attempt_that_fell_"
                "back_to_an_older_point_has_set_the_newer_output_aside"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/next_start.py",
            "lineage=tuple(lineage), source_records=0",
            "lineage=(), source_records=0",
            (
                "tests/processes/test_undone_starts.py::test_files_that_were_set_aside_come_bac"
                "k_and_a_restore_goes_on"
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
                "tests/unit/runtime/subtask/test_gate_feed.py::test_a_sink_commits_with_a_permi"
                "t_of_its_own_attempt_only"
            ),
        ),
        Mutant(
            "pipelines/bus/lease.py",
            ("        self.check_held()\n        make_directory(self._directory.attempts)"),
            "        make_directory(self._directory.attempts)",
            (
                "tests/unit/bus/test_lease.py::test_a_holder_whose_lock_was_lost_is_sto"
                "pped_by_whoever_took_over"
            ),
        ),
        Mutant(
            "pipelines/bus/lease.py",
            "return is_held and attempt == self.attempts_so_far()",
            "return is_held",
            ("tests/unit/bus/test_lease.py::test_an_attempt_is_current_until_the_next_is_numbered"),
        ),
        Mutant(
            "pipelines/channels/handshake.py",
            "if claim.attempt != attempt:",
            "if claim.attempt > attempt:",
            ("tests/unit/channels/test_handshake.py::test_a_stranger_is_refused_on_both_sides"),
        ),
        Mutant(
            "pipelines/runtime/slot/vigil.py",
            "if stopped_ms > self._timeout_ms:",
            "if False:",
            (
                "tests/unit/runtime/slot/test_vigil.py::test_a_process_that_was_stopped"
                "_objects_though_it_hears_what_was_said_before"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            ("            if not self._owns_run(attempt):\n                return NOT_OWNED\n"),
            "",
            (
                "tests/unit/runtime/master/test_checkpoint_host.py::test_after_the_leas"
                "e_is_lost_nothing_is_published_or_announced"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            ("        if not self._owns_run(attempt):\n            return False\n"),
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
            ("tests/web/test_hung_drivers.py::test_a_machine_that_slept_has_no_driver_replaced"),
        ),
        Mutant(
            "pipelines/bus/lease.py",
            (
                "            if _recorded_owner(run_directory) != owner:\n"
                '                raise BlockingIOError("the run has another owner")\n'
            ),
            "",
            ("tests/unit/bus/test_lease.py::test_of_two_that_fence_off_one_driver_one_does"),
        ),
        Mutant(
            "pipelines/bus/lease.py",
            "return _version_of(self._file) in (self._record, None)",
            "return True",
            (
                "tests/processes/test_replaced_drivers.py::test_a_driver_that_goes_on_w"
                "hile_its_successor_runs_disturbs_nothing"
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
                "tests/unit/bus/test_journal_segments.py::test_however_long_a_run_is_ev"
                "ery_reader_finds_what_it_found_in_one_file"
            ),
        ),
        Mutant(
            "pipelines/bus/journal_segments.py",
            "RecordQuarantined: None,",
            "RecordQuarantined: 1,",
            (
                "tests/unit/bus/test_journal_segments.py::test_however_long_a_run_is_ev"
                "ery_reader_finds_what_it_found_in_one_file"
            ),
        ),
    ),
    "no retained point loses a file, nothing unused stays": (
        Mutant(
            "pipelines/protocol/retention.py",
            ("left = candidates.union(*(leaving.files for leaving in done)) - self.needed"),
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
                "tests/unit/protocol/test_shared_files.py::test_a_point_that_could_not_"
                "be_read_keeps_all_that_it_may_refer_to"
            ),
        ),
        Mutant(
            "pipelines/protocol/retention.py",
            "oldest = whole[self._count - 1].order()",
            "oldest = whole[0].order()",
            (
                "tests/unit/protocol/test_retention.py::test_the_newest_and_all_savepoi"
                "nts_are_never_deleted"
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
                "tests/unit/runtime/master/test_kept_rows.py::test_rows_stay_while_a_po"
                "int_of_any_run_names_them_and_go_with_the_last"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/run_opening.py",
            "if rows.name not in needed:",
            "if True:",
            (
                "tests/unit/runtime/master/test_kept_rows.py::test_rows_stay_while_a_po"
                "int_of_any_run_names_them_and_go_with_the_last"
            ),
        ),
    ),
    "a failure that would come back ends the run, with its record named": (
        Mutant(
            "pipelines/protocol/repeated_failures.py",
            "return tries >= self._tries_min and over_ms >= self._over_min_ms",
            "return tries >= self._tries_min",
            (
                "tests/unit/protocol/test_repeated_failures.py::test_one_bad_record_is_"
                "found_at_the_first_try_that_is_late_enough"
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
                "::test_what_was_emitted_less_what_lies_beyond_is_the_position"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/slots/metrics_board.py",
            "self._reached_records = max(before, restored_records)",
            "self._reached_records = before + restored_records",
            (
                "tests/unit/runtime/master/test_replay_figures.py::test_what_is_read_ag"
                "ain_is_the_difference_of_two_positions"
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
                "tests/unit/connectors/test_beginning.py::test_who_knows_the_listing_se"
                "es_the_same_files_whatever_has_become_of_them"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/run_context.py",
            "and uid not in self._found.splits",
            "",
            (
                "tests/unit/runtime/master/test_run_beginning.py::test_a_log_is_looked_"
                "at_once_for_all_attempts_and_drivers"
            ),
        ),
        Mutant(
            "pipelines/connectors/positions.py",
            ("    if listed is None:\n        return look()"),
            ("    if listed is None or listed:\n        return look()"),
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
            ("tests/contracts/test_growing_source.py::test_what_is_gone_is_named_and_not_skipped"),
        ),
        Mutant(
            "pipelines/connectors/redis/stream_entries.py",
            "return self.max_deleted + 1 if is_lost else 0",
            "return 0",
            (
                "tests/unit/connectors/redis/test_stream_extent.py::test_an_entry_delet"
                "ed_below_an_older_hole_is_missed_at_once_where_none_before_it_is_left"
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
            (
                "tests/unit/connectors/test_split_packs.py::test_a_pack_gives_every_nam"
                "e_back_as_it_was"
            ),
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
            ("        if not is_inside:\n            raise self._outside(location)\n"),
            "",
            "tests/unit/storage/test_roots.py::test_no_directory_outside_is_touched",
        ),
        Mutant(
            "pipelines/storage/roots.py",
            "self.parts[: len(root.parts)] == root.parts",
            "self.key.startswith(root.key)",
            "tests/unit/storage/test_roots.py::test_no_object_outside_is_touched",
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
                "tests/unit/runtime/test_given_up_points.py::test_it_is_gone_before_outp"
                "ut_is_rolled_back"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "            if may_be_complete:\n",
            "            if False:\n",
            (
                "tests/unit/runtime/test_given_up_points.py::test_it_is_gone_before_outp"
                "ut_is_rolled_back"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/checkpoints/checkpoint_host.py",
            "        self._files.discard_given_up(context.fence.current)\n",
            "",
            (
                "tests/unit/runtime/test_given_up_points.py::test_it_is_deleted_as_soon_"
                "as_the_storage_answers_again"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/job_master.py",
            "        found.given_up,\n",
            "",
            (
                "tests/unit/runtime/test_given_up_points.py::test_a_later_driver_deletes"
                "_it_and_goes_back_to_the_point_before"
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
                "tests/unit/runtime/master/test_crash_at_every_step.py::test_a_point_tha"
                "t_was_given_up_is_whole_or_gone_and_never_comes_back[fails]"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/run_opening.py",
            "point.checkpoint_id in ids or point.location == location",
            "point.location == location",
            (
                "tests/unit/runtime/master/test_run_opening.py::test_a_point_that_was_re"
                "ported_as_failed_is_none_though_its_manifest_is_there"
            ),
        ),
        Mutant(
            "pipelines/bus/journal_segments.py",
            "    CheckpointFailed: UNPUBLISHED_KEPT,",
            "    ",
            (
                "tests/unit/runtime/master/test_run_opening.py::test_a_point_that_was_re"
                "ported_as_failed_is_none_though_its_manifest_is_there"
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
                "tests/unit/runtime/master/test_recovery_watch.py::test_what_the_supervision_wai"
                "ted_on_purpose_is_backoff_and_not_detection"
            ),
        ),
        Mutant(
            "pipelines/protocol/restart.py",
            "self._due_ms = min(self._due_ms, now_ms)",
            "pass",
            "tests/unit/protocol/test_restart.py::"
            "test_after_a_retry_the_moment_that_was_due_is_forgotten",
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
            "test_what_is_waited_on_purpose_is_backoff_and_in_no_other_step",
        ),
        Mutant(
            "pipelines/runtime/master/attempt/failures.py",
            "        self._restart.on_retried(now_ms)\n",
            "",
            "tests/unit/runtime/master/test_job_master.py::"
            "test_a_person_ends_the_wait_before_a_restart_and_the_wait_is_a_phase_of_its_own",
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
                "tests/contracts/test_damaged_points.py::test_a_damaged_file_is_named_b"
                "y_everybody_and_loaded_by_nobody[files-canonical-value-.parquet-missin"
                "g]"
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
                "tests/unit/protocol/test_damaged_files.py::test_after_a_refused_checkp"
                "oint_all_begin_anew_until_a_whole_one_completes"
            ),
        ),
        Mutant(
            "pipelines/protocol/retention.py",
            ("return sorted(self.every_newest_first(), key=lambda point: point in self._damaged)"),
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
                "tests/contracts/test_damaged_chain_files.py::test_a_damaged_file_of_a_"
                "chain_is_written_again_by_the_next_checkpoint"
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
                "tests/processes/test_damaged_chains.py::test_after_a_finding_no_checkp"
                "oint_needs_the_damaged_file_and_a_kill_costs_nothing"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/damage_memory.py",
            "names = self._files.damaged_among(shared_names(manifest.subtasks))",
            "names: list[str] = []",
            (
                "tests/unit/runtime/master/test_damage_memory.py::test_a_manifest_with_"
                "a_damaged_file_is_not_published_and_all_begin_anew"
            ),
        ),
    ),
    "a driver reads its points at once when another process finds damage in one, "
    "and believes only what it reads": (
        Mutant(
            "pipelines/runtime/master/checkpoints/point_files.py",
            "        if self._asked:\n            return now_ms\n",
            "",
            (
                "tests/unit/runtime/master/test_verification.py::test_all_requests_of_a_r"
                "eading_under_way_share_the_next_one"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/requests/command_desk.py",
            "self._verifier.on_asked(command.request_id)",
            "pass",
            (
                "tests/processes/test_damaged_chains.py::test_after_a_finding_no_checkpoi"
                "nt_needs_the_damaged_file_and_a_kill_costs_nothing[another process-hashm"
                "ap]"
            ),
        ),
        Mutant(
            "pipelines/bus/inbox.py",
            "if is_driven(run):",
            "if True:",
            (
                "tests/unit/bus/test_damage_notice.py::test_no_run_is_asked_that_is_over_"
                "or_that_the_point_does_not_lie_with"
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
                "tests/unit/protocol/test_compatibility.py::test_an_operator_that_is_go"
                "ne_needs_the_permission_to_leave_its_state"
            ),
        ),
        Mutant(
            "pipelines/points/preflight.py",
            "        _compatibility(found),\n",
            "",
            (
                "tests/unit/points/test_preflight.py::test_an_operator_that_is_gone_is_"
                "named_and_may_be_left_behind"
            ),
        ),
    ),
    "input that is gone is passed over only where a person accepted exactly that gap, and the"
    " ledger says so": (
        Mutant(
            "pipelines/points/input.py",
            "if each.gap.text in accepted]",
            "]",
            ("tests/unit/points/test_gaps.py::test_a_gap_that_has_grown_is_not_the_accepted_one"),
        ),
        Mutant(
            "pipelines/audit/auditor.py",
            "(behind is not None and split.first == behind)",
            "behind is not None",
            (
                "tests/unit/audit/test_input_audit.py::test_only_the_very_gap_that_was_accept"
                "ed_is_no_difference"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/start/next_start.py",
            "start.ledger, self._gaps_of(start))",
            "start.ledger)",
            (
                "tests/processes/test_accepted_gaps.py::test_a_run_goes_past_the_gap_that_was_a"
                "ccepted_and_its_ledger_says_so"
            ),
        ),
    ),
    "a renamed operator continues with its state if a person maps it, or is refused": (
        Mutant(
            "pipelines/runtime/master/attempt/attempts.py",
            "renamed_uids=spec.renamed_uids if start and start.location == spec.restore_from else",
            "renamed_uids={} if start else",
            (
                "tests/processes/test_process_functions.py::test_operators_that_were_re"
                "named_go_on_with_their_state_also_if_the_restore_is_killed"
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
            (
                "tests/unit/protocol/test_compatibility.py::test_a_new_name_that_cannot"
                "_be_given_is_refused"
            ),
        ),
        Mutant(
            "pipelines/points/preflight.py",
            "        _new_names(unfit, question),\n",
            "",
            (
                "tests/unit/points/test_preflight.py::test_an_operator_with_another_uid"
                "_is_guessed_and_mapped_by_hand"
            ),
        ),
        Mutant(
            "pipelines/protocol/compatibility.py",
            "    return {old: each for old, each in found.items() if taken.count(each) == 1}",
            "    return found",
            (
                "tests/unit/protocol/test_compatibility.py::test_what_may_be_another_op"
                "erator_is_not_named"
            ),
        ),
        Mutant(
            "ftdash/points/services/restore.py",
            "            renamed_uids=asked.renamed,\n",
            "",
            (
                "tests/web/test_fresh_code.py::test_a_renamed_operator_is_mapped_by_han"
                "d_on_the_page_of_the_restore"
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
            ("tests/unit/channels/test_handshake.py::test_a_stranger_is_refused_on_both_sides"),
        ),
        Mutant(
            "pipelines/channels/handshake.py",
            ('if not hmac.compare_digest(verdict[1:], _proof(secret, b"server", hello, answer)):'),
            "if False:",
            (
                "tests/unit/channels/test_handshake.py::test_a_server_without_the_token"
                "_is_not_believed"
            ),
        ),
        Mutant(
            "pipelines/channels/guarded_port.py",
            "if claim.slot in self._admitted:",
            "if False:",
            ("tests/unit/channels/test_slot_network.py::test_a_slot_connects_once_an_attempt"),
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
                "tests/unit/channels/test_guarded_port.py::test_a_process_short_of_file"
                "s_takes_callers_again_once_it_has_some"
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
                "tests/unit/points/test_browsing.py::test_what_a_point_holds_is_told_by"
                "_operator_and_state"
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
                "tests/unit/points/test_recommendation.py::test_newer_ones_that_cannot_b"
                "e_used_are_named_with_why"
            ),
        ),
        Mutant(
            "pipelines/points/verdict.py",
            "best = max(usable",
            "best = min(usable",
            (
                "tests/unit/points/test_recommendation.py::test_what_is_recommended_can_"
                "be_used_and_nothing_better_is_left"
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
