"""`run_local`: runs a pipeline in this process, in a script, a notebook or the REPL.

The real job master drives the run to its end, with its journal, lease and points. A driver that is
killed leaves its directory as it is, and the next one continues from there.
"""

import tempfile
import uuid
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Protocol

import pyarrow as pa

from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter, every_envelope
from pipelines.bus.lease import Lease
from pipelines.connectors.in_process import Collect
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.errors import Rejected
from pipelines.domain.events import FailureOccurred, RequestEnded, RunEnded
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.run import RunDirectory, RunSpec, SnapshotPlaces
from pipelines.domain.settings import Settings, check_parallelism
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.local.slot import (
    Chores,
    LocalDoor,
    LocalStages,
    LocalTime,
    ProcessKilled,
    Reach,
    RealTime,
    Surroundings,
)
from pipelines.protocol.commit import AttemptFence
from pipelines.runtime.faults import Faults
from pipelines.runtime.master.job_events import CommandArrived, WatchedExecutor
from pipelines.runtime.master.job_master import JobMaster
from pipelines.runtime.master.run_context import EventQueue, RunContext, RunRecord
from pipelines.runtime.master.start.run_opening import how_it_ended
from pipelines.storage.stores import CheckpointStores
from pipelines.stream import Flow, Pipeline

STOP = RequestId("stop")


class DriverFaults(Faults):
    """Passes the driver's named points on to the `reach` of the run."""

    def __init__(self, reach: Reach) -> None:
        super().__init__()
        self._of_run = reach

    def reach(self, point: FaultPoint, attempt: Attempt) -> None:
        self._of_run(point, attempt)


class Onlooker(Protocol):
    """Observes a run, and may ask it to stop."""

    def on_turn(self, stages: LocalStages) -> bool:
        """Called once per turn until it returns True: the run then stops with a savepoint."""
        ...


@dataclass(frozen=True, slots=True)
class LocalDriver:
    """Drives one run, which touches only `root`. With `stop_after` None, it ends with its input."""

    root: Path
    spec: RunSpec
    around: Surroundings
    stop_after: timedelta | None = None
    onlooker: Onlooker | None = None

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory.of(self.root, self.spec.pipeline, self.spec.run_id)

    def drive(self) -> JobStatus:
        """Raises Rejected if the run cannot start as requested."""
        self.directory.path.mkdir(parents=True, exist_ok=True)
        status = None
        while status is None:
            with suppress(ProcessKilled):  # this driver is dead, and the next one continues
                status = self._drive_once()
        return status

    def _drive_once(self) -> JobStatus:
        time = self.around.time
        with (
            Lease.acquire(self.directory) as lease,
            JournalWriter(
                self.directory, self.spec.run_id, time, _announce_nothing, lease.check_held
            ) as journal,
        ):
            executor = Chores()
            context = self._context(lease, journal, executor)
            master = JobMaster(context)
            stages = LocalStages(self.around, context.post)
            try:
                if how_it_ended(journal) is not None:
                    return master.run(stages)  # its predecessor died while it cleaned up
                master.begin(stages)
                self._take_turns(context, master, executor, stages)
                return master.finish(may_wait=False)
            finally:
                stages.end()

    def _context(self, lease: Lease, journal: JournalWriter, executor: Chores) -> RunContext:
        spec, pipeline = self.spec, self.around.pipeline
        settings = _the_same_each_time(parse_settings(spec.settings))
        check_parallelism(spec.parallelism, spec.max_parallelism)
        pipeline.graph.check_fits(spec.max_parallelism)
        pipeline.check_fits(settings)
        pipeline.validate_sinks()
        if spec.restore_from is None and lease.attempts_so_far() == 0:
            pipeline.validate_sources(settings)
        roots, fence, events = [str(self.root)], AttemptFence(), EventQueue()
        return RunContext(
            spec=spec,
            pipeline=pipeline,
            settings=settings,
            places=SnapshotPlaces.of(self.directory, settings.storage),
            storage_roots=roots,
            store=CheckpointStores(roots, settings.storage.max_memory_state_bytes),
            lease=lease,
            journal=journal,
            fence=fence,
            record=RunRecord(journal, fence),
            inbox=Inbox(self.directory),
            events=events,
            executor=WatchedExecutor(executor, events.put),
            control=LocalDoor(settings.heartbeat),
            clock=self.around.time,
            draw=Random(spec.run_id).uniform,
            faults=DriverFaults(self.around.reach),
        )

    def _take_turns(
        self, context: RunContext, master: JobMaster, executor: Chores, stages: LocalStages
    ) -> None:
        time, stop_at_ms = self.around.time, self._stop_at_ms()
        onlooker = self.onlooker
        while not master.has_ended:
            time.on_turn()
            if onlooker is not None and onlooker.on_turn(stages):
                onlooker = None
                context.post(CommandArrived(_stop("the pipeline is to start again")))
            is_busy = master.take_turn(may_wait=False)
            is_busy = executor.take_turn() or is_busy
            is_busy = stages.take_turn() or is_busy
            if stop_at_ms is not None and time.monotonic_ms() >= stop_at_ms:
                stop_at_ms = None
                context.post(CommandArrived(_stop("its time is over")))
            if not is_busy:
                time.pass_time()

    def _stop_at_ms(self) -> float | None:
        if self.stop_after is None:
            return None
        return self.around.time.monotonic_ms() + self.stop_after / timedelta(milliseconds=1)


def _stop(reason: str) -> StopWithSavepoint:
    return StopWithSavepoint(request_id=STOP, requested_by="run_local", reason=reason)


def _announce_nothing(run_id: object, number: object) -> None:
    """Does nothing: no other process waits for news of this run."""


NAME = "local"
SETTINGS: Mapping[str, str] = {
    "restart-strategy.type": "none",  # an author sees the first failure
}


class RunFailed(Exception):
    """The run ended as FAILED. The message has the reason and, below it, the traceback."""


@dataclass(frozen=True, slots=True)
class LocalResult:
    """The result of a run.

    `tables`: {uid of a `collect`: its committed rows, in no promised order}. `savepoint`: the
    directory of the savepoint that `stop_after` took, or None if the run ended by itself.
    """

    status: JobStatus
    tables: Mapping[Uid, pa.Table]
    savepoint: str | None
    failures: tuple[str, ...] = ()  # those that the run recovered from

    def table(self, uid: str | None = None) -> pa.Table:
        """Returns the rows that a `collect` took. You may leave out the uid if there is only one.

        Raises Rejected if there is no `collect` of that uid, or if you leave out the uid and there
        is not exactly one.
        """
        known = ", ".join(map(repr, self.tables)) or "none"
        if uid is None and len(self.tables) != 1:
            raise Rejected(f"Name the collect whose rows you want; there are: {known}.")
        found = self.tables.get(Uid(uid)) if uid else next(iter(self.tables.values()))
        if found is None:
            raise Rejected(f"There is no collect {uid!r}; there are: {known}.")
        return found

    def rows(self, uid: str | None = None) -> list[dict[str, object]]:
        """Returns the rows of `table`, with a dictionary for each row."""
        found: list[dict[str, object]] = self.table(uid).to_pylist()
        return found


def run_local(
    pipeline: Pipeline | Flow,
    *,
    parameters: Mapping[str, str] | None = None,
    parallelism: int = 1,
    settings: Mapping[str, str] | None = None,
    directory: str | Path | None = None,
    restore_from: str | None = None,
    stop_after: timedelta | None = None,
) -> LocalResult:
    """Run a pipeline in this thread until its sources end, and return the collected rows.

    Args:
        pipeline: a built pipeline, or one declared with `@flow`.
        parameters: {name: text}, for a declared pipeline.
        parallelism: how many slots take turns; they share this thread.
        settings: as for any run, but a failure ends the run unless you set `restart-strategy.type`.
        directory: where to store checkpoints and savepoints; None: in a temporary directory.
        restore_from: a savepoint in `directory` from which the run continues.
        stop_after: ends the run with a savepoint after this time, for sources that never end.

    Raises Rejected if the run cannot start as requested, and RunFailed if it fails.
    """
    built = _built(pipeline, parameters)
    with _kept_in(directory) as root:
        spec = local_spec(Path(root), parallelism, settings, restore_from)
        return host(Path(root), spec, built, RealTime(), stop_after=stop_after)


def host(
    root: Path,
    spec: RunSpec,
    pipeline: Pipeline,
    time: LocalTime,
    *,
    reach: Reach | None = None,
    rng: Random | None = None,
    stop_after: timedelta | None = None,
    onlooker: Onlooker | None = None,
) -> LocalResult:
    """Like `run_local`, but the caller sets time, order and faults. Raises RunFailed."""
    around = Surroundings(pipeline, time, reach or _pass, rng)
    driver = LocalDriver(root, spec, around, stop_after, onlooker)
    return _result(driver.drive(), driver.directory, pipeline)


def _built(pipeline: Pipeline | Flow, parameters: Mapping[str, str] | None) -> Pipeline:
    if isinstance(pipeline, Flow):
        return pipeline.build(parameters or {})
    if parameters:
        raise Rejected("A built pipeline takes no parameters; pass the one declared with @flow.")
    return pipeline


def _kept_in(directory: str | Path | None) -> "tempfile.TemporaryDirectory[str] | nullcontext[str]":
    if directory is None:
        return tempfile.TemporaryDirectory(prefix="ftdash-local-")
    return nullcontext(str(Path(directory).absolute()))


def local_spec(
    root: Path, parallelism: int, settings: Mapping[str, str] | None, restore_from: str | None
) -> RunSpec:
    """Returns the spec of a new run here. Raises Rejected if the savepoint cannot be read."""
    first = 1
    if restore_from is not None:
        first = CheckpointStores([str(root)], 0).manifest(restore_from).checkpoint_id + 1
    return RunSpec(
        run_id=RunId(f"local-{uuid.uuid4().hex[:12]}"),
        pipeline=NAME,
        parallelism=parallelism,
        master=NAME,
        parameters={},
        settings={**SETTINGS, **(settings or {})},
        restore_from=restore_from,
        first_checkpoint_id=CheckpointId(first),
    )


def _the_same_each_time(settings: Settings) -> Settings:
    """Makes runs repeatable on any machine: no batch is cut in pieces because it takes long."""
    return replace(settings, inputs=replace(settings.inputs, longest_work_ms=0))


def _pass(point: FaultPoint, attempt: Attempt) -> None:
    """Does nothing: no fault is requested."""


def _result(status: JobStatus, directory: RunDirectory, pipeline: Pipeline) -> LocalResult:
    events = [envelope.event for envelope in every_envelope(directory.journal_file)]
    failures = [each for each in events if isinstance(each, FailureOccurred)]
    if status is JobStatus.FAILED:
        reason = next(each.reason for each in reversed(events) if isinstance(each, RunEnded))
        detail = failures[-1].detail if failures else ""
        raise RunFailed(f"{reason}\n\n{detail}".rstrip())
    savepoints = [each.path for each in events if isinstance(each, RequestEnded)]
    sinks = {uid: sink for uid, sink in pipeline.sinks.items() if isinstance(sink, Collect)}
    return LocalResult(
        status,
        {uid: sink.table(pipeline.schemas[uid]) for uid, sink in sinks.items()},
        savepoints[-1] if savepoints else None,
        tuple(each.cause for each in failures),
    )
