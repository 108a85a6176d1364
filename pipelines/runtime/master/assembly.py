"""Assembles the parts of a job master. Decides nothing.

Each part gets the others that it uses, so the order follows from which part uses which.
"""

from dataclasses import dataclass

from pipelines.domain.events import MetricsSampled
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.attempt.failure_report import restart_backoff
from pipelines.runtime.master.attempt.failures import Failures
from pipelines.runtime.master.attempt.poison_desk import PoisonDesk
from pipelines.runtime.master.attempt.recovery_watch import RecoveryWatch
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.point_keeper import PointVerifier
from pipelines.runtime.master.requests.checkpoint_outcomes import CheckpointOutcomes
from pipelines.runtime.master.requests.command_desk import CommandDesk
from pipelines.runtime.master.requests.fault_desk import FaultDesk
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.run_context import RunContext
from pipelines.runtime.master.run_watchers import RunWatchers
from pipelines.runtime.master.slots.metrics_board import MetricsBoard
from pipelines.runtime.master.slots.slot_reports import SlotReports
from pipelines.runtime.master.start.run_opening import (
    FoundPoints,
    damaged_files,
    first_checkpoint_id,
    found_points,
    stopping_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """All of it outlives every attempt."""

    watchers: RunWatchers
    end: RunEnd
    attempts: Attempts
    failures: Failures
    desk: RequestDesk
    faults: FaultDesk
    commands: CommandDesk
    verifier: PointVerifier
    slots: SlotReports


def assembled(context: RunContext) -> Assembly:
    """Raises Retryable: the storage does not answer, or without the points that are in it."""
    record, found = context.record, found_points(context)
    desk = RequestDesk(context.inbox, record.emit, context.post)
    end = RunEnd(record, stopping_of(context.journal, found.retained))
    watchers = _watchers(context, found, desk, end)
    attempts = Attempts(context, watchers, end)
    failures = Failures(context, attempts, watchers, end)
    faults = FaultDesk(desk, attempts, context)
    verifier = PointVerifier(
        store=context.store,
        clock=context.clock,
        interval_ms=context.settings.verification_interval_ms,
        damage=watchers.checkpoints.damage,
        emit=record.emit,
        post=context.post,
        answer=desk.answer,
    )
    commands = CommandDesk(
        desk=desk,
        record=record,
        attempts=attempts,
        checkpoints=watchers.checkpoints,
        given_settings=context.spec.settings,
        check_fits=context.pipeline.check_fits,
        end=end,
        faults=faults,
        verifier=verifier,
    )
    slots = SlotReports(context, attempts, failures, faults, watchers, end)
    return Assembly(
        watchers=watchers,
        end=end,
        attempts=attempts,
        failures=failures,
        desk=desk,
        faults=faults,
        commands=commands,
        verifier=verifier,
        slots=slots,
    )


def _watchers(
    context: RunContext, found: FoundPoints, desk: RequestDesk, end: RunEnd
) -> RunWatchers:
    journal, emit = context.journal, context.record.emit
    recovery = RecoveryWatch(context.clock, emit)
    restart = restart_backoff(context.settings)
    checkpoints = CheckpointHost(
        context,
        found.retained,
        first_checkpoint_id(context),
        CheckpointOutcomes(desk=desk, end=end, recovery=recovery, restart=restart),
        damaged_files(journal),
        found.given_up,
    )
    sampled = journal.newest(MetricsSampled)
    reached = sampled.reached_records if sampled is not None else None
    return RunWatchers(
        checkpoints=checkpoints,
        board=MetricsBoard(context.clock, context.spec.parallelism, reached or 0),
        recovery=recovery,
        poison=PoisonDesk(context.settings, context.places, emit, journal),
        restart=restart,
    )
