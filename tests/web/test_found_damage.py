"""Damage to a point that the control plane finds reaches the driver that may build on the point."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings as configuration

from ftdash.checkpoints.queries import savepoints
from ftdash.checkpoints.queries.savepoints import Looked
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Pipeline, PointComparison, PointInspection, Run
from ftdash.points.services import comparisons, restore
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore
from ftdash.projection.projector import Projector
from pipelines.bus.inbox import Inbox
from pipelines.domain.commands import VerifyPoints
from pipelines.domain.errors import Rejected
from pipelines.domain.status import CheckpointKind, ClaimMode
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.points.stored_views import publish_views, write_events
from tests.web.journals import Story, new_run
from tests.web.sent_errands import catch_errands

pytestmark = pytest.mark.django_db

NAME = "views"


@pytest.fixture(autouse=True)
def jobs(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings.JOBS_ROOT = tmp_path / "jobs"
    catch_errands(monkeypatch)
    return settings.JOBS_ROOT


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A complete point that no run knows yet."""
    data = write_events(tmp_path / "data")
    new_run(NAME, settings={})
    Pipeline.objects.update(flow="page_view_count", parameters={"data": str(data)})
    root = Path(configuration.JOBS_ROOT)
    path = str(root / NAME / "savepoints" / "savepoint-views-1-7")
    publish_views(FileSystemCheckpointStore([str(root)]), path, data)
    return path


def by_preflight(path: str) -> None:
    assert not point_services.preflight(Restore(pipeline=NAME, path=path)).is_possible


def by_inspection(path: str) -> None:
    point_services.begin_inspection(path)
    row = PointInspection.objects.get(path=path)
    while comparisons.go_on_inspecting(row.pk):
        pass
    assert PointInspection.objects.get().problem


def by_a_page_of_rows(path: str) -> None:
    with pytest.raises(Rejected, match="was altered"):
        savepoints.rows_in(path, Looked("views", "totals"))


def by_comparison(path: str) -> None:
    other = path.replace("views-1-7", f"views-1-{8 + PointComparison.objects.count()}")
    root, data = Path(configuration.JOBS_ROOT), Path(Pipeline.objects.get().parameters["data"])
    publish_views(FileSystemCheckpointStore([str(root)]), other, data, twice=True)
    comparisons.ask(other, path, "ada")
    comparisons.go_on_comparing(PointComparison.objects.get(left=other).pk)
    assert PointComparison.objects.get(left=other).problem


FINDERS = [by_preflight, by_inspection, by_a_page_of_rows, by_comparison]


@pytest.mark.parametrize("find", FINDERS)
def test_the_driver_of_the_run_that_wrote_the_point_is_asked_once(
    path: str, find: Callable[[str], None]
) -> None:
    run = wrote(path)
    damage(path)

    find(path)
    find(path)

    [command] = asked(run)
    assert command.requested_by == "control plane"
    assert command.reason.startswith(f"{path}: ")


@pytest.mark.parametrize(
    "find",
    [
        lambda path: savepoints.operators_in(path),
        lambda path: restore.replayable(Pipeline.objects.get(), path, {}),
    ],
    ids=["a page of operators", "a replay"],
)
def test_a_damaged_manifest_counts_as_damage(path: str, find: Callable[[str], object]) -> None:
    run = wrote(path)
    (Path(path) / "manifest.json").write_bytes(b"torn")

    with pytest.raises(Rejected, match="truncated or altered"):
        find(path)

    assert len(asked(run)) == 1


@pytest.mark.parametrize(("claim_mode", "count"), [(ClaimMode.CLAIM, 1), (ClaimMode.NO_CLAIM, 0)])
def test_a_run_is_asked_about_a_point_only_if_it_claimed_the_point(
    path: str, claim_mode: ClaimMode, count: int
) -> None:
    first = wrote(path)
    finish(first)
    run = new_run(NAME, restored_from=path, claim_mode=claim_mode.value)
    damage(path)

    by_preflight(path)

    assert (len(asked(run)), asked(first)) == (count, [])


def test_no_driver_is_asked_for_a_whole_point_or_for_an_ended_run(path: str) -> None:
    run = wrote(path)
    assert point_services.preflight(Restore(pipeline=NAME, path=path)).is_possible
    before = asked(run)
    finish(run)
    damage(path)

    by_preflight(path)

    assert (before, asked(run)) == ([], [])


def test_a_refusal_without_damage_asks_no_driver(path: str) -> None:
    run = wrote(path)

    found = point_services.preflight(Restore(pipeline=NAME, path=path, parallelism=100_000))

    assert not found.is_possible
    assert asked(run) == []


def wrote(path: str) -> Run:
    run = Run.objects.get()
    Story(run).started().completed(CheckpointKind.SAVEPOINT, path=path)
    Projector().run_once()
    return run


def finish(run: Run) -> None:
    Story(run).ended()
    Projector().run_once()


def damage(path: str) -> None:
    """Damages the last byte of every file."""
    for file in Path(path).glob("*.parquet"):
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


def asked(run: Run) -> list[VerifyPoints]:
    pending = Inbox(run_directory(run)).pending()
    return [command for command in pending if isinstance(command, VerifyPoints)]
