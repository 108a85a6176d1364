"""Services: what is refused is refused in one sentence, and what is asked for is kept."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from ftdash.jobs import services, tasks
from ftdash.jobs.models import (
    DesiredState,
    Pipeline,
    Request,
    RequestKind,
    RequestPhase,
    Run,
)
from ftdash.jobs.projector import Projector
from ftdash.jobs.validation import check_sources, check_startable
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId, RequestId, RunId
from pipelines.domain.snapshots import FORMAT_VERSION, Manifest
from pipelines.domain.status import CheckpointKind, KillMoment
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.stores import CheckpointStores
from tests.object_server import ObjectServer, never
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.django_db

WHO = {"requester": "ann", "reason": "upgrade"}


@pytest.fixture(autouse=True)
def published(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Messages that went to the broker; any flow may be submitted."""
    settings.JOBS_ROOT = tmp_path
    sent: list[tuple[str, int]] = []
    for task in (tasks.start_run, tasks.deliver_request):
        monkeypatch.setattr(task, "delay", lambda key, name=task.name: sent.append((name, key)))
    monkeypatch.setattr(services, "check_startable", accept)
    monkeypatch.setattr(services, "check_sources", accept)
    return sent


def test_a_submitted_pipeline_has_a_run_and_a_request(
    published: list, django_capture_on_commit_callbacks: Callable
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        request_id = submit(parallelism=2, parameters={"speed": "24"})

    run = Run.objects.get()
    request = Request.objects.get(request_id=request_id)
    assert (run.number, run.parallelism, run.master) == (1, 2, "local[2]")
    assert run.parameters == {"speed": "24"}
    assert (request.kind, request.phase, request.run) == ("SUBMIT", RequestPhase.PENDING, run)
    assert (request.requester, request.reason) == ("ann", "upgrade")
    assert published == [("ftdash.jobs.tasks.start_run", run.pk)]


def test_the_next_submission_changes_the_pipeline_and_numbers_its_runs() -> None:
    submit(parallelism=2)
    finish(Run.objects.get())

    submit(parallelism=3)

    pipeline = Pipeline.objects.get()
    assert pipeline.parallelism == 3
    assert sorted(pipeline.runs.values_list("number", flat=True)) == [1, 2]
    assert len(set(pipeline.runs.values_list("run_id", flat=True))) == 2


def test_a_pipeline_under_way_is_not_submitted_again() -> None:
    submit()

    with pytest.raises(Rejected, match="flights has a run under way; stop or cancel it first"):
        submit()


@pytest.mark.parametrize("name", ["", "Flights", "a b", "../a", "-a", "a" * 81])
def test_a_name_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="cannot be used"):
        submit(name=name)


@pytest.mark.parametrize(
    ("kind", "ask"),
    [
        (RequestKind.CHECKPOINT, services.request_checkpoint),
        (RequestKind.SAVEPOINT, services.request_savepoint),
        (RequestKind.STOP_WITH_SAVEPOINT, services.stop_with_savepoint),
        (RequestKind.CANCEL, services.cancel),
    ],
)
def test_a_request_is_kept_and_its_delivery_is_published(
    published: list,
    django_capture_on_commit_callbacks: Callable,
    kind: RequestKind,
    ask: Callable[..., RequestId],
) -> None:
    running()

    with django_capture_on_commit_callbacks(execute=True):
        request_id = ask(pipeline="flights", **WHO)

    request = Request.objects.get(request_id=request_id)
    assert (request.kind, request.phase) == (kind, RequestPhase.PENDING)
    assert request.deadline_at > request.created_at
    assert published == [("ftdash.jobs.tasks.deliver_request", request.pk)]


def test_a_request_is_kept_when_the_broker_is_away(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Callable
) -> None:
    running()

    def refuse(key: int) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(tasks.deliver_request, "delay", refuse)

    with django_capture_on_commit_callbacks(execute=True):
        request_id = services.request_savepoint(pipeline="flights", **WHO)

    assert Request.objects.get(request_id=request_id).phase == RequestPhase.PENDING


def test_a_savepoint_has_as_long_as_the_checkpoints_of_its_run_may_take() -> None:
    run = running()
    Run.objects.filter(pk=run.pk).update(settings={"execution.checkpointing.timeout": "1 h"})

    request_id = services.request_savepoint(pipeline="flights", **WHO)

    request = Request.objects.get(request_id=request_id)
    assert (request.deadline_at - request.created_at).total_seconds() == 3600


def test_a_cancelled_run_is_desired_to_be_stopped() -> None:
    run = running()

    services.cancel(pipeline="flights", **WHO)

    run.refresh_from_db()
    assert run.desired == DesiredState.STOPPED
    assert run.stop_requested_at is not None
    with pytest.raises(Rejected, match="flights is being stopped"):
        services.request_savepoint(pipeline="flights", **WHO)


def test_asking_what_does_not_run_is_refused() -> None:
    with pytest.raises(Rejected, match="There is no pipeline 'flights'; none was submitted yet"):
        services.cancel(pipeline="flights", **WHO)

    run = new_run()

    with pytest.raises(Rejected, match="flights is CREATED; this needs it to be RUNNING"):
        services.request_savepoint(pipeline="flights", **WHO)

    finish(run)

    with pytest.raises(Rejected, match="flights is not running"):
        services.cancel(pipeline="flights", **WHO)


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_an_action_needs_a_reason(reason: str) -> None:
    running()

    with pytest.raises(Rejected, match="Say why"):
        services.cancel(pipeline="flights", requester="ann", reason=reason)


def test_a_slot_is_killed_by_number_and_moment() -> None:
    running()

    services.kill_slot(pipeline="flights", slot=1, moment=KillMoment.ALIGNING, **WHO)

    assert Request.objects.get().parameters == {"slot": "1", "moment": "aligning"}


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_is_refused(slot: int) -> None:
    running()

    with pytest.raises(Rejected, match=f"There is no slot {slot}; choose 0 to 1"):
        services.kill_slot(pipeline="flights", slot=slot, **WHO)


def test_a_pipeline_may_forbid_faults_on_purpose() -> None:
    running()
    Pipeline.objects.update(allows_faults=False)

    with pytest.raises(Rejected, match="does not allow faults"):
        services.kill_slot(pipeline="flights", slot=0, **WHO)


def test_a_restore_forks_a_run_from_the_point(tmp_path: Path) -> None:
    old = running()
    finish(old)
    path = point(tmp_path, run_id=old.run_id)
    Pipeline.objects.update(parameters={"speed": "24", "forever": "false"})

    request_id = services.restore(
        pipeline="flights", path=path, parallelism=3, parameters={"speed": "max"}, **WHO
    )

    run = Run.objects.get(number=2)
    assert (run.parent, run.restored_from, run.first_checkpoint_id) == (old, path, 8)
    assert (run.parallelism, run.master) == (3, "local[3]")
    assert run.parameters == {"speed": "max", "forever": "false"}
    assert Request.objects.get(request_id=request_id).kind == RequestKind.RESTORE


def test_a_restore_takes_a_point_in_an_object_store(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = running()
    finish(old)
    root = objects.new_root()
    objects.plan(never)
    for name, value in {**objects.environment, "FTDASH_STORAGE_ROOTS": root}.items():
        monkeypatch.setenv(name, value)
    path = f"{root}/savepoint-flights-1-7"
    manifest = manifest_of(run_id=RunId(old.run_id))
    CheckpointStores([root], max_memory_state_bytes=0).publish(path, manifest)

    services.restore(pipeline="flights", path=path, **WHO)

    run = Run.objects.get(number=2)
    assert (run.parent, run.restored_from, run.first_checkpoint_id) == (old, path, 8)


def test_a_restore_from_anywhere_else_in_an_object_store_is_refused_by_name(
    objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(running())
    root = objects.new_root()
    objects.plan(never)
    for name, value in {**objects.environment, "FTDASH_STORAGE_ROOTS": root}.items():
        monkeypatch.setenv(name, value)

    for elsewhere, sentence in [
        (f"{root}/nowhere", r"manifest\.json is missing"),
        (f"{root}-of-others/x", "is not a recovery point of 'flights'"),
        ("memory://flights-1/chk-7", "is not a recovery point of 'flights'"),
    ]:
        with pytest.raises(Rejected, match=sentence):
            services.restore(pipeline="flights", path=elsewhere, **WHO)


def test_a_restore_beside_a_living_run_is_refused(tmp_path: Path) -> None:
    running()

    with pytest.raises(Rejected, match="run under way"):
        services.restore(pipeline="flights", path=point(tmp_path), **WHO)


def test_a_restore_from_nothing_damage_or_another_pipeline_is_refused_by_name(
    tmp_path: Path,
) -> None:
    finish(running())
    home = tmp_path / "flights"
    damaged = Path(point(home / "damaged"))
    (damaged / "manifest.json").write_text('{"pipeline": "fli')
    foreign = point(home / "foreign", pipeline="page_view_count")
    other_groups = point(home / "groups", max_parallelism=64)

    for path, sentence in [
        (str(home / "nowhere"), "There is no recovery point at .*nowhere"),
        (str(damaged), "manifest.json is damaged"),
        (point(tmp_path / "elsewhere"), "is not a recovery point of 'flights'"),
        (str(home / ".." / ".." / "etc"), "is not a recovery point of 'flights'"),
        (foreign, "a point of the pipeline 'page_view_count'"),
        (other_groups, "maximum parallelism 64, and 'flights' has 128"),
    ]:
        with pytest.raises(Rejected, match=sentence):
            services.restore(pipeline="flights", path=path, **WHO)
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parallelism": 0}, "parallelism cannot be 0"),
        ({"parallelism": 129}, "parallelism cannot be 129"),
        ({"settings": {"execution.checkpointing.intervall": "1 s"}}, "did you mean"),
        ({"settings": {"execution.checkpointing.dir": "s3://b/x"}}, "dir cannot be used: s3://b/x"),
        ({"settings": {"execution.checkpointing.savepoint-dir": "/etc"}}, "can add a root to"),
        ({"flow": "flight_delay"}, "flight_delay"),
        ({"parameters": {"sped": "max"}}, "sped"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_stored(
    monkeypatch: pytest.MonkeyPatch, changes: dict, sentence: str
) -> None:
    monkeypatch.setattr(services, "check_startable", check_startable)
    pytest.importorskip("pipelines.flows.registry")

    with pytest.raises(Rejected, match=sentence):
        submit(**{"flow": "flight_delays", **changes})
    assert not Pipeline.objects.exists()


def test_a_malformed_input_file_is_refused_where_the_person_asks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(services, "check_sources", check_sources)
    for side in ("flights", "weather"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "2013-01.parquet").write_bytes(b"no Parquet")
    output, sql = str(tmp_path / "output"), f"sqlite:///{tmp_path / 'output.sqlite3'}"

    with pytest.raises(Rejected, match=r"2013-01\.parquet"):
        submit(
            flow="flight_delays",
            parameters={"data": str(tmp_path), "output": output, "sql": sql},
        )
    assert not Pipeline.objects.exists()


def test_a_version_grows_with_every_request() -> None:
    running()
    before = Pipeline.objects.get().version

    services.request_savepoint(pipeline="flights", **WHO)

    assert Pipeline.objects.get().version > before


def accept(*_: object) -> None:
    """Stands for the check of the flow, which has tests of its own."""


def submit(**changes: object) -> RequestId:
    values: dict = {"name": "flights", "flow": "flight_delays", **WHO, **changes}
    return services.submit_pipeline(**values)


def running() -> Run:
    run = new_run()
    Story(run).started()
    Projector().run_once()
    return run


def finish(run: Run) -> None:
    Story(run).ended()
    Projector().run_once()


def manifest_of(**changes: object) -> Manifest:
    values: dict = {
        "format_version": FORMAT_VERSION,
        "pipeline": "flight_delays",
        "run_id": RunId("flights-1"),
        "attempt": 1,
        "checkpoint_id": CheckpointId(7),
        "kind": CheckpointKind.SAVEPOINT,
        "trigger_ms": 0,
        "completed_ms": time.time_ns() // 1_000_000,
        "parallelism": 2,
        "max_parallelism": 128,
        "ancestors": [],
        "operator_ids": {},
        "subtasks": [],
        **changes,
    }
    return Manifest(**values)


def point(root: Path, **changes: object) -> str:
    """The directory of a recovery point, as the engine's own store writes it."""
    path = str(root / "flights" / "savepoints" / "savepoint-flights-1-7")
    FileSystemCheckpointStore([str(root)]).publish(path, manifest_of(**changes))
    return path
