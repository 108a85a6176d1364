"""Every chart has its values in a table of the same page, for people who cannot see the chart."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from django.test import Client

from ftdash.flink_clusters.services import looking, registration
from ftdash.flink_clusters.services.registration import Place
from ftdash.projection.projector import Projector
from tests.web import filled_states
from tests.web.journals import Story, StoryClock, new_run
from tests.web.page_words import text_of, words_in
from tests.web.recorded_flink import recorded_flink
from tests.web.watched import listener, progress, report

TEMPLATES = Path(__file__).parents[2] / "templates"
PIPELINE = "/pipelines/flights/"
TREND = "The maximum of each group of consecutive completed checkpoints"
MOMENTS = "The newest moments of the charts"
LAB = "What each mode lost, doubled and cost"
PHASES = "Phases of each subtask"
RECOVERIES = "Recoveries, newest first"
BATCHES = "Batches, newest first"
CHECKPOINTS = "Checkpoints, newest first"
FLINK_JOB = "/flink-clusters/prod/jobs/75a23f442c6abad4bb00c4a7acfb750c/"
USER_MOMENTS = "The metrics of functions at the newest moments"
CLOCK = r"\d\d:\d\d:\d\d"

TABLES = {
    "checkpoint": (
        f"{PIPELINE}checkpoints/2/?against=1",
        {
            "alignment": (PHASES, "Alignment", "61 ms"),
            "held-back": ("What each channel held back", "Records held back", "2,440"),
            "other": ("What changed in each subtask", "Acknowledged after, 2", "75 ms"),
        },
    ),
    "checkpoints": (
        f"{PIPELINE}checkpoints/",
        {
            "durations": (TREND, "Duration", "80 ms"),
            "alignments": (TREND, "Alignment", "61 ms"),
            "sizes": (TREND, "Full size", "8.00 kB"),
            "buffered": (TREND, "Held back", "244 kB"),
        },
    ),
    "lab": ("/lab/", {"control": (LAB, "Barriers", "40"), "latency": (LAB, "p99", "1.05 s")}),
    "metrics": (
        f"{PIPELINE}metrics/",
        {
            "records-in": (MOMENTS, "join", "k/s"),
            "busy": (MOMENTS, "join", "50 % busy"),
            "backpressured": (MOMENTS, "join", "10 % backpressured"),
            "idle": (MOMENTS, "join", "40 % idle"),
            "watermarks": (MOMENTS, "join", "watermark 2013-01-01"),
            "user-metrics": (USER_MOMENTS, "Greatest", "91"),
        },
    ),
    "pipelines": (
        PIPELINE,
        {
            "throughput": ("Reports of the run", "Throughput", "2.00 k/s"),
            "memory": ("Reports of the run", "Memory", "slot 1 200 MB"),
            "alignment": (PHASES, "Alignment", "61 ms"),
            "axis": (RECOVERIES, "Failed at", CLOCK),
            "phases": (RECOVERIES, "Detect", "12 ms"),
        },
    ),
    "planner": (
        f"{PIPELINE}planner/",
        {"lost-time": ("Intervals, the cost of each", "Time lost", r"\d %")},
    ),
    "flink_clusters": (
        FLINK_JOB,
        {
            "durations": (CHECKPOINTS, "Duration", "107 ms"),
            "alignments": (CHECKPOINTS, "Alignment", r"\d ms"),
            "sizes": (CHECKPOINTS, "Full size", "5.70 kB"),
        },
    ),
    "watching": (
        "/watched/orders/",
        {
            "batch-phases": (BATCHES, "Process", "600 ms"),
            "batch-rates": (BATCHES, "Processed", "1.25 k/s"),
            "batch-lag": (BATCHES, "Lag", "240"),
            "state-rows": (BATCHES, "Rows in state", "4,020"),
            "state-bytes": (BATCHES, "State", "2.50 MB"),
        },
    ),
    "recovery": (
        f"{PIPELINE}recovery/",
        {
            "axis": (RECOVERIES, "Failed at", CLOCK),
            "phases": (RECOVERIES, "Detect", "12 ms"),
        },
    ),
}
"""Per directory of page templates: an address, and the table cell that shows each chart's value.

The cell is given by the table's caption, the column and the expected text.
"""

pytestmark = pytest.mark.usefixtures("site")


@pytest.mark.parametrize("page", TABLES)
def test_every_chart_has_its_values_in_a_table(operator: Client, page: str) -> None:
    measured()
    address, tables = TABLES[page]

    shown = text_of(operator, address)

    charts = dict(re.findall(r'<div id="values-([a-z-]+)" hidden>(.*?)</div>', shown, re.DOTALL))
    assert set(charts) == set(tables)
    assert [name for name, figure in charts.items() if figure == "null"] == []
    numbers = [axis for figure in charts.values() for axis in axes_of(figure)]
    assert {axis.get("exponentformat") for axis in numbers} == {"none"}, "never 45k ms"
    for name, (caption, column, value) in tables.items():
        cells = cells_below(column, caption, shown)
        assert any(re.search(value, cell) for cell in cells), (name, cells)


def test_every_page_with_a_chart_is_covered_by_these_tests() -> None:
    drawing = {
        template.parent.name
        for template in TEMPLATES.rglob("*.html")
        if '"parts/chart.html"' in template.read_text()
    }

    assert drawing == set(TABLES)


def axes_of(figure: str) -> list[dict[str, object]]:
    """Returns the axes, without time axes and those with a number format of their own."""
    layout = json.loads(unescape(figure))["layout"]
    axes = [each for name, each in layout.items() if name[1:].startswith("axis")]
    return [each for each in axes if "tickformat" not in each and each.get("type") != "date"]


def measured() -> None:
    """Makes a run with every chart's data, and a lab."""
    clock = StoryClock(StoryClock().now_ms - 5_000)
    run = new_run(settings={"execution.checkpointing.interval": "10 s"})
    story = Story(run, clock).started().completed().slot_killed().wait(1_000).completed()
    for seconds in range(3):
        story.sampled(2_000.0, records=2_000 * seconds).wait(1_000)
    projector = Projector()
    while projector.run_once():
        pass
    filled_states.labs()
    report(listener(), *(progress(number) for number in range(3)))
    with recorded_flink("2.3") as flink:
        place = Place(address=flink.address)
        cluster = registration.watch(name="prod", place=place, requester="ada", reason="x")
        looking.look(cluster.pk)


def cells_below(column: str, caption: str, page: str) -> list[str]:
    """Returns the cells of the column in the table with that caption, or an empty list."""
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        head, *lines = map(cells_of, re.findall(r"<tr.*?</tr>", table, re.DOTALL))
        if caption in words_in(table) and column in head:
            return [line[head.index(column)] for line in lines]
    return []


def cells_of(row: str) -> list[str]:
    return [words_in(cell).strip() for cell in re.findall(r"<t[dh][ >].*?</t[dh]>", row, re.DOTALL)]
