"""Driving a run: a run that is impossible as asked is refused before anything starts."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.announce import announce_nothing
from pipelines.bus.inbox import submit
from pipelines.bus.journal import JournalWriter, last_event, read_journal
from pipelines.bus.lease import Lease
from pipelines.connectors import BlackHole, DataFrameRows
from pipelines.domain.commands import Cancel, TakeSavepoint
from pipelines.domain.errors import FailureKind, Rejected, Retryable
from pipelines.domain.events import FailureOccurred, RequestEnded, RunEnded
from pipelines.domain.ids import Attempt, CheckpointId, RequestId, Uid
from pipelines.domain.run import RunDirectory, RunSpec, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus, RequestOutcome
from pipelines.flows.page_view_variables import REDIS
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master import driving
from pipelines.runtime.master.driving import drive
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.run_context import StageHost, StartGivenUp
from pipelines.runtime.networking import SlotAddress
from pipelines.stream import Environment, Flow, Pipeline
from tests.unit.runtime.fakes import SCHEMA
from tests.unit.runtime.points import (
    RUN,
    manifest_of,
    operator_of,
    spec_of,
    store_in,
    stored_keys,
)


def test_a_run_that_guarantees_less_than_required_is_refused_with_the_reason(
    tmp_path: Path,
) -> None:
    (tmp_path / "0.csv").write_text("1,1,1\n")
    settings = {
        "execution.checkpointing.mode": "AT_LEAST_ONCE",
        "ftdash.guarantee.required": "EXACTLY_ONCE",
    }
    parameters = {"data": str(tmp_path)}
    spec = spec_of(pipeline="page_view_count", parameters=parameters, settings=settings)
    directory = RunDirectory.of(tmp_path / "jobs", spec.pipeline, RUN)

    with Lease.acquire(directory) as lease:
        directory.spec_file.write_bytes(msgspec.json.encode(spec))
        status = drive(directory, lease, open_nothing)

    assert status is JobStatus.FAILED
    envelopes, _ = read_journal(directory.journal_file, 0)
    ended = envelopes[-1].event
    assert isinstance(ended, RunEnded)
    assert "'at-least-once' from end to end, because execution.checkpointing.mode" in ended.reason


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED])
def test_a_run_that_is_over_does_not_start_again(tmp_path: Path, status: JobStatus) -> None:
    directory = run_of(tmp_path, spec_of(pipeline="page_views", parameters={}))
    with JournalWriter(directory, RUN, SystemClock(), announce_nothing) as journal:
        journal.append(RunEnded(status=status, reason="It was over."), Attempt(1))
    before = directory.journal_file.read_bytes()

    with Lease.acquire(directory) as lease:
        found = drive(directory, lease, open_nothing)

    assert found is status
    assert directory.journal_file.read_bytes() == before


def test_a_run_cancelled_before_it_has_slots_ends_and_answers_its_requests(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("1,1,1\n")
    spec = spec_of(pipeline="page_view_count", parameters={"data": str(tmp_path)})
    directory = run_of(tmp_path, spec)
    who = {"requested_by": "ann", "reason": "no room"}
    submit(directory, TakeSavepoint(request_id=RequestId("first"), **who))
    submit(directory, Cancel(request_id=RequestId("then"), **who))

    with Lease.acquire(directory) as lease:
        status = drive(directory, lease, opening_given_up)

    assert status is JobStatus.CANCELED
    events = [each.event for each in read_journal(directory.journal_file, 0)[0]]
    answers = {each.request_id: each.outcome for each in events if isinstance(each, RequestEnded)}
    assert answers == {"first": RequestOutcome.FAILED, "then": RequestOutcome.SUCCEEDED}
    assert isinstance(events[-1], RunEnded)
    assert "cancelled by ann: no room" in events[-1].reason


def test_a_withdrawn_cancellation_hands_the_run_back(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("1,1,1\n")
    spec = spec_of(pipeline="page_view_count", parameters={"data": str(tmp_path)})
    directory = run_of(tmp_path, spec)

    with Lease.acquire(directory) as lease, pytest.raises(Retryable, match="was withdrawn"):
        drive(directory, lease, opening_given_up)


def test_a_run_in_progress_is_handed_back_while_an_external_system_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REDIS, "redis://:hunter2@127.0.0.1:1/0")
    directory = run_of(tmp_path, spec_of(pipeline="page_views", parameters={}))

    with Lease.acquire(directory) as lease:
        lease.next_attempt()
        with pytest.raises(Retryable, match=r"127\.0\.0\.1:1 does not answer"):
            drive(directory, lease, open_nothing)

    assert last_event(directory.journal_file) is None


def test_a_run_that_never_started_fails_while_an_external_system_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REDIS, "redis://:hunter2@127.0.0.1:1/0")
    directory = run_of(tmp_path, spec_of(pipeline="page_views", parameters={}))

    with Lease.acquire(directory) as lease:
        status = drive(directory, lease, open_nothing)

    assert status is JobStatus.FAILED
    ended = last_event(directory.journal_file)
    assert isinstance(ended, RunEnded)
    assert "'windows-redis' cannot be built: the Redis server 127.0.0.1:1 does not" in ended.reason
    assert "hunter2" not in ended.reason


def test_a_run_in_progress_fails_if_its_parameters_became_invalid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(REDIS, raising=False)
    directory = run_of(tmp_path, spec_of(pipeline="page_views", parameters={}))

    with Lease.acquire(directory) as lease:
        lease.next_attempt()
        status = drive(directory, lease, open_nothing)

    assert status is JobStatus.FAILED
    ended = last_event(directory.journal_file)
    assert isinstance(ended, RunEnded)
    assert REDIS in ended.reason


@pytest.mark.parametrize(
    "fits", [[], [False, False], [False, True]], ids=["no point", "none fits", "an older one fits"]
)
def test_a_run_whose_points_do_not_fit_its_code_fails_before_it_waits_for_slots(
    tmp_path: Path, fits: list[bool]
) -> None:
    """`fits` is newest first. Spark takes seconds to start, while a person waits for the reason."""
    (tmp_path / "0.csv").write_text("1,1,1\n")
    spec = spec_of(pipeline="page_view_count", parameters={"data": str(tmp_path)})
    directory = run_of(tmp_path, spec)
    places = SnapshotPlaces.of(directory, parse_settings({}).storage)
    store = store_in(tmp_path / "jobs")
    for age, is_fit in enumerate(fits):
        number = CheckpointId(len(fits) - age)
        location = places.checkpoint(number)
        gone = operator_of(uid=Uid("gone"), states=stored_keys(store, location, 0, 1, [1]))
        changes = {"pipeline": spec.pipeline, "checkpoint_id": number}
        store.publish(location, manifest_of([] if is_fit else [[gone]], **changes))

    with Lease.acquire(directory) as lease:
        lease.next_attempt()
        if any(fits) or not fits:
            with pytest.raises(NotImplementedError):
                drive(directory, lease, open_nothing)
            return
        status = drive(directory, lease, open_nothing)

    assert status is JobStatus.FAILED
    failed = [each.event for each in read_journal(directory.journal_file, 0)[0]]
    (failure,) = [each for each in failed if isinstance(each, FailureOccurred)]
    assert failure.kind is FailureKind.STATE_UNMATCHED
    assert "it holds that of 'gone'" in failure.cause


@pytest.mark.parametrize(
    ("is_restored", "attempts", "is_kept", "asked"),
    [
        (False, 0, False, True),
        (False, 0, True, True),  # a fresh start reads what the DataFrame holds now
        (False, 1, True, False),
        (True, 0, True, False),
        (True, 0, False, True),  # the point does not know the source yet
    ],
)
def test_the_rows_of_a_data_frame_are_kept_once_for_each_fresh_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_restored: bool,
    attempts: int,
    is_kept: bool,
    asked: bool,
) -> None:
    source = frame_source(tmp_path / "rows")
    if is_kept:
        source.finish(source.begin())
    monkeypatch.setattr(driving, "find_flow", lambda _: flow_of(source))
    restore_from = str(tmp_path / "point") if is_restored else None
    directory = run_of(tmp_path, spec_of(restore_from=restore_from))
    host = SparkLikeHost()

    with Lease.acquire(directory) as lease:
        for _ in range(attempts):
            lease.next_attempt()
        drive(directory, lease, lambda spec, post: nullcontext(host))

    assert host.kept == ([source] if asked else [])


def test_a_data_frame_needs_a_host_with_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = frame_source(tmp_path / "rows")
    monkeypatch.setattr(driving, "find_flow", lambda _: flow_of(source))
    directory = run_of(tmp_path, spec_of())

    with Lease.acquire(directory) as lease:
        drive(directory, lease, lambda spec, post: nullcontext(PlainHost()))

    ended = last_event(directory.journal_file)
    assert isinstance(ended, RunEnded)
    assert ended.reason == "The source 'rows' reads a DataFrame, and there is no Spark here."


class PlainHost:
    """A host that starts nothing, so the run ends where it would begin."""

    def start(self, address: SlotAddress, parallelism: int) -> None:
        raise Rejected("no slots here")

    def cancel(self, address: SlotAddress) -> None:
        pass


class SparkLikeHost(PlainHost):
    def __init__(self) -> None:
        self.kept: list[DataFrameRows] = []

    def keep_rows(self, source: DataFrameRows) -> int:
        self.kept.append(source)
        return 0


def frame_source(directory: Path) -> DataFrameRows:
    return DataFrameRows(lambda session: session, directory, schema=SCHEMA)


def flow_of(source: DataFrameRows) -> Flow:
    def assemble(parameters: Mapping[str, str]) -> Pipeline:
        env = Environment()
        env.source(source, uid="rows").sink(BlackHole(), uid="nowhere")
        return env.build()

    return Flow(name="rows", summary="", parameters=(), assemble=assemble)


def run_of(home: Path, spec: RunSpec) -> RunDirectory:
    directory = RunDirectory.of(home / "jobs", spec.pipeline, RUN)
    directory.path.mkdir(parents=True)
    directory.spec_file.write_bytes(msgspec.json.encode(spec))
    return directory


def opening_given_up(
    spec: RunSpec, post: Callable[[JobEvent], None]
) -> AbstractContextManager[StageHost]:
    raise StartGivenUp


def open_nothing(
    spec: RunSpec, post: Callable[[JobEvent], None]
) -> AbstractContextManager[StageHost]:
    raise NotImplementedError
