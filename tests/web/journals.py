"""Journals as a driver would write them, for tests of all code that reads their rows."""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from django.utils import timezone

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline, Request, Run
from pipelines.bus.journal import JournalWriter
from pipelines.bus.journal_segments import SEGMENT_BYTES, newest_segment
from pipelines.domain.checkpoint_failures import ChannelAlignment, HeldBack, SubtaskPhases
from pipelines.domain.commands import Command, TakeSavepoint
from pipelines.domain.errors import FailureKind
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointTriggered,
    Event,
    FailureOccurred,
    JobStatusChanged,
    MetricKind,
    MetricSample,
    MetricSpread,
    MetricsSampled,
    OutputPublishedAgain,
    RecordQuarantined,
    RecoveryPhaseReached,
    RequestAccepted,
    RequestEnded,
    RestartScheduled,
    RunEnded,
    RunStarted,
    SlotConnected,
    SlotLost,
    SlotSample,
    SubtaskAcknowledged,
    SubtaskSample,
    VertexShape,
)
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.nodes import EdgeKind
from pipelines.domain.poison import PoisonRecord
from pipelines.domain.status import CheckpointKind, JobStatus, RecoveryPhase, RequestOutcome

VERTICES = {"flights": [], "weather": [], "join": ["flights", "weather"], "delays": ["join"]}
SUBTASKS = [(uid, index) for uid in VERTICES for index in (0, 1)]


@dataclass
class StoryClock:
    """Wall time that a test sets."""

    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def monotonic_ms(self) -> float:
        return float(self.now_ms)

    def wall_ms(self) -> int:
        return self.now_ms


class Story:
    """Appends to the journal of a run, step by step, what a driver would append."""

    def __init__(
        self,
        run: Run,
        clock: StoryClock | None = None,
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.run = run
        self.segment_bytes = segment_bytes
        self.clock = clock or StoryClock()
        self.attempt = Attempt(0)
        self.next_checkpoint = CheckpointId(1)
        self._journal: JournalWriter | None = None

    def tell(self, *events: Event) -> "Story":
        if self._journal is None:
            with self.in_one_go():
                return self.tell(*events)
        for event in events:
            self._journal.append(event, self.attempt)
        return self

    @contextmanager
    def in_one_go(self) -> Iterator[None]:
        """Keeps the journal open: opening it costs more than writing many a line."""
        directory, run_id = run_directory(self.run), RunId(self.run.run_id)
        with JournalWriter(
            directory, run_id, self.clock, lambda *_: None, segment_bytes=self.segment_bytes
        ) as journal:
            self._journal = journal
            yield
        self._journal = None
        self.written_at(self.clock.now_ms)

    def written_at(self, at_ms: int) -> None:
        """Sets the time of the newest segment, by the clock of the disk, which is right."""
        file = newest_segment(run_directory(self.run).journal_file).path
        os.utime(file, ns=(at_ms * 1_000_000, at_ms * 1_000_000))

    def wait(self, ms: int) -> "Story":
        self.clock.now_ms += ms
        return self

    def started(self, pid: int = 4711) -> "Story":
        self.tell(run_started(pid))
        self.attempt = Attempt(self.attempt + 1)
        self.tell(JobStatusChanged(status=JobStatus.INITIALIZING))
        slots = [SlotConnected(slot=slot, pid=100 + slot, host="here") for slot in (0, 1)]
        return self.tell(*slots, JobStatusChanged(status=JobStatus.RUNNING))

    def sampled(
        self, records_per_s: float = 1000.0, records: int = 10, *, since: int = 10
    ) -> "Story":
        """Reports a sample. `since` counts the records read after the newest checkpoint."""
        reached = source_records_at(self.next_checkpoint - 1) + since
        return self.tell(sample(records_per_s, records, reached))

    def triggered(
        self,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        request_id: str | None = None,
    ) -> "Story":
        return self.tell(
            CheckpointTriggered(
                checkpoint_id=self.next_checkpoint,
                kind=kind,
                trigger_ms=self.clock.now_ms,
                subtask_count=len(SUBTASKS),
                request_id=RequestId(request_id) if request_id else None,
            )
        )

    def acknowledged(self, uid: str, index: int) -> "Story":
        """Acknowledges the triggered checkpoint for one subtask."""
        number = self.next_checkpoint
        return self.tell(SubtaskAcknowledged(checkpoint_id=number, phases=phases(uid, index)))

    def completed(
        self,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        request_id: str | None = None,
        path: str = "",
    ) -> "Story":
        """Writes the events of a checkpoint from its trigger to its commit."""
        number = self.next_checkpoint
        self.triggered(kind, request_id)
        acknowledged = [
            SubtaskAcknowledged(checkpoint_id=number, phases=phases(uid, index))
            for uid, index in SUBTASKS
        ]
        self.wait(80).tell(*acknowledged, checkpoint_completed(number, kind, path))
        self.wait(5).tell(CheckpointCommitted(checkpoint_id=number))
        self.next_checkpoint = CheckpointId(number + 1)
        return self

    def slot_killed(self, slot: int = 1, detail: str = "") -> "Story":
        """Writes a failure and the whole recovery from it."""
        self.tell(
            SlotLost(slot=slot, pid=100 + slot, reason="killed"),
            FailureOccurred(
                cause=f"Slot {slot} (pid {100 + slot}) is gone: killed.",
                slot=slot,
                detail=detail,
                kind=FailureKind.SLOT_LOST,
            ),
            phase(RecoveryPhase.DETECT, 12.0),
            JobStatusChanged(status=JobStatus.RESTARTING, reason=f"Slot {slot} was killed."),
            phase(RecoveryPhase.DECIDE, 3.0, restored=self.next_checkpoint - 1),
            phase(RecoveryPhase.STOP, 105.0),
        )
        self.attempt = Attempt(self.attempt + 1)
        self.wait(120).tell(
            JobStatusChanged(status=JobStatus.INITIALIZING),
            SlotConnected(slot=slot, pid=200 + slot, host="here"),
            phase(RecoveryPhase.BACKOFF, 0.0),
            phase(RecoveryPhase.START, 100.0),
            JobStatusChanged(status=JobStatus.RUNNING),
            phase(RecoveryPhase.RESTORE, 80.0),
        )
        return self.wait(200).tell(
            phase(RecoveryPhase.FIRST_RECORD, 10.0),
            phase(RecoveryPhase.FIRST_CHECKPOINT, 500.0),
            phase(RecoveryPhase.CAUGHT_UP, 700.0),
        )

    def waits_for_restart(self, delay_ms: int = 38_000) -> "Story":
        """Writes that a server is away, and that the next attempt begins after the delay."""
        return self.tell(
            FailureOccurred(
                cause='connection to server at "127.0.0.1", port 5432 failed: refused',
                kind=FailureKind.SYSTEM_AWAY,
            ),
            JobStatusChanged(status=JobStatus.RESTARTING, reason="It is away."),
            RestartScheduled(
                at_ms=time.time_ns() // 1_000_000 + delay_ms,
                attempt=Attempt(self.attempt + 1),
                delay_ms=delay_ms,
            ),
        )

    def ended(self, status: JobStatus = JobStatus.FINISHED, reason: str = "Done.") -> "Story":
        changed = JobStatusChanged(status=status, reason=reason)
        return self.tell(changed, RunEnded(status=status, reason=reason))

    def answered(self, request: Request, path: str | None = None) -> "Story":
        request_id = RequestId(request.request_id)
        ended = RequestEnded(
            request_id=request_id, outcome=RequestOutcome.SUCCEEDED, message="Done.", path=path
        )
        return self.tell(RequestAccepted(request_id=request_id), ended)


def new_run(name: str = "flights", **columns: object) -> Run:
    pipeline, _ = Pipeline.objects.get_or_create(
        name=name,
        defaults={"flow": "flight_delays", "created_at": timezone.now(), "allows_faults": True},
    )
    number = pipeline.runs.count() + 1
    values: dict[str, object] = {
        "run_id": f"{name}-{number}",
        "number": number,
        "parallelism": 2,
        "max_parallelism": 128,
        "master": "local[2]",
        "created_at": timezone.now(),
        **columns,
    }
    return Run.objects.create(pipeline=pipeline, **values)


def new_request(run: Run, command: Command | None = None, **columns: object) -> Request:
    """Stores a request, for a savepoint if no command is given."""
    now = timezone.now()
    values: dict[str, object] = {
        "request_id": f"request-{Request.objects.count() + 1}",
        "requester": "ann",
        "reason": "upgrade",
        "created_at": now,
        "deadline_at": now + timedelta(seconds=120),
        **columns,
    }
    request = Request.of(command or TakeSavepoint(), pipeline=run.pipeline, run=run, **values)
    request.save()
    return request


def run_started(pid: int) -> RunStarted:
    return RunStarted(
        pipeline="flight_delays",
        parallelism=2,
        max_parallelism=128,
        master="local[2]",
        guarantee="exactly once",
        guarantee_reason="every link is exact",
        settings={},
        restored_from=None,
        driver_pid=pid,
        vertices=[shape(uid, inputs) for uid, inputs in VERTICES.items()],
    )


def shape(uid: str, inputs: Iterable[str]) -> VertexShape:
    return VertexShape(
        uid=Uid(uid),
        operators=[Uid(uid)],
        inputs=[Uid(each) for each in inputs],
        edges=[EdgeKind.HASH for _ in inputs],
        is_source=uid in ("flights", "weather"),
        is_sink=uid == "delays",
    )


def phases(uid: str, index: int) -> SubtaskPhases:
    """Returns a subtask's phases.

    The second subtask of the join waits for weather[1] and acknowledges last.
    """
    is_slow = (uid, index) == ("join", 1)
    channels = [channel(source, 0, index, 2.0, 61.0 if is_slow else 1.0) for source in "fw"]
    if is_slow:
        channels.append(channel("w", 1, index, 63.0, 0.0))
    return SubtaskPhases(
        vertex=Uid(uid),
        subtask=index,
        start_delay_ms=2.0,
        alignment_ms=61.0 if is_slow else 1.0,
        sync_ms=1.0,
        async_ms=5.0,
        acknowledged_ms=75.0 if is_slow else 20.0,
        state_bytes=1000,
        uploaded_bytes=100,
        channels=channels if uid == "join" else [],
    )


def channel(
    source: str, index: int, target: int, arrived_ms: float, blocked_ms: float
) -> ChannelAlignment:
    upstream = {"f": "flights", "w": "weather"}[source]
    port = {"f": 0, "w": 1}[source]
    return ChannelAlignment(
        channel=ChannelId(f"{upstream}[{index}]>join.{port}[{target}]"),
        arrived_ms=arrived_ms,
        blocked_ms=blocked_ms,
        buffered_records=int(blocked_ms * 40),
        buffered_bytes=int(blocked_ms * 4000),
        steps=(
            HeldBack(arrived_ms, int(blocked_ms * 10), int(blocked_ms * 1000)),
            HeldBack(arrived_ms + blocked_ms / 2, int(blocked_ms * 40), int(blocked_ms * 4000)),
        ),
    )


def checkpoint_completed(
    number: CheckpointId, kind: CheckpointKind, path: str = ""
) -> CheckpointCompleted:
    return CheckpointCompleted(
        checkpoint_id=number,
        kind=kind,
        path=path or f"/jobs/flights/checkpoints/chk-{number}",
        end_to_end_ms=80.0,
        state_bytes=8000,
        uploaded_bytes=800,
        buffered_records=2440,
        buffered_bytes=244_000,
        source_records=source_records_at(number),
        watermark_ms=1_357_000_000_000,
        counters={"join.unmatched_left": 3},
    )


def source_records_at(number: int) -> int:
    """Returns the number of records that the sources read before the cut of that checkpoint."""
    return 1_000 * number


def sample(
    records_per_s: float, records: int, reached: int | None = None, restored: int | None = 0
) -> MetricsSampled:
    """Returns a sample in which each subtask processed `records` since the attempt started.

    `reached` and `restored` mean the same as in the event.
    """
    return MetricsSampled(
        status=JobStatus.RUNNING,
        records_per_s=records_per_s,
        last_completed_ms=None,
        last_committed_ms=None,
        subtasks=[subtask_sample(uid, index, records) for uid, index in SUBTASKS],
        slots=[SlotSample(slot=slot, resident_bytes=200_000_000) for slot in (0, 1)],
        counters={"join.unmatched_left": 3},
        reached_records=reached,
        restored_records=restored,
    )


def subtask_sample(uid: str, index: int, records: int) -> SubtaskSample:
    return SubtaskSample(
        vertex=Uid(uid),
        subtask=index,
        records_in=records,
        records_out=records,
        busy_ratio=0.5,
        backpressured_ratio=0.1,
        idle_ratio=0.4,
        watermark_ms=1_357_000_000_000 + index,
        queued_records=3,
        queued_bytes=300,
        state_bytes=1000,
        busy_ms=5_000,
        backpressured_ms=1_000,
        idle_ms=4_000,
        pending_records=700 if uid == "flights" else None,
        bytes_in=0 if not VERTICES[uid] else 80 * records,
        bytes_out=90 * records,
        queued_ms=None if not VERTICES[uid] else 400,
        window_bytes=None if not VERTICES[uid] else 20_000,
        metrics=user_metrics(index, records) if uid == "join" else [],
    )


def user_metrics(index: int, records: int) -> list[MetricSample]:
    """Returns the metrics that a function of the operator `join` keeps."""
    spread = MetricSpread(
        least=0.5 + index, most=90.0 + index, mean=10.0, p50=8.0, p95=40.0 + index, p99=80.0
    )
    return [
        MetricSample(
            operator=Uid("join"), name="matches", kind=MetricKind.COUNTER, value=records + index
        ),
        MetricSample(operator=Uid("join"), name="open_rows", kind=MetricKind.GAUGE, value=0.25),
        MetricSample(
            operator=Uid("join"),
            name="delay_ms",
            kind=MetricKind.HISTOGRAM,
            value=records,
            spread=spread,
        ),
    ]


def phase(
    name: RecoveryPhase, duration_ms: float, restored: int | None = None
) -> RecoveryPhaseReached:
    is_decision = name is RecoveryPhase.DECIDE
    return RecoveryPhaseReached(
        phase=name,
        duration_ms=duration_ms,
        restored_checkpoint_id=CheckpointId(restored) if restored else None,
        restored_path=f"/jobs/flights/checkpoints/chk-{restored}" if restored else None,
        records_to_replay=1234 if is_decision else None,
    )


def quarantined(offset: int, *, count: int, split: str = "a", error: str = "") -> RecordQuarantined:
    record = PoisonRecord(
        source=Uid("events"),
        split=split,
        offset=offset,
        operator=Uid("parse"),
        error_type="builtins.ValueError",
        error=error or f"{offset} is bad",
        trace="where it was",
    )
    return RecordQuarantined(record=record, directory="/quarantine/events", count=count, limit=100)


def published_again(records: int | None) -> OutputPublishedAgain:
    return OutputPublishedAgain(
        sink=Uid("topic"), target="topic t", records=records, published_by=RunId("0001-a")
    )


def give_parallelism(run_id: str, uid: str, parallelism: int) -> None:
    """Sets an operator's parallelism, as if the pipeline of the run had set it."""
    run = Run.objects.get(run_id=run_id)
    vertices = [v | {"parallelism": parallelism} if v["uid"] == uid else v for v in run.vertices]
    Run.objects.filter(pk=run.pk).update(vertices=vertices)
