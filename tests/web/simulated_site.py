"""A live dashboard and pipeline without an engine, for the browser tests and for use by hand.

    FTDASH_HOME=DIR python -m tests.web.simulated_site [--history 40] [--period 1.0] [--seed 7]
        [--spare]

Fills the database of FTDASH_HOME with two users, `admin` and `operator`, whose passwords are their
names. Adds the history of one pipeline, with the traces of people and workers (`filled_states`),
and ended pipelines (`ended_pipelines`). `--spare` adds pipelines that a test may use up. Then adds
a sample and a checkpoint each period, folds them with the real projector, and carries out requests
in place of a worker (`simulated_worker`). Prints `ready` when the history is complete.

The file `silent` of FTDASH_HOME names those of driver, projector and worker that last reported an
hour ago. A silent driver reports nothing, and a silent worker does nothing.
"""

import argparse
import os
import random
import time
from datetime import timedelta
from itertools import count
from pathlib import Path
from shutil import rmtree

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ftdash.settings")
django.setup()

from django.conf import settings as project  # noqa: E402
from django.contrib.auth.models import Permission, User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from ftdash.accounts.services import save_view  # noqa: E402
from ftdash.alerts.models import Evaluation  # noqa: E402
from ftdash.jobs.models import PointInspection, Request, Run  # noqa: E402
from ftdash.metrics.models import Heartbeat, HeartbeatName  # noqa: E402
from ftdash.projection.projector import Projector  # noqa: E402
from pipelines.domain.checkpoint_failures import (  # noqa: E402
    ChannelAlignment,
    CheckpointFailureReason,
    HeldBack,
    SubtaskPhases,
)
from pipelines.domain.commands import RequestKind  # noqa: E402
from pipelines.domain.events import (  # noqa: E402
    CheckpointCommitted,
    CheckpointCompleted,
    CheckpointDiscarded,
    CheckpointFailed,
    JobStatusChanged,
    LedgerAdvanced,
    MetricKind,
    MetricSample,
    MetricSpread,
    MetricsSampled,
    PointsVerified,
    RestorePointRefused,
    RunStarted,
    SlotConnected,
    SlotSample,
    SubtaskAcknowledged,
    SubtaskSample,
    VertexShape,
    ZombieRefused,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid, channel_id  # noqa: E402
from pipelines.domain.ledger import (  # noqa: E402
    LedgerEntry,
    OutputShare,
    SinkOutput,
    SourceInput,
    SplitRange,
)
from pipelines.domain.nodes import EdgeKind  # noqa: E402
from pipelines.domain.status import CheckpointKind, JobStatus  # noqa: E402
from tests.web import filled_states  # noqa: E402
from tests.web.ended_pipelines import failed_arrivals, spare_clicks, stopped_views  # noqa: E402
from tests.web.journals import Story, StoryClock, new_request, new_run  # noqa: E402
from tests.web.simulated_worker import SimulatedWorker, delivered_to  # noqa: E402

INPUTS = {
    "flights": [],
    "weather": [],
    "weather-at-departure": ["flights", "weather"],
    "hourly-delay": ["weather-at-departure"],
}
PARALLELISM = 2
SUBTASKS = [(uid, index) for uid in INPUTS for index in range(PARALLELISM)]
RETAINED = 3
STACK = "\n".join(
    ["Current thread (most recent call first):"]
    + [f'  File "operators/step_{step}.py", line {7 * step} in process' for step in range(1, 25)]
)
"""More lines than a page shows at once."""

WATCHED_BATCHES = 72
"""How many batches the running watched query had before its first batch here."""

SILENT_FILE = "silent"
BEATS = {"projector": HeartbeatName.PROJECTOR, "worker": HeartbeatName.RECONCILE}
STATE_BYTES = {
    "flights": 400,
    "weather": 400,
    "weather-at-departure": 380_000,
    "hourly-delay": 96_000,
}


class SimulatedRun:
    """Writes the story of a run whose second join subtask waits for the slower weather."""

    def __init__(self, run: Run, seed: int, started_ms: int) -> None:
        self.random = random.Random(seed)
        self.clock = StoryClock(now_ms=started_ms)
        self.story = Story(run, self.clock)
        self.records = self.entered = 0
        self.retained: list[CheckpointId] = []
        self.savepoints: list[CheckpointId] = []
        self.event_ms = 1_357_000_000_000

    def start(self) -> None:
        shapes = [
            VertexShape(
                uid=Uid(uid),
                operators=[Uid(uid)],
                inputs=[Uid(each) for each in inputs],
                edges=[EdgeKind.HASH for _ in inputs],
                is_source=not inputs,
                is_sink=uid == "hourly-delay",
            )
            for uid, inputs in INPUTS.items()
        ]
        started = RunStarted(
            pipeline="flight_delays",
            parallelism=PARALLELISM,
            max_parallelism=128,
            master="local[2]",
            guarantee="exactly-once (idempotent)",
            settings={},
            restored_from=None,
            driver_pid=os.getpid(),
            vertices=shapes,
        )
        self.story.tell(started)
        self.story.attempt = Attempt(1)
        self.story.tell(
            JobStatusChanged(status=JobStatus.INITIALIZING),
            *self.slots(),
            JobStatusChanged(status=JobStatus.RUNNING),
        )

    def slots(self) -> list[SlotConnected]:
        return [SlotConnected(slot=s, pid=4100 + s, host="localhost") for s in range(PARALLELISM)]

    def second(self) -> None:
        read = round(self.random.gauss(12_400, 900))
        self.records += read
        self.event_ms += 24 * 3_600_000
        self.story.tell(self.sample(read))

    def sample(self, read: int) -> MetricsSampled:
        return MetricsSampled(
            status=JobStatus.RUNNING,
            records_per_s=float(read),
            last_completed_ms=None,
            last_committed_ms=None,
            subtasks=[self.subtask_sample(uid, index) for uid, index in SUBTASKS],
            slots=[
                SlotSample(slot=s, resident_bytes=round(self.random.gauss(214e6 + s * 9e6, 4e5)))
                for s in range(PARALLELISM)
            ],
            counters=self.counters(),
            reached_records=self.records,
            restored_records=0,
        )

    def counters(self) -> dict[str, int]:
        unmatched = self.records // 210
        return {"weather-at-departure.unmatched_left": unmatched, "hourly-delay.late_records": 0}

    def subtask_sample(self, uid: str, index: int) -> SubtaskSample:
        busy = self.random.uniform(0.25, 0.7)
        blocked = self.random.uniform(0.0, 0.2)
        return SubtaskSample(
            vertex=Uid(uid),
            subtask=index,
            records_in=self.records // PARALLELISM,
            records_out=self.records // PARALLELISM,
            busy_ratio=busy,
            backpressured_ratio=blocked,
            idle_ratio=1 - busy - blocked,
            watermark_ms=self.event_ms,
            queued_records=self.random.randint(0, 4_000),
            queued_bytes=self.random.randint(0, 400_000),
            state_bytes=STATE_BYTES[uid],
            bytes_in=41 * self.records // PARALLELISM if INPUTS[uid] else 0,
            bytes_out=41 * self.records // PARALLELISM if uid != "hourly-delay" else 0,
            metrics=self.user_metrics(index) if uid == "hourly-delay" else [],
        )

    def user_metrics(self, index: int) -> list[MetricSample]:
        late = self.random.uniform(1, 40)
        spread = MetricSpread(
            least=0, most=9 * late, mean=late, p50=late, p95=3 * late, p99=6 * late
        )
        operator = Uid("hourly-delay")
        return [
            MetricSample(
                operator=operator,
                name="delayed_flights",
                kind=MetricKind.COUNTER,
                value=self.records // 3 + index,
            ),
            MetricSample(
                operator=operator,
                name="delay_minutes",
                kind=MetricKind.HISTOGRAM,
                value=self.records,
                spread=spread,
            ),
        ]

    def take_up(self) -> None:
        """Carries out the savepoints that were asked for; all other requests wait."""
        for request in delivered_to(self.story.run, RequestKind.SAVEPOINT):
            self.checkpoint(CheckpointKind.SAVEPOINT, request)

    def checkpoint(
        self,
        kind: CheckpointKind = CheckpointKind.CHECKPOINT,
        request: Request | None = None,
    ) -> None:
        number = self.story.next_checkpoint
        if kind is CheckpointKind.SAVEPOINT and request is None:
            request = self.asked_for()
        self.story.triggered(kind, request.request_id if request else None)
        parts = [self.phases(uid, index) for uid, index in SUBTASKS]
        took = max(part.acknowledged_ms for part in parts) + 2.5
        self.story.tell(*(SubtaskAcknowledged(checkpoint_id=number, phases=p) for p in parts))
        self.story.wait(round(took)).tell(self.completed(number, kind, parts, took))
        self.story.tell(self.ledger_entry(number), CheckpointCommitted(checkpoint_id=number))
        if request is not None:
            self.story.answered(request, str(self.place(number)))
        kept = self.retained if kind is CheckpointKind.CHECKPOINT else self.savepoints
        kept.append(number)
        if len(self.retained) > RETAINED:
            oldest = self.retained.pop(0)
            rmtree(self.place(oldest))
            self.story.tell(CheckpointDiscarded(checkpoint_id=oldest))
        if number % 20 == 0:
            paths = [str(self.place(each)) for each in (*self.savepoints, *self.retained)]
            verified = PointsVerified(whole=len(paths), damaged=0, duration_ms=31.0, paths=paths)
            self.story.tell(verified)
        self.story.next_checkpoint = CheckpointId(number + 1)

    def asked_for(self) -> Request:
        number = self.story.next_checkpoint
        return new_request(
            self.story.run,
            request_id=f"request-of-savepoint-{number}",
            requester="admin",
            reason="before the new version",
        )

    def ledger_entry(self, number: CheckpointId) -> LedgerAdvanced:
        first, self.entered = self.entered, self.records
        read = self.records - first
        split = SplitRange(split="2013.parquet", first=first, end=self.records)
        shares = [
            OutputShare(
                checkpoint_id=number,
                rows=read // 517 + each,
                digest=f"{self.random.getrandbits(64):016x}",
                tokens=[f"part-{each}-{number}.parquet"],
            )
            for each in range(PARALLELISM)
        ]
        return LedgerAdvanced(
            entry=LedgerEntry(
                run_id=RunId(self.story.run.run_id),
                checkpoint_id=number,
                records_read=self.records,
                inputs=[SourceInput(source=Uid("flights"), records=read, splits=[split])],
                outputs=[
                    SinkOutput(sink=Uid("hourly-delay"), subtask=each, share=share)
                    for each, share in enumerate(shares)
                ],
            )
        )

    def place(self, number: CheckpointId) -> Path:
        return Path(project.JOBS_ROOT) / "flight_delays" / "checkpoints" / f"chk-{number}"

    def completed(
        self, number: CheckpointId, kind: CheckpointKind, parts: list[SubtaskPhases], took: float
    ) -> CheckpointCompleted:
        channels = [channel for part in parts for channel in part.channels]
        place = self.place(number)
        place.mkdir(parents=True)
        (place / "manifest.json").write_text("{}")  # it exists; a live run is not restored
        return CheckpointCompleted(
            checkpoint_id=number,
            kind=kind,
            path=str(place),
            end_to_end_ms=took,
            state_bytes=sum(part.state_bytes for part in parts),
            uploaded_bytes=sum(part.uploaded_bytes for part in parts),
            buffered_records=sum(channel.buffered_records for channel in channels),
            buffered_bytes=sum(channel.buffered_bytes for channel in channels),
            source_records=self.records,
            watermark_ms=self.event_ms,
            counters=self.counters(),
        )

    def failed_checkpoint(self) -> None:
        number = self.story.next_checkpoint
        reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
        self.story.triggered().wait(900).tell(
            CheckpointFailed(
                checkpoint_id=number, reason=reason, message="5 of 8 subtasks had acknowledged."
            )
        )
        self.story.next_checkpoint = CheckpointId(number + 1)

    def phases(self, uid: str, index: int) -> SubtaskPhases:
        barriers = {"flights": 3.0, "weather": 21.0, "weather-at-departure": 44.0}
        arrivals = [
            (source, each, barriers[source] * self.random.uniform(0.7, 1.6) + 6 * each)
            for source in INPUTS[uid]
            for each in range(PARALLELISM)
        ]
        first = min((at for _, _, at in arrivals), default=self.random.uniform(0.6, 3.0))
        last = max((at for _, _, at in arrivals), default=first)
        sync, upload = self.random.uniform(0.8, 4), self.random.uniform(3, 18)
        return SubtaskPhases(
            vertex=Uid(uid),
            subtask=index,
            start_delay_ms=first,
            alignment_ms=last - first,
            sync_ms=sync,
            async_ms=upload,
            acknowledged_ms=last + sync + upload + 1.2,
            state_bytes=STATE_BYTES[uid],
            uploaded_bytes=STATE_BYTES[uid],
            channels=[
                ChannelAlignment(
                    channel=channel_id(
                        Uid(source), each, Uid(uid), INPUTS[uid].index(source), index
                    ),
                    arrived_ms=at,
                    blocked_ms=last - at,
                    buffered_records=round((last - at) * 47),
                    buffered_bytes=round((last - at) * 4_700),
                    steps=self.steps(at, last),
                )
                for source, each, at in arrivals
            ],
        )

    def steps(self, first: float, last: float) -> tuple[HeldBack, ...]:
        """Returns a batch every few milliseconds, the last one shortly before the end."""
        waited, moments = last - first, [0.0]
        while moments[-1] < waited - 6:
            moments.append(moments[-1] + self.random.uniform(3, 6))
        moments.append(0.95 * waited)
        held = [*moments[:-1], waited]
        return tuple(
            HeldBack(first + at, round(each * 47), round(each * 4_700))
            for at, each in zip(moments, held, strict=True)
        )

    def slot_killed(self) -> None:
        self.story.slot_killed(detail=STACK)
        self.story.tell(*self.slots())


def people() -> None:
    admin = User.objects.create_user("admin", password="admin")
    admin.user_permissions.add(Permission.objects.get(codename="operate"))
    User.objects.create_user("operator", password="operator")
    save_view("admin", "On call", "state=attention", is_default=False)
    save_view("admin", "Production by flow", "label=production&group=flow", is_default=False)


def history(simulated: SimulatedRun, checkpoints: int) -> None:
    simulated.start()
    for number in range(1, checkpoints + 1):
        simulated.clock.now_ms += 900
        simulated.second()
        if number % 23 == 0:
            simulated.failed_checkpoint()
        simulated.checkpoint(
            CheckpointKind.SAVEPOINT if number % 17 == 0 else CheckpointKind.CHECKPOINT
        )
        if number % 19 == 0:
            simulated.slot_killed()
    damaged = (
        "chk-37/hourly-delay-1.arrow does not match its digest; checkpoint 36 is used instead."
    )
    simulated.story.tell(
        RestorePointRefused(path="chk-37", message=damaged),
        ZombieRefused(zombie_attempt=Attempt(1), what="slot 1 offered an acknowledgement"),
    )


def fill(simulated: SimulatedRun, failed: Run) -> None:
    run = simulated.story.run
    filled_states.audits(run)
    filled_states.ended_game_days(run)
    filled_states.labs()
    filled_states.alerts(failed)
    filled_states.settings()
    filled_states.labels()
    filled_states.log_lines(run)
    filled_states.watched_queries(Path(project.FTDASH_HOME) / "watched")
    filled_states.flink_clusters()
    for savepoint in simulated.savepoints[:1]:
        filled_states.half_read(str(simulated.place(savepoint)))


def live(simulated: SimulatedRun, projector: Projector, period_s: float) -> None:
    worker = SimulatedWorker()
    for number in count(WATCHED_BATCHES):
        silent = named_silent()
        if "worker" not in silent:
            worker.go_on()
        worker.drive()
        if "driver" not in silent:
            simulated.clock.now_ms = max(time.time_ns() // 1_000_000, simulated.clock.now_ms)
            simulated.second()
            simulated.checkpoint()
            simulated.take_up()
            filled_states.next_batch(number)
            filled_states.next_flink_look(number)
        beat(projector)
        fall_silent(silent, simulated.story.run)
        time.sleep(period_s)


def named_silent() -> list[str]:
    named = Path(project.FTDASH_HOME) / SILENT_FILE
    return named.read_text().split() if named.exists() else []


def fall_silent(silent: list[str], run: Run) -> None:
    an_hour_ago = timezone.now() - timedelta(hours=1)
    Heartbeat.objects.filter(name__in=[BEATS[each] for each in silent if each in BEATS]).update(
        at=an_hour_ago
    )
    if "driver" in silent:
        Run.objects.filter(pk=run.pk).update(last_event_at=an_hour_ago)


def beat(projector: Projector) -> None:
    projector.run_once()
    PointInspection.objects.filter(ended_at=None, files__gt=0).update(moved_at=timezone.now())
    Evaluation.objects.update(at=timezone.now())
    seen = {"at": timezone.now(), "pid": os.getpid()}
    Heartbeat.objects.update_or_create(name=HeartbeatName.RECONCILE, defaults=seen)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--history", type=int, default=40)
    parser.add_argument("--period", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--spare", action="store_true")
    given = parser.parse_args()
    call_command("migrate", verbosity=0)
    people()
    started_ms = time.time_ns() // 1_000_000 - given.history * 1_100
    simulated = SimulatedRun(new_run("flight_delays"), given.seed, started_ms)
    with simulated.story.in_one_go():
        history(simulated, given.history)
    stopped_views()
    if given.spare:
        spare_clicks()
    failed = failed_arrivals()
    projector = Projector()
    while projector.run_once():
        pass
    fill(simulated, failed)
    beat(projector)
    print("ready", flush=True)
    live(simulated, projector, given.period)


if __name__ == "__main__":
    main()
