"""Savepoints and forks of watched queries: services, command, and forbidden effects."""

import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from ftdash.accounts.models import AdminAction, TokenScope
from ftdash.watching.models import QuerySavepoint, QueryWork, WatchedQuery, WorkKind, WorkState
from ftdash.watching.services import execution, forks, registration, savepoints, state, work
from ftdash.watching.services.registration import Sighting
from ftdash.watching.work_requests import LookAtState, Rewind, StatePlace, TakeSavepoint
from pipelines.domain.errors import Rejected, Retryable
from pipelines.storage.trees import LocalTree
from pipelines.structured.directory import read_tree
from pipelines.structured.fork import Boundaries
from pipelines.structured.preflight import Output
from tests.structured_directories import Traits, Written, write_query
from tests.web.api_callers import bearer
from tests.web.page_words import text_of, words_in

pytestmark = pytest.mark.usefixtures("site")

ADA = {"requester": "ada", "reason": "before the deploy"}


@pytest.fixture
def root(settings: Any, tmp_path: Path) -> Path:
    root = (tmp_path / "checkpoints").resolve()
    root.mkdir()
    settings.WATCH_ROOTS = [str(root)]
    settings.WATCH_SAVEPOINTS = str(tmp_path / "savepoints")
    return root


@pytest.fixture
def made(root: Path) -> Iterator[Written]:
    """A running query, watched as `orders`. No test may change its files."""
    made = write_query(root / "orders", Traits(is_running=True))
    seen = Sighting(directory=str(made.checkpoint), output=str(made.output))
    registration.watch(name="orders", seen=seen, requester="ada", reason="to see it")
    before = [contents(made.checkpoint), contents(made.output)]
    yield made
    assert [contents(made.checkpoint), contents(made.output)] == before


def taken(label: str = "before the deploy", **more: Any) -> QuerySavepoint:
    key = savepoints.ask_to_take("orders", TakeSavepoint(label=label, **more), **ADA)
    row = carried_out(key)
    assert row.state == WorkState.SUCCEEDED, row.problem
    return QuerySavepoint.objects.get(pk=row.result["savepoint"])


def carried_out(key: int) -> QueryWork:
    """Carries out the work as a worker and its process would."""
    QueryWork.objects.filter(pk=key).update(state=WorkState.RUNNING)
    return execution.carry_out(key)


def rewind(root: Path, **more: Any) -> Rewind:
    """Returns a rewind into a new output, for which the file sink needs a log."""
    given = {"batch_id": 7, "target": str(root / "fork"), "output_target": str(root / "new-output")}
    return Rewind(**{**given, **more})


def test_a_savepoint_of_a_running_query_is_whole_and_outlives_it(made: Written) -> None:
    saved = taken(batch_id=7)

    tree = LocalTree(Path(saved.location))
    assert read_tree(tree).newest_committed == saved.batch_id == 7
    assert saved.size_bytes > 0
    assert saved.problems == []
    assert saved.location.startswith(str(Path(saved.location).parents[2]))
    entry = AdminAction.objects.get(what="took a savepoint of")
    assert (entry.who, entry.reason) == ("ada", "before the deploy")
    assert "before the deploy, batch 7" in entry.detail


def test_a_savepoint_without_a_batch_takes_the_newest_complete_one(made: Written) -> None:
    assert taken().batch_id == 11


def test_a_savepoint_of_an_unknown_batch_fails_and_leaves_nothing(
    made: Written, tmp_path: Path
) -> None:
    asked = TakeSavepoint(label="x", batch_id=99)
    row = carried_out(savepoints.ask_to_take("orders", asked, **ADA))

    assert row.state == WorkState.FAILED
    assert "has no batch 99; it keeps 0 to 11" in row.problem
    assert contents(tmp_path / "savepoints") == {}
    assert not QuerySavepoint.objects.exists()


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("a file", "commits/7 has been altered."),
        ("the manifest", "savepoint.json has been altered."),
        ("a deleted file", "commits/7 is missing."),
    ],
)
def test_a_verification_names_the_altered_or_missing_file(
    made: Written, damage: str, named: str
) -> None:
    saved = taken(batch_id=7)
    place = Path(saved.location)
    if damage == "a file":
        (place / "commits/7").write_text("v1\n{}")
    elif damage == "the manifest":
        manifest = place / "savepoint.json"
        manifest.write_text(manifest.read_text().replace("before", "behind"))
    else:
        (place / "commits/7").unlink()

    row = carried_out(savepoints.ask_to_verify("orders", saved.pk, **ADA))

    assert row.state == WorkState.SUCCEEDED
    saved.refresh_from_db()
    assert saved.problems == [f"{saved.location}/{named}"]


def test_savepoints_are_verified_on_a_schedule(made: Written, settings: Any) -> None:
    saved = taken()
    now = timezone.now()

    savepoints.look_after(now + timedelta(days=settings.WATCH_VERIFY_DAYS - 0.01))
    assert not QueryWork.objects.filter(kind=WorkKind.VERIFICATION).exists()
    savepoints.look_after(now + timedelta(days=settings.WATCH_VERIFY_DAYS + 0.01))
    savepoints.look_after(now + timedelta(days=settings.WATCH_VERIFY_DAYS + 0.01))

    (asked,) = QueryWork.objects.filter(kind=WorkKind.VERIFICATION)
    assert (asked.savepoint, asked.requester) == (saved, "ftdash")


def test_a_savepoint_is_deleted_when_its_shelf_life_is_over_and_not_before(made: Written) -> None:
    saved, other = taken(keep_days=3), taken(label="for good")
    now = timezone.now()

    savepoints.look_after(now + timedelta(days=2.9))
    assert not QueryWork.objects.filter(kind=WorkKind.DELETION).exists()
    savepoints.look_after(now + timedelta(days=3.1))
    (asked,) = QueryWork.objects.filter(kind=WorkKind.DELETION)
    carried_out(asked.pk)

    saved.refresh_from_db()
    assert (saved.deleted_by, contents(Path(saved.location))) == ("ftdash", {})
    assert contents(Path(other.location))
    assert AdminAction.objects.get(what="deleted a savepoint of").reason == "its shelf life is over"


def test_a_shelf_life_can_be_changed(made: Written) -> None:
    saved = taken(keep_days=3)

    savepoints.keep("orders", saved.pk, days=None, **ADA)
    savepoints.look_after(timezone.now() + timedelta(days=5))

    assert not QueryWork.objects.filter(kind=WorkKind.DELETION).exists()
    with pytest.raises(Rejected, match="more than 0"):
        savepoints.keep("orders", saved.pk, days=-1, **ADA)


def test_a_deletion_needs_the_label(made: Written) -> None:
    saved = taken()

    with pytest.raises(Rejected, match="Type the savepoint's label, before the deploy"):
        savepoints.ask_to_delete("orders", saved.pk, confirmation="orders", **ADA)
    key = savepoints.ask_to_delete("orders", saved.pk, confirmation="before the deploy", **ADA)
    carried_out(key)

    assert not Path(saved.location).exists()
    with pytest.raises(Rejected, match="was deleted"):
        savepoints.ask_to_verify("orders", saved.pk, **ADA)


def test_the_verdict_comes_before_the_fork_and_writes_nothing(made: Written, root: Path) -> None:
    before = contents(root)
    judged = carried_out(forks.ask_for_verdict("orders", rewind(root), **ADA))

    assert judged.result["is_possible"]
    assert "Batch 7 is committed" in judged.result["findings"][0]["text"]
    assert contents(root) == before

    done = carried_out(forks.ask_as_judged("orders", judged.pk, **ADA))
    assert done.state == WorkState.SUCCEEDED, done.problem
    copied = read_tree(LocalTree(root / "fork"))
    assert (copied.newest_committed, copied.query_id) == (7, done.result["query_id"])
    assert copied.query_id != WatchedQuery.objects.get().query_id
    entry = AdminAction.objects.get(what="rewound into a fork")
    assert f"batch 7 into {root}/fork" in entry.detail


def test_a_refused_rewind_is_not_carried_out(made: Written, root: Path) -> None:
    asked = rewind(root, output=Output.SAME_FILES, output_target="")
    judged = carried_out(forks.ask_for_verdict("orders", asked, **ADA))

    assert not judged.result["is_possible"]
    with pytest.raises(Rejected, match="has not found this rewind possible"):
        forks.ask_as_judged("orders", judged.pk, **ADA)
    row = carried_out(forks.ask_for_fork("orders", asked, **ADA))
    assert row.state == WorkState.FAILED
    assert "it would drop the rows of batches 8 to 11 without an error" in row.problem
    assert not (root / "fork").exists()


def test_a_fork_can_keep_the_boundaries_and_rewind_the_output(made: Written, root: Path) -> None:
    asked = rewind(
        root,
        boundaries=Boundaries.SAME,
        output=Output.REWOUND,
        output_target=str(root / "output-again"),
    )
    row = carried_out(forks.ask_for_fork("orders", asked, **ADA))

    assert row.state == WorkState.SUCCEEDED, row.problem
    assert read_tree(LocalTree(root / "fork")).newest_planned == 8
    assert len(list((root / "output-again").glob("part-*"))) == 8
    assert row.result["output_target"] == str(root / "output-again")


def test_a_fork_starts_from_a_savepoint_when_the_query_has_lost_the_batch(
    made: Written, root: Path
) -> None:
    saved = taken(batch_id=7)
    WatchedQuery.objects.update(directory="")  # as if the directory was gone
    asked = rewind(root, savepoint=saved.pk)

    row = carried_out(forks.ask_for_fork("orders", asked, **ADA))

    assert row.state == WorkState.SUCCEEDED, row.problem
    assert read_tree(LocalTree(root / "fork")).newest_committed == 7


PLACES = {
    "outside the roots": ("/somewhere/else", "lies outside the directories"),
    "out of the roots by dots": ("{root}/../fork", "lies outside the directories"),
    "the root": ("{root}", "is a root"),
    "within the query": ("{checkpoint}/fork", "lie within each other"),
    "around the query": ("{root}/orders", "lie within each other"),
    "the output": ("{output}", "lie within each other"),
    "a link out of the roots": ("{root}/link/fork", "lies outside the directories"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_fork_outside_the_allowed_places_is_refused(
    made: Written, root: Path, tmp_path: Path, case: str
) -> None:
    place, message = PLACES[case]
    (tmp_path / "elsewhere").mkdir()
    (root / "link").symlink_to(tmp_path / "elsewhere")
    target = place.format(root=root, checkpoint=made.checkpoint, output=made.output)
    before = contents(tmp_path)

    for ask in (forks.ask_for_verdict, forks.ask_for_fork):
        with pytest.raises(Rejected, match=message):
            ask("orders", rewind(root, target=target), **ADA)

    assert not QueryWork.objects.exists()
    assert contents(tmp_path) == before


def test_a_place_that_became_a_link_meanwhile_is_refused(
    made: Written, root: Path, tmp_path: Path
) -> None:
    key = forks.ask_for_fork("orders", rewind(root), **ADA)
    (tmp_path / "elsewhere").mkdir()
    (root / "fork").symlink_to(tmp_path / "elsewhere")

    row = carried_out(key)

    assert "lies outside the directories" in row.problem
    assert contents(tmp_path / "elsewhere") == {}


def test_missing_input_is_named_if_this_server_may_read_its_directory(root: Path) -> None:
    made = write_query(root / "orders", Traits(has_sums=False))
    registration.watch(
        name="orders",
        seen=Sighting(directory=str(made.checkpoint)),
        requester="ada",
        reason="to see it",
    )
    assert "it was not checked" in sources_of(root)  # the log names files outside the roots

    for log in (made.checkpoint / "sources/0").iterdir():
        log.write_text(log.read_text().replace("file:///data/in", f"file://{root}/in"))
    (root / "in").mkdir()
    for number in range(13):
        (root / "in" / f"{number:05}.json").write_text("{}")
    assert "all 5 files after the batch are still there" in sources_of(root)

    (root / "in/00009.json").unlink()
    assert f"1 files after the batch are gone, file://{root}/in/00009.json" in sources_of(root)


def sources_of(root: Path) -> str:
    row = carried_out(forks.ask_for_verdict("orders", rewind(root, output_target=""), **ADA))
    return next(e["text"] for e in row.result["findings"] if e["check"] == "sources")


def test_the_work_of_a_dead_process_ends_once_and_its_files_are_removed(
    made: Written, root: Path
) -> None:
    key = forks.ask_for_fork("orders", rewind(root), **ADA)
    half = root / "fork/state/0/0/8.delta"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"half")
    long_ago = timezone.now() - timedelta(minutes=10)
    QueryWork.objects.filter(pk=key).update(
        state=WorkState.RUNNING, moved_at=long_ago, writes_to=[str(root / "fork")]
    )

    work.end_silent()

    row = QueryWork.objects.get(pk=key)
    assert (row.state, row.problem) == (WorkState.FAILED, work.INTERRUPTED)
    assert not (root / "fork").exists()
    assert not work.end(key, result={"late": True})
    with pytest.raises(work.Interrupted):
        work.Progress(row).step("goes on")


def test_a_new_file_output_gets_an_empty_log_and_is_removed_if_the_fork_fails(
    made: Written, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = carried_out(forks.ask_for_fork("orders", rewind(root, output_target=""), **ADA))
    assert "Give the new place, and ftdash writes an empty log there" in refused.problem

    def fails(*_: object) -> None:
        raise Retryable("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(forks, "fork", fails)
        failed = carried_out(forks.ask_for_fork("orders", rewind(root), **ADA))
    assert "the disk is away" in failed.problem
    assert not (root / "new-output").exists()

    row = carried_out(forks.ask_for_fork("orders", rewind(root), **ADA))
    assert row.state == WorkState.SUCCEEDED, row.problem
    logged = [*(root / "new-output/_spark_metadata").glob("[0-9]*")]
    assert max(int(each.name.split(".")[0]) for each in logged) == 7
    assert {each.read_text() for each in logged} == {"v1"}


def test_a_complete_fork_stays_even_if_its_process_died(made: Written, root: Path) -> None:
    key = forks.ask_for_fork("orders", rewind(root), **ADA)
    carried_out(key)
    long_ago = timezone.now() - timedelta(minutes=10)
    QueryWork.objects.filter(pk=key).update(
        state=WorkState.RUNNING, ended_at=None, moved_at=long_ago
    )

    work.end_silent()

    assert QueryWork.objects.get(pk=key).problem == work.LEFT_THERE
    assert (root / "fork/metadata").exists()


def test_a_worker_starts_the_process_once_even_if_its_message_was_lost(
    made: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    class Process:
        pid = 7

        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(subprocess, "Popen", Process)
    key = savepoints.ask_to_take("orders", TakeSavepoint(label="x"), **ADA)

    work.start_forgotten()
    assert started == []
    QueryWork.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    work.start_forgotten()
    work.start(key)

    assert [each[1:] for each in started] == [["-m", "ftdash", "carry_out", "query-work", str(key)]]
    assert QueryWork.objects.get().state == WorkState.RUNNING


def test_only_the_newest_ended_works_are_kept(
    made: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "KEPT_MAX", 2)
    for number in range(4):
        carried_out(
            savepoints.ask_to_take("orders", TakeSavepoint(label=f"{number}", batch_id=99), **ADA)
        )

    savepoints.ask_to_take("orders", TakeSavepoint(label="last"), **ADA)

    labels = [row.asked["label"] for row in QueryWork.objects.all()]
    assert labels == ["last", "3", "2"]


def test_only_one_work_of_a_kind_may_be_under_way(made: Written) -> None:
    savepoints.ask_to_take("orders", TakeSavepoint(label="one"), **ADA)

    with pytest.raises(Rejected, match="A savepoint of orders is under way already"):
        savepoints.ask_to_take("orders", TakeSavepoint(label="two"), **ADA)


def test_the_command_takes_lists_verifies_forks_and_deletes(
    made: Written, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("watch", "savepoint", "take", "orders", "--label", "friday", "--batch", "7")
    key = QuerySavepoint.objects.get().pk
    call_command("watch", "savepoint", "list", "orders")
    call_command("watch", "savepoint", "verify", "orders", str(key))
    call_command("watch", "savepoint", "keep", "orders", str(key), "--days", "3")
    call_command("watch", "savepoint", "manifest", "orders", str(key))
    fork = ("watch", "fork", "orders", "--savepoint", str(key), "--target", str(root / "fork"))
    fork += ("--output-target", str(root / "new-output"))
    call_command(*fork, "--check")
    assert not (root / "fork").exists()
    call_command(*fork)
    call_command("watch", "savepoint", "delete", "orders", str(key), "--confirm", "friday")

    said = capsys.readouterr().out
    assert f"savepoint {key}: batch 7 in " in said
    assert "batch 7  friday" in said
    assert "every file is as it was written" in said
    assert json.loads(said[said.index("{") : said.index("}}") + 2])["label"] == "friday"
    assert "The fork begins with batch 8" in said
    assert f'.option("checkpointLocation", "{root}/fork")' in said
    assert f'.option("path", "{root}/new-output")' in said
    assert "its files are deleted" in said


def test_the_command_says_where_a_pipeline_begins_and_what_stays_behind(
    made: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("watch", "move", "orders", "--batch", "7")

    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["sources"][0]["read_before"] == [f"{number:05}.json" for number in range(8)]
    assert "The state of operator 0 (stateStoreSave" in said.err
    assert found["left_behind"][0] in said.err


def test_the_page_and_the_api_say_where_a_pipeline_begins_with_the_lines_to_copy(
    made: Written, operator: Client
) -> None:
    page = "/watched/orders/move/?origin=batch:7"
    words = words_in(text_of(operator, page))
    assert "The query has read 8 files; the pipeline leaves them out" in words
    assert "00000.json 00001.json" in words
    assert "The state of operator 0 (stateStoreSave" in words
    assert 'source_0 = GrowingDirectory( ..., read_before=start[0]["read_before"] )' in words
    assert "Move over" in words_in(text_of(operator, "/watched/orders/"))

    file = operator.get("/watched/orders/move/start.json?origin=batch:7")
    assert file["Content-Disposition"] == 'attachment; filename="orders-start.json"'
    caller = bearer(TokenScope.READ)
    answered = caller.get("/api/watched-queries/orders/move?batch_id=7").json()
    assert answered == json.loads(file.content)
    newest = caller.get("/api/watched-queries/orders/move").json()
    assert newest["batch_id"] > 7


def test_a_move_from_an_unknown_batch_is_refused_in_one_sentence(
    made: Written, operator: Client
) -> None:
    refused = bearer(TokenScope.READ).get("/api/watched-queries/orders/move?batch_id=99")

    assert refused.status_code == 422
    assert "has no batch 99" in refused.json()["errors"][0]
    words = words_in(text_of(operator, "/watched/orders/move/?origin=batch:99"))
    assert "Select a valid choice" in words
    assert operator.get("/watched/orders/move/start.json?origin=batch:99").status_code == 302


def test_a_failing_command_names_the_reason_and_exits_with_its_status(
    made: Written, root: Path
) -> None:
    for words, message, status in (
        (("savepoint", "take", "nothing", "--label", "x"), "no watched query 'nothing'", 2),
        (("savepoint", "take", "orders", "--label", "x", "--batch", "99"), "no batch 99", 2),
        (("savepoint", "verify", "orders", "99"), "has no savepoint 99", 2),
        (("fork", "orders", "--target", "/elsewhere", "--batch", "7"), "lies outside", 2),
        (("fork", "orders", "--target", str(root / "f"), "--batch", "99", "--check"), "refused", 1),
        (("fork", "orders", "--target", str(root / "f"), "--plan", "none.json"), "cannot be", 2),
    ):
        with pytest.raises(CommandError, match=message) as refusal:
            call_command("watch", *words)
        assert refusal.value.returncode == status


def test_a_spark_failure_is_reported_in_one_sentence(made: Written, settings: Any) -> None:
    settings.STATE_COMMAND = ["sh", "-c", "echo trace >&2; echo no such operator >&2; exit 1"]
    asked = LookAtState(place=StatePlace(batch_id=7))

    row = carried_out(state.ask_to_look("orders", asked, **ADA))

    assert row.problem == "The state cannot be read: no such operator"


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
