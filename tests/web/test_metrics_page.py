"""The metrics page: each operator's load in words, the bottleneck, and charts of it."""

import html
import re
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from django.test import Client
from plotly import graph_objects

from ftdash.metrics.models import Sample
from ftdash.metrics.queries.loads import (
    TREND_POINTS_MAX,
    MetricKey,
    VertexMoment,
    run_loads,
    sum_known,
    trends,
)
from ftdash.projection.projector import Projector
from ftdash.ui.metrics import page as metrics_page
from ftdash.ui.metrics import user_metrics
from ftdash.ui.metrics.operators import busy, operator_rows, records_in, watermarks
from pipelines.domain.events import MetricKind, MetricSample
from pipelines.domain.ids import Uid
from pipelines.domain.status import JobStatus
from tests.web.journals import Story, new_run, sample
from tests.web.loads import GRAPH, load, loads
from tests.web.page_words import words_in

PAGE = "/pipelines/flights/metrics/"

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture(autouse=True)
def patience(settings: Any) -> None:
    """Keeps the test's reports from going stale while a slow machine takes its time."""
    settings.SILENT_AFTER_S = 120.0


def test_each_operator_is_shown_with_its_load_throughput_and_watermark(operator: Client) -> None:
    fold(Story(new_run()).started().sampled(records=0).wait(1_000).sampled(records=2_000))

    page = words_of(operator)

    assert "No operator holds others up" not in page  # one does, a tenth of the time
    for shown in (
        "join 50 % busy, 10 % backpressured, 40 % idle join[0] 50 % 4.00 k/s 320 kB/s",
        " 4.00 k/s 360 kB/s 6 600 B takes 400 ms; up to 20.0 kB per channel 2.00 kB 2013-01-01",
        "flights[0] 50 % 4.00 k/s 4.00 k/s 360 kB/s 6 600 B 1,400 not read yet 2.00 kB",
        "join[1] 50 % 10 % 40 % 2.00 k/s 2,000 2.00 k/s 2,000",
    ):
        assert shown in page
    assert page.count("not read yet") == 1  # for other operators, unread records are unknown


def test_a_page_before_the_first_sample_says_so(operator: Client) -> None:
    fold(Story(new_run()).started())

    page = words_of(operator)

    assert "No subtask has reported yet." in page
    assert "No sample has arrived yet." in page


def test_a_pipeline_that_never_ran_has_a_page(operator: Client) -> None:
    new_run().delete()

    assert "Never started" in words_of(operator)


@pytest.mark.parametrize("ends", [JobStatus.FINISHED, JobStatus.FAILED])
def test_values_of_an_ended_run_are_marked_as_last_reported(
    operator: Client, ends: JobStatus
) -> None:
    fold(Story(new_run()).started().sampled().ended(ends))

    assert "they may have changed since" in words_of(operator)


def test_values_of_the_previous_attempt_are_marked_as_such(operator: Client) -> None:
    fold(Story(new_run()).started().sampled().slot_killed())

    assert "were last reported in attempt 1" in words_of(operator)


def test_values_of_a_running_run_are_not_marked_as_outdated(operator: Client) -> None:
    fold(Story(new_run()).started().sampled())

    assert "they may have changed since" not in words_of(operator)


def test_a_refresh_updates_every_region_of_the_page(operator: Client) -> None:
    fold(Story(new_run()).started().sampled().wait(1_000).sampled())

    whole, regions = text_of(operator), text_of(operator, PAGE + "regions/")

    of_page, refreshed = region_ids(whole), region_ids(regions)
    assert of_page == refreshed
    assert 'hx-swap-oob="true"' in regions
    assert '"@series-1"' in html.unescape(regions)


def test_charts_are_drawn_once_per_sample_for_all_viewers(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def counted(run_id: str) -> dict[str, list[VertexMoment]]:
        drawn.append(run_id)
        return trends(run_id)

    monkeypatch.setattr(metrics_page, "trends", counted)
    story = Story(new_run()).started().sampled()
    fold(story)

    text_of(operator), text_of(operator, PAGE + "regions/")
    fold(story.wait(1_000).sampled(records=2_000))
    page = words_of(operator)

    assert drawn == ["flights-1", "flights-1"]
    assert page.count("50 % busy, 10 % backpressured, 40 % idle, ") == 2 * 4


def test_the_table_below_the_charts_has_every_drawn_value(operator: Client) -> None:
    fold(Story(new_run()).started().sampled().wait(1_000).sampled(records=2_000))

    page = words_of(operator)

    moment = "50 % busy, 10 % backpressured, 40 % idle, 3.98 k/s, watermark 2013-01-01 00:26"
    assert page.count(moment) == 4


def test_an_operators_row_has_mean_ratios_summed_counts_and_the_least_watermark() -> None:
    (row,) = operator_rows(
        GRAPH,
        loads(
            load("sink", 1, busy_ratio=0.2, watermark_ms=5_000, records_in_per_s=3.0),
            load("sink", 0, busy_ratio=0.6, watermark_ms=9_000, records_in_per_s=4.0),
        ),
    )

    assert row.busy_ratio == pytest.approx(0.4)
    assert (row.busiest.subtask, row.records_in_per_s) == (0, 7.0)
    assert row.watermark_at is not None
    assert row.watermark_at.timestamp() == 5
    assert [each.load.subtask for each in row.subtasks] == [0, 1]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    assert sum_known([1.0, 2.0]) == 3.0
    assert sum_known([1.0, None]) is None
    assert sum_known([]) is None


def test_metrics_of_functions_are_shown_in_total_and_for_each_subtask(operator: Client) -> None:
    fold(Story(new_run()).started().sampled(records=0).wait(1_000).sampled(records=2_000))

    page = words_of(operator)

    for shown in (
        "How 3 metrics changed in the last half hour",
        "join matches counter 4,001 2,000 2,001 –",
        "join open_rows gauge 0.5 0.25 0.25 –",
        "join delay_ms histogram 4,000 values 0.5 91 41",
        "join[1] matches 2,001 –",
        "join[1] delay_ms 2,000 least 1.5, mean 10, median 8, 95 % below 41, 99 % below 80,",
    ):
        assert shown in page
    assert page.count("join matches 4,001 2,000 2,001 –") == 1  # the chart's table has both moments
    assert page.count("join matches 1 0 1 –") == 1


def test_a_metric_whose_value_a_subtask_does_not_know_says_why(operator: Client) -> None:
    story = Story(new_run()).started()
    plain = sample(1.0, 10)
    broken = MetricSample(
        operator=Uid("join"), name="age", kind=MetricKind.GAUGE, problem="KeyError: 'first'"
    )
    subtasks = [
        msgspec.structs.replace(each, metrics=[broken]) if each.vertex == "join" else each
        for each in plain.subtasks
    ]
    fold(story.tell(msgspec.structs.replace(plain, subtasks=subtasks)))

    page = words_of(operator)

    assert "join age not known everywhere: KeyError: 'first' gauge – – – –" in page


def test_samples_of_older_versions_have_no_metrics_of_functions(operator: Client) -> None:
    fold(Story(new_run()).started().sampled().wait(1_000).sampled())
    for row in Sample.objects.all():
        for each in row.subtasks:
            del each["metrics"]
        row.save()

    page = words_of(operator)

    assert "The functions of this pipeline have reported no metrics of their own." in page
    assert "join 50 % busy" in page


@pytest.mark.slow
def test_the_chart_of_metrics_has_a_panel_for_each_up_to_a_bound() -> None:
    fold(Story(new_run()).started().sampled().wait(1_000).sampled())
    moments = trends("flights-1")["join"]
    of_one = [(each.at, each.metrics[MetricKey("join", "matches")]) for each in moments]
    found = {MetricKey("join", f"<b>{number}"): of_one for number in range(20)}

    drawn: Any = user_metrics.figure(found)

    names = [each["text"] for each in drawn["layout"]["annotations"]]
    assert names == [f"join: &lt;b>{n}" for n in range(12)]
    assert [trace["name"] for trace in drawn["data"][:3]] == ["sum", "least", "greatest"]
    assert sum(trace["showlegend"] for trace in drawn["data"]) == 3
    domains = [drawn["layout"][f"yaxis{n or ''}"]["domain"] for n in (0, *range(2, 13))]
    assert all(low < high for low, high in domains)
    assert all(above[0] > below[1] for above, below in pairwise(domains))
    for trace in drawn["data"]:
        graph_objects.Figure({"data": [trace | {"line": {"dash": "dot"}}]})


def test_a_trend_is_thinned_out_and_keeps_the_newest_sample() -> None:
    story = Story(new_run()).started()
    for number in range(2 * TREND_POINTS_MAX + 5):
        story.wait(1_000).sampled(records=10 * number)
    fold(story)

    found = trends("flights-1")

    newest = run_loads("flights-1")
    assert newest is not None
    assert max(len(moments) for moments in found.values()) <= TREND_POINTS_MAX
    assert found["join"][-1].at == newest.at
    assert found["join"][-1].records_in_per_s == pytest.approx(20)  # the sum of both subtasks


def test_a_trend_has_no_rate_across_a_restart() -> None:
    fold(Story(new_run()).started().sampled(records=900).slot_killed().sampled(records=5))

    rates = [each.records_in_per_s for each in trends("flights-1")["join"]]

    assert rates == [None, None]


def test_the_lines_break_where_the_run_was_silent() -> None:
    story = Story(new_run()).started()
    for pause_ms in (1_000, 1_000, 60_000, 1_000, 1_000):
        story.wait(pause_ms).sampled()
    fold(story)
    found = trends("flights-1")

    for figure in (busy(found), records_in(found), watermarks(found)):
        assert figure is not None
        breaks = [values.count(None) for values in line_values(figure)]
        assert min(breaks) >= 1


def test_only_as_many_operators_are_drawn_as_can_be_told_apart() -> None:
    fold(Story(new_run()).started().sampled().wait(1_000).sampled())
    moments: list[VertexMoment] = trends("flights-1")["join"]

    figure: Any = busy({f"operator {number}": moments for number in range(40)})

    looks = {(t["line"]["dash"], t["marker"]["symbol"]) for t in figure["data"]}
    assert len(looks) == len(figure["data"]) == 25


@pytest.mark.slow
def test_names_of_operators_are_escaped_for_plotly() -> None:
    fold(Story(new_run()).started().sampled().wait(1_000).sampled())
    unruly = "<b>a</b>%{x}&"

    figure: Any = busy({unruly: trends("flights-1")["join"]})

    drawn = graph_objects.Figure(figure["data"][0] | {"line": {"dash": "dot"}})
    assert drawn.data[0].name == "&lt;b>a&lt;/b>%{x}&amp;"
    assert drawn.data[0].hovertemplate.startswith("&lt;b>a&lt;/b>% {x}&amp;: %{customdata}")


def line_values(figure: Any) -> list[list[Any]]:
    return [list(trace["y"]) for trace in figure["data"]]


def region_ids(text: str) -> set[str]:
    return set(re.findall(r'id="(region-[a-z-]+)"', text)) | set(re.findall(r'id="pulse"', text))


def fold(story: Story) -> None:
    projector = Projector()
    while projector.run_once():
        pass


def text_of(client: Client, address: str = PAGE) -> str:
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def words_of(client: Client) -> str:
    return words_in(text_of(client))
