"""The metrics that Flink's pages request by name, with their values, for a job or a vertex.

Unknown metrics are left out, name and value: Flink's page shows N/A for them.
"""

from ftdash.api.flink.names import epoch_ms
from ftdash.checkpoints.queries.statistics import RunStatistics
from ftdash.jobs.answers import SubtaskView
from ftdash.runs.queries.runs import RunFacts

NO_WATERMARK = -(2**63)
WATERMARK = "currentInputWatermark"

Values = dict[str, float | int | str]


def of_job(run: RunFacts, found: RunStatistics) -> Values:
    counts, restored = found.counts, found.restored
    values: Values = {
        "numRestarts": run.restart_count,
        "totalNumberOfCheckpoints": counts.total,
        "numberOfInProgressCheckpoints": counts.in_progress,
        "numberOfCompletedCheckpoints": counts.completed,
        "numberOfFailedCheckpoints": counts.failed,
        "lastCheckpointRestoreTimestamp": epoch_ms(restored.at if restored else None),
    }
    newest = [each for each in (found.completed, found.savepoint) if each is not None]
    if newest:
        last = max(newest, key=lambda each: each.row.trigger_at).row
        values |= {
            "lastCheckpointDuration": round(last.end_to_end_ms or 0),
            "lastCheckpointSize": last.uploaded_bytes or 0,
            "lastCheckpointFullSize": last.state_bytes or 0,
            "lastCheckpointPersistedData": last.persisted_bytes or 0,
            "lastCheckpointExternalPath": last.path or "",
            "lastCompletedCheckpointId": last.checkpoint_id or 0,
            "lastCheckpointCompletedTimestamp": epoch_ms(last.completed_at),
        }
    return values


def of_subtask(view: SubtaskView) -> Values:
    bytes_moved = {"numBytesIn": view.bytes_in, "numBytesOut": view.bytes_out}
    return {
        "busyTimeMsPerSecond": round(view.busy_ratio * 1000),
        "backPressuredTimeMsPerSecond": round(view.backpressured_ratio * 1000),
        "idleTimeMsPerSecond": round(view.idle_ratio * 1000),
        "numRecordsIn": view.records_in,
        "numRecordsOut": view.records_out,
        **{name: value for name, value in bytes_moved.items() if value is not None},
        WATERMARK: NO_WATERMARK if view.watermark_at is None else epoch_ms(view.watermark_at),
    }
