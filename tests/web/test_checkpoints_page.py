"""The page of a run's checkpoints, as an operator reads it."""

import html
import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.jobs.models import Run
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import CheckpointDiscarded, CheckpointFailed
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind
from tests.web.journals import Story, StoryClock, new_run
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")
ADDRESS = "/pipelines/flights/checkpoints/"


def test_counts_and_the_latest_checkpoint_of_each_kind_are_above_the_history(
    operator: Client,
) -> None:
    eventful()

    whole = words_of(operator)
    page = whole[: whole.index("5 checkpoints, newest first.")]

    for shown in (
        "Triggered 5 in this run",
        "In progress 1 now",
        "Completed 3 kept",
        "Failed 1 including those",
        "Restored 1 times",
        "Completed checkpoint 2",
        "Savepoint 3",
        "canonical /jobs/flights/checkpoints/chk-3",
        "Failed 4",
        "Checkpoint expired before completing. 5 of 8 subtasks had acknowledged.",
        "Restore 3",
        "– – – savepoint /jobs/flights/checkpoints/chk-3",
    ):
        assert shown in page


def test_the_latest_checkpoint_of_each_kind_shows_time_duration_and_sizes(operator: Client) -> None:
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
    story = Story(new_run(), StoryClock(round(1000 * began.timestamp()))).started().completed()
    story.wait(10_000).completed(CheckpointKind.SAVEPOINT).wait(10_000).triggered()
    story.acknowledged("join", 1).wait(600).tell(expired(story.next_checkpoint))
    fold()

    found = latest_of(operator)

    whole = ["80 ms", "800 B", "8.00 kB"]
    assert found["Completed checkpoint"] == ["1", began + timedelta(milliseconds=75), *whole]
    assert found["Savepoint"] == ["2", began + timedelta(milliseconds=10_160), *whole]
    part = ["600 ms", "100 B", "1.00 kB"]  # from the one subtask that has acknowledged
    assert found["Failed"] == ["3", began + timedelta(milliseconds=20_770), *part]


def test_each_checkpoint_is_a_line_of_the_history(operator: Client) -> None:
    eventful()

    lines = history_of(operator)

    assert len(lines) == 5
    assert re.match(r"5 in progress checkpoint 0/8 [\d:]+ UTC – – – 0 B 0 B – 0 B –$", lines[0])
    assert "4 failed Checkpoint expired before completing." in lines[1]
    assert re.search(
        r"2 completed checkpoint 8/8 .* 80 ms 61 ms 800 B 8.00 kB 244 kB 0 B committed$", lines[3]
    )
    assert lines[4].startswith("1 discarded checkpoint 8/8")


@pytest.mark.parametrize(
    ("query", "shown", "says"),
    [
        ("", [5, 4, 3, 2, 1], "5 checkpoints, newest first."),
        ("?status=FAILED", [4], "1 checkpoint of 5 matches."),
        ("?status=KEPT", [3, 2], "2 checkpoints of 5 match."),
        ("?kind=SAVEPOINT", [3], "1 checkpoint of 5 matches."),
        ("?from_id=2&to_id=3", [3, 2], "2 checkpoints of 5 match."),
        ("?reason=CHECKPOINT_EXPIRED", [4], "1 checkpoint of 5 matches."),
        ("?from_id=99", [], "No checkpoint of this run matches."),
        ("?from_id=3&to_id=2", [5, 4, 3], "Nothing lies from 3 to 2; swap them."),
        ("?status=LOST", [5, 4, 3, 2, 1], "LOST is not one of the available choices"),
        ("?from_id=-1", [5, 4, 3, 2, 1], "greater than or equal to 0"),
        (f"?from_id={10**30}", [5, 4, 3, 2, 1], "less than or equal to"),
        ("?before=x&after=-3", [5, 4, 3, 2, 1], "5 checkpoints, newest first."),
    ],
)
def test_a_filter_is_applied_or_refused_next_to_its_field(
    operator: Client, query: str, shown: list[int], says: str
) -> None:
    eventful()

    assert [int(line.split()[0]) for line in history_of(operator, query)] == shown
    assert says in words_of(operator, query)


def test_links_lead_to_the_end_of_a_long_history_and_back(operator: Client) -> None:
    story = Story(new_run()).started()
    for _ in range(30):
        story.triggered().tell(expired(story.next_checkpoint))
        story.next_checkpoint = CheckpointId(story.next_checkpoint + 1)
    fold()

    first = text_of(operator)
    older = link(first, "history-older")
    second = text_of(operator, older)

    assert "Newer</span>" in first
    assert len(history_of(operator)) == 25
    assert [int(line.split()[0]) for line in history_of(operator, older)] == [5, 4, 3, 2, 1]
    assert "Older</span>" in second
    assert "New checkpoints are not shown" in second
    assert history_of(operator, link(second, "history-newer")) == history_of(operator)
    assert history_of(operator, link(second, "history-newest")) == history_of(operator)
    assert 'id="history-older"' in text_of(operator, "?status=FAILED")
    assert "status=FAILED" in link(text_of(operator, "?status=FAILED"), "history-older")


def test_the_summary_has_the_percentiles_that_flink_reports(operator: Client) -> None:
    eventful()

    page = words_of(operator)

    assert "Over 3 completed checkpoints, savepoints among them." in page
    for label in ("Minimum", "Average", "50 %", "90 %", "95 %", "99 %", "99.9 %", "Maximum"):
        assert f"{label} 80 ms 61 ms 800 B 8.00 kB 244 kB 0 B" in page


def test_each_failure_reason_links_to_its_failed_checkpoints(operator: Client) -> None:
    eventful()

    page = text_of(operator)

    assert f'href="{ADDRESS}?reason=CHECKPOINT_EXPIRED#history"' in page
    assert "Checkpoint expired before completing. CHECKPOINT_EXPIRED 1" in words_of(operator)


def test_the_page_shows_each_checkpoint_and_restart_setting_and_its_origin(
    operator: Client,
) -> None:
    interval, timeout = "execution.checkpointing.interval", "execution.checkpointing.timeout"
    Story(new_run(settings={interval: "7 s"})).started()
    fold()

    page = words_of(operator)

    assert re.search(rf"{interval} Time from one [^0-9]* 7 s {timeout}", page)
    assert "is not complete after this time fails. 10 min by default" in page
    assert re.search(r"state.backend.type [^;]*; .* hashmap by default", page)
    assert re.search(r"restart-strategy.type [^;]* exponential-delay by default", page)
    assert "execution.poison-records.policy" not in page


def test_the_configuration_includes_settings_changed_since_the_start(operator: Client) -> None:
    interval, timeout = "execution.checkpointing.interval", "execution.checkpointing.timeout"
    Story(new_run(settings={interval: "7 s"})).started()
    fold()
    Run.objects.update(changed_settings={interval: "9 s", timeout: "3 min"})

    page = words_of(operator)

    assert re.search(rf"{interval} Time from one [^0-9]* 9 s {timeout}", page)
    assert re.search(r"is not complete after this time fails. 3 min (?!by default)", page)


def test_an_older_run_has_its_own_address(operator: Client) -> None:
    Story(new_run()).started().completed().ended()
    fold()
    Story(new_run()).started().completed().completed()
    fold()

    page = words_of(operator, "?run=flights-1")

    assert "run 1, not the newest" in page
    assert "the run is over" in page
    assert "of other runs: run 2" in page
    assert len(history_of(operator, "?run=flights-1")) == 1
    assert len(history_of(operator)) == 2
    assert operator.get(f"{ADDRESS}?run=nothing").status_code == 404


def test_before_the_first_checkpoint_the_page_says_what_will_appear(operator: Client) -> None:
    Story(new_run()).started()
    fold()

    page = words_of(operator)

    assert "No checkpoint has been triggered yet. The first one starts one interval after" in page
    assert "the summary appears with the first one" in page
    assert "No checkpoint of this run has failed." in page
    Run.objects.all().delete()
    assert "This pipeline has not been started yet." in words_of(operator)


def test_the_text_of_an_exception_is_escaped(operator: Client) -> None:
    story = Story(new_run()).started().triggered()
    told = "<script>alert(1)</script>"
    story.tell(expired(story.next_checkpoint, told))
    fold()

    page = text_of(operator)

    assert told not in page
    assert html.escape(told) in page


def test_a_refresh_sends_the_same_regions_as_the_page(operator: Client) -> None:
    eventful()
    page = text_of(operator, "?status=FAILED")

    regions = operator.get(reverse("checkpoints-regions", args=["flights"]) + "?status=FAILED")

    sent = set(re.findall(r'id="(region-[a-z-]+)"', regions.content.decode()))
    assert sent == set(re.findall(r'id="(region-[a-z-]+)"', page))
    assert regions.content.decode().count("hx-swap-oob") == len(sent) + 1


def eventful() -> None:
    """Makes checkpoints, one of them deleted; a savepoint, a recovery, a failure, one begun."""
    story = Story(new_run()).started().completed().completed()
    story.completed(CheckpointKind.SAVEPOINT).slot_killed()
    story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    story.triggered().tell(expired(story.next_checkpoint))
    story.next_checkpoint = CheckpointId(5)
    story.triggered()
    fold()


def expired(
    number: CheckpointId, message: str = "5 of 8 subtasks had acknowledged."
) -> CheckpointFailed:
    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    return CheckpointFailed(checkpoint_id=number, reason=reason, message=message)


def fold() -> None:
    Projector().run_once()


def text_of(client: Client, query: str = "") -> str:
    answer = client.get(ADDRESS + query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def words_of(client: Client, query: str = "") -> str:
    return plain(text_of(client, query))


def plain(markup: str) -> str:
    return words_in(markup).replace(" ,", ",")


def history_of(client: Client, query: str = "") -> list[str]:
    """Returns the lines of the history as a person reads them."""
    region = text_of(client, query).split('id="region-checkpoints-history"')[1].split("<section")[0]
    body = region.split("<tbody>")[1].split("</tbody>")[0] if "<tbody>" in region else ""
    return [plain("<tr" + row) for row in body.split("<tr")[1:]]


def latest_of(client: Client) -> dict[str, list[str | datetime]]:
    """Returns {label: id, time, duration, bytes uploaded, full size}."""
    region = text_of(client).split('id="region-checkpoints-latest"')[1].split("</table>")[0]
    found: dict[str, list[str | datetime]] = {}
    for row in region.split("<tbody>")[1].split("<tr>")[1:]:
        label, *cells = re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)
        moments = [re.findall(r'datetime="([^"]+)"', cell) for cell in cells]
        found[plain(label)] = [
            datetime.fromisoformat(at[0]) if at else plain(cell)
            for cell, at in zip(cells[:5], moments, strict=False)
        ]
    return found


def link(page: str, element: str) -> str:
    """Returns the query of a link on the page."""
    found = re.search(rf'<a id="{element}" [^>]*href="([^"]*)"', page)
    assert found, f"there is no link {element}"
    return html.unescape(found[1])
