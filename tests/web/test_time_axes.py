"""The time axes of charts as viewers in several zones read them, also when clocks change."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from ftdash.django_hooks import PLOTLY, wheel_folder
from tests.web.browser_site import (
    CHROMIUM,
    PATIENCE_MS,
    ROOT,
    Site,
    complaints_of,
    draw_all,
    sign_in,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH and no FTDASH_CHROMIUM"),
]

KOLKATA = timezone(timedelta(hours=5, minutes=30))
CHARTS = {"": 3, "checkpoints/": 4, "metrics/": 6}
"""The number of charts with a time axis on each page of a pipeline."""

WITH_TIME_AXIS = """() => [...document.querySelectorAll(".js-plotly-plot")].map(
  (plot) => plot.layout.xaxis).filter((axis) => axis.type === "date" && axis.ticktext)"""
ARE_DRAWN = f"(count) => ({WITH_TIME_AXIS})().length === count"
POINT_AT_FIRST = """() => {
  const plot = document.querySelector("#chart-throughput .plot");
  Plotly.Fx.hover(plot, [{ curveNumber: 0, pointNumber: 0 }]);
  return plot.data[0].x[0];
}"""
DRAWN = """async ([from, to]) => {
  const plot = document.querySelector("div");
  const data = [{ x: [from, null, to], y: [1, null, 2], type: "scatter", mode: "lines" }];
  const figure = timeAxes.readable({ data, layout: { width: 1000, xaxis: { type: "date" } } });
  await Plotly.react(plot, figure.data, figure.layout);
  timeAxes.fit(plot);
  return { ...plot.layout.xaxis, drawn: figure.data[0].x, local: figure.data[0].text };
}"""

DRAWN_AGAIN = """async ([from, to]) => {
  const plot = document.querySelector("div");
  const draw = async (until) => {
    const data = [{ x: [from, until], y: [1, 2], type: "scatter", mode: "lines" }];
    const figure = { data, layout: { width: 1000, xaxis: { type: "date" } } };
    const { layout } = timeAxes.readable(figure);
    const xaxis = timeAxes.withTicks(layout.xaxis, plot);
    await Plotly.react(plot, data, { ...layout, xaxis });
    timeAxes.fit(plot);
  };
  Plotly.purge(plot);
  const { relayout } = Plotly;
  let count = 0;
  Plotly.relayout = (...words) => { count += 1; return relayout(...words); };
  const counts = [];
  for (const until of [to, to + 1_000, to + 3_600_000]) {
    await draw(until);
    counts.push(count);
  }
  Plotly.relayout = relayout;
  return counts;
}"""


CLOCKS_CHANGE = [
    (
        "Europe/Berlin",
        ("2026-10-25T00:00", "2026-10-25T02:00"),
        "02:00 02:15 02:30 02:45 02:00 02:15 02:30 02:45 03:00",
        "UTC+02:00, then UTC+01:00",
    ),
    (
        "America/New_York",
        ("2026-03-08T06:00", "2026-03-08T08:00"),
        "01:00 01:15 01:30 01:45 03:00 03:15 03:30 03:45 04:00",
        "UTC-05:00, then UTC-04:00",
    ),
    (
        "Australia/Lord_Howe",  # changes by half an hour
        ("2026-04-04T14:00", "2026-04-04T16:00"),
        "01:00 01:15 01:30 01:45 01:30 01:45 02:00 02:15 02:30",
        "UTC+11:00, then UTC+10:30",
    ),
    (
        "Europe/Berlin",  # a day of 25 hours
        ("2026-10-23T22:00", "2026-10-26T23:00"),
        "00:00 12:00 00:00 12:00 00:00 12:00 00:00",
        "UTC+02:00, then UTC+01:00",
    ),
]


def test_axes_show_the_viewers_zone_and_the_hover_text_adds_utc(
    dashboard: Site, browser: Browser
) -> None:
    context = browser.new_context(base_url=dashboard.address, timezone_id="Asia/Kolkata")
    page = context.new_page()
    sign_in(page, dashboard)
    said = complaints_of(page)

    for name, count in CHARTS.items():
        page.goto(f"/pipelines/flight_delays/{name}")
        draw_all(page)
        page.wait_for_function(ARE_DRAWN, arg=count, timeout=PATIENCE_MS)
        for axis in page.evaluate(WITH_TIME_AXIS):
            at = [datetime.fromisoformat(each) for each in axis["tickvals"]]
            assert len(at) > 1
            assert clocks(axis) == [f"{each.astimezone(KOLKATA):%H:%M:%S}" for each in at]
            assert axis["title"]["text"].endswith(", UTC+05:30")
    page.goto("/pipelines/flight_delays/")
    draw_all(page)
    page.wait_for_function(ARE_DRAWN, arg=CHARTS[""], timeout=PATIENCE_MS)
    at = datetime.fromisoformat(page.evaluate(POINT_AT_FIRST))

    expect(page.locator("#chart-throughput .hoverlayer")).to_contain_text(
        f"{at.astimezone(KOLKATA):%T} ({at:%T} UTC)"
    )
    assert said == []
    context.close()


@pytest.fixture(scope="module")
def page_in(browser: Browser) -> Iterator[Callable[[str], Page]]:
    """Returns a function that moves the viewer to a zone; loading Plotly takes seconds."""
    page = browser.new_page()
    page.set_content("<div></div>")
    page.add_script_tag(path=wheel_folder() / PLOTLY)
    developer = page.context.new_cdp_session(page)

    def moved(zone: str) -> Page:
        developer.send("Emulation.setTimezoneOverride", {"timezoneId": zone})
        page.add_script_tag(path=ROOT / "static" / "js" / "time_axes.js")
        return page

    yield moved
    page.close()


@pytest.mark.parametrize(("zone", "instants", "read", "offsets"), CLOCKS_CHANGE)
def test_an_hour_keeps_its_length_on_the_axis_across_a_clock_change(
    page_in: Callable[[str], Page], zone: str, instants: tuple[str, str], read: str, offsets: str
) -> None:
    begin, end = (datetime.fromisoformat(each).replace(tzinfo=UTC) for each in instants)

    axis = page_in(zone).evaluate(DRAWN, [begin.timestamp() * 1000, end.timestamp() * 1000])

    assert axis["drawn"] == [f"{begin:%FT%T}.000Z", None, f"{end:%FT%T}.000Z"]
    assert clocks(axis) == read.split()
    assert axis["title"]["text"] == f"time, {zone}, {offsets}"
    assert [each[11:16] for each in axis["local"] if each] == [clocks(axis)[0], clocks(axis)[-1]]


def test_a_chart_is_drawn_again_for_its_ticks_only_if_new_values_need_others(
    page_in: Callable[[str], Page],
) -> None:
    begin = datetime(2026, 11, 22, 8, tzinfo=UTC).timestamp() * 1000

    counts = page_in("Europe/Berlin").evaluate(DRAWN_AGAIN, [begin, begin + 3_600_000])

    assert counts == [1, 1, 2]


def clocks(axis: dict[str, Any]) -> list[str]:
    """Returns the labels of the ticks, without the day."""
    return [str(text).partition("<br>")[0] for text in axis["ticktext"]]
