"""The page of one checkpoint, alone and beside another, as an operator reads it."""

import html
import re
from dataclasses import replace

import pytest
from django.test import Client

from ftdash.checkpoints.answers import ChannelTimeline, SubtaskTimeline
from ftdash.checkpoints.models import Checkpoint, SubtaskPhase
from ftdash.checkpoints.queries.detail import longest_growth
from ftdash.projection.projector import Projector
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import CheckpointDiscarded, CheckpointFailed
from pipelines.domain.ids import CheckpointId
from pipelines.domain.status import CheckpointKind, SavepointFormat
from tests.web.journals import Story, new_request, new_run
from tests.web.page_words import words_in

pytestmark = pytest.mark.usefixtures("site")


def test_the_page_shows_every_figure_of_each_operator_and_subtask(operator: Client) -> None:
    Story(new_run()).started().completed()
    fold()

    page = words_of(operator, 1)

    assert "Checkpoint 1 of flights completed aligned checkpoint run 1, attempt 1" in page
    assert re.search(r"join 2/2 \(100 %\) [\d:]+ UTC 75 ms 200 B 2.00 kB 496 kB 0 B", page)
    assert re.search(
        r"join\[1\] [\d:]+ UTC 75 ms 2.0 ms 61 ms 1.0 ms 5.0 ms 100 B 1.00 kB 488 kB 0 B no", page
    )
    assert "Minimum 20 ms 2.0 ms 1.0 ms 1.0 ms 5.0 ms 100 B 1.00 kB 8.00 kB 0 B" in page
    assert "Average 48 ms 2.0 ms 31 ms" in page
    assert "Maximum 75 ms 2.0 ms 61 ms" in page
    assert (
        "Checkpoint 1 took 80 ms; its last acknowledgement waited longest for join[1]: it" in page
    )


def test_subtasks_can_be_sorted_by_a_figure_and_back(operator: Client) -> None:
    Story(new_run()).started().completed()
    fold()

    def seen(query: str) -> tuple[list[str], list[str], str]:
        """Returns the join's subtasks, the sorted headings, and the link of alignment."""
        text = text_of(operator, 1, query)
        rows = re.findall(r'<tr><th scope="row">(join\[\d\])</th>', text)
        sorts = re.findall(r'aria-sort="(\w+)"><a data-choice id="order-3-([-a-z]+)"', text)
        (link,) = re.findall(r'id="order-3-alignment" href="([^"]+)"', text)
        return rows[:2], [" ".join(each) for each in sorts], html.unescape(link)

    assert seen("?against=1") == (["join[0]", "join[1]"], [], "?against=1&order=-alignment")
    greatest = ["join[1]", "join[0]"], ["descending alignment"], "?order=alignment"
    assert seen("?order=-alignment") == greatest
    assert seen("?order=alignment") == (["join[0]", "join[1]"], ["ascending alignment"], "?")
    assert seen("?order=-nothing") == (["join[0]", "join[1]"], [], "?order=-alignment")


def test_the_page_shows_held_back_records_over_time(operator: Client) -> None:
    Story(new_run()).started().completed()
    fold()

    page = words_of(operator, 1)

    assert "most of them, 2,440, from flights[0] at join[1]: 610 when its barrier was read" in page
    assert "join[1] flights[0] 2.0 ms 610 61.0 kB join[1] flights[0] 32 ms 2,440 244 kB" in page


def test_figures_that_an_older_engine_did_not_measure_are_not_invented(operator: Client) -> None:
    Story(new_run()).started().completed()
    fold()
    for subtask in SubtaskPhase.objects.filter(vertex="join"):
        for channel in subtask.channels:
            del channel["steps"]
        subtask.save()

    page = text_of(operator, 1)

    assert "at join[1]. How they came was not measured." in page
    assert '<div id="values-held-back" hidden>null</div>' in page
    assert "details-held-back" not in page


def test_a_subtask_that_has_not_acknowledged_is_named(operator: Client) -> None:
    story = Story(new_run()).started().triggered().acknowledged("join", 1)
    fold()

    under_way = words_of(operator, 1)
    assert "Acknowledged 1/8" in under_way
    assert "Duration 75 ms so far, to the newest acknowledgement" in under_way
    assert "join[0] has not acknowledged yet" in under_way
    assert "join 1/2 (50 %)" in under_way

    reason = CheckpointFailureReason.CHECKPOINT_EXPIRED
    story.wait(600).tell(
        CheckpointFailed(checkpoint_id=CheckpointId(1), reason=reason, message="One of 8.")
    )
    fold()
    failed = words_of(operator, 1)
    assert "Checkpoint expired before completing. One of 8." in failed
    assert "Duration 600 ms until it failed" in failed
    assert "join[0] did not acknowledge" in failed


def test_each_checkpoint_is_labelled_with_its_kind_and_format(operator: Client) -> None:
    run = new_run()
    asked = new_request(run, StopWithSavepoint(format=SavepointFormat.NATIVE))
    story = Story(run).started().completed().completed(CheckpointKind.SAVEPOINT)
    story.completed(CheckpointKind.SAVEPOINT, asked.request_id).completed(CheckpointKind.FINAL)
    story.tell(CheckpointDiscarded(checkpoint_id=CheckpointId(1)))
    fold()
    SubtaskPhase.objects.filter(checkpoint__checkpoint_id=1, vertex="join").update(
        is_unaligned=True
    )

    assert "unaligned checkpoint run 1" in words_of(operator, 1)
    assert "Deleted since, was at /jobs/flights/checkpoints/chk-1" in words_of(operator, 1)
    assert "savepoint, canonical format" in words_of(operator, 2)
    assert "savepoint to stop with, native format" in words_of(operator, 3)
    assert "aligned checkpoint, the final one" in words_of(operator, 4)


def test_the_page_says_that_old_subtask_figures_are_not_kept(operator: Client) -> None:
    Story(new_run()).started().completed().completed()
    fold()
    SubtaskPhase.objects.filter(checkpoint__checkpoint_id=1).delete()

    assert "are kept for the newest checkpoints only" in words_of(operator, 1)
    assert "The figures by subtask are not kept for both." in words_of(operator, 2, "?against=1")


def test_the_page_links_to_the_neighbouring_checkpoints(operator: Client) -> None:
    Story(new_run()).started().completed().completed().completed()
    fold()

    page = text_of(operator, 2)

    assert 'href="/pipelines/flights/checkpoints/1/"' in page
    assert 'href="/pipelines/flights/checkpoints/3/"' in page
    assert "the first" in words_of(operator, 1)
    assert "the newest" in words_of(operator, 3)


@pytest.mark.parametrize("number", [99, 10**30])
def test_an_unknown_checkpoint_is_not_found(operator: Client, number: int) -> None:
    Story(new_run()).started().completed()
    fold()

    assert operator.get(address(number)).status_code == 404
    assert operator.get("/pipelines/nothing/checkpoints/1/").status_code == 404
    assert operator.get(f"{address(1)}?run=nothing").status_code == 404


def test_two_checkpoints_are_compared_and_the_growth_is_named(operator: Client) -> None:
    Story(new_run()).started().completed().completed()
    fold()
    Checkpoint.objects.filter(checkpoint_id=2).update(end_to_end_ms=1280.0, state_bytes=9500)
    slow = SubtaskPhase.objects.get(checkpoint__checkpoint_id=2, vertex="join", subtask=1)
    slow.alignment_ms, slow.acknowledged_ms, slow.state_bytes = 1261.0, 1275.0, 2400
    slow.save()

    page = words_of(operator, 2, "?against=1")

    assert (
        "Checkpoint 2 took 1.28 s, 1.20 s longer than checkpoint 1 (80 ms). In checkpoint 2 it was"
        " the alignment of join[1] that took longer by most: 1.26 s instead of 61 ms. The full"
        " size is 1.50 kB larger, most of it in join[1] (+1.40 kB)."
    ) in page
    assert "Duration 1.28 s 80 ms +1.20 s" in page
    assert "Records read by then 2,000 1,000 +1,000" in page
    assert (
        "join[1] 1.27 s 75 ms +1.20 s the same +1.20 s the same the same +1.40 kB the same" in page
    )
    assert page.index("join[1] 1.27 s") < page.index("flights[0] 20 ms 20 ms the same")
    assert "Alignment of checkpoint 1 Checkpoint 1 took 80 ms" in page
    other_way = words_of(operator, 1, "?against=2")
    assert "Checkpoint 1 took 80 ms, 1.20 s less than checkpoint 2 (1.28 s)" in other_way
    assert "In checkpoint 2 it was the alignment of join[1]" in other_way
    assert "The full size is 1.50 kB smaller, most of it in join[1] (−1.40 kB)" in other_way


def test_equal_checkpoints_are_called_equal(operator: Client) -> None:
    Story(new_run()).started().completed().completed()
    fold()

    page = words_of(operator, 2, "?against=1")

    assert "Checkpoint 2 took as long as checkpoint 1." in page
    assert "Nothing that its last acknowledgement waited for took longer." in page
    assert "The full size is the same." in page


def test_the_duration_of_a_checkpoint_under_way_is_not_known_yet(operator: Client) -> None:
    Story(new_run()).started().completed().triggered()
    fold()

    page = words_of(operator, 2, "?against=1")

    assert "How long checkpoint 2 or checkpoint 1 takes is not known yet." in page


@pytest.mark.parametrize(
    ("against", "says"),
    [
        ("99", "There is no checkpoint 99 in this run."),
        ("x", "Enter a whole number."),
        ("-1", "greater than or equal to 0"),
        (str(10**30), "less than or equal to"),
    ],
)
def test_an_invalid_comparison_is_refused_next_to_the_field(
    operator: Client, against: str, says: str
) -> None:
    Story(new_run()).started().completed()
    fold()

    page = words_of(operator, 1, f"?against={against}")

    assert says in page
    assert "Choose another checkpoint of this run" in page


def test_growth_is_looked_for_where_the_last_acknowledgement_waited() -> None:
    quick = [subtask("source", 0), subtask("sink", 0, arrived=5.0)]
    # The other source took much longer, but no subtask waited for it.
    slow = [
        replace(subtask("source", 0), sync_ms=40.0),
        replace(subtask("source", 1), sync_ms=500.0),
        replace(subtask("sink", 0, arrived=45.0), acknowledged_ms=600.0, start_delay_ms=45.0),
    ]

    found = longest_growth(slow, [*quick, subtask("source", 1)])

    assert found is not None
    assert (found.vertex, found.subtask, found.phase) == ("source", 0, "sync")
    assert (found.quick_ms, found.slow_ms, found.more_ms) == (1.0, 40.0, 39.0)
    assert longest_growth(quick, quick) is None
    assert longest_growth(slow, []) is None
    assert longest_growth([], quick) is None


def test_only_the_upload_of_the_last_subtask_counts() -> None:
    quick = [subtask("source", 0), subtask("sink", 0, arrived=5.0)]
    slow = [
        replace(quick[0], async_ms=300.0),
        replace(quick[1], async_ms=100.0, acknowledged_ms=600.0),
    ]

    found = longest_growth(slow, quick)

    assert found is not None
    assert (found.vertex, found.phase, found.more_ms) == ("sink", "async", 98.0)


def test_a_refresh_sends_the_same_regions_as_the_page(operator: Client) -> None:
    Story(new_run()).started().completed().completed()
    fold()

    page = text_of(operator, 2, "?against=1")
    sent = operator.get(f"{address(2)}regions/?against=1").content.decode()

    names = set(re.findall(r'id="(region-[a-z-]+)"', sent))
    assert names == set(re.findall(r'id="(region-[a-z-]+)"', page))
    assert sent.count("hx-swap-oob") == len(names) + 1


def subtask(vertex: str, index: int, arrived: float | None = None) -> SubtaskTimeline:
    channel = ChannelTimeline(
        channel=f"source[0]>{vertex}.0[{index}]",
        upstream="source",
        upstream_subtask=0,
        port=0,
        arrived_ms=arrived or 0.0,
        blocked_ms=0.0,
        buffered_records=0,
        buffered_bytes=0,
    )
    return SubtaskTimeline(
        vertex=vertex,
        subtask=index,
        start_delay_ms=arrived or 2.0,
        alignment_ms=0.0,
        sync_ms=1.0,
        async_ms=2.0,
        acknowledged_ms=(arrived or 2.0) + 3.0,
        state_bytes=10,
        uploaded_bytes=10,
        channels=[] if arrived is None else [channel],
    )


def fold() -> None:
    Projector().run_once()


def address(number: int) -> str:
    return f"/pipelines/flights/checkpoints/{number}/"


def text_of(client: Client, number: int, query: str = "") -> str:
    answer = client.get(address(number) + query)
    assert answer.status_code == 200
    return str(answer.content.decode())


def words_of(client: Client, number: int, query: str = "") -> str:
    return words_in(text_of(client, number, query)).replace(" ,", ",")
