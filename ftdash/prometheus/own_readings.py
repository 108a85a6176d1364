"""Metrics that Flink lacks: the two clocks, recoveries, refusals, and our processes.

Pure. The clocks of a silent run go on: for an alert, a checkpoint that was not reported has not
completed.
"""

from collections.abc import Iterator
from datetime import datetime

from ftdash.jobs.answers import ShownState
from ftdash.prometheus.families import FAMILIES, Reading
from ftdash.prometheus.observed import Observed, ObservedPipeline, ObservedRun
from ftdash.runs.timeliness import to_running_ms

MS_PER_S = 1000.0
Labels = dict[str, str]


def installation_readings(observed: Observed) -> Iterator[Reading]:
    yield _reading("process_up", {"process": "projector"}, observed.projector.is_alive)
    yield _reading("process_up", {"process": "reconcile"}, observed.reconcile.is_alive)


def pipeline_readings(pipeline: ObservedPipeline) -> Iterator[Reading]:
    labels = {"pipeline": pipeline.name}
    yield _reading("open_requests", labels, pipeline.open_request_count)
    for state in ShownState:
        is_in_it = pipeline.state is state
        yield _reading("pipeline_state", labels | {"state": state.value}, is_in_it)
    if pipeline.run is not None:
        yield from _run_readings(pipeline.run)


def _run_readings(observed: ObservedRun) -> Iterator[Reading]:
    labels = {"pipeline": observed.pipeline, "run": observed.run.run_id}
    yield from _known(labels, _clocks(observed))
    yield from _known(labels, _last_checkpoint(observed))
    yield _reading("refused_zombies_total", labels, observed.refused_zombie_count)
    yield _reading("refused_points_total", labels, observed.refused_point_count)
    yield _reading("quarantined_records_total", labels, observed.quarantined_count)
    for reason, count in sorted(observed.checkpoints.failures.items()):
        yield _reading("checkpoint_failures_total", labels | {"reason": reason}, count)
    yield from _recovery(labels, observed)
    if observed.is_live:
        yield from _load(labels, observed)


def _clocks(observed: ObservedRun) -> dict[str, float | None]:
    if observed.state.is_terminal:
        return {}  # nothing more will come
    run, now = observed.run, observed.now
    return {
        "report_age_seconds": _seconds(run.last_event_at, now),
        "since_completed_checkpoint_seconds": _seconds(run.last_completed_at, now),
        "since_committed_output_seconds": _seconds(run.last_committed_at, now),
        "commit_wait_seconds": _seconds(observed.commit_waits_since or now, now),
        "records_to_replay": observed.records_to_replay,
    }


def _last_checkpoint(observed: ObservedRun) -> dict[str, float | None]:
    newest = observed.checkpoints.newest
    return {
        "last_checkpoint_buffered_records": newest.buffered_records if newest else None,
        "last_checkpoint_buffered_bytes": newest.buffered_bytes if newest else None,
    }


def _recovery(labels: Labels, observed: ObservedRun) -> Iterator[Reading]:
    recovery = observed.recovery
    if recovery is None:
        return
    for phase in recovery.phases:
        seconds = phase["duration_ms"] / MS_PER_S
        yield _reading("last_recovery_phase_seconds", labels | {"phase": phase["phase"]}, seconds)
    took_ms = to_running_ms(recovery.running_at, recovery.phases)
    if took_ms is not None:
        yield _reading("last_recovery_seconds", labels, took_ms / MS_PER_S)


def _load(labels: Labels, observed: ObservedRun) -> Iterator[Reading]:
    for name, count in observed.run.counters.items():
        operator, _, counter = name.rpartition(".")
        whose = {"operator": operator, "counter": counter}
        yield _reading("operator_count", labels | whose, count)
    if observed.loads is None:
        return
    yield _reading("records_read_per_second", labels, observed.run.records_per_s)
    for slot, resident_bytes in observed.loads.resident_bytes.items():
        yield _reading("slot_resident_bytes", labels | {"slot": str(slot)}, resident_bytes)
    for load in observed.loads.subtasks:
        whose = {"operator": load.vertex, "subtask": str(load.subtask)}
        yield _reading("queued_records", labels | whose, load.queued_records)
        yield _reading("state_bytes", labels | whose, load.state_bytes)


def _known(labels: Labels, values: dict[str, float | None]) -> Iterator[Reading]:
    for name, value in values.items():
        if value is not None:
            yield _reading(name, labels, value)


def _reading(name: str, labels: Labels, value: float) -> Reading:
    return Reading(FAMILIES[f"ftdash_{name}"], labels, value)


def _seconds(since: datetime | None, now: datetime) -> float | None:
    return None if since is None else max(0.0, (now - since).total_seconds())
