"""Mutants: cuts, barriers, event time and the conditions that complete a checkpoint."""

from tests.mutants.mutant import Mutant

MAKING_WAY = "tests/unit/runtime/subtask/test_making_way.py"
RELEASED = "tests/unit/runtime/subtask/test_released_cuts.py"
KEY_INDEX = "tests/unit/state/test_key_index.py"
INCREMENTS = "tests/contracts/test_state_increments.py"
ON_DISK = "tests/unit/state/test_rocksdb_memory.py"
LARGE_ROWS = (
    "tests/unit/state/test_row_codec.py"
    "::test_large_rows_are_read_in_small_batches_with_bounded_memory"
)

CHECKPOINTS: dict[str, tuple[Mutant, ...]] = {
    "a row that has left the memory for RocksDB is found again, and few keys that are not on disk"
    " are looked for there": (
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "            self._room -= len(now)",
            "            self._room -= len(now)\n            now = now[1:]",
            f"{ON_DISK}::test_a_filter_finds_every_added_key_and_few_others",
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "return positions[self._filter.may_hold(hashes)]",
            "return positions",
            f"{ON_DISK}::test_evicted_rows_are_found_and_new_keys_are_rarely_looked_up_on_disk",
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "        self._filter.add(self._hash_keys(keys, tuple(self._descriptor.key.names)))",
            "        pass",
            f"{ON_DISK}::test_evicted_rows_are_found_and_new_keys_are_rarely_looked_up_on_disk",
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "        self._filter.on_unknown()",
            "        pass",
            f"{INCREMENTS}::test_a_database_is_taken_over_unchanged_and_later_cuts_build_on_it",
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "at = order[[value is not None for value in found]]",
            "at = np.flatnonzero([value is not None for value in found])",
            f"{ON_DISK}::test_evicted_rows_are_found_and_new_keys_are_rarely_looked_up_on_disk",
        ),
    ),
    "an asynchronous request in flight is in the snapshot, and event time waits for its result": (
        Mutant(
            "pipelines/operators/asynchronous/async_map.py",
            "for work in self._queue.unfinished():",
            "for work in self._queue.unfinished()[:0]:",
            (
                "tests/unit/operators/test_async_map.py::"
                "test_requests_in_flight_are_snapshotted_and_repeated_after_a_restore"
            ),
        ),
        Mutant(
            "pipelines/operators/asynchronous/request_queue.py",
            "        self._entries.append(mark)",
            "        self._entries.appendleft(mark)",
            (
                "tests/unit/operators/test_request_queue.py::"
                "test_results_stay_between_the_watermarks_around_their_rows"
            ),
        ),
        Mutant(
            "pipelines/operators/asynchronous/request_queue.py",
            "(self._has_ended and bool(self._entries))",
            "False",
            (
                "tests/unit/testing/test_async_requests.py::test_the_end_of_the_input_waits_for_ever"
                "y_result"
            ),
        ),
    ),
    ("a cut, with what was in flight, holds exactly the records before its barriers"): (
        Mutant(
            "pipelines/protocol/alignment.py",
            "if not self._arrived or self._arrived != self._open:",
            "if not self._arrived:",
            (
                "tests/unit/protocol/test_alignment.py::test_snapshot_covers_exactly_th"
                "e_records_before_the_barrier"
            ),
        ),
        Mutant(
            "pipelines/protocol/alignment.py",
            "frozenset(self._announced) - arrived",
            "frozenset(self._announced)",
            (
                "tests/unit/protocol/test_unaligned.py::test_state_and_channel_state_ar"
                "e_exactly_the_records_before_the_barriers"
            ),
        ),
        Mutant(
            "pipelines/protocol/alignment.py",
            "return [*aborted, Block(channel), *self._snapshot_if_aligned()]",
            "return [*aborted, *self._snapshot_if_aligned()]",
            (
                "tests/simulation/test_random_dataflows.py::test_the_first_seeds_keep_e"
                "very_promise_in_a_plain_run_too"
            ),
        ),
    ),
    "at least once loses nothing, at most once doubles nothing": (
        Mutant(
            "pipelines/protocol/alignment.py",
            "if arrived >= self._open)",
            "if arrived)",
            (
                "tests/unit/protocol/test_barrier_tracking.py::test_a_snapshot_covers_a"
                "t_least_the_records_before_the_barrier"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/reserving_reader.py",
            "return bool(self._ahead) and self._ahead[0].number <= self._granted.count",
            "return bool(self._ahead)",
            (
                "tests/unit/runtime/subtask/test_reserving_reader.py::"
                "test_no_record_is_handed_out_twice_whenever_the_attempt_dies"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/reserving_reader.py",
            "return bool(self._ahead) and self._ahead[0].number <= self._granted.count",
            "return bool(self._ahead)",
            (
                "tests/processes/test_modes.py::"
                "test_at_most_once_loses_records_in_flight_at_a_crash_and_doubles_none"
            ),
        ),
    ),
    "a silent split holds no window back, and no watermark is lost at a cut": (
        Mutant(
            "pipelines/protocol/watermarks.py",
            "[each.watermark_ms for each in inputs if each.counts]",
            "[each.watermark_ms for each in inputs]",
            (
                "tests/unit/protocol/test_watermarks.py::test_idle_inputs_hold_nothing_"
                "back_and_active_ones_are_never_passed"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/direct_reader.py",
            "[] if restored_watermark_ms is None else [Watermark(restored_watermark_ms)]",
            "[]",
            (
                "tests/unit/runtime/subtask/test_direct_reader.py::test_event_time_of_a"
                "_restored_reader_does_not_go_back"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/snapshots/in_flight.py",
            "marks = [] if watermark_ms is None else [Watermark(watermark_ms)]",
            "marks: list[Watermark] = []",
            (
                "tests/unit/runtime/subtask/test_watermarks_in_flight.py::"
                "test_windows_due_by_a_watermark_in_flight_fire_after_a_restore"
            ),
        ),
        Mutant(
            "pipelines/operators/event_time.py",
            "self._has_told = self._current_ms == MIN_WATERMARK_MS",
            "self._has_told = True",
            (
                "tests/unit/runtime/subtask/test_assigned_time.py::test_a_snapshot_keep"
                "s_the_assigned_time_and_a_restore_sends_it_again"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/chains/chain.py",
            "self._input_time.exchanges if is_time else self._exchanges",
            "self._exchanges",
            (
                "tests/unit/runtime/subtask/test_assigned_time.py::"
                "test_downstream_sees_the_assigned_time_and_siblings_see_the_input_time"
            ),
        ),
    ),
    "a clock that goes back at a recovery starts no window of processing time again": (
        Mutant(
            "pipelines/operators/windowing/processing_time.py",
            "self._reached_ms = max(self._reached_ms, now_ms)",
            "self._reached_ms = now_ms",
            (
                "tests/unit/stream/test_more_windows.py::"
                "test_processing_time_windows_keep_their_rows_over_restores"
            ),
        ),
    ),
    ("a checkpoint completes only when all acknowledged and its manifest is durable"): (
        Mutant(
            "pipelines/protocol/coordination.py",
            "ready = next((p for p in self._pending.values() if p.is_ready), None)",
            "ready = next(iter(self._pending.values()), None)",
            (
                "tests/unit/protocol/test_coordination.py::test_every_inject_ends_once_"
                "and_completes_only_when_all_acknowledged"
            ),
        ),
        Mutant(
            "pipelines/storage/filesystem.py",
            "published = link_if_absent(temporary, directory / MANIFEST)",
            "published = os.replace(temporary, directory / MANIFEST) is None",
            (
                "tests/contracts/test_checkpoint_store.py::"
                "test_publishing_the_same_manifest_again_is_recognised"
            ),
        ),
    ),
    "a completed checkpoint survives a death or a loss of power at any step": (
        Mutant(
            "pipelines/storage/filesystem.py",
            (
                "            make_durable(directory)\n"
                "            make_durable(directory.parent)\n"
                "            same"
            ),
            "            same",
            (
                "tests/unit/runtime/master/test_crash_at_every_step.py::"
                "test_a_death_at_any_step_leaves_the_last_or_previous_point_and_no_litter"
            ),
        ),
        Mutant(
            "pipelines/storage/filesystem.py",
            "                file.flush()\n                os.fsync(file.fileno())\n",
            "",
            (
                "tests/unit/runtime/master/test_crash_at_every_step.py::"
                "test_a_death_at_any_step_leaves_the_last_or_previous_point_and_no_litter"
            ),
        ),
        Mutant(
            "pipelines/storage/filesystem.py",
            (
                "            file.write(piece)\n"
                "        file.flush()\n"
                "        os.fsync(file.fileno())\n"
            ),
            "            file.write(piece)\n        file.flush()\n",
            (
                "tests/unit/runtime/master/test_crash_at_every_step.py::"
                "test_a_death_at_any_step_leaves_the_last_or_previous_point_and_no_litter"
            ),
        ),
        Mutant(
            "pipelines/storage/filesystem.py",
            "            written_bytes = native.tell()\n        os.fsync(file.fileno())\n",
            "            written_bytes = native.tell()\n",
            (
                "tests/unit/runtime/master/test_crash_at_every_step.py::"
                "test_a_death_at_any_step_leaves_the_last_or_previous_point_and_no_litter"
            ),
        ),
        Mutant(
            "pipelines/storage/object_store.py",
            '            if self._files.exists(prefix, f"{name}/{MANIFEST}")\n',
            "",
            (
                "tests/unit/runtime/master/test_crash_at_every_request.py::"
                "test_a_death_at_any_request_leaves_the_newest_point_and_no_litter"
            ),
        ),
    ),
    "a stopped run ends with its savepoint and with nothing later": (
        Mutant(
            "pipelines/runtime/master/requests/run_end.py",
            "if stopping is None or not stopping.cancels_run:",
            "if True:",
            (
                "tests/unit/runtime/test_stopping.py::"
                "test_a_failed_commit_is_retried_without_reading_more_records"
            ),
        ),
    ),
    ("acked: no record is forgotten before all that was made of it has been processed"): (
        Mutant(
            "pipelines/protocol/acking.py",
            "(states == _INITIALISED) & (kept.values[places] == 0)",
            "states == _INITIALISED",
            (
                "tests/unit/protocol/test_acking.py::test_a_tree_is_acked_when_the_last"
                "_of_its_records_is_processed"
            ),
        ),
        Mutant(
            "pipelines/protocol/acking.py",
            "self._again.extend(_by_batch(records))",
            "_by_batch(records)",
            (
                "tests/unit/protocol/test_spout.py::test_every_record_is_emitted_until_"
                "a_try_of_it_is_acked"
            ),
        ),
    ),
    "only a put changes a state": (
        Mutant(
            "pipelines/state/arrow_types.py",
            "        return [copy_of(each) for each in value]",
            "        return value",
            (
                "tests/unit/operators/test_state_copies.py::"
                "test_in_place_changes_to_values_never_reach_the_state"
            ),
        ),
    ),
    ("joined batches keep the order of every channel, and no mark passes what it must follow"): (
        Mutant(
            "pipelines/channels/coalescing.py",
            "            and self._is_in_time(channel, records.batch)\n",
            "",
            (
                "tests/unit/channels/test_coalescing.py::"
                "test_a_late_record_stays_behind_the_watermark_that_made_it_late"
            ),
        ),
        Mutant(
            "pipelines/channels/gate.py",
            "if not run.try_take(inlet.channel, element, cost_bytes):\n                    break",
            (
                "if not run.try_take(inlet.channel, element, cost_bytes):\n"
                "                    inlet.elements.rotate(-1)\n"
                "                    break"
            ),
            (
                "tests/unit/channels/test_coalescing.py::"
                "test_channels_take_turns_when_one_alone_fills_a_run"
            ),
        ),
    ),
    (
        "a batch that would take too long is handled in pieces, and no cut and no event time falls"
        " between two of them"
    ): (
        Mutant(
            "pipelines/runtime/subtask/gate_feed.py",
            (
                "            self._pieces.end()\n"
                "        if self._to_come:\n"
                "            return self._next_piece()\n"
            ),
            "            self._pieces.end()\n",
            (
                "tests/unit/runtime/subtask/test_work_pieces.py::"
                "test_a_snapshot_never_separates_the_pieces_of_a_batch"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/work_pieces.py",
            "            found.append((origins, shared))",
            "            found.append((origins, count))",
            (
                "tests/unit/runtime/subtask/test_work_pieces.py::"
                "test_pieces_add_up_to_the_batch_and_each_row_keeps_its_origin"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/work_pieces.py",
            "        self._measured[self._port].add(",
            "        self._measured[0].add(",
            (
                "tests/unit/runtime/subtask/test_work_pieces.py::test_an_input_whose_rows"
                "_cost_more_is_cut_by_its_own_cost"
            ),
        ),
    ),
    ("a barrier waits for what its reader handles in a target time, and no channel stands still"): (
        Mutant(
            "pipelines/channels/gate.py",
            "self._pace = self._paces[inlet.channel]",
            "self._pace = next(iter(self._paces.values()))",
            (
                "tests/unit/channels/test_debloating.py::"
                "test_each_input_of_an_operator_has_a_window_for_its_own_cost"
            ),
        ),
        Mutant(
            "pipelines/channels/credit.py",
            "window_ms = max(self._debloating.target_ms / self._channel_count, ROUND_TRIPS_MS)",
            "window_ms = self._debloating.target_ms",
            (
                "tests/unit/channels/test_debloating.py::"
                "test_queued_data_of_all_channels_is_consumed_in_about_the_target_time"
            ),
        ),
        Mutant(
            "pipelines/channels/gate.py",
            "surplus = min(self.granted_bytes - window_bytes, self.credit_due_bytes)",
            "surplus = min(max(0, self.granted_bytes - window_bytes), self.credit_due_bytes)",
            (
                "tests/unit/channels/test_debloating.py::"
                "test_a_channel_delivers_everything_in_order_while_its_window_changes"
            ),
        ),
        Mutant(
            "pipelines/channels/credit.py",
            "            self.window_bytes = wanted_bytes\n",
            "            self.window_bytes = self._capacity_bytes\n",
            (
                "tests/processes/test_small_records.py::"
                "test_few_small_records_are_in_flight_before_an_aligned_barrier"
            ),
        ),
    ),
    ("every key and every element of operator state has one owner (or all) at any parallelism"): (
        Mutant(
            "pipelines/domain/key_groups.py",
            "first = -(-subtask * max_parallelism // parallelism)",
            "first = subtask * max_parallelism // parallelism",
            (
                "tests/unit/domain/test_key_groups.py::test_each_group_lies_in_the_rang"
                "e_of_its_owner_and_in_no_other"
            ),
        ),
        Mutant(
            "pipelines/domain/key_groups.py",
            "return group * parallelism // max_parallelism",
            "return group % parallelism",
            (
                "tests/unit/domain/test_key_groups.py::test_each_group_lies_in_the_rang"
                "e_of_its_owner_and_in_no_other"
            ),
        ),
        Mutant(
            "pipelines/state/hashing.py",
            "hashes = [NULL_HASH if v is None else xxhash.xxh64_intdigest(v) for v in values]",
            "hashes = [number for number, _ in enumerate(values)]",
            (
                "tests/contracts/test_keyed_state.py::"
                "test_states_match_dictionaries_over_time_snapshots_and_rescaling[hashm"
                "ap-0-for ever]"
            ),
        ),
        Mutant(
            "pipelines/domain/key_groups.py",
            "Taken(old, (subtask - start) % parallelism, parallelism)",
            "Taken(old, subtask, parallelism)",
            (
                "tests/unit/domain/test_redistribution.py::"
                "test_each_element_of_a_split_list_goes_to_one_subtask_in_even_shares"
            ),
        ),
        Mutant(
            "pipelines/state/hashing.py",
            "    mixed *= _MIX_1\n",
            "",
            "tests/unit/state/test_hashing.py::test_the_hash_of_a_value_never_changes",
        ),
        Mutant(
            "pipelines/state/hashing.py",
            "hashes = [NULL_HASH if v is None else xxhash.xxh64_intdigest(v) for v in values]",
            "hashes = [number for number, _ in enumerate(values)]",
            (
                "tests/contracts/test_awkward_keys.py::"
                "test_similar_keys_stay_distinct_and_are_found_at_another_parallelism"
            ),
        ),
    ),
    "no cut holds records of a topic that was created again": (
        Mutant(
            "pipelines/connectors/kafka/reader.py",
            "            check_same_topic(split, ids[topics[split.name]])\n",
            "            pass\n",
            (
                "tests/contracts/test_kafka_topics.py::"
                "test_a_cut_refuses_records_of_a_topic_that_was_recreated_meanwhile"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/source_feed.py",
            "            self._reader.confirm()\n",
            "            pass\n",
            (
                "tests/unit/runtime/subtask/test_source_feed.py::"
                "test_no_snapshot_stores_positions_of_a_split_that_was_replaced"
            ),
        ),
    ),
    "each mode keeps what is computed for it, and no more, under `kill -9`": (
        Mutant(
            "pipelines/lab/report.py",
            "doubled=int(np.maximum(times - 1, 0).sum()),",
            "doubled=0,",
            "tests/unit/lab/test_measures.py::test_a_duplicate_view_does_not_hide_a_lost_one",
        ),
        Mutant(
            "pipelines/protocol/alignment.py",
            "if not self._arrived or self._arrived != self._open:",
            "if not self._arrived:",
            "tests/processes/test_lab.py::test_every_mode_keeps_exactly_its_promise",
        ),
    ),
    (
        "a completed checkpoint of a state in memory holds all of it, and writes little more than"
        " what has changed"
    ): (
        Mutant(
            "pipelines/state/in_memory/chains.py",
            "SLICE_BITS = 16",
            "SLICE_BITS = 15",
            f"{INCREMENTS}::test_a_sliced_table_is_complete_after_its_first_files_are_replaced",
        ),
        Mutant(
            "pipelines/state/in_memory/chains.py",
            "    return all(number in swept",
            "    return any(number in swept",
            f"{INCREMENTS}::test_no_checkpoint_of_a_large_table_writes_much_more_than_what_changed",
        ),
        Mutant(
            "pipelines/state/in_memory/chains.py",
            "itertools.dropwhile(",
            "itertools.filterfalse(",
            f"{INCREMENTS}::test_a_tombstone_stays_while_an_older_file_does",
        ),
        Mutant(
            "pipelines/state/in_memory/chains.py",
            "most=max(1, rows * slices // max(1, live_rows))",
            "most=slices",
            f"{INCREMENTS}::test_no_checkpoint_of_a_large_table_writes_much_more_than_what_changed",
        ),
        Mutant(
            "pipelines/state/in_memory/hashmap.py",
            "chain.files[chain.fixed - 1].cut",
            "chain.files[-1].cut",
            f"{INCREMENTS}::test_no_checkpoint_of_a_large_table_writes_much_more_than_what_changed",
        ),
        Mutant(
            "pipelines/state/in_memory/batch_list.py",
            "sorted(gone - recorded)",
            "[]",
            f"{INCREMENTS}::test_a_file_of_popped_rows_is_dropped_and_other_popped_rows_are_cancelled",
        ),
        Mutant(
            "pipelines/state/in_memory/batch_list.py",
            "if each.live_rows(rows))",
            "if each.rows)",
            f"{INCREMENTS}::test_a_file_of_popped_rows_is_dropped_and_other_popped_rows_are_cancelled",
        ),
        Mutant(
            "pipelines/state/in_memory/chains.py",
            "if again_bytes > MERGED_BYTES_MAX:",
            "if again_bytes < 0:",
            (
                f"{INCREMENTS}"
                "::test_no_checkpoint_of_a_growing_list_writes_much_more_than_the_new_rows"
            ),
        ),
    ),
    "however large its values are, a state is written and read in parts of bounded size": (
        Mutant(
            "pipelines/state/in_memory/columns.py",
            "np.diff(ends // PART_BYTES)",
            "np.diff(ends // (1 << 60))",
            (
                "tests/unit/state/test_hashmap.py"
                "::test_large_values_leave_a_table_in_batches_that_an_array_can_hold"
            ),
        ),
        Mutant(
            "pipelines/state/on_disk/stored_database.py",
            "if size >= READ_BYTES or len(chunk)",
            "if len(chunk)",
            LARGE_ROWS,
        ),
        Mutant(
            "pipelines/state/on_disk/stored_database.py",
            "if offsets[-1] >= LONG_BYTES * len(lengths):",
            "if offsets[-1] < 0:",
            LARGE_ROWS,
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "rows = self._files.scan_keys()",
            "rows = (key for key, _ in self._files.scan())",
            f"{ON_DISK}::test_keys_are_scanned_without_their_values",
        ),
    ),
    "a table in memory grows by a few keys at a time, so no barrier waits for a large one": (
        Mutant(
            "pipelines/state/in_memory/key_rows.py",
            "        self._move(min(MOVED_SLOTS_MAX, ",
            "        self._move(max(MOVED_SLOTS_MAX, ",
            f"{KEY_INDEX}::test_keys_leave_a_full_table_a_few_at_a_time",
        ),
        Mutant(
            "pipelines/state/in_memory/key_rows.py",
            "        self._rows[part][held] = ~_DELETED\n",
            "",
            f"{KEY_INDEX}::test_the_index_equals_a_dictionary_over_random_operations",
        ),
        Mutant(
            "pipelines/state/in_memory/key_rows.py",
            "            if self._old.live:  #",
            "            if False:  #",
            f"{KEY_INDEX}::test_the_index_equals_a_dictionary_over_random_operations",
        ),
    ),
    "a subtask makes way for uploads that get no processor, only while that helps, never for long,"
    " and never if it would hold up a barrier": (
        Mutant(
            "pipelines/runtime/subtask/snapshots/upload_threads.py",
            "used_ms < BUSY * passed_ms or uploads.made_way_ms >= LONGEST_MS",
            "used_ms < BUSY * passed_ms",
            f"{MAKING_WAY}::test_subtasks_never_make_way_longer_than_the_limit_and_one_look",
        ),
        Mutant(
            "pipelines/runtime/subtask/snapshots/upload_threads.py",
            "used_ms < BUSY * passed_ms or uploads.made_way_ms >= LONGEST_MS",
            "uploads.made_way_ms >= LONGEST_MS",
            (
                f"{MAKING_WAY}::test_subtasks_make_way_for_one_look_if_the_upload_then_waits_for"
                "_the_store"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/snapshots/upload_threads.py",
            "waited_ms > STARVING * passed_ms",
            "True",
            (f"{MAKING_WAY}::test_subtasks_do_not_make_way_for_an_upload_that_waits_for_the_store"),
        ),
        Mutant(
            "pipelines/runtime/subtask/subtask.py",
            "if self._uploads_starve() and self.checkpoints.has_handed_over:",
            "if self._uploads_starve():",
            f"{MAKING_WAY}::test_a_subtask_that_still_waits_for_a_barrier_does_not_make_way",
        ),
        Mutant(
            "pipelines/runtime/subtask/subtask.py",
            "                return Step.MAKES_WAY\n",
            "                pass\n",
            (
                f"{MAKING_WAY}::test_a_subtask_that_has_handed_over_its_part_takes_no_input"
                "_while_uploads_starve"
            ),
        ),
    ),
    "a checkpoint that is over leaves no copy of state in a slot, whether it was stored or not": (
        Mutant(
            "pipelines/runtime/subtask/snapshots/snapshotting.py",
            "            gathered.cut.release()\n",
            "            pass\n",
            f"{RELEASED}::test_a_checkpoint_that_ends_before_its_upload_leaves_no_copy",
        ),
        Mutant(
            "pipelines/runtime/subtask/snapshots/snapshotting.py",
            "            self._threads.submit(gathered.cut.release)",
            "            pass",
            f"{RELEASED}::test_a_cut_that_is_given_up_leaves_no_copy",
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_table.py",
            "release = partial(cut.flushes.run_until, cut.flush)",
            "release = None",
            f"{RELEASED}::test_a_state_that_is_empty_at_every_cut_leaves_no_copy",
        ),
        Mutant(
            "pipelines/state/on_disk/rocksdb_batch_list.py",
            "release = partial(self._flushes.run_until, flush)",
            "release = None",
            f"{RELEASED}::test_a_checkpoint_that_fails_leaves_no_copy",
        ),
    ),
    "a state on disk has files for its size, not for each of its checkpoints": (
        Mutant(
            "pipelines/state/on_disk/sorted_files.py",
            "if self._written % LOOK_EVERY == 1:",
            "if self._written % LOOK_EVERY == 0:",
            (
                "tests/unit/state/test_sorted_files.py"
                "::test_a_growing_list_does_not_leave_a_file_for_every_increment"
            ),
        ),
        Mutant(
            "pipelines/state/on_disk/sorted_files.py",
            "        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())\n",
            "",
            (
                "tests/unit/state/test_sorted_files.py"
                "::test_a_growing_list_does_not_leave_a_file_for_every_increment"
            ),
        ),
    ),
    "the next slot in the same place removes the directory of a killed slot, and never that of a"
    " living one": (
        Mutant(
            "pipelines/state/on_disk/sorted_files.py",
            "        if (path / LOCK).exists():\n",
            "        if lock:\n",
            (
                "tests/unit/state/test_working_directory.py::test_an_owner_that_a_neighbour_takes_for"
                "_dead_before_it_has_the_lock_begins_again"
            ),
        ),
        Mutant(
            "pipelines/state/on_disk/sorted_files.py",
            "        except OSError:\n            continue  # its owner lives\n",
            "        except OSError:\n            _remove(path)\n",
            (
                "tests/unit/state/test_working_directory.py::"
                "test_the_next_owner_removes_only_the_directory_of_a_killed_owner"
            ),
        ),
    ),
}
