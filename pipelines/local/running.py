"""`run_local`: a pipeline in this process, in a script, a notebook or the REPL."""

import tempfile
import uuid
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random

import pyarrow as pa

from pipelines.bus.journal import every_envelope
from pipelines.connectors.in_process import Collect
from pipelines.domain.errors import Rejected
from pipelines.domain.events import FailureOccurred, RequestEnded, RunEnded
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus
from pipelines.local.driving import LocalDriver, Onlooker
from pipelines.local.slot import Reach, Surroundings
from pipelines.local.times import LocalTime, RealTime
from pipelines.storage.stores import CheckpointStores
from pipelines.stream import Flow, Pipeline

NAME = "local"
SETTINGS: Mapping[str, str] = {
    "restart-strategy.type": "none",  # an author sees the first failure
}


class RunFailed(Exception):
    """The run ended as FAILED. The message has the reason and, below it, the traceback."""


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What a run left.

    `tables`: {uid of a `collect`: its committed rows, in no promised order}. `savepoint`: the
    directory of the one that `stop_after` took; None: the run ended by itself.
    """

    status: JobStatus
    tables: Mapping[Uid, pa.Table]
    savepoint: str | None
    failures: tuple[str, ...] = ()  # that the run recovered from

    def table(self, uid: str | None = None) -> pa.Table:
        """The rows that a `collect` took; without a uid, those of the only one.

        Raises Rejected when there is none of that uid, or more than one and no uid.
        """
        known = ", ".join(map(repr, self.tables)) or "none"
        if uid is None and len(self.tables) != 1:
            raise Rejected(f"Name the collect whose rows you want; there are: {known}.")
        found = self.tables.get(Uid(uid)) if uid else next(iter(self.tables.values()))
        if found is None:
            raise Rejected(f"There is no collect {uid!r}; there are: {known}.")
        return found

    def rows(self, uid: str | None = None) -> list[dict[str, object]]:
        """As `table`, a dictionary for each row."""
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
    """Run until the sources end, in this thread, and return what was collected.

    Args:
        pipeline: a built pipeline, or one declared with `@flow`.
        parameters: {name: text}, of a declared one.
        parallelism: how many slots take turns; they share this thread.
        settings: as of any run; a failure ends the run unless `restart-strategy.type` says else.
        directory: where checkpoints and savepoints are kept; None: in a temporary one.
        restore_from: a savepoint in `directory`, to go on from.
        stop_after: ends the run with a savepoint, for sources that never end.

    Raises Rejected when the run cannot start as asked, and RunFailed when it fails.
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
    """As `run_local`, with time, order and faults of the caller's own. Raises RunFailed."""
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
    """Of a new run in this process. Raises Rejected when the savepoint cannot be read."""
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


def _pass(point: FaultPoint, attempt: Attempt) -> None:
    """No fault is asked for."""


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
