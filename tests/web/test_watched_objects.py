"""A watched query whose checkpoint is in an object store, named as Spark does: `s3a://`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from ftdash.watching.models import QuerySavepoint, QueryWork, WatchedQuery, WorkState
from ftdash.watching.services import execution, forks, registration, reports, savepoints
from ftdash.watching.services.registration import Sighting
from ftdash.watching.work_requests import Rewind, TakeSavepoint
from pipelines.domain.errors import Rejected
from pipelines.storage.trees import LocalTree, Tree, tree_at
from pipelines.structured.directory import read_tree
from tests.contracts.stored_points import named_environment
from tests.object_server import Fault, ObjectServer, never
from tests.structured_directories import Traits, write_query
from tests.web.page_words import text_of

pytestmark = pytest.mark.usefixtures("site")

PAGE = "/watched/orders/"
ADA = {"requester": "ada", "reason": "before the deploy"}


@pytest.fixture
def root(objects: ObjectServer, settings: Any) -> Iterator[str]:
    objects.plan(never)
    root = objects.new_root()
    settings.WATCH_ROOTS = [root]
    settings.WATCH_SAVEPOINTS = f"{root}/savepoints"
    with named_environment(objects.environment):
        yield root


@pytest.fixture
def query(root: str, tmp_path: Path) -> Iterator[Tree]:
    """A query watched as `orders`. No test may change its files."""
    made = write_query(tmp_path / "orders", Traits(is_running=True))
    checkpoint = tree_at(f"{root}/orders", [root])
    for path, content in contents(LocalTree(made.checkpoint)).items():
        checkpoint.write_new(path, content)
    seen = Sighting(directory=f" {as_spark_says(checkpoint.location)}")
    registration.watch(name="orders", seen=seen, requester="ada", reason="to see it")
    before = contents(checkpoint)
    yield checkpoint
    assert contents(checkpoint) == before


def test_the_page_of_a_query_shows_its_points_in_the_object_store(
    query: Tree, operator: Client
) -> None:
    row = WatchedQuery.objects.get(name="orders")

    assert row.directory == query.location
    page = text_of(operator, PAGE)
    assert query.location in page
    assert "batch 11" in page.lower()


def test_a_savepoint_and_a_fork_of_it_lie_in_the_store_and_are_whole(
    query: Tree, root: str
) -> None:
    asked = TakeSavepoint(label="before the deploy", batch_id=7)
    done = carried_out(savepoints.ask_to_take("orders", asked, **ADA))
    saved = QuerySavepoint.objects.get(pk=done.result["savepoint"])
    verified = carried_out(savepoints.ask_to_verify("orders", saved.pk, **ADA))
    rewind = Rewind(batch_id=7, target=f"{as_spark_says(root)}/fork", savepoint=saved.pk)
    forked = carried_out(forks.ask_for_fork("orders", rewind, **ADA))

    assert saved.location.startswith(f"{root}/savepoints/")
    assert verified.result["problems"] == []
    assert forked.result["location"] == f"{root}/fork"
    copy = read_tree(tree_at(f"{root}/fork", [root]))
    assert (copy.newest_committed, copy.problems) == (7, ())
    assert copy.query_id == forked.result["query_id"] != read_tree(query).query_id


def test_an_unavailable_store_is_reported_and_earlier_findings_stay(
    query: Tree, objects: ObjectServer, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "LOOK_EVERY", reports.LOOK_EVERY * 0)
    monkeypatch.setattr(reports, "LOOK_SHARE", 0)
    objects.plan(lambda _: Fault.DENIED)
    reports.look_at_files()
    page = text_of(operator, PAGE)
    objects.plan(never)

    assert "cannot be" in page
    assert "batch 11" in page.lower()


def test_a_place_outside_of_the_roots_and_an_event_log_in_a_bucket_are_refused(root: str) -> None:
    with pytest.raises(Rejected, match="lies outside the directories that may be watched"):
        watched(directory="s3a://another/orders")
    with pytest.raises(Rejected, match="an event log is read only from there"):
        watched(event_log=f"{root}/events")

    assert not WatchedQuery.objects.exists()


def watched(**seen: str) -> WatchedQuery:
    return registration.watch(
        name="orders", seen=Sighting(**seen), requester="ada", reason="to see it"
    )


def carried_out(key: int) -> QueryWork:
    """Carries out the work as a worker and its process would."""
    QueryWork.objects.filter(pk=key).update(state=WorkState.RUNNING)
    row = execution.carry_out(key)
    assert row.state == WorkState.SUCCEEDED, row.problem
    return row


def as_spark_says(location: str) -> str:
    return location.replace("s3://", "s3a://", 1)


def contents(tree: Tree) -> dict[str, bytes]:
    found = {each.path: tree.read(each.path) for each in tree.files()}
    return {path: content for path, content in found.items() if content is not None}
