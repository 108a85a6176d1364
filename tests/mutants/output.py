"""Mutants: the output that sinks make visible, and the proof of it."""

from tests.mutants.mutant import Mutant

_COUNTED = "tests/unit/operators/test_count_windows.py::test_"
_VALUES = "tests/unit/operators/test_windowed_distinct.py::test_"
_TRIGGERED = "tests/unit/operators/test_triggers.py::test_"
_JOINED = "tests/unit/operators/test_joins.py::test_"
_PARALLEL = "tests/unit/stream/test_parallelism.py::test_"
_COMBINED = "tests/unit/operators/test_combining.py::test_"

OUTPUT: dict[str, tuple[Mutant, ...]] = {
    "a record without event time ends the run with its place and column; only a dead letter has"
    " none": (
        Mutant(
            "pipelines/runtime/subtask/sources/split_reading.py",
            "        if row < 0:\n",
            "        if row < 1:\n",
            (
                "tests/unit/local/test_run_local.py::test_a_record_without_event_time_is_named_with"
                "_its_column"
            ),
        ),
    ),
    "a split that is restored ends where its source ends in this run": (
        Mutant(
            "pipelines/connectors/split_progress.py",
            "    return msgspec.structs.replace(split, end_offset=found.end_offset)\n",
            "    return split\n",
            (
                "tests/contracts/test_redis_streams.py::"
                "test_bounded_and_unbounded_sources_restore_points_of_each_other"
            ),
        ),
    ),
    "bytes that their schema did not write cost no other record, and a schema that does not go with"
    " the columns is refused by name": (
        Mutant(
            "pipelines/connectors/kafka/protobuf.py",
            "if is_repeated != ours.is_repeated or not (ours.type == theirs.type or is_alike):",
            "if is_repeated != ours.is_repeated:",
            (
                "tests/unit/connectors/kafka/test_protobuf.py::"
                "test_an_incompatible_version_of_the_message_is_refused_by_name"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/protobuf.py",
            "return (number >> 1) ^ -(number & 1), at + place + 1",
            "return number, at + place + 1",
            (
                "tests/unit/connectors/kafka/test_protobuf.py::"
                "test_message_indexes_follow_confluents_format"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/avro.py",
            "    if left:\n",
            "    if left > 3:\n",
            (
                "tests/unit/connectors/kafka/test_avro.py::"
                "test_each_record_of_arbitrary_bytes_is_a_row_or_a_problem"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/avro.py",
            "pa.concat_batches(parts).take(pa.array(np.argsort(np.array(numbers))))",
            "pa.concat_batches(parts)",
            (
                "tests/unit/connectors/kafka/test_avro.py::"
                "test_columns_match_fields_by_name_even_if_the_schema_changes_in_a_batch"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/avro.py",
            "if not fits(branch, column.type, types):",
            "if branch is None:",
            (
                "tests/unit/connectors/kafka/test_avro.py::"
                "test_a_schema_that_does_not_match_the_columns_is_refused_by_name"
            ),
        ),
    ),
    "a record that cannot be decoded is a dead letter once, with the checkpoint of its offset, and"
    " moves no event time on": (
        Mutant(
            "pipelines/stream/environment.py",
            "self.context.collect(rows.filter(is_record))",
            "self.context.collect(rows)",
            (
                "tests/unit/stream/test_dead_letters.py::"
                "test_each_record_reaches_only_one_of_the_outputs_once_under_kills"
            ),
        ),
        Mutant(
            "pipelines/connectors/dead_letters.py",
            "np.cumsum(~is_letter) - 1",
            "np.arange(row_count) % max(1, decoded.num_rows)",
            (
                "tests/unit/connectors/kafka/test_values.py::test_dead_letters_keep_their_place_and"
                "_the_others_their_order"
            ),
        ),
        Mutant(
            "pipelines/runtime/subtask/sources/split_reading.py",
            "batch.filter(times.is_valid()) if times.null_count else batch",
            "batch",
            "tests/unit/stream/test_dead_letters.py::test_a_dead_letter_does_not_advance_event_time",
        ),
    ),
    "an author's test finds a pipeline that kills change, and repeats it from its seed": (
        Mutant(
            "pipelines/testing/exactly_once.py",
            '("has too often", found - expected)',
            '("has too often", found - found)',
            "tests/unit/testing/test_exactly_once.py::test_a_sink_that_commits_twice_is_found",
        ),
        Mutant(
            "pipelines/testing/exactly_once.py",
            "            raise ProcessKilled",
            "            pass",
            "tests/unit/testing/test_exactly_once.py::test_state_outside_of_the_engine_is_found",
        ),
        Mutant(
            "pipelines/testing/exactly_once.py",
            "doomed = Random(self.seed).sample",
            "doomed = Random().sample",
            "tests/unit/testing/test_exactly_once.py::test_the_same_seed_gives_the_same_run",
        ),
    ),
    "least, greatest and distinct values of a changelog are those of the rows that are left, and"
    " values that are gone leave no state": (
        Mutant(
            "pipelines/operators/aggregating/changelog_aggregate.py",
            "lost = np.unique(at[~is_inside])",
            "lost = np.unique(at[:0])",
            (
                "tests/unit/operators/test_changelog_aggregate.py::"
                "test_a_value_counts_until_its_last_row_is_retracted"
            ),
        ),
        Mutant(
            "pipelines/operators/aggregating/changelog_aggregate.py",
            "        self._values.write(PLACE, rows, holes)\n",
            "",
            (
                "tests/unit/operators/test_changelog_aggregate.py::"
                "test_results_cover_exactly_the_remaining_rows"
            ),
        ),
        Mutant(
            "pipelines/operators/aggregating/changelog_aggregate.py",
            "self._values.delete(rows[counts == 0])",
            "self._values.delete(rows[:0])",
            (
                "tests/unit/operators/test_changelog_aggregate.py::"
                "test_retracted_values_leave_no_state"
            ),
        ),
        Mutant(
            "pipelines/operators/aggregating/changelog_aggregate.py",
            "comes, goes = (before <= 0) & (now > 0)",
            "comes, goes = (before == 0) & (now != 0)",
            (
                "tests/unit/operators/test_changelog_aggregate.py::"
                "test_a_row_retracted_before_it_arrives_counts_once_it_arrives_twice"
            ),
        ),
    ),
    "a row that a changelog takes back is subtracted, or its reader is refused when the pipeline is"
    " built": (
        Mutant(
            "pipelines/operators/changelog.py",
            "np.where(is_back.to_numpy(zero_copy_only=False), np.int64(-1), np.int64(1))",
            "np.ones(len(is_back), np.int64)",
            (
                "tests/unit/operators/test_changes_aggregated.py::"
                "test_aggregates_cover_exactly_the_remaining_rows"
            ),
        ),
        Mutant(
            "pipelines/stream/environment.py",
            "connection.side is None and connection.upstream in self._changelogs",
            "False",
            (
                "tests/unit/stream/test_changelogs.py::"
                "test_an_operator_that_would_count_retracted_rows_is_refused_by_uid"
            ),
        ),
    ),
    "a join finds each row of the other side with the same key, and no other row, while rows come,"
    " are merged and are dropped": (
        Mutant(
            "pipelines/operators/joining/join_state.py",
            "return begins[bucket] + ranks(bucket)",
            "return ranks(bucket)",
            _JOINED + "an_index_finds_each_row_while_another_thread_merges",
        ),
        Mutant(
            "pipelines/operators/joining/join_state.py",
            'np.searchsorted(ends, numbers, side="right")',
            "np.searchsorted(ends, numbers)",
            _JOINED + "an_index_finds_each_row_while_another_thread_merges",
        ),
        Mutant(
            "pipelines/operators/joining/join_state.py",
            "r if r.oldest_ms >= time_ms else r.only(r.times >= time_ms) for r in self._runs",
            "r for r in self._runs",
            _JOINED + "a_clock_set_back_hides_no_new_row_and_revives_no_dropped_one",
        ),
        Mutant(
            "pipelines/operators/joining/join_state.py",
            "            self._numbered.pop(bucket, None)",
            "            pass",
            _JOINED + "a_clock_set_back_hides_no_new_row_and_revives_no_dropped_one",
        ),
        Mutant(
            "pipelines/operators/joining/join_state.py",
            "others += self._rows.pop(bucket)",
            "pass",
            _JOINED + "rows_in_buckets_of_another_width_are_found_after_a_restore",
        ),
        Mutant(
            "pipelines/operators/joining/join_state.py",
            "self._runs[place : place + 2] = [merged]",
            "self._runs[place : place + 1] = [merged]",
            _JOINED + "an_index_finds_each_row_while_another_thread_merges",
        ),
        Mutant(
            "pipelines/operators/joining/join_state.py",
            "same &= equal.to_numpy(zero_copy_only=False)",
            "pass",
            _JOINED + "rows_whose_keys_share_a_hash_are_told_apart",
        ),
        Mutant(
            "pipelines/operators/joining/stream_join.py",
            "keyed = rows_with(batch, ~is_null)",
            "keyed = batch",
            _JOINED + "a_join_without_windows_always_equals_the_join_of_all_input_so_far",
        ),
    ),
    "a row gets the version of its key that is valid at its event time, in whatever "
    "order they arrive": (
        Mutant(
            "pipelines/operators/joining/temporal_join.py",
            "order = np.lexsort((position, times, index))\n    latest",
            "order = np.lexsort((position, index))\n    latest",
            (
                "tests/unit/operators/test_temporal_join.py"
                "::test_each_row_gets_the_version_valid_at_its_event_time"
            ),
        ),
        Mutant(
            "pipelines/operators/joining/temporal_join.py",
            "is_of_key = (latest >= 0) & (index[version] == index[order])",
            "is_of_key = latest >= 0",
            (
                "tests/unit/operators/test_temporal_join.py"
                "::test_each_row_gets_the_version_valid_at_its_event_time"
            ),
        ),
        Mutant(
            "pipelines/operators/joining/temporal_join.py",
            "is_new = newest >= held.num_rows",
            "is_new = newest > held.num_rows",
            (
                "tests/unit/operators/test_temporal_join.py"
                "::test_each_row_gets_the_version_valid_at_its_event_time"
            ),
        ),
        Mutant(
            "pipelines/operators/joining/temporal_join.py",
            "times < self._time.of(rows), side=LATE_SIDES[0]",
            "times < self._time.watermark_ms, side=LATE_SIDES[0]",
            (
                "tests/unit/operators/test_temporal_join.py"
                "::test_a_row_late_before_a_snapshot_is_late_after_it"
            ),
        ),
    ),
    "a row of a function is in its result or in the side output that it declared; the search for a"
    " failing row emits nothing": (
        Mutant(
            "pipelines/operators/side_outputs.py",
            "if not batch.schema.equals(schema):",
            "if False:",
            (
                "tests/unit/operators/test_side_outputs.py"
                "::test_columns_other_than_declared_are_refused"
            ),
        ),
        Mutant(
            "pipelines/operators/stateless.py",
            "        super().on_batch(port, batch)\n        self._sides.flush()\n",
            "        super().on_batch(port, batch)\n",
            (
                "tests/unit/operators/test_side_outputs.py"
                "::test_an_author_reads_side_outputs_in_the_harness"
            ),
        ),
        Mutant(
            "pipelines/operators/stateless.py",
            "BatchSides(self.context.uid, self._declared, lambda name, rows: None)",
            "self._sides",
            (
                "tests/unit/operators/test_side_outputs.py"
                "::test_the_search_for_the_failing_row_emits_nothing"
            ),
        ),
    ),
    "a sink that overwrites holds the rows that a changelog leaves, or is refused when the pipeline"
    " is built": (
        Mutant(
            "pipelines/connectors/sink.py",
            'last.column(f"{_POSITION}_max")',
            'last.column(f"{_POSITION}_max").slice(1)',
            (
                "tests/contracts/test_sinks_of_changes.py"
                "::test_the_remaining_rows_are_exact_whenever_writers_die[sqlite-0]"
            ),
        ),
        Mutant(
            "pipelines/connectors/sql/upsert.py",
            "if changes.gone:",
            "if False:",
            (
                "tests/contracts/test_sinks_of_changes.py"
                "::test_the_remaining_rows_are_exact_whenever_writers_die[sqlite-0]"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/producer.py",
            "values: Blobs = [None] * last.gone.num_rows",
            'values: Blobs = [b"{}"] * last.gone.num_rows',
            "tests/contracts/test_sinks_of_changes.py::test_a_retracted_row_becomes_a_tombstone",
        ),
        Mutant(
            "pipelines/connectors/redis/hash_store.py",
            "redis.call('DEL', ROW .. gone[row])",
            "redis.call('EXISTS', ROW .. gone[row])",
            (
                "tests/contracts/test_sinks_of_changes.py"
                "::test_the_remaining_rows_are_exact_whenever_writers_die[redis-0]"
            ),
        ),
        Mutant(
            "pipelines/connectors/redis/hash_store.py",
            "  local before = note(gone)\n",
            "  local before = redis.call('ZMSCORE', INDEX, unpack(gone))\n",
            (
                "tests/contracts/test_sinks_of_changes.py"
                "::test_a_transaction_of_an_older_checkpoint_does_not_bring_a_row_back"
            ),
        ),
        Mutant(
            "pipelines/stream/environment.py",
            "upstream = replace(upstream, hash_by=sink.keys)",
            "pass",
            (
                "tests/unit/stream/test_changelogs.py"
                "::test_a_changelog_that_is_rebalanced_right_before_its_sink_keeps_its_order"
            ),
        ),
        Mutant(
            "pipelines/stream/environment.py",
            "orders.pop() if is_kept and len(orders) == 1 else None",
            "orders.pop()",
            (
                "tests/unit/stream/test_changelogs.py"
                "::test_a_changelog_without_an_order_is_refused_by_a_sink_that_applies_it"
            ),
        ),
    ),
    "an aggregate or a ranking takes the newest total of a key once, or is refused when the"
    " pipeline is built": (
        Mutant(
            "pipelines/stream/environment.py",
            "if operator.passes_updates and updating:",
            "if False:",
            (
                "tests/unit/stream/test_updates.py"
                "::test_an_aggregate_that_would_count_every_update_is_refused_with_the_next_step"
            ),
        ),
        Mutant(
            "pipelines/stream/keyed.py",
            "            environment.check_counts_once(self.stream.node)\n",
            "            pass\n",
            (
                "tests/unit/stream/test_updates.py"
                "::test_an_aggregate_that_would_count_every_update_is_refused_with_the_next_step"
            ),
        ),
        Mutant(
            "pipelines/stream/keyed.py",
            "            self.stream.environment.check_ranks_once(self.stream.node)\n",
            "            pass\n",
            (
                "tests/unit/stream/test_updates.py"
                "::test_a_ranking_that_would_keep_replaced_rows_is_refused_with_the_next_step"
            ),
        ),
        Mutant(
            "pipelines/operators/ranking/top_n.py",
            "        self._emit(changed.taken, changed.taken_ranks, changed.left, DELETE)\n",
            "",
            (
                "tests/unit/stream/test_updates.py"
                "::test_a_count_of_counts_uses_the_newest_count_of_each_key"
            ),
        ),
    ),
    "of all rows of a key the chosen ones are left: the first `n`, the first, the last, the best": (
        Mutant(
            "pipelines/operators/ranking/ranked_rows.py",
            "self._precedes(of_rows, bound[index])",
            "self._precedes(of_rows, bound[index] - 1)",
            "tests/unit/operators/test_top_n.py::test_the_first_n_rows_of_each_key_remain",
        ),
        Mutant(
            "pipelines/operators/ranking/ranked_rows.py",
            "new <= held if self._order.newest_first else new < held",
            "new < held",
            "tests/unit/operators/test_deduplicate.py::test_the_last_row_of_each_key_remains",
        ),
        Mutant(
            "pipelines/operators/ranking/ranked_rows.py",
            "ordered = equal if newest_first else equal[::-1]",
            "ordered = equal",
            (
                "tests/unit/operators/test_top_n.py::test_each_emitted_row_of_a_key_is_its_best_so_far"
            ),
        ),
        Mutant(
            "pipelines/operators/ranking/ranked_rows.py",
            "-arrival if self._order.newest_first else arrival",
            "-arrival",
            "tests/unit/operators/test_top_n.py::test_the_first_n_rows_of_each_key_remain",
        ),
        Mutant(
            "pipelines/operators/ranking/top_n.py",
            "        self._emit(changed.taken, changed.taken_ranks, changed.left, DELETE)\n",
            "",
            "tests/unit/operators/test_deduplicate.py::test_the_last_row_of_each_key_remains",
        ),
        Mutant(
            "pipelines/operators/ranking/top_n.py",
            "            table.delete(due)\n",
            "",
            (
                "tests/unit/operators/test_window_top_n.py::"
                "test_the_first_rows_of_tumbling_and_sliding_windows_are_emitted"
            ),
        ),
        Mutant(
            "pipelines/operators/ranking/deduplicate.py",
            "self._note(self._seen.rows_for(groups.keys.filter(pa.array(is_new))))",
            "pass",
            (
                "tests/unit/operators/test_deduplicate.py::test_the_first_row_of_each_key_is"
                "_emitted_once"
            ),
        ),
    ),
    "windows whose rows are combined before the exchange are the same windows, and the same records"
    " are late": (
        Mutant(
            "pipelines/operators/windowing/combining.py",
            "            columns.append(WINDOW_START)\n",
            "            pass\n",
            _COMBINED + "combining_changes_neither_the_results_nor_the_late_rows",
        ),
        Mutant(
            "pipelines/operators/windowing/windows.py",
            "int(longs(rows.column(COMBINED_ROWS)).sum())",
            "int(rows.num_rows)",
            _COMBINED + "combining_changes_neither_the_results_nor_the_late_rows",
        ),
        Mutant(
            "pipelines/operators/windowing/combining.py",
            "            columns.append(_HAS_TIME)\n",
            "            pass\n",
            _COMBINED + "combining_changes_neither_the_results_nor_the_late_rows",
        ),
        Mutant(
            "pipelines/stream/environment.py",
            "LATE not in pipeline.graph.side_outputs_of(uid)",
            "True",
            _COMBINED + "nothing_is_combined_if_the_late_side_output_is_read",
        ),
    ),
    "a count window holds exactly the newest rows of its key, at any parallelism": (
        Mutant(
            "pipelines/operators/windowing/count_windows.py",
            "        self._counts.write(_ROWS, counted, after)\n",
            "",
            _COUNTED + "count_windows_match_a_list_of_each_keys_rows_across_restores",
        ),
        Mutant(
            "pipelines/operators/windowing/count_windows.py",
            "        self._panes.delete(rows[rows != NO_ROW])\n",
            "",
            _COUNTED + "panes_that_no_window_needs_are_deleted",
        ),
        Mutant(
            "pipelines/operators/windowing/count_windows.py",
            "return (windows * self.slide - self.size) // self.pane_rows",
            "return (windows * self.slide - self.size) // self.pane_rows + 1",
            _COUNTED + "count_windows_match_a_list_of_each_keys_rows_across_restores",
        ),
    ),
    "a window's count of distinct values is exact, and its values are deleted when it closes": (
        Mutant(
            "pipelines/operators/windowing/distinct_counts.py",
            "    return values.filter(pa.array(is_new))",
            "    return values",
            _VALUES + "each_window_counts_its_distinct_values_across_restores",
        ),
        Mutant(
            "pipelines/operators/windowing/distinct_counts.py",
            "seen.delete(seen.select_at_most(WINDOW_START, newest_start))",
            "pass",
            _VALUES + "each_window_counts_its_distinct_values_across_restores",
        ),
    ),
    "a window with a trigger fires when the trigger says so and once more at its end if it has"
    " changed; its newest result holds all its rows": (
        Mutant(
            "pipelines/operators/windowing/triggers.py",
            "        self._purge(rows[_says(results, TriggerResult.PURGE)])\n",
            "",
            _TRIGGERED + "windows_fire_by_trigger_and_at_their_end_across_restores",
        ),
        Mutant(
            "pipelines/operators/windowing/triggers.py",
            "np.asarray(self._read(_NEW, rows) == 0)",
            "np.zeros(len(rows), np.bool_)",
            _TRIGGERED + "windows_fire_by_trigger_and_at_their_end_across_restores",
        ),
        Mutant(
            "pipelines/operators/windowing/triggers.py",
            "self._clock_ms is not None and len(self._open_windows) > 0",
            "False",
            _TRIGGERED + "processing_time_fires_only_windows_that_have_changed",
        ),
    ),
    "a row that reaches a keyed operator without an exchange is at the owner of its "
    "key, or the run ends": (
        Mutant(
            "pipelines/operators/stateless.py",
            "        return [] if is_own.all() else np.flatnonzero(~is_own).tolist()",
            "        return []",
            _PARALLEL + "a_row_in_the_wrong_subtask_for_its_key_ends_the_run_and_is_named",
        ),
        Mutant(
            "pipelines/stream/streams.py",
            "keeps_order_of=self.dealt_by if stays else (),",
            "",
            _PARALLEL + "rows_reinterpreted_as_keyed_survive_kills",
        ),
    ),
    "distinct rows, distinct counts and reduced rows are those of all records so far": (
        Mutant(
            "pipelines/operators/ranking/deduplicate.py",
            "yield mark_of(column), positions[first[is_new]]",
            "yield mark_of(column), positions[first]",
            (
                "tests/unit/operators/test_distinct.py::test_the_first_row_with_a_value_is_marked"
                "_for_each_key"
            ),
        ),
        Mutant(
            "pipelines/operators/ranking/deduplicate.py",
            " & is_unseen[pair_of_rows]",
            "",
            (
                "tests/unit/operators/test_distinct.py::test_the_first_row_with_a_value_is_marked"
                "_under_each_condition"
            ),
        ),
        Mutant(
            "pipelines/operators/processing/process.py",
            "self._keep(groups.keys, [reduced[of_key] for of_key in range(groups.count)])",
            "pass",
            (
                "tests/unit/operators/test_reduce.py::"
                "test_each_record_emits_the_reduction_of_all_rows_of_its_key"
            ),
        ),
    ),
    "`run_local` returns the rows of completed checkpoints of that run, each once": (
        Mutant(
            "pipelines/connectors/in_process.py",
            "if run == self._context.run_id:",
            "if True:",
            (
                "tests/unit/local/test_run_local.py::"
                "test_an_endless_source_stops_with_a_savepoint_that_another_run_resumes"
            ),
        ),
        Mutant(
            "pipelines/connectors/in_process.py",
            "            del self._segments[each]",
            "            pass",
            (
                "tests/unit/local/test_run_local.py::test_a_second_run_of_the_same_pipeline_starts"
                "_with_nothing_collected"
            ),
        ),
    ),
    "nothing becomes visible before its checkpoint completed, nothing twice": (
        Mutant(
            "pipelines/protocol/commit.py",
            "tuple(p for p in self._pending.values() if p.checkpoint_id <= checkpoint_id)",
            "tuple(self._pending.values())",
            (
                "tests/unit/protocol/test_commit.py::test_nothing_is_released_before_a_"
                "checkpoint_that_contains_it_completes"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/sink.py",
            "if final.exists():",
            "if False:",
            (
                "tests/contracts/test_sink.py::test_output_is_exact_wherever_the_proces"
                "s_is_killed[files-while writing-1]"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/target.py",
            " if _run_of(file) != run.name]",
            "]",
            "tests/contracts/test_sink.py::test_a_fallback_within_the_run_doubles_nothing[files]",
        ),
        Mutant(
            "pipelines/connectors/files/target.py",
            '"closed": known.attempt}',
            '"closed": known.closed}',
            (
                "tests/contracts/test_sink.py::"
                "test_a_dying_slot_shows_nothing_that_a_rewind_has_left_out[files]"
            ),
        ),
        Mutant(
            "pipelines/connectors/sql/tables.py",
            "    if newest >= 0:\n",
            "    if False:\n",
            (
                "tests/contracts/test_sink.py::"
                "test_a_dying_slot_shows_nothing_that_a_rewind_has_left_out[sqlite upsert]"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/target.py",
            "            self._remove_unfinished(run_id, restored_id)\n",
            "",
            (
                "tests/unit/connectors/files/test_sink.py::"
                "test_a_slot_that_commits_during_a_rewind_shows_nothing_after_the_point"
            ),
        ),
    ),
    "exactly-once files survive a death or a loss of power at any step": (
        Mutant(
            "pipelines/connectors/files/sink.py",
            "os.fsync(self._file.fileno())",
            "pass",
            (
                "tests/unit/connectors/files/test_loss_of_power.py::"
                "test_a_crash_at_any_step_of_writing_loses_or_doubles_no_record"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/sink.py",
            "            if files:\n                make_durable(self._target.directory)\n",
            "",
            (
                "tests/unit/connectors/files/test_loss_of_power.py::"
                "test_a_crash_at_any_step_of_writing_loses_or_doubles_no_record"
            ),
        ),
    ),
    ("prepared output is committed once, or the run ends and names the lost range"): (
        Mutant(
            "pipelines/connectors/sink_bases.py",
            "            self._end_orphans_once()\n            self._transaction =",
            "            self._transaction =",
            (
                "tests/unit/connectors/test_two_phase_commit.py::"
                "test_orphans_are_ended_after_the_restored_transactions_are_committed"
            ),
        ),
        Mutant(
            "pipelines/connectors/sink_bases.py",
            "if not self._is_published(marker, segment.rows):",
            "if True:",
            (
                "tests/unit/connectors/test_write_ahead.py::"
                "test_a_segment_is_published_once_by_any_number_of_commits_and_writers"
            ),
        ),
        Mutant(
            "pipelines/connectors/sink_bases.py",
            "if not self._is_published(marker, segment.rows):",
            "if True:",
            "tests/contracts/test_sink.py::test_a_commit_may_be_repeated[fake log]",
        ),
        Mutant(
            "pipelines/connectors/kafka/transactions.py",
            "if prepared is None or prepared.records != records:",
            "if prepared is None:",
            (
                "tests/contracts/test_kafka_transactions.py::test_a_record_that_did_not"
                "_arrive_declines_the_checkpoint"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/write_ahead.py",
            "if marker.after is not None and sender.newest < marker.after:",
            "if False:",
            (
                "tests/contracts/test_kafka_write_ahead.py::"
                "test_a_marker_that_the_broker_lost_is_reported_with_its_range"
            ),
        ),
    ),
    "a Kafka client that is fenced amid a transaction ends without damage to its process": (
        Mutant(
            "pipelines/connectors/kafka/producer.py",
            "            self._ended.put((time.monotonic() + ANSWERS_S, self._client))\n",
            "",
            (
                "tests/unit/connectors/kafka/test_producer.py::"
                "test_a_client_whose_producer_ends_amid_a_transaction_is_kept_for_answers"
            ),
        ),
        Mutant(
            "pipelines/connectors/kafka/producer.py",
            "            self._has_unanswered = True\n",
            "",
            (
                "tests/unit/connectors/kafka/test_producer.py::"
                "test_a_client_that_could_not_abort_its_transaction_is_kept_for_answers"
            ),
        ),
    ),
    "a commit to Kafka ends in time, even if its client ignores the time limit": (
        Mutant(
            "pipelines/connectors/kafka/producer.py",
            "        self._ask(lambda: _in_time(partial(send, ANSWER_TIMEOUT_S)))\n",
            "        self._ask(lambda: send(ANSWER_TIMEOUT_S))\n",
            (
                "tests/unit/connectors/kafka/test_producer.py::"
                "test_a_commit_ends_in_time_although_the_client_does_not_come_back"
            ),
        ),
    ),
    "a two-phase sink whose own uncommitted transactions take all room of its server fails its"
    " subtask, so that checkpoints complete again": (
        Mutant(
            "pipelines/connectors/sink_bases.py",
            "elif now_s - self._refused_since[1] >= ROOM_WITHIN_S:",
            "elif False:",
            (
                "tests/unit/connectors/test_two_phase_commit.py::"
                "test_a_writer_whose_own_transactions_take_the_room_fails_its_subtask"
            ),
        ),
        Mutant(
            "pipelines/connectors/sink_bases.py",
            "[n for n in self._uncommitted if n != prepared.checkpoint_id]",
            "self._uncommitted",
            (
                "tests/unit/connectors/test_two_phase_commit.py::"
                "test_a_writer_that_lacks_room_for_other_reasons_waits[committed in between]"
            ),
        ),
    ),
    (
        "rows staged in PostgreSQL become visible with their checkpoint or never, and block no"
        " reader"
    ): (
        Mutant(
            "pipelines/connectors/postgres/insert.py",
            "if stage.checkpoint_id != checkpoint_id:",
            "if False:",
            (
                "tests/contracts/test_postgres_staging.py::"
                "test_rows_staged_for_a_skipped_checkpoint_carry_the_next_one"
            ),
        ),
        Mutant(
            "pipelines/connectors/postgres/insert.py",
            (
                "        self._table.pass_fence(connection, self._context)\n"
                "        self._mark(connection, marker)"
            ),
            "        self._mark(connection, marker)",
            (
                "tests/contracts/test_postgres_staging.py::"
                "test_an_attempt_replaced_just_before_its_commit_commits_nothing"
            ),
        ),
        Mutant(
            "pipelines/connectors/postgres/insert.py",
            "        self._table.mark(connection, marker)\n",
            "",
            "tests/contracts/test_sink.py::test_a_commit_may_be_repeated[postgres]",
        ),
    ),
    (
        "a reader of Redis sees values of completed checkpoints only, and no "
        "older writer changes them"
    ): (
        Mutant(
            "pipelines/connectors/redis/hash_store.py",
            (
                "if tonumber(owner[2]) > tonumber(ARGV[2]) or tonumber(owner[3]) >= "
                "tonumber(ARGV[2]) then"
            ),
            "if tonumber(owner[3]) >= tonumber(ARGV[2]) then",
            "tests/contracts/test_sink.py::test_a_replaced_attempt_cannot_open_again[redis]",
        ),
        Mutant(
            "pipelines/connectors/redis/hash_store.py",
            "if not before[row] or tonumber(before[row]) <= score then",
            "if true then",
            (
                "tests/contracts/test_redis_hashes.py::"
                "test_a_late_commit_of_an_older_checkpoint_hides_nothing"
            ),
        ),
    ),
    "no pipeline claims more than its weakest part gives": (
        Mutant(
            "pipelines/domain/guarantees.py",
            "if rank > worst:",
            "if rank < worst:",
            (
                "tests/unit/domain/test_guarantees.py::"
                "test_the_guarantee_is_the_weaker_of_mode_and_sinks"
            ),
        ),
    ),
    "an audit can prove the output from outside, up to a checkpoint": (
        Mutant(
            "pipelines/audit/file_output.py",
            "for name in sorted(expected - names):",
            "for name in sorted(expected - expected):",
            (
                "tests/unit/audit/test_file_audit.py::"
                "test_a_deleted_file_is_missing_even_if_another_file_holds_its_rows"
            ),
        ),
        Mutant(
            "pipelines/audit/auditor.py",
            "if split.split in self._ends and not self._goes_on(split):",
            "if False:",
            (
                "tests/unit/audit/test_input_audit.py::"
                "test_a_gap_and_an_overlap_are_reported_with_checkpoint_and_split"
            ),
        ),
    ),
    "a target belongs to one run, and no restart takes it over": (
        Mutant(
            "pipelines/runtime/master/output/leftovers.py",
            "            if uid not in claims\n",
            "",
            (
                "tests/unit/runtime/master/test_target_claims.py::"
                "test_a_restart_that_finds_its_target_taken_over_ends_the_run"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/output/leftovers.py",
            "            if uid not in claims\n",
            "",
            (
                "tests/processes/test_two_installations.py::"
                "test_a_run_that_loses_its_target_to_another_installation_ends_for_good"
            ),
        ),
    ),
    (
        "output that no recovery point needs does not outlive its run in a target; output that one"
        " may need does"
    ): (
        Mutant(
            "pipelines/runtime/master/output/leftovers.py",
            "why_kept = NEEDED if item.name in need.names else need.doubts.get(item.run_id)",
            "why_kept = need.doubts.get(item.run_id)",
            (
                "tests/unit/runtime/master/test_leftovers.py::"
                "test_every_item_is_listed_once_and_discarded_only_if_surely_unneeded"
            ),
        ),
        Mutant(
            "pipelines/connectors/files/target.py",
            "            self._held_by(owner, run_id)\n            files =",
            "            files =",
            (
                "tests/contracts/test_sink_leftovers.py::"
                "test_only_the_run_that_holds_the_target_may_end_leftovers[files]"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/output/leftovers.py",
            ('                raise InDoubt(f"The driver of run {run.run_id} has not ended.")'),
            "                pass",
            (
                "tests/unit/runtime/master/test_leftovers.py::"
                "test_all_leftovers_of_a_run_stay_while_its_points_are_in_doubt"
            ),
        ),
        Mutant(
            "pipelines/runtime/master/output/leftovers.py",
            "why_kept = NEEDED if item.name in need.names else need.doubts.get(item.run_id)",
            "why_kept = need.doubts.get(item.run_id)",
            (
                "tests/processes/test_leftovers.py::"
                "test_output_prepared_for_a_point_survives_a_fresh_run_until_its_restore"
            ),
        ),
    ),
    "two sinks of one pipeline never lose output of each other": (
        Mutant(
            "pipelines/stream/environment.py",
            "if first != uid:",
            "if False:",
            (
                "tests/unit/test_stream.py::"
                "test_two_sinks_that_would_destroy_output_of_each_other_are_refused_by_uid"
            ),
        ),
        Mutant(
            "pipelines/stream/environment.py",
            "if first != uid:",
            "if False:",
            (
                "tests/contracts/test_sink.py::"
                "test_two_sinks_of_a_pipeline_in_one_place_are_refused_or_stay_exact[sq"
                "lite upsert]"
            ),
        ),
        Mutant(
            "pipelines/connectors/sink.py",
            'return "localhost" if name.lower() in LOOPBACK else name.lower()',
            "return name",
            (
                "tests/unit/test_stream.py::"
                "test_two_sinks_that_would_destroy_output_of_each_other_are_refused_by_uid"
            ),
        ),
    ),
    "a write whose answer was lost is looked for before it is repeated": (
        Mutant(
            "pipelines/connectors/sql/database.py",
            '"23505": LOOK_FIRST,',
            '"23505": END,',
            (
                "tests/unit/connectors/sql/test_sqlstates.py::test_a_state_is_listed_by"
                "_itself_only_where_it_differs_from_its_class"
            ),
        ),
        Mutant(
            "pipelines/connectors/sql/database.py",
            '"23505": LOOK_FIRST,',
            '"23505": END,',
            (
                "tests/contracts/test_postgres.py::"
                "test_a_commit_still_under_way_after_a_lost_reply_publishes_once"
            ),
        ),
    ),
    "records that a start publishes again are counted, or reported as unknown": (
        Mutant(
            "pipelines/points/published_output.py",
            "return 0  # the start has it all",
            "pass",
            (
                "tests/unit/points/test_published_output.py::"
                "test_a_recovery_from_the_newest_point_republishes_nothing"
            ),
        ),
        Mutant(
            "pipelines/domain/ledger.py",
            "return max(0, later.records - earlier.records)",
            "return later.records",
            (
                "tests/unit/points/test_published_output.py::"
                "test_falling_back_to_an_older_point_republishes_what_came_after_it"
            ),
        ),
        Mutant(
            "pipelines/domain/ledger.py",
            "return max(0, later.records - earlier.records)",
            "return later.records",
            (
                "tests/processes/test_published_again.py::"
                "test_republished_records_are_counted_after_a_savepoint_or_a_fresh_start"
            ),
        ),
    ),
    (
        "records from Kafka or Redis are counted exactly in Kafka, PostgreSQL and Redis, "
        "although each of them is killed"
    ): (
        Mutant(
            "pipelines/flows/page_views.py",
            'tumbling(seconds=_window_s(parameters["window_s"]))',
            'tumbling(seconds=1 + _window_s(parameters["window_s"]))',
            (
                "tests/processes/test_page_views.py::"
                "test_counts_are_exact_in_each_system_after_each_is_killed"
            ),
        ),
    ),
    "all of it together, under `kill -9`": (
        Mutant(
            "pipelines/connectors/files/target.py",
            "            self._move(foreign, self.directory / SUPERSEDED / run_id)\n",
            "",
            (
                "tests/integration/test_exactly_once_on_spark.py::test_unaligned_an_older_point_is_r"
                "estored_at_another_parallelism_and_output_does_not_double"
            ),
        ),
    ),
    (
        "a team with only our wheel writes, tests, ships and upgrades a pipeline, and its output"
        " stays exact under kills"
    ): (
        Mutant(
            "examples/shop/shop/flow.py",
            "from pipelines.stream import (",
            "from pipelines.stream.windowed import (",
            "tests/test_architecture.py::test_an_example_project_imports_nothing_private",
        ),
        Mutant(
            "pipelines/packages/wheel.py",
            "    _check_tags(path, tags)\n    try:",
            "    try:",
            (
                "tests/web/test_shop_refusals.py::test_a_wheel_for_another_python_is_refused_b"
                "efore_it_is_stored"
            ),
        ),
    ),
}
