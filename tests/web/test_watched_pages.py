"""Pages of watched queries: their text, their form, the command, and their directories."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from ftdash.accounts.models import AdminAction
from ftdash.watching import queries
from ftdash.watching.models import DirectoryReading, WatchedBatch, WatchedQuery
from ftdash.watching.services import registration, reports
from ftdash.watching.services.registration import Sighting
from pipelines.domain.errors import Rejected
from tests.web.page_words import text_of, words_in
from tests.web.watched import (
    LISTENER,
    OTHER,
    QUERY,
    checkpoint_at,
    listener,
    progress,
    report,
    said,
)

pytestmark = pytest.mark.usefixtures("site")

PAGE = "/watched/orders/"


@pytest.fixture
def root(settings: Any, tmp_path: Path) -> Path:
    """The only place that may be watched."""
    root = tmp_path / "checkpoints"
    root.mkdir()
    settings.WATCH_ROOTS = [str(root)]
    return root


@pytest.fixture
def checkpoint(root: Path) -> Path:
    began = timezone.now() - timedelta(minutes=2)
    return checkpoint_at(root / "orders", QUERY, batches=6, began=began)


def reported(count: int = 5, **more: Any) -> Client:
    client = listener()
    began = timezone.now() - timedelta(seconds=10 * count)
    batches = [progress(n, at=began + timedelta(seconds=10 * n), **more) for n in range(count)]
    assert report(client, *batches).status_code == 200
    return client


def watch(directory: Path, name: str = "orders", **more: Any) -> WatchedQuery:
    seen = Sighting(directory=str(directory), **more)
    return registration.watch(name=name, seen=seen, requester="ada", reason="to see it")


def test_the_page_shows_the_state_both_clocks_and_the_newest_batch(
    operator: Client,
) -> None:
    reported()

    words = words_in(text_of(operator, PAGE))

    assert "orders Running The query runs." in words
    assert "Since committed batch" in words
    assert "Since data moved" in words
    assert "trigger interval 10.0 s, as the starts show" in words
    assert "All fit into the trigger interval of 10.0 s." in words
    assert "240 records waited in 1 source when batch 4 was planned" in words
    assert "The state takes 2.50 MB in 1 operator after batch 4." in words
    assert "0 stateStoreSave 4 4,040 90 80 3 2.50 MB 120 ms" in words


def test_a_failed_query_shows_its_exception_with_its_class_and_the_next_step(
    operator: Client,
) -> None:
    client = reported()
    now = timezone.now()
    report(
        client, said("terminated", now, exception="boom\nat line 7", errorClass="DIVIDE_BY_ZERO")
    )

    words = words_in(text_of(operator, PAGE))

    assert "The query failed. DIVIDE_BY_ZERO" in words
    assert "Next: Correct the cause and start the query again" in words
    assert "at line 7" in words
    assert "DIVIDE_BY_ZERO" in words_in(text_of(operator, "/"))


@pytest.mark.parametrize("batches", [1, 6])
def test_the_page_of_a_failed_query_says_from_which_batch_it_continues(
    operator: Client, root: Path, batches: int
) -> None:
    watch(checkpoint_at(root / "orders", QUERY, batches=batches, began=timezone.now()))
    report(listener(), said("terminated", timezone.now(), exception="boom", errorClass=None))

    words = words_in(text_of(operator, PAGE))

    assert f"it continues from batch {batches}." in words


def test_the_page_shows_dropped_events_and_silence(operator: Client) -> None:
    client = listener()
    long_ago = timezone.now() - timedelta(minutes=9)
    report(client, progress(0, at=long_ago), dropped={QUERY: 12}, listener=LISTENER)

    words = words_in(text_of(operator, PAGE))

    assert "The listener dropped 12 events." in words
    assert "The query fell silent." in words


def test_the_history_is_longer_than_what_spark_keeps(operator: Client) -> None:
    reported(count=150)

    words = words_in(text_of(operator, f"{PAGE}?page=3"))

    assert "150 batches, newest first" in words
    assert "page 3 of 3" in words
    assert "go to the newest" in words


def test_the_page_of_a_batch_has_all_its_figures(operator: Client) -> None:
    reported()
    key = WatchedBatch.objects.get(batch_id=2).pk

    words = words_in(text_of(operator, f"{PAGE}batches/{key}/"))

    assert "addBatch 600 ms 75 %" in words
    assert "orders/0 240" in words
    assert "Batch before" in words
    assert operator.get(f"{PAGE}batches/999999/").status_code == 404


def test_a_directory_alone_gives_batches_points_and_findings(
    operator: Client, checkpoint: Path
) -> None:
    before = contents(checkpoint)
    watch(checkpoint)

    reports.look_at_files()

    words = words_in(text_of(operator, PAGE))
    assert "Nothing reports whether the query runs." in words
    assert f"query {QUERY}" in words
    assert "6 batches can be seen in the directory" in words
    assert "Recommended: batch 5" in words
    assert "The doctor found nothing wrong" in words
    assert WatchedBatch.objects.get(batch_id=3).figures["rows"] == 1_200
    assert contents(checkpoint) == before


def test_damage_in_a_directory_is_shown_on_its_page_and_the_fleet_page(
    operator: Client, checkpoint: Path
) -> None:
    (checkpoint / "offsets" / "3").unlink()
    watch(checkpoint)

    words = words_in(text_of(operator, PAGE))

    assert "The checkpoint is damaged." in words
    assert "Fork the query from the newest complete recovery point." in words
    assert "in the checkpoint" in words_in(text_of(operator, "/"))


def test_listener_and_directory_of_one_query_are_one_row(checkpoint: Path) -> None:
    reported(count=4)

    watch(checkpoint, name="shop")

    (found,) = queries.watched()
    assert (found.name, found.directory) == ("shop", str(checkpoint))
    assert WatchedBatch.objects.filter(run_id="").count() == 2  # the unreported ones
    report(listener("again"), progress(4), progress(5))
    assert WatchedBatch.objects.filter(run_id="").count() == 0
    assert WatchedBatch.objects.count() == 6


def test_another_query_under_the_same_path_is_named_and_stored_nowhere(
    operator: Client, checkpoint: Path
) -> None:
    watch(checkpoint)
    earlier = timezone.now() - timedelta(hours=1)
    DirectoryReading.objects.update(at=earlier, found_at=earlier)
    (checkpoint / "metadata").write_text(json.dumps({"id": OTHER}))

    reports.look_at_files()

    shown = queries.detail("orders", page=1, per_page=1)
    assert shown is not None
    assert shown.reading_at == earlier
    words = words_in(text_of(operator, PAGE))
    assert f"now belongs to the query {OTHER}, and this page is about {QUERY}" in words
    assert "6 batches can be seen" in words  # those found before


REFUSALS = {
    "outside": ("/etc", "lies outside the directories that may be watched"),
    "empty": ("nothing", "is empty or does not exist"),
    "no checkpoint": ("plain", "is no checkpoint of a Structured Streaming query"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_wrong_directory_is_refused_with_one_sentence_in_the_form(
    admin: Client, root: Path, case: str
) -> None:
    given, sentence = REFUSALS[case]
    (root / "plain").mkdir()
    (root / "plain" / "rows.csv").write_text("a,b")
    sent = {"name": "orders", "directory": str(root / given), "reason": "x"}

    answer = admin.post(reverse("watch-query"), sent)

    assert answer.status_code == 422
    assert sentence in words_in(answer.content.decode())
    assert not WatchedQuery.objects.exists()


def test_an_incomplete_checkpoint_is_watched_and_judged(operator: Client, checkpoint: Path) -> None:
    for path in (checkpoint / "commits").iterdir():
        path.unlink()

    watch(checkpoint)

    assert "There is no file in commits/" in words_in(text_of(operator, PAGE))


def test_only_an_admin_can_register_a_query_in_the_form_with_a_reason(
    admin: Client, operator: Client, checkpoint: Path
) -> None:
    sent = {"name": "orders", "directory": str(checkpoint), "interval_s": "10", "reason": "new"}
    assert operator.post(reverse("watch-query"), sent).status_code == 403

    answer = admin.post(reverse("watch-query"), sent)

    assert answer.headers["Location"] == PAGE
    logged = AdminAction.objects.get()
    assert (logged.what, logged.subject, logged.reason) == ("began to watch", "query orders", "new")
    assert WatchedQuery.objects.get().trigger_interval_ms == 10_000
    gone = admin.post(f"{PAGE}remove/", {"reason": "done"})
    assert gone.headers["Location"] == "/"
    assert queries.watched() == []
    assert checkpoint.is_dir()


def test_names_that_cannot_be_used_or_are_taken_are_refused(checkpoint: Path) -> None:
    watch(checkpoint)
    seen = Sighting(query_id=OTHER)

    with pytest.raises(Rejected, match="belongs to the watched query"):
        registration.watch(name="orders", seen=seen, requester="ada", reason="x")
    with pytest.raises(Rejected, match="cannot be used"):
        registration.watch(name="Not A Name", seen=seen, requester="ada", reason="x")
    with pytest.raises(Rejected, match="nothing to watch"):
        registration.watch(name="other", seen=Sighting(), requester="ada", reason="x")


def test_reading_an_event_log_resumes_where_it_ended(operator: Client, root: Path) -> None:
    log = root / "eventlog_v2_local-1"
    log.mkdir()
    part = log / "events_1_local-1.inprogress"
    part.write_text(lines_of_log(range(3)))
    seen = Sighting(event_log=str(log))
    registration.watch(name="orders", seen=seen, requester="ada", reason="x")
    reports.look_at_files()
    assert WatchedBatch.objects.count() == 3

    with part.open("a") as file:
        file.write(lines_of_log(range(3, 5)) + '{"Event": "cut of')
    part.rename(log / "events_1_local-1")
    (log / "events_2_local-1.inprogress").write_text(end_in_log())
    reports.look_at_files()

    assert WatchedBatch.objects.count() == 5
    assert "LOST" in words_in(text_of(operator, PAGE))
    assert queries.watched()[0].query_id == QUERY


def lines_of_log(batches: range) -> str:
    event = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
    found = [{"Event": event, "progress": progress(n)["progress"]} for n in batches]
    return "".join(json.dumps(each) + "\n" for each in [{"Event": "SparkListenerJobEnd"}, *found])


def end_in_log() -> str:
    event = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryTerminatedEvent"
    run = progress(0)["progress"]["runId"]
    end = {"Event": event, "id": QUERY, "runId": run, "exception": "x"}
    return json.dumps({**end, "errorClassOnException": "LOST"}) + "\n"


def test_the_command_adds_checks_lists_and_removes(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("watch", "add", "orders", "--directory", str(checkpoint))
    call_command("watch", "list")
    call_command("watch", "check", str(checkpoint))
    told = capsys.readouterr().out
    assert f"orders  UNKNOWN  batch 5  {QUERY}" in told
    assert "nothing wrong" in told
    (checkpoint / "commits" / "2").unlink()

    with pytest.raises(CommandError) as damaged:
        call_command("watch", "check", str(checkpoint))
    assert damaged.value.returncode == 1
    with pytest.raises(CommandError, match="no watched query") as unknown:
        call_command("watch", "remove", "nothing")
    assert unknown.value.returncode == 2
    call_command("watch", "remove", "orders")
    assert queries.watched() == []


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Includes the times, which a write would change."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file()
    }
