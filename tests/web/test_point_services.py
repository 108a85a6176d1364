"""Restores, preflights and disposals: refusals, stored requests, and deletions."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from django.conf import settings as configuration
from django.utils import timezone

from ftdash import tasks
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.jobs.models import Pipeline, PointInspection, Request, RequestPhase, Run
from ftdash.points.services import comparisons, restore
from ftdash.points.services import restore as point_services
from ftdash.points.services.disposal import dispose_of
from ftdash.points.services.restore import Restore
from ftdash.projection.projector import Projector
from ftdash.settings import installation_id
from ftdash.supervision import drivers
from ftdash.supervision.launcher import _spec
from pipelines.domain.commands import RequestKind
from pipelines.domain.errors import Rejected
from pipelines.domain.events import ClaimedPointDiscarded, RestorePointRefused
from pipelines.domain.status import CheckpointKind, ClaimMode
from pipelines.packages.store import CodeStore
from pipelines.points.verdict import Check, Verdict
from pipelines.storage.filesystem import FileSystemCheckpointStore
from pipelines.storage.stores import CheckpointStores
from tests.object_server import ObjectServer, never
from tests.shipped_packages import shop_wheel
from tests.unit.points.stored_views import publish_views, write_events
from tests.web.journals import Story, new_run
from tests.web.sent_errands import catch_errands

pytestmark = pytest.mark.django_db

WHO = {"requester": "ann", "reason": "upgrade"}
NAME = "views"
FLOW = "page_view_count"


@pytest.fixture(autouse=True)
def published(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns the messages that went to the broker."""
    settings.JOBS_ROOT = tmp_path / "jobs"
    return catch_errands(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_events(tmp_path / "data")


@pytest.fixture
def old(data: Path) -> Run:
    """A run of the pipeline that is over."""
    run = new_run(NAME, settings={})
    Pipeline.objects.update(flow=FLOW, parameters={"data": str(data)})
    finish(running(run))
    return run


def test_a_restore_forks_a_run_from_the_point(old: Run, data: Path) -> None:
    path = point(data, run_id=old.run_id)
    asked = Restore(
        pipeline=NAME,
        path=path,
        parallelism=3,
        parameters={"repeat": "2"},
        allow_non_restored_state=True,
    )

    request_id = point_services.restore(asked, claim_mode=ClaimMode.CLAIM, **WHO)

    run = Run.objects.get(number=2)
    assert (run.parent, run.restored_from, run.first_checkpoint_id) == (old, path, 8)
    assert (run.parallelism, run.master) == (3, "local[3]")
    assert run.parameters == {"data": str(data), "repeat": "2"}
    assert Request.objects.get(request_id=request_id).kind == RequestKind.RESTORE
    spec = _spec(run)
    assert (spec.claim_mode, spec.allow_non_restored_state) == (ClaimMode.CLAIM, True)
    assert (spec.installation, spec.started_by) == (installation_id(), WHO["requester"])
    assert spec.installation == configuration.INSTALLATION_ID, "the same after every start"


def test_a_restore_checks_newer_code_first_and_keeps_it_for_later_starts(
    old: Run, data: Path, tmp_path: Path
) -> None:
    path, store = point(data, run_id=old.run_id), CodeStore(configuration.JOBS_ROOT)
    views = "from pipelines.flows.page_view_count import FLOW as shop\n# VERSION\n"
    older, newer = (store.add(shop_wheel(tmp_path, each, views)) for each in ("1.0", "1.1"))
    Pipeline.objects.update(flow="orders", code=msgspec.to_builtins(older))
    asked = Restore(pipeline=NAME, path=path, code=newer)

    verdict = point_services.preflight(asked)
    point_services.restore(asked, **WHO)

    said = [each.text for each in verdict.findings if each.check is Check.CODE]
    assert verdict.is_possible
    assert said[0].endswith(f"and {newer.described} would start from it.")
    assert _spec(Run.objects.get(number=2)).code == newer
    assert Pipeline.objects.get().shipped_code == newer
    assert Run.objects.get(number=1).shipped_code is None, "a run that is over keeps what it had"


INTERVAL = "execution.checkpointing.interval"
BACKEND = "state.backend.type"


def test_a_restore_merges_changed_settings_and_keeps_them_for_later_runs(
    old: Run, data: Path
) -> None:
    Pipeline.objects.update(settings={INTERVAL: "2 s", "heartbeat.interval": "1 s"})
    path, changed = point(data, run_id=old.run_id), {INTERVAL: "5 s", BACKEND: "rocksdb"}
    asked = Restore(pipeline=NAME, path=path, settings=changed, parameters={"repeat": "2"})

    verdict = point_services.preflight(asked)
    request_id = point_services.restore(asked, **WHO)

    run, row = Run.objects.get(number=2), Pipeline.objects.get()
    assert run.settings == row.settings == {**changed, "heartbeat.interval": "1 s"}
    assert _spec(run).settings == run.settings
    assert run.parameters == row.parameters == {"data": str(data), "repeat": "2"}
    told = Request.objects.get(request_id=request_id).command.parameters
    assert told[f"set {INTERVAL}"] == "5 s"
    assert (f"set {BACKEND}" in told, "set repeat" in told) == (True, True)
    assert "set heartbeat.interval" not in told
    said = [each.text for each in verdict.findings if each.check is Check.SETTINGS]
    assert said[0] == f"Setting {INTERVAL} becomes '5 s', for this run and later ones."
    assert len(said) == 3


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pipeline.max-parallelism": "64"}, "into 128 key groups"),
        ({"execution.checkpointing.intervall": "5 s"}, "did you mean"),
        ({"execution.required-guarantee": "never"}, "execution.required-guarantee"),
    ],
)
def test_a_setting_that_may_not_change_in_a_restore_is_refused_by_name(
    old: Run, data: Path, changed: dict[str, str], named: str
) -> None:
    path = point(data, run_id=old.run_id)

    with pytest.raises(Rejected, match=named):
        point_services.restore(Restore(pipeline=NAME, path=path, settings=changed), **WHO)

    assert Run.objects.count() == 1
    assert Pipeline.objects.get().settings == {}


def test_a_restore_takes_a_point_of_another_pipeline_with_the_same_uids(
    old: Run, data: Path
) -> None:
    path = point(data, pipeline="former_name", home="another")

    point_services.restore(Restore(pipeline=NAME, path=path), **WHO)

    run = Run.objects.get(number=2)
    assert (run.parent, run.restored_from) == (None, path)


def test_a_replay_restores_the_point_and_reads_its_quarantine_again(old: Run, data: Path) -> None:
    path = point(data, run_id=old.run_id)
    set_aside(old, records=2)

    request_id = point_services.restore(Restore(pipeline=NAME, path=path, replays=()), **WHO)

    run = Run.objects.get(number=2)
    assert run.replayed_sources == _spec(run).replayed_sources == ["events"]
    stored = Request.objects.get(request_id=request_id)
    assert (stored.kind, stored.requester) == (RequestKind.RESTORE, "ann")
    assert stored.command.parameters["replay-quarantine"] == "2 of events"


def test_a_plain_restore_replays_nothing_and_an_empty_replay_is_refused(
    old: Run, data: Path
) -> None:
    path = point(data, run_id=old.run_id)

    with pytest.raises(Rejected, match="There is nothing to replay"):
        point_services.restore(Restore(pipeline=NAME, path=path, replays=()), **WHO)
    assert Run.objects.count() == 1
    set_aside(old, records=1)
    point_services.restore(Restore(pipeline=NAME, path=path), **WHO)

    assert Run.objects.get(number=2).replayed_sources == []


def test_a_replay_takes_the_newest_point_whose_files_are_there(old: Run, data: Path) -> None:
    row = Pipeline.objects.get()
    assert "has no recovery point" in restore.outlook(row).refusal
    path = point(data, run_id=old.run_id)
    set_aside(old, records=3)
    newest = Checkpoint.objects.get(run=old)
    Checkpoint.objects.update(path=path)
    newest.pk, newest.checkpoint_id, newest.sequence, newest.path = None, 9, 99, "/gone/chk-9"
    newest.completed_at = timezone.now() + timedelta(hours=1)
    newest.save()

    seen = restore.outlook(row)

    assert (seen.path, seen.records, seen.count, seen.refusal) == (path, {"events": 3}, 3, "")
    with pytest.raises(Rejected, match="There is no pipeline 'nothing'"):
        restore.newest_point("nothing")


def test_restoring_again_under_the_same_id_starts_no_second_run(old: Run, data: Path) -> None:
    asked = Restore(pipeline=NAME, path=point(data))

    first = point_services.restore(asked, request_id="again", **WHO)

    assert point_services.restore(asked, request_id="again", **WHO) == first
    assert Run.objects.count() == 2


def test_a_point_that_a_live_run_has_claimed_cannot_be_shared(old: Run, data: Path) -> None:
    path = point(data)
    owner = new_run("copy", restored_from=path, claim_mode=ClaimMode.CLAIM.value)

    with pytest.raises(Rejected, match=f"claimed by run {owner.run_id} of 'copy'"):
        point_services.restore(Restore(pipeline=NAME, path=path), **WHO)


def test_a_point_that_a_live_run_needs_cannot_be_claimed(old: Run, data: Path) -> None:
    path = point(data)
    other = new_run("copy", restored_from=path)
    asked = Restore(pipeline=NAME, path=path)

    with pytest.raises(Rejected, match=f"cannot be claimed: .* {other.run_id}"):
        point_services.restore(asked, claim_mode=ClaimMode.CLAIM, **WHO)

    point_services.restore(asked, **WHO)


def test_a_restore_is_refused_while_a_run_is_under_way(old: Run, data: Path) -> None:
    running(new_run(NAME))

    with pytest.raises(Rejected, match="run under way"):
        point_services.restore(Restore(pipeline=NAME, path=point(data)), **WHO)


def test_a_restore_takes_a_point_in_an_object_store(
    old: Run, data: Path, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = allow_objects(objects, monkeypatch)
    path = f"{root}/savepoint-views-1-7"
    publish_views(CheckpointStores([root], 0), path, data, run_id=old.run_id)

    point_services.restore(Restore(pipeline=NAME, path=path), **WHO)

    run = Run.objects.get(number=2)
    assert (run.parent, run.restored_from, run.first_checkpoint_id) == (old, path, 8)


def test_a_restore_from_a_wrong_place_in_an_object_store_is_refused(
    old: Run, objects: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = allow_objects(objects, monkeypatch)

    for elsewhere, sentence in [
        (f"{root}/nowhere", r"manifest\.json is missing"),
        (f"{root}-of-others/x", "outside the configured storage"),
        ("memory://views-1/chk-7", "outside the configured storage"),
    ]:
        with pytest.raises(Rejected, match=sentence):
            point_services.restore(Restore(pipeline=NAME, path=elsewhere), **WHO)


def test_an_unusable_point_is_refused_with_the_reason_and_starts_nothing(
    old: Run, data: Path, tmp_path: Path
) -> None:
    torn = Path(point(data, home="torn"))
    (torn / "manifest.json").write_text('{"pipeline": "fli')
    rewritten = Path(point(data, home="rewritten"))
    manifest = (rewritten / "manifest.json").read_text()
    (rewritten / "manifest.json").write_text(
        manifest.replace('"max_parallelism":128', '"max_parallelism":256')
    )
    altered = Path(point(data, home="altered"))
    file = max(altered.glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1])
    link = tmp_path / "jobs" / "link"
    link.symlink_to(tmp_path)

    for path, sentence in [
        (str(torn.with_name("nowhere")), "There is no recovery point at .*nowhere"),
        (str(torn), "manifest.json is truncated or altered: .* Choose another point"),
        (str(rewritten), "manifest.json was altered: its digest does not match. Choose another"),
        (str(altered), f"into 'views': .*{file.name} has .* bytes"),
        (str(tmp_path / "elsewhere"), "outside the configured storage"),
        (str(link / "elsewhere"), "outside the configured storage"),
        (str(torn / ".." / ".." / ".." / ".." / "etc"), "outside the configured storage"),
        (point(data, home="groups", max_parallelism=64), "64 and this run has 128"),
    ]:
        with pytest.raises(Rejected, match=sentence):
            point_services.restore(Restore(pipeline=NAME, path=path), **WHO)
    assert Run.objects.count() == 1
    assert not Request.objects.exists()


def test_a_refused_restore_counts_the_other_reasons_against_it(old: Run, data: Path) -> None:
    path = point(data, max_parallelism=64)
    (data / "0.csv").unlink()

    with pytest.raises(Rejected, match=r"cannot be remapped\. The preflight names 1 more"):
        point_services.restore(Restore(pipeline=NAME, path=path), **WHO)


def test_the_preflight_stores_no_request_and_states_the_records_to_replay(
    old: Run, data: Path
) -> None:
    path = point(data)

    verdict: Verdict = point_services.preflight(Restore(pipeline=NAME, path=path))

    assert verdict.is_possible
    assert verdict.records_to_replay is not None
    assert Check.REPLAY in {finding.check for finding in verdict.findings}
    assert not Request.objects.exists()


def test_the_preflight_reports_an_earlier_refusal_because_of_lost_output(
    old: Run, data: Path
) -> None:
    first, path = new_run(NAME), point(data)
    Story(first).started().completed(CheckpointKind.SAVEPOINT, path=path).ended()
    Projector().run_once()
    lost = "A run that starts from it fails: Output of checkpoint 1 is lost."
    restored = new_run(NAME, restored_from=path)
    Story(restored).started().tell(RestorePointRefused(path=path, message=lost))
    Projector().run_once()

    verdict: Verdict = point_services.preflight(Restore(pipeline=NAME, path=path))

    assert verdict.is_possible  # a person may have restored that output
    assert f"It was refused before. {lost}" in [finding.text for finding in verdict.findings]


def test_a_worker_reads_the_point_in_steps_and_reports_its_progress(
    old: Run,
    data: Path,
    published: list,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Callable,
) -> None:
    path = point(data)
    monkeypatch.setattr(comparisons, "STEP_S", 0.0)  # one file per step
    with django_capture_on_commit_callbacks(execute=True):
        point_services.begin_inspection(path)
        point_services.begin_inspection(path)
    row = PointInspection.objects.get(path=path)

    tasks.inspect_point(row.pk)
    halfway = point_services.inspection_of(path)
    tasks.inspect_point(row.pk)
    tasks.inspect_point(row.pk)  # as for a message delivered twice
    whole = point_services.inspection_of(path)

    asked = (tasks.inspect_point.name, row.pk)
    assert published == [asked, asked]  # one message to begin, one to continue
    assert halfway is not None
    assert (halfway.files_read, halfway.files, halfway.ended_at) == (1, 2, None)
    assert whole is not None
    assert (whole.files_read, whole.bytes_read, whole.problem) == (2, whole.bytes, "")
    assert whole.ended_at is not None


def test_damage_found_by_a_reading_blocks_restores_until_the_next_reading(
    old: Run, data: Path, published: list
) -> None:
    path = point(data)
    file = max(Path(path).glob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    read_through(path)

    quick = Restore(pipeline=NAME, path=path, reads_files=False)
    assert point_services.preflight(quick).is_possible  # no file is missing or truncated
    with pytest.raises(Rejected, match=f"{file.name} was altered"):
        point_services.restore(quick, **WHO)
    file.write_bytes(whole)
    read_through(path)
    point_services.restore(quick, **WHO)

    assert Request.objects.count() == 1


def test_a_reading_that_stopped_halfway_resumes_when_it_is_viewed(
    old: Run, data: Path, published: list, django_capture_on_commit_callbacks: Callable
) -> None:
    path = point(data)
    point_services.begin_inspection(path)  # its message is lost
    with django_capture_on_commit_callbacks(execute=True):
        point_services.inspection_of(path)
    published_before = list(published)
    PointInspection.objects.update(moved_at=timezone.now() - timedelta(minutes=1))

    with django_capture_on_commit_callbacks(execute=True):
        point_services.inspection_of(path)
        point_services.inspection_of(path)

    assert published_before == []
    assert published == [(tasks.inspect_point.name, PointInspection.objects.get().pk)]


def test_a_point_that_was_just_read_is_not_read_again(
    old: Run, data: Path, published: list, django_capture_on_commit_callbacks: Callable
) -> None:
    path = point(data)
    read_through(path)

    with django_capture_on_commit_callbacks(execute=True):
        point_services.begin_inspection(path)
    assert published == []
    PointInspection.objects.update(ended_at=timezone.now() - timedelta(hours=1))
    with django_capture_on_commit_callbacks(execute=True):
        point_services.begin_inspection(path)

    assert len(published) == 1
    assert PointInspection.objects.get().files_read == 0


def test_nothing_outside_the_storage_is_inspected(old: Run, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="outside the configured storage"):
        point_services.begin_inspection(str(tmp_path / "elsewhere"))
    assert not PointInspection.objects.exists()


def test_a_disposal_is_a_request_that_a_worker_carries_out(
    old: Run, data: Path, published: list, django_capture_on_commit_callbacks: Callable
) -> None:
    path = point(data)

    with django_capture_on_commit_callbacks(execute=True):
        request_id = point_services.dispose(pipeline=NAME, path=path, **WHO)
    request = Request.objects.get(request_id=request_id)
    assert (request.phase, Path(path).exists()) == (RequestPhase.PENDING, True)
    assert published == [("ftdash.tasks.dispose_of_savepoint", request.pk)]
    for _ in range(2):  # repeated deliveries change nothing
        dispose_of(request.pk)

    request.refresh_from_db()
    assert (request.phase, request.message) == ("SUCCEEDED", f"The files of {path} are deleted.")
    assert not Path(path).exists()


def test_a_disposal_whose_message_was_lost_is_carried_out_later(old: Run, data: Path) -> None:
    path = point(data)
    point_services.dispose(pipeline=NAME, path=path, **WHO)
    Request.objects.update(created_at=timezone.now() - timedelta(minutes=5))

    drivers.deliver_forgotten()

    assert Request.objects.get().phase == RequestPhase.SUCCEEDED
    assert not Path(path).exists()


def test_a_disposal_that_two_workers_carry_out_succeeds(
    old: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting gigabytes takes longer than a message may; the manifest is gone at once."""
    path, other = point(data), point(data, home="other")
    point_services.dispose(pipeline=NAME, path=path, **WHO)
    key = Request.objects.get().pk
    delete = shutil.rmtree

    def delete_slowly(directory: Path, **options: bool) -> None:
        monkeypatch.setattr(shutil, "rmtree", delete)
        dispose_of(key)
        delete(directory, **options)

    monkeypatch.setattr(shutil, "rmtree", delete_slowly)
    dispose_of(key)

    request = Request.objects.get()
    assert (request.phase, request.message) == ("SUCCEEDED", f"The files of {path} are deleted.")
    assert [Path(each).exists() for each in (path, other)] == [False, True]


def test_a_disposal_whose_worker_died_is_continued(
    old: Run, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = point(data)
    point_services.dispose(pipeline=NAME, path=path, **WHO)
    with monkeypatch.context() as dying:
        dying.setattr(shutil, "rmtree", die)
        with pytest.raises(WorkerDied):
            dispose_of(Request.objects.get().pk)
    assert (Request.objects.get().phase, Path(path).exists()) == (RequestPhase.ACCEPTED, True)
    Request.objects.update(accepted_at=timezone.now() - timedelta(minutes=5))

    drivers.deliver_forgotten()

    assert Request.objects.get().phase == RequestPhase.SUCCEEDED
    assert not Path(path).exists()


def test_a_disposed_savepoint_is_shown_as_discarded(old: Run, data: Path) -> None:
    run = new_run(NAME)
    path = point(data)
    Story(run).started().completed(CheckpointKind.SAVEPOINT, path=path).completed().ended()
    Projector().run_once()

    point_services.dispose(pipeline=NAME, path=path, **WHO)
    dispose_of(Request.objects.get().pk)

    assert Checkpoint.objects.get(path=path).status == CheckpointStatus.DISCARDED


def test_a_savepoint_that_a_run_would_restore_after_a_failure_is_kept(old: Run, data: Path) -> None:
    run, path = new_run(NAME), point(data)
    story = Story(run).started().completed(CheckpointKind.SAVEPOINT, path=path)
    Projector().run_once()

    with pytest.raises(Rejected, match=f"{run.run_id} of 'views' would restore after a failure"):
        point_services.dispose(pipeline=NAME, path=path, **WHO)
    story.completed()
    Projector().run_once()

    point_services.dispose(pipeline=NAME, path=path, **WHO)


@pytest.mark.parametrize("claim_mode", ClaimMode)
def test_a_savepoint_stays_while_the_run_started_from_it_still_needs_it(
    old: Run, data: Path, claim_mode: ClaimMode
) -> None:
    path = point(data)
    run = new_run(NAME, restored_from=path, claim_mode=claim_mode.value)

    with pytest.raises(Rejected, match=run.run_id):
        point_services.dispose(pipeline=NAME, path=path, **WHO)
    Story(run).started().completed()
    Projector().run_once()

    if claim_mode is ClaimMode.NO_CLAIM:
        point_services.dispose(pipeline=NAME, path=path, **WHO)
    else:
        with pytest.raises(Rejected, match=run.run_id):
            point_services.dispose(pipeline=NAME, path=path, **WHO)


def test_a_disposal_is_rejected_if_a_run_starts_from_the_point_meanwhile(
    old: Run, data: Path
) -> None:
    path = point(data)
    point_services.dispose(pipeline=NAME, path=path, **WHO)
    new_run(NAME, restored_from=path)

    dispose_of(Request.objects.get().pk)

    request = Request.objects.get()
    assert (request.phase, Path(path).exists()) == (RequestPhase.REJECTED, True)
    assert "would restore after a failure" in request.message


def test_only_an_existing_savepoint_in_the_storage_can_be_disposed_of(
    old: Run, data: Path, tmp_path: Path
) -> None:
    checkpoint = point(data, home="chk", kind=CheckpointKind.CHECKPOINT)
    final = point(data, home="final", kind=CheckpointKind.FINAL)
    outside = tmp_path / "outside"
    shutil.copytree(point(data, home="inside"), outside)

    for path, sentence in [
        (checkpoint, "is no savepoint"),
        (final, "is no savepoint"),
        (str(outside), "outside the configured storage"),
        (str(tmp_path / "jobs" / "nothing"), "There is no recovery point"),
    ]:
        with pytest.raises(Rejected, match=sentence):
            point_services.dispose(pipeline=NAME, path=path, **WHO)
    assert outside.exists()


def test_a_claimed_point_that_its_run_deleted_is_shown_as_discarded(old: Run, data: Path) -> None:
    first, path = new_run(NAME), point(data)
    Story(first).started().completed(CheckpointKind.SAVEPOINT, path=path).ended()
    Projector().run_once()
    second = new_run(NAME, restored_from=path)

    Story(second).started().tell(ClaimedPointDiscarded(path=path))
    Projector().run_once()

    assert Checkpoint.objects.get(path=path).status == CheckpointStatus.DISCARDED


class WorkerDied(BaseException):
    pass


def die(*given: object, **options: object) -> None:
    raise WorkerDied


def point(data: Path, *, home: str = NAME, **changes: object) -> str:
    """Writes a savepoint of the flow below the installation's storage."""
    root = Path(configuration.JOBS_ROOT)
    path = str(root / home / "savepoints" / "savepoint-views-1-7")
    publish_views(FileSystemCheckpointStore([str(root)]), path, data, **changes)  # type: ignore[arg-type]
    return path


def set_aside(run: Run, *, records: int) -> None:
    """Sets aside some of the records that the source `events` produced before the point."""
    directory = Path(configuration.JOBS_ROOT) / NAME / "quarantine" / "events"
    directory.mkdir(parents=True)
    lines = '{"record": "{}"}\n' * records
    (directory / f"part-{run.run_id}-00000003-0-0.jsonl").write_text(lines)


def read_through(path: str) -> None:
    """Reads all files of the point, as a worker would, at once."""
    point_services.begin_inspection(path)
    row = PointInspection.objects.get(path=path)
    while comparisons.go_on_inspecting(row.pk):
        pass


def allow_objects(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    root = objects.new_root()
    objects.plan(never)
    for name, value in {**objects.environment, "FTDASH_STORAGE_ROOTS": root}.items():
        monkeypatch.setenv(name, value)
    return root


def running(run: Run) -> Run:
    Story(run).started().completed()
    Projector().run_once()
    return run


def finish(run: Run) -> None:
    Story(run).ended()
    Projector().run_once()
