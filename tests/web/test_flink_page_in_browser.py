"""Flink's own web page, unmodified, on this dashboard: reading it and acting on it.

Every console message except one of Flink's own errors, and every answer of 400 or more, is a
failure.
"""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from pipelines.domain.ids import Uid, operator_id
from tests.java_programs import ProgramMissing
from tests.web.browser_site import CHROMIUM, PATIENCE_MS, complaints_of, go_when_up
from tests.web.flink_tools import flink_dashboard, unpack_web_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH and no FTDASH_CHROMIUM"),
]

LEFT_WHILE_DRAWN = "null (reading 'layout')"
"""Flink's own error: it lays out its graph after the user has left the page."""

JOIN = operator_id(Uid("join"))
IS_DRAWN = """() => [...document.querySelectorAll("canvas")].some((canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size > 2;
})"""


@pytest.fixture(scope="module")
def page(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a signed-in admin."""
    try:
        web = unpack_web_page(tmp_path_factory.mktemp("jar"))
    except ProgramMissing as why:
        pytest.skip(str(why))
    with flink_dashboard(tmp_path_factory.mktemp("home"), web) as flink:
        size = ViewportSize(width=1440, height=900)
        page = browser.new_page(base_url=f"http://{flink.address}", viewport=size)
        page.context.set_default_timeout(PATIENCE_MS)
        go_when_up(page, f"http://{flink.address}/login/?next=/flink/")
        page.fill("#id_username", "admin")
        page.fill("#id_password", "admin")
        page.click("button[type=submit]")
        shows(page, "Available Task Slots")
        yield page
        page.close()


@pytest.fixture(scope="module")
def jobs(page: Page) -> dict[str, str]:
    """Returns the ids of the jobs by name."""
    overview = page.request.get("/flink/jobs/overview").json()
    return {job["name"]: job["jid"] for job in overview["jobs"]}


@pytest.fixture(autouse=True)
def nothing_is_wrong(page: Page) -> Iterator[None]:
    said = complaints_of(page)
    yield
    assert [each for each in said if LEFT_WHILE_DRAWN not in each] == []


def test_the_overview_counts_slots_and_jobs(page: Page) -> None:
    page.goto("/flink/#/overview")

    shows(page, "Total Task Slots14Task Managers14")
    shows(page, "Running Applications 7 Finished0Canceled1Failed0")


@pytest.mark.parametrize(
    ("state", "name", "tells"),
    [("running", "eventful", "– 8 8 RUNNING"), ("completed", "ended", r"[-\d :.]+ 8 8 CANCELED")],
)
def test_jobs_are_listed(page: Page, state: str, name: str, tells: str) -> None:
    page.goto(f"/flink/#/job/{state}")

    shows(page, rf"{name} [-\d :.hms]+ {tells}")


def test_the_graph_shows_how_busy_each_vertex_is(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, "overview")

    for vertex in ("Source: flights", "Source: weather", "join", "delays"):
        busy = r"Parallelism: 2 Backpressured \(max\): 10% Busy \(max\): 50% Data Skew: N/A"
        shows(page, f"{vertex} {busy}")
    shows(page, "Low Watermark: 1357000000000")
    expect(page.locator("flink-root").get_by_text("HASH")).to_have_count(3)
    shows(page, "Source: weather RUNNING 0 B 20 1.76 KB 20 2")
    shows(page, "join RUNNING 1.56 KB 20 1.76 KB 20 2")


@pytest.mark.parametrize(
    ("tab", "rows"),
    [
        ("detail", ["State RUNNING Parallelism 2 Max Parallelism 128", "Records Sent 20"]),
        (
            "subtasks",
            [
                rf"{index} 800 B 10 900 B 10 2 here [^–]+– 1s 0ms / 4s 0ms / 5s 0ms"
                for index in "01"
            ],
        ),
        ("taskmanagers", [r"here 800 B 10 900 B 10 [^–]+– [^–]+ 1 RUNNING"]),
        ("watermarks", [f"{each} 135700000000{each} 2013-01-01 00:26:40" for each in "01"]),
        ("accumulators", ["Vertex Accumulators SubTask Accumulators", "No Data"]),
        ("backpressure", ["Back Pressure Status: OK", *(f"{i} 10% 40% 50% OK" for i in "01")]),
    ],
)
def test_the_drawer_of_a_vertex_shows_the_rows_of_each_tab(
    page: Page, jobs: dict[str, str], tab: str, rows: list[str]
) -> None:
    go_to(page, jobs, f"overview/{JOIN}/{tab}")

    for row in rows:
        shows(page, row)


def test_a_metric_of_a_subtask_is_drawn(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, f"overview/{JOIN}/metrics")

    # Its own search field covers the words, so a user clicks through it.
    page.get_by_text("Select Metric Name").click(force=True)
    option = page.locator(".ant-select-item-option:visible").first
    name = option.inner_text().strip()
    option.click()

    assert re.fullmatch(r"[01]\.\w+", name)
    shows(page, re.escape(name))
    page.wait_for_function(IS_DRAWN)


def test_failures_are_shown(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, "exceptions")

    shows(page, r"Slot 1 \(pid 101\) is gone: killed\.")
    page.get_by_text("Exception History", exact=True).click()
    shows(page, "It broke.")


def test_the_timeline_is_drawn(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, "timeline")

    shows(page, "Vertex TimeLine")
    page.wait_for_function(IS_DRAWN)


def test_the_configuration_is_shown(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, "configuration")

    shows(page, "Restart with exponential delay")
    shows(page, "Job parallelism 2")


@pytest.mark.parametrize(
    ("tab", "rows"),
    [
        (
            "Overview",
            [
                "Triggered: 4 In Progress: 0 Completed: 3 Failed: 1 Restored: 1",
                r"Latest Completed Checkpoint ID: 4 Completion Time: [-\d :.]+ End to End Duration:"
                " 80ms Checkpointed Data Size: 800 B Full Checkpoint Data Size: 7.81 KB",
                "Latest Failed Checkpoint ID: 3",
                "Checkpoint expired before completing. One of 8.",
                "Latest Savepoint ID: 2",
                "Latest Restore ID: 1",
            ],
        ),
        (
            "History",
            [
                r"4 COMPLETED 8/8 [-\d :.]+ 80ms 800 B 7.81 KB 0 B \(0 B\)",
                "3 FAILED 1/8",
                r"2 COMPLETED \[Savepoint\] 8/8",
                "1 COMPLETED 8/8",
            ],
        ),
        (
            "Summary",
            [
                rf"{row} 80ms 800 B 7.81 KB 0 B \(0 B\)"
                for row in ("Minimum", "Average", "Maximum", "50% percentile", "99.9% percentile")
            ],
        ),
        ("Configuration", ["Checkpointing Mode Exactly Once", "Interval 1s 0ms"]),
    ],
)
def test_the_checkpoint_tabs_show_their_rows(
    page: Page, jobs: dict[str, str], tab: str, rows: list[str]
) -> None:
    go_to(page, jobs, "checkpoints")

    page.locator("flink-job-checkpoints").get_by_text(tab, exact=True).click()

    for row in rows:
        shows(page, row)


def test_a_checkpoint_is_shown_by_operator_and_subtask(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, "checkpoints")
    page.locator("flink-job-checkpoints").get_by_text("History", exact=True).click()

    expand(page, r"4\s+COMPLETED")
    shows(page, "Path: /jobs/flights/checkpoints/chk-4 Discarded: - Checkpoint Type: aligned")
    expand(page, r"join")

    shows(page, r"join 2/2 \(100%\) [-\d :.]+ 75ms 200 B 1.95 KB 0 B \(0 B\)")
    shows(page, r"1 [-\d :.]+ 75ms 100 B 0.98 KB 1ms 5ms 0 B \(0 B\) 61ms 2ms false")


def test_a_running_job_is_cancelled(page: Page, jobs: dict[str, str]) -> None:
    go_to(page, jobs, "overview", job="to-cancel")

    page.get_by_text("Cancel Job", exact=True).click()
    page.get_by_role("button", name="Yes").click()

    shows(page, "Job State CANCELED")


def go_to(page: Page, jobs: dict[str, str], place: str, job: str = "eventful") -> None:
    page.goto(f"/flink/#/job/running/{jobs[job]}/{place}")
    shows(page, f"Job ID {jobs[job]} Job State RUNNING")


def shows(page: Page, pattern: str) -> None:
    """Checks the laid-out text: hidden text does not count, and a blank separates cells."""
    wanted = re.compile(r"\s+".join(pattern.split(" ")))
    expect(page.locator("flink-root")).to_contain_text(wanted, use_inner_text=True)


def expand(page: Page, row: str) -> None:
    rows = page.locator("tr:visible", has_text=re.compile(row))
    rows.locator("> td > .ant-table-row-expand-icon").first.click()
