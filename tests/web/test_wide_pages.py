"""Pages of a pipeline at parallelism 64: their size, their rows, and the links to the rest."""

import csv
import gzip
import re
import time
from dataclasses import replace
from io import StringIO

import msgspec
import pytest
from django.test import Client

from ftdash.checkpoints.answers import StoredChannels
from ftdash.checkpoints.models import SubtaskPhase
from ftdash.checkpoints.queries.detail import CheckpointDetail, checkpoint_detail
from ftdash.metrics.queries.loads import SamplePoint, samples
from ftdash.projection.projector import Projector
from ftdash.ui.checkpoint.part_rows import (
    CHANNELS_LISTED,
    COLUMNS,
    MEASURES,
    SUBTASKS_SHOWN,
    bands_of,
    fullest_channels,
    held_channels,
)
from ftdash.ui.figures.alignment import CHANNELS_OF_EACH_MAX, alignment, channels_to_draw
from ftdash.ui.figures.heat import CELLS_MAX, Measure, heat_map, heat_sentence
from ftdash.ui.figures.style import memory
from ftdash.ui.pipelines.dataflow import HEAT_CELLS_MAX, heat_cells
from tests.web.page_words import text_of, words_of
from tests.web.wide_site import OPERATORS, WIDE, WideRun

pytestmark = pytest.mark.usefixtures("site", "patient")

PARALLELISM = 64
PAGE_BYTES, REFRESH_BYTES = 300_000, 30_000
CHECKPOINT = f"/pipelines/{WIDE}/checkpoints/1/"
PAGES = ("", "checkpoints/1/", "checkpoints/", "metrics/", "recovery/", "planner/")


def tell(parallelism: int) -> None:
    run = WideRun(parallelism, time.time_ns() // 1_000_000 - 10_000)
    with run.story.in_one_go():
        run.start()
        run.second()
        run.checkpoint()
        run.clock.now_ms += 1_000
        run.second()
        run.clock.now_ms += 1_000
        run.second()
    while Projector().run_once():
        pass


def test_pages_and_refreshes_of_a_wide_pipeline_stay_within_their_size_budget(
    operator: Client,
) -> None:
    tell(PARALLELISM)
    sizes = {
        page + part: len(sent(operator, f"/pipelines/{WIDE}/{page}{part}"))
        for page in PAGES
        for part in ("", "regions/")
    }
    refreshes = {page: size for page, size in sizes.items() if page.endswith("regions/")}

    assert {page: size for page, size in sizes.items() if size > PAGE_BYTES} == {}
    assert {page: size for page, size in refreshes.items() if size > REFRESH_BYTES} == {}


def sent(client: Client, address: str) -> bytes:
    """Returns the page as it goes over the network to a browser."""
    answer = client.get(address, headers={"Accept-Encoding": "gzip"})
    assert answer.status_code == 200
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(answer.content).rstrip().endswith(b">")
    return answer.content


NARROWER = 24
"""Still wide enough that subtasks need several pages."""


def test_the_slowest_subtasks_come_first_and_all_are_paged_and_in_the_file(
    operator: Client,
) -> None:
    tell(NARROWER)
    first, second = (subtasks_on(operator, f"?rows={page}") for page in (1, 2))
    ordered = subtasks_on(operator, "?order=full-size")
    lines = list(
        csv.DictReader(StringIO(operator.get(CHECKPOINT + "subtasks.csv").content.decode()))
    )
    every = {f"{uid}[{index}]" for uid in OPERATORS for index in range(NARROWER)}

    assert len(first) == len(OPERATORS) * SUBTASKS_SHOWN
    assert first[0] == f"orders[{NARROWER - 1}]"  # the slow one
    assert set(first) | set(second) == every
    assert not set(first) & set(second)
    assert ordered[0] == "orders[0]"
    assert {f"{line['operator']}[{line['subtask']}]" for line in lines} == every
    assert "21 to 24 of 24" in words_of(operator, CHECKPOINT + "?rows=2")
    assert subtasks_on(operator, "?rows=99") == second


def subtasks_on(client: Client, query: str) -> list[str]:
    page = text_of(client, CHECKPOINT + "regions/" + query)
    operators = page[page.index('id="region-checkpoint-operators"') :]
    part = operators[: operators.index('id="region-alignment')]
    return re.findall(r'<th scope="row">([a-z-]+\[\d+\])</th>', part)


def detail(parallelism: int) -> CheckpointDetail:
    tell(parallelism)
    found = checkpoint_detail(f"{WIDE}-1", 1)
    assert found is not None
    return found


def test_the_map_shows_every_figure_of_every_subtask() -> None:
    found = detail(NARROWER)
    parts = {(each.vertex, each.subtask): each for each in found.timeline.subtasks}

    for column in COLUMNS:
        bands = bands_of(found, column.measure)
        drawn = heat_map(bands, column.measure)
        assert {uid: list(values) for uid, values in bands.items()} == {
            uid: [column.of(parts[uid, index]) for index in range(NARROWER)] for uid in OPERATORS
        }
        assert drawn is not None
        (trace,) = drawn["data"]  # type: ignore[misc]
        assert [len(row) for row in trace["z"]] == [NARROWER] * len(OPERATORS)
        assert trace["customdata"][2][5] == "by-customer[5]"


def test_the_map_stays_readable_at_a_thousand_subtasks_per_operator() -> None:
    values: list[float | None] = [float(index) for index in range(1_000)]
    bands = dict.fromkeys(OPERATORS, values)
    drawn = heat_map(bands, MEASURES[0])

    assert drawn is not None
    (trace,) = drawn["data"]  # type: ignore[misc]
    assert len(trace["z"]) == 4 * -(-1_000 // CELLS_MAX)
    assert max(len(row) for row in trace["z"]) == CELLS_MAX
    assert trace["customdata"][15][-1] == "orders[999]"
    assert drawn["layout"]["height"] < 1_200  # type: ignore[index]
    assert "from 0 ms to 999 ms, most in totals[999]" in heat_sentence(bands, MEASURES[0], "now")


def test_a_subtask_without_a_value_is_a_gap_in_the_map() -> None:
    measure = Measure("Busy", "%")
    drawn = heat_map({"a": [0.5, None], "b": [0.25]}, measure)

    assert drawn is not None
    assert drawn["data"][0]["z"] == [[0.5, None], [0.25, None]]  # type: ignore[index]
    assert heat_map({"a": [None]}, measure) is None
    assert heat_sentence({"a": [None]}, measure, "now") == "Busy: no subtask has reported it now."


def test_the_channels_drawn_include_the_last_and_the_longest_blocked_one() -> None:
    timeline = detail(NARROWER).timeline
    totals = timeline.subtasks[-1]
    drawn = channels_to_draw(totals)
    last = max(totals.channels, key=lambda each: each.arrived_ms)

    assert len(totals.channels) == NARROWER
    assert len(drawn) == CHANNELS_OF_EACH_MAX
    assert last in drawn
    assert max(totals.channels, key=lambda each: each.blocked_ms) in drawn
    assert alignment(timeline) is not None


def test_the_fullest_channels_are_chosen_across_all_subtasks() -> None:
    timeline = detail(NARROWER).timeline
    every = [(s, c) for s in timeline.subtasks for c in s.channels if c.blocked_ms > 0]
    expected = sorted((c.buffered_records for _, c in every), reverse=True)

    assert [c.buffered_records for _, c in fullest_channels(timeline, 10)] == expected[:10]
    assert len(held_channels(timeline)) == CHANNELS_LISTED < len(every)


def test_the_stored_figures_of_channels_equal_the_parsed_channels() -> None:
    tell(2)
    stored = [StoredChannels(_as_text(row)) for row in SubtaskPhase.objects.all()]

    assert sum(len(each) for each in stored) == 12
    for each in stored:
        assert [(b.blocked_ms, b.buffered_records, b.buffered_bytes) for b in each.buffered] == [
            (c.blocked_ms, c.buffered_records, c.buffered_bytes) for c in each
        ]


def _as_text(row: SubtaskPhase) -> str:
    return msgspec.json.encode(row.channels).decode()


def test_memory_draws_one_line_per_slot_or_three_lines_for_many_slots() -> None:
    tell(NARROWER)
    wide = samples(f"{WIDE}-1")
    few = [replace(each, resident_bytes={0: 10**6, 1: 2 * 10**6}) for each in wide]

    assert named(wide) == ["greatest slot", "median slot", "least slot"]
    assert named(few) == ["slot 0", "slot 1"]
    drawn = memory(wide)
    assert drawn is not None
    assert drawn["data"][0]["y"][-1] == round(max(wide[-1].resident_bytes.values()) / 1e6, 1)  # type: ignore[index]


def named(points: list[SamplePoint]) -> list[str]:
    drawn = memory(points)
    assert drawn is not None
    return [trace["name"] for trace in drawn["data"]]  # type: ignore[attr-defined]


def test_a_heat_cell_shows_the_busiest_of_neighbouring_subtasks() -> None:
    quiet, one_busy = [0.1] * 1_000, [0.1] * 999 + [0.95]

    assert [(c.width, c.level) for c in heat_cells(quiet, 200)] == [(200.0, 0)]
    assert [c.level for c in heat_cells(one_busy, 200)] == [0, 4]
    assert sum(c.width for c in heat_cells(one_busy, 200)) == pytest.approx(200, abs=0.2)
    assert len(heat_cells([0.1, 0.9] * 24, 200)) == HEAT_CELLS_MAX
    assert heat_cells([], 200) == []


def test_the_pipeline_page_lists_the_busiest_subtasks_and_maps_the_chosen_load(
    operator: Client,
) -> None:
    tell(NARROWER)
    page = text_of(operator, f"/pipelines/{WIDE}/?figure=state&rows=1")
    table = page[page.index('id="region-operators"') :]
    rows = re.findall(r'<th scope="row">([a-z-]+\[\d+\])</th>', table)

    assert set(rows[:4]) == {f"{uid}[{NARROWER - 1}]" for uid in OPERATORS}
    assert len(rows) == SUBTASKS_SHOWN
    assert re.search(r'id="heat-state"[^>]* aria-current="true"', page)
    assert "State of 96 subtasks in the newest report" in page
    assert page.count('class="flow-heat"') == len(OPERATORS)
    assert "and 8 slots with less memory" in words_of(operator, f"/pipelines/{WIDE}/")
