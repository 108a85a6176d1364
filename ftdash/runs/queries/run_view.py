"""Composes what the pages show about one run."""

from ftdash.checkpoints.models import Checkpoint
from ftdash.jobs.answers import RunView, SlotView, SubtaskView, VertexView
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Run
from ftdash.metrics.models import Sample
from ftdash.runs.queries.freshness import Observation, fresh_driver_note, shown_state
from ftdash.runs.queries.measured import measured
from ftdash.times import watermark_moment
from pipelines.domain.settings import CheckpointingMode


def run_view(run: Run, seen: Observation) -> RunView:
    state, reason = shown_state(run, seen)
    sample = Sample.objects.filter(run=run).order_by("-sequence").first()
    directory = run_directory(run)
    known, to_replay = measured(run.pipeline), records_to_replay(run)
    return RunView(
        run_id=run.run_id,
        number=run.number,
        attempt=run.attempt,
        state=state,
        state_reason=reason,
        last_reported_state=run.status,
        as_of=run.last_event_at,
        driver_note=fresh_driver_note(run),
        projection_error=run.projection_error,
        guarantee=run.guarantee,
        guarantee_reason=run.guarantee_reason,
        parallelism=run.parallelism,
        max_parallelism=run.max_parallelism,
        master=run.master,
        parameters=run.parameters,
        settings=run.settings_now,
        restored_from=run.restored_from,
        parent_run_id=run.parent.run_id if run.parent else None,
        created_at=run.created_at,
        started_at=run.started_at,
        ended_at=run.ended_at,
        driver_pid=run.driver_pid,
        records_per_s=run.records_per_s,
        watermark_at=watermark_moment(run.watermark_ms),
        last_checkpoint_id=run.last_checkpoint_id,
        last_completed_at=run.last_completed_at,
        last_committed_at=run.last_committed_at,
        restart_count=run.restart_count,
        counters=run.counters,
        vertices=[VertexView(**vertex) for vertex in run.vertices],
        slots=_slots(run, sample),
        subtasks=subtasks_of(sample),
        records_to_replay=to_replay,
        to_recover_ms=known.until_caught_up_ms(to_replay),
        recovery_count=len(known.recoveries_ms),
        journal_path=str(directory.journal_file),
        journal_gap=run.journal_gap,
        driver_log_path=str(directory.driver_log),
    )


def records_to_replay(run: Run) -> int | None:
    """What the sources have read after the point to which a failure now would go back, as of the
    last report: the difference of two positions, whatever was read again meanwhile.

    None if nothing would be replayed because the run is over, or if nothing is known.
    """
    if run.is_terminal:
        return None
    mode = run.settings_now.get("execution.checkpointing.mode", "")
    if mode.strip().upper().replace("-", "_") == CheckpointingMode.AT_MOST_ONCE:
        return 0  # records that were read are lost, and not read again
    newest = Checkpoint.objects.filter(run=run, checkpoint_id=run.last_checkpoint_id).first()
    since = newest.source_records if newest else run.restored_records
    if run.reached_records is None or since is None:
        return None
    return max(0, run.reached_records - since)


def _slots(run: Run, sample: Sample | None) -> list[SlotView]:
    resident = sample.resident_bytes if sample else {}
    return [
        SlotView(int(slot), entry["pid"], entry["host"], resident.get(slot))
        for slot, entry in sorted(run.slots.items(), key=lambda item: int(item[0]))
    ]


def subtasks_of(sample: Sample | None) -> list[SubtaskView]:
    entries = [dict(entry) for entry in sample.subtasks] if sample else []
    return [
        SubtaskView(watermark_at=watermark_moment(entry.pop("watermark_ms")), **entry)
        for entry in entries
    ]
