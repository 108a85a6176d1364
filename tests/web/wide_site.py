"""A wide pipeline and a large fleet, as rows like those from the real projector.

The pipeline `wide` has four operators with a shuffle before each except the first. So each subtask
of three operators has as many input channels as the parallelism. Its last subtasks are slow. The
fleet has pipelines that run, failed or were stopped; the failed ones share a cause.
"""

import os
import random
from datetime import datetime, timedelta

from django.utils import timezone

from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.incidents.models import Incident
from ftdash.jobs.models import Failure, Pipeline, Recovery, Run
from ftdash.metrics.models import Sample
from pipelines.domain.checkpoint_failures import ChannelAlignment, HeldBack, SubtaskPhases
from pipelines.domain.errors import FailureKind
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointTriggered,
    JobStatusChanged,
    MetricsSampled,
    RunStarted,
    SlotConnected,
    SlotSample,
    SubtaskAcknowledged,
    SubtaskSample,
    VertexShape,
)
from pipelines.domain.ids import Attempt, CheckpointId, Uid, channel_id
from pipelines.domain.nodes import EdgeKind
from pipelines.domain.status import CheckpointKind, JobStatus
from tests.web.journals import Story, StoryClock, new_run

WIDE = "wide"
OPERATORS = ("orders", "enriched", "by-customer", "totals")
STEPS = 4
STATE_BYTES = 2_000_000


class WideRun:
    """Tells the story of a run at the given parallelism."""

    def __init__(self, parallelism: int, started_ms: int, *, seed: int = 7) -> None:
        self.parallelism = parallelism
        self.random = random.Random(seed)
        self.clock = StoryClock(now_ms=started_ms)
        run = new_run(WIDE, parallelism=parallelism, max_parallelism=max(128, parallelism))
        self.story = Story(run, self.clock)
        self.records = 0

    def start(self) -> "WideRun":
        shapes = [
            VertexShape(
                uid=Uid(uid),
                operators=[Uid(uid)],
                inputs=[Uid(each) for each in OPERATORS[max(0, at - 1) : at]],
                edges=[EdgeKind.HASH] * min(1, at),
                is_source=at == 0,
                is_sink=at == len(OPERATORS) - 1,
            )
            for at, uid in enumerate(OPERATORS)
        ]
        self.story.tell(
            RunStarted(
                pipeline=WIDE,
                parallelism=self.parallelism,
                max_parallelism=max(128, self.parallelism),
                master="spark://cluster:7077",
                guarantee="exactly once",
                settings={},
                restored_from=None,
                driver_pid=os.getpid(),
                vertices=shapes,
            )
        )
        self.story.attempt = Attempt(1)
        self.story.tell(
            JobStatusChanged(status=JobStatus.INITIALIZING),
            *(
                SlotConnected(slot=slot, pid=4100 + slot, host=f"node-{slot % 8}")
                for slot in range(self.parallelism)
            ),
            JobStatusChanged(status=JobStatus.RUNNING),
        )
        return self

    def second(self) -> None:
        self.records += 900_000
        self.story.tell(
            MetricsSampled(
                status=JobStatus.RUNNING,
                records_per_s=900_000.0,
                last_completed_ms=None,
                last_committed_ms=None,
                subtasks=[
                    self._sample(uid, index)
                    for uid in OPERATORS
                    for index in range(self.parallelism)
                ],
                slots=[
                    SlotSample(slot=slot, resident_bytes=self.random.randint(2 * 10**8, 3 * 10**8))
                    for slot in range(self.parallelism)
                ],
                counters={},
                reached_records=self.records,
                restored_records=0,
            )
        )

    def _sample(self, uid: str, index: int) -> SubtaskSample:
        is_slow = index == self.parallelism - 1
        busy = 0.97 if is_slow else self.random.uniform(0.2, 0.6)
        return SubtaskSample(
            vertex=Uid(uid),
            subtask=index,
            records_in=self.records // self.parallelism + index,
            records_out=self.records // self.parallelism + index,
            busy_ratio=busy,
            backpressured_ratio=0.01,
            idle_ratio=0.99 - busy,
            watermark_ms=self.clock.now_ms - 5_000 + index,
            queued_records=self.random.randint(0, 900),
            queued_bytes=self.random.randint(0, 90_000),
            state_bytes=STATE_BYTES + 1_000 * index,
            bytes_in=41 * self.records,
            bytes_out=41 * self.records,
        )

    def checkpoint(self) -> CheckpointId:
        number, now_ms = self.story.next_checkpoint, self.clock.now_ms
        self.story.tell(
            CheckpointTriggered(
                checkpoint_id=number,
                kind=CheckpointKind.CHECKPOINT,
                trigger_ms=now_ms,
                subtask_count=len(OPERATORS) * self.parallelism,
            )
        )
        parts = [
            self._part(at, index)
            for at in range(len(OPERATORS))
            for index in range(self.parallelism)
        ]
        took = max(part.acknowledged_ms for part in parts) + 2.5
        self.story.tell(*(SubtaskAcknowledged(checkpoint_id=number, phases=p) for p in parts))
        channels = [channel for part in parts for channel in part.channels]
        completed = CheckpointCompleted(
            checkpoint_id=number,
            kind=CheckpointKind.CHECKPOINT,
            path=f"/jobs/{WIDE}/checkpoints/chk-{number}",
            end_to_end_ms=took,
            state_bytes=sum(part.state_bytes for part in parts),
            uploaded_bytes=sum(part.uploaded_bytes for part in parts),
            buffered_records=sum(channel.buffered_records for channel in channels),
            buffered_bytes=sum(channel.buffered_bytes for channel in channels),
            source_records=self.records,
            watermark_ms=now_ms - 5_000,
            counters={},
        )
        self.story.wait(round(took)).tell(completed, CheckpointCommitted(checkpoint_id=number))
        self.story.next_checkpoint = CheckpointId(number + 1)
        return number

    def _part(self, at: int, index: int) -> SubtaskPhases:
        """A barrier takes longer with each operator, and longest from the last sender."""
        is_slow = index == self.parallelism - 1
        arrivals = [
            30.0 * at * self.random.uniform(0.7, 1.1) + (90.0 if sender else 0.0)
            for sender in [each == self.parallelism - 1 for each in range(self.parallelism)]
            if at
        ]
        first = min(arrivals, default=self.random.uniform(0.5, 3.0))
        last = max(arrivals, default=first)
        upload = self.random.uniform(5, 20) + (200.0 if is_slow else 0.0)
        return SubtaskPhases(
            vertex=Uid(OPERATORS[at]),
            subtask=index,
            start_delay_ms=first,
            alignment_ms=last - first,
            sync_ms=2.0,
            async_ms=upload,
            acknowledged_ms=last + 2.0 + upload,
            state_bytes=STATE_BYTES + 1_000 * index,
            uploaded_bytes=STATE_BYTES // 10,
            channels=[
                self._channel(at, index, sender, arrived, last)
                for sender, arrived in enumerate(arrivals)
            ],
        )

    def _channel(
        self, at: int, index: int, sender: int, arrived: float, last: float
    ) -> ChannelAlignment:
        waited = last - arrived
        sending, receiving = Uid(OPERATORS[at - 1]), Uid(OPERATORS[at])
        return ChannelAlignment(
            channel=channel_id(sending, sender, receiving, 0, index),
            arrived_ms=arrived,
            blocked_ms=waited,
            buffered_records=round(waited * 47),
            buffered_bytes=round(waited * 4_700),
            steps=tuple(
                HeldBack(
                    arrived + waited * step / STEPS,
                    round(waited * 47 * step / STEPS),
                    round(waited * 4_700 * step / STEPS),
                )
                for step in range(1, STEPS + 1)
            ),
        )


TEAMS = ("payments", "search", "logistics", "growth", "platform")
FAILED_EVERY, STOPPED_EVERY = 25, 9
CHECKPOINTS_EACH = 20


def fleet(count: int, *, first: int = 0, seed: int = 7) -> list[Pipeline]:
    """Makes `count` pipelines, numbered from `first`.

    Each has a run, its newest checkpoints, a sample and a recovery. One in 25 has failed for the
    same reason, one in 9 was stopped, the others run.
    """
    now, rng = timezone.now(), random.Random(seed)
    pipelines = Pipeline.objects.bulk_create(
        [
            Pipeline(
                name=f"{TEAMS[n % len(TEAMS)]}-{n:03}",
                flow=("flight_delays", "orders", "clicks")[n % 3],
                parallelism=2,
                created_at=now,
            )
            for n in range(first, first + count)
        ]
    )
    runs = Run.objects.bulk_create([_run(n, each, now) for n, each in enumerate(pipelines, first)])
    Checkpoint.objects.bulk_create(
        [_checkpoint(run, number, now, rng) for run in runs for number in range(CHECKPOINTS_EACH)]
    )
    Sample.objects.bulk_create([_sample(run, now, rng) for run in runs])
    Recovery.objects.bulk_create([_recovery(run, now) for run in runs])
    failed = [run for run in runs if run.reason]
    Failure.objects.bulk_create([_failure(run, now) for run in failed])
    Incident.objects.bulk_create([_incident(run, now) for run in failed])
    return pipelines


def heard(pipelines: list[Pipeline]) -> None:
    """Makes every live run of them report just now."""
    living = Run.objects.filter(pipeline__in=pipelines, ended_at=None)
    living.update(last_event_at=timezone.now(), last_completed_at=timezone.now())


KIND = FailureKind.SYSTEM_AWAY.value
CAUSE = "No restart is left after 3 within 10 min. The database at db:5432 refused the connection."


def _run(number: int, pipeline: Pipeline, now: datetime) -> Run:
    is_failed, is_stopped = number % FAILED_EVERY == 3, number % STOPPED_EVERY == 4
    ended = now - timedelta(hours=1) if is_failed or is_stopped else None
    status = JobStatus.FAILED if is_failed else JobStatus.FINISHED if ended else JobStatus.RUNNING
    return Run(
        pipeline=pipeline,
        run_id=f"{pipeline.name}-1",
        number=1,
        parallelism=2,
        max_parallelism=128,
        master="spark://cluster:7077",
        created_at=now - timedelta(days=1),
        started_at=now - timedelta(days=1),
        ended_at=ended,
        status=status.value,
        reason=CAUSE if is_failed else "",
        attempt=1,
        guarantee="exactly once",
        last_event_at=ended or now,
        last_checkpoint_id=CHECKPOINTS_EACH,
        last_completed_at=ended or now,
        last_committed_at=ended or now,
        records_per_s=1_000.0 + number,
        reached_records=1_000_000,
        restored_records=0,
        restart_count=number % 4,
    )


def _checkpoint(run: Run, number: int, now: datetime, rng: random.Random) -> Checkpoint:
    at = now - timedelta(seconds=10 * (CHECKPOINTS_EACH - number))
    return Checkpoint(
        run=run,
        sequence=number + 1,
        checkpoint_id=number + 1,
        attempt=1,
        kind=CheckpointKind.CHECKPOINT.value,
        status=CheckpointStatus.COMPLETED,
        trigger_at=at,
        completed_at=at,
        committed_at=at,
        end_to_end_ms=rng.uniform(60, 400),
        state_bytes=10**6,
        source_records=50_000 * number,
        acknowledged_count=4,
        subtask_count=4,
    )


def _sample(run: Run, now: datetime, rng: random.Random) -> Sample:
    loads = [
        {
            "vertex": uid,
            "subtask": index,
            "records_in": 1_000,
            "records_out": 1_000,
            "busy_ratio": 0.5,
            "backpressured_ratio": rng.uniform(0, 0.3),
            "idle_ratio": 0.2,
            "watermark_ms": None,
            "queued_records": 0,
            "queued_bytes": 0,
            "state_bytes": 1_000,
        }
        for uid in ("orders", "totals")
        for index in (0, 1)
    ]
    return Sample(
        run=run,
        sequence=1,
        attempt=1,
        at=now,
        records_per_s=1_000.0,
        queued_records=0,
        subtasks=loads,
    )


def _recovery(run: Run, now: datetime) -> Recovery:
    started = now - timedelta(hours=3)
    return Recovery(
        run=run, sequence=2, attempt=1, at=started, started_at=started, running_at=started
    )


def _failure(run: Run, now: datetime) -> Failure:
    return Failure(run=run, sequence=1, attempt=1, at=now, cause=CAUSE, kind=KIND)


def _incident(run: Run, now: datetime) -> Incident:
    opened = now - timedelta(hours=1)
    return Incident(
        pipeline=run.pipeline, run=run, cause=KIND, text=CAUSE, opened_at=opened, last_at=opened
    )
