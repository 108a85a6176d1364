"""Assembles the parts of a job master. Decides nothing.

Each part gets the others that it uses, so the order follows from which part uses which.
"""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.domain.events import MetricsSampled
from pipelines.protocol.fencing import AttemptFence
from pipelines.runtime.master.attempt.attempts import Attempts
from pipelines.runtime.master.attempt.failures import Failures
from pipelines.runtime.master.attempt.poison_desk import PoisonDesk
from pipelines.runtime.master.attempt.recovery_watch import RecoveryWatch
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.point_keeper import PointVerifier
from pipelines.runtime.master.checkpoints.underway import CheckpointListener
from pipelines.runtime.master.hosting import ControlDoor
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.requests.command_desk import CommandDesk
from pipelines.runtime.master.requests.fault_desk import FaultDesk
from pipelines.runtime.master.requests.request_desk import RequestDesk
from pipelines.runtime.master.requests.run_end import RunEnd
from pipelines.runtime.master.run_parts import RunParts, RunWatchers
from pipelines.runtime.master.run_record import RunRecord
from pipelines.runtime.master.slots.metrics_board import MetricsBoard
from pipelines.runtime.master.slots.slot_reports import SlotReports
from pipelines.runtime.master.start.run_opening import (
    damaged_files,
    first_checkpoint_id,
    retained_points,
    stopping_of,
    surroundings_of,
)


@dataclass(frozen=True, slots=True)
class MasterGrounds:
    """What a job master stands on: its run, its ways out of the process, its own queue."""

    parts: RunParts
    journal: JournalWriter
    inbox: Inbox
    executor: Executor
    control: ControlDoor
    post: Callable[[JobEvent], None]


@dataclass(frozen=True, slots=True)
class Assembly:
    """All of it outlives every attempt."""

    fence: AttemptFence
    record: RunRecord
    watchers: RunWatchers
    end: RunEnd
    attempts: Attempts
    failures: Failures
    desk: RequestDesk
    faults: FaultDesk
    commands: CommandDesk
    verifier: PointVerifier
    slots: SlotReports


def assembled(grounds: MasterGrounds, listener: CheckpointListener) -> Assembly:
    """Raises Retryable: the storage does not answer, or without the points that are in it."""
    parts, fence = grounds.parts, AttemptFence()
    record = RunRecord(grounds.journal, fence)
    watchers = _watchers(grounds, fence, record, listener)
    end = RunEnd(record, stopping_of(grounds.journal, watchers.checkpoints.points))
    attempts = Attempts(parts, record, fence, grounds.control, watchers, end)
    failures = Failures(parts, record, attempts, watchers, end)
    desk = RequestDesk(grounds.inbox, record.emit, grounds.post)
    faults = FaultDesk(desk, attempts, parts)
    verifier = PointVerifier(
        parts.store,
        parts.clock,
        parts.settings.verification_interval_ms,
        watchers.checkpoints.damage,
        record.emit,
        grounds.post,
        desk.answer,
    )
    commands = CommandDesk(
        desk,
        record,
        attempts,
        watchers.checkpoints,
        parts.spec.settings,
        parts.pipeline.check_fits,
        end,
        faults,
        verifier,
    )
    slots = SlotReports(parts.clock, record, attempts, failures, faults, watchers, end)
    return Assembly(
        fence, record, watchers, end, attempts, failures, desk, faults, commands, verifier, slots
    )


def _watchers(
    grounds: MasterGrounds, fence: AttemptFence, record: RunRecord, listener: CheckpointListener
) -> RunWatchers:
    parts, journal = grounds.parts, grounds.journal
    checkpoints = CheckpointHost(
        surroundings_of(parts, grounds.executor, fence, record.emit, grounds.post),
        retained_points(parts, journal),
        first_checkpoint_id(parts, journal),
        listener,
        damaged_files(journal),
    )
    poison = PoisonDesk(parts.settings, parts.places, record.emit, journal)
    recovery = RecoveryWatch(parts.clock, record.emit)
    sampled = journal.newest(MetricsSampled)
    reached = sampled.reached_records if sampled is not None else None
    board = MetricsBoard(parts.clock, parts.spec.parallelism, reached or 0)
    return RunWatchers(checkpoints, board, recovery, poison)
