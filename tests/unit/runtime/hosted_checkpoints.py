"""A checkpoint host as the job master uses it; the test plays the attempt's slots."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Event,
)
from pipelines.domain.ids import Attempt, CheckpointId, Uid
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.snapshots import SubtaskSnapshot
from pipelines.protocol.commit import AttemptFence
from pipelines.protocol.retention import RetainedPoints
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import Acknowledged, Committed, Declined
from pipelines.runtime.master.checkpoints.checkpoint_host import CheckpointHost
from pipelines.runtime.master.checkpoints.underway import CheckpointListener
from pipelines.runtime.master.job_events import (
    JobEvent,
    LocationPrepared,
    ManifestWritten,
    TooManyFailedCheckpoints,
)
from pipelines.runtime.master.run_context import RunContext
from tests.unit.runtime.fakes import ListSource, ManualClock
from tests.unit.runtime.hosted import InlineExecutor, MemorySink, joining_pipeline
from tests.unit.runtime.points import operator_of, places_in, spec_of, store_in
from tests.unit.runtime.recording_attempt import RecordingAttempt, phases_of

if TYPE_CHECKING:
    from pipelines.bus.lease import Lease
    from pipelines.runtime.master.run_context import EventQueue, RunRecord

E = TypeVar("E", bound=Event)
VERTICES = ("left", "right", "both")
INTERVAL_MS, TIMEOUT_MS = 1_000, 5_000


class RecordingListener(CheckpointListener):
    def __init__(self) -> None:
        self.publishing: list[tuple[TriggerRequest, str]] = []
        self.completed: list[tuple[TriggerRequest, str]] = []
        self.aborted: list[tuple[TriggerRequest, str]] = []

    def checkpoint_publishing(self, request: TriggerRequest, path: str) -> None:
        self.publishing.append((request, path))

    def checkpoint_completed(self, request: TriggerRequest, path: str) -> None:
        self.completed.append((request, path))

    def checkpoint_aborted(self, request: TriggerRequest, message: str) -> None:
        self.aborted.append((request, message))


class Master:
    """Hosts checkpoints as the job master does; the test plays the attempt's slots."""

    def __init__(
        self,
        root: Path,
        settings: dict[str, str] | None = None,
        parallelism: int = 1,
        first_id: int = 1,
        clock: ManualClock | None = None,
        draw: Callable[[float, float], float] = lambda _, high: high,
    ) -> None:
        self.clock = clock or ManualClock()
        self.fence = AttemptFence()
        self.fence.on_attempt(Attempt(1))
        self.attempt = RecordingAttempt(parallelism)
        self.listener = RecordingListener()
        self.owns_run = True
        self.places_are_slow = False  # True: the next `deliver` makes them ready
        self.events: list[Event] = []
        self.too_many: list[str] = []  # the reasons to fail the attempt
        self._posted: list[JobEvent] = []
        self._places = places_in(root)
        self.store = store_in(root)
        self._parallelism = parallelism
        parsed = parse_settings({"execution.checkpointing.timeout": "5 s", **(settings or {})})
        unused = cast("Any", None)
        context = RunContext(
            spec=spec_of(parallelism=parallelism),
            pipeline=joining_pipeline(ListSource([]), MemorySink()),
            settings=parsed,
            places=self._places,
            storage_roots=[str(root)],
            store=self.store,
            lease=cast("Lease", SimpleNamespace(is_current=lambda attempt: self.owns_run)),
            journal=unused,
            fence=self.fence,
            record=cast("RunRecord", SimpleNamespace(emit=self.events.append)),
            inbox=unused,
            events=cast("EventQueue", SimpleNamespace(put=self._post)),
            executor=InlineExecutor(),
            control=unused,
            clock=self.clock,
            draw=draw,
        )
        points = RetainedPoints(parsed.checkpointing.retained_count)
        self.host = CheckpointHost(context, points, CheckpointId(first_id), self.listener)
        self.host.on_running(self.attempt)

    @property
    def completed(self) -> list[int]:
        return [event.checkpoint_id for event in self.of(CheckpointCompleted)]

    @property
    def failed(self) -> list[CheckpointFailed]:
        return self.of(CheckpointFailed)

    @property
    def published(self) -> list[str]:
        roots = (self._places.checkpoints, self._places.savepoints)
        return sorted(Path(point).name for root in roots for point in self.store.published(root))

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def trigger(self) -> float | None:
        """Lets the interval pass. Returns the time at which the host wants its next call."""
        self.clock.now_ms += INTERVAL_MS
        return self.host.on_time()

    def complete_one(self) -> None:
        self.trigger()
        self.acknowledge_all(self.of(CheckpointTriggered)[-1].checkpoint_id)

    def acknowledge_all(self, checkpoint_id: int, *, deliver: bool = True) -> None:
        for vertex in VERTICES:
            for subtask in range(self._parallelism):
                self.acknowledge(checkpoint_id, vertex, subtask, deliver=deliver)

    def acknowledge(
        self, checkpoint_id: int, vertex: str, subtask: int = 0, *, deliver: bool = True
    ) -> None:
        snapshot = SubtaskSnapshot(
            vertex=Uid(vertex), subtask=subtask, operators=[operator_of(counters={"read": 1})]
        )
        self.host.on_acknowledged(
            Acknowledged(
                checkpoint_id=CheckpointId(checkpoint_id),
                snapshot=snapshot,
                phases=phases_of(vertex, subtask),
                source_records=10,
                watermark_ms=100 + subtask,
            )
        )
        if deliver:
            self.deliver()

    def _post(self, event: JobEvent) -> None:
        if isinstance(event, LocationPrepared) and not self.places_are_slow:
            self.host.on_prepared(event)
        elif isinstance(event, TooManyFailedCheckpoints):
            self.too_many.append(event.why)
        else:
            self._posted.append(event)

    def deliver(self) -> None:
        """Passes the executor's events to the host, as the master's queue does."""
        while self._posted:
            match event := self._posted.pop(0):
                case ManifestWritten():
                    self.host.on_manifest(event)
                case LocationPrepared():
                    self.host.on_prepared(event)

    def decline(self, checkpoint_id: int) -> None:
        self.host.on_declined(
            Declined(
                checkpoint_id=CheckpointId(checkpoint_id),
                vertex=Uid("both"),
                subtask=0,
                reason=CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
                message="the disk is full",
            )
        )

    def commit(self, checkpoint_id: int, subtask: int) -> None:
        self.host.on_committed(
            Committed(
                checkpoint_id=CheckpointId(checkpoint_id), vertex=Uid("both"), subtask=subtask
            )
        )
