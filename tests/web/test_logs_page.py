"""The page of a pipeline's logs: searched, filtered, linked, followed."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import Run
from ftdash.runs.queries.logs import LINES_SHOWN
from pipelines.bus.run_log import RunLog
from pipelines.domain.ids import Attempt
from pipelines.domain.log_lines import LogLine
from tests.web.journals import Story, new_run

pytestmark = pytest.mark.usefixtures("site")
LINKS = re.compile(r'href="\?([^"]*line=[0-9]+-[0-9]+)#')


@pytest.fixture
def run() -> Run:
    run = new_run("flights")
    Story(run).started()
    directory = run_directory(run).path
    directory.mkdir(parents=True, exist_ok=True)
    keep(
        run,
        said("it begins", subtask="driver", attempt=0),
        said("price of 7 is <b>odd</b>", level="WARNING", trace="Traceback: shop.py, line 4"),
        said("it goes on", subtask="slot 1"),
    )
    return run


def said(
    message: str,
    *,
    level: str = "INFO",
    subtask: str = "orders[0]",
    attempt: int = 1,
    trace: str = "",
) -> LogLine:
    return LogLine(
        time=datetime.now(UTC),
        level=level,
        subtask=subtask,
        attempt=Attempt(attempt),
        logger="shop",
        message=message,
        trace=trace,
    )


def keep(run: Run, *lines: LogLine) -> None:
    log = RunLog(run_directory(run).log)
    log.keep(lines)
    log.close()


def page(operator: Client, query: str = "", name: str = "flights") -> str:
    return operator.get(f"{reverse('logs', args=[name])}?{query}").content.decode()


def shown(answer: str) -> list[str]:
    rows = re.findall(r'<td class="wraps">(.*?)<small>', answer, re.DOTALL)
    return [row.strip() for row in rows]


def test_each_line_is_shown_with_level_subtask_attempt_and_traceback(
    run: Run, operator: Client
) -> None:
    answer = page(operator)

    assert shown(answer) == ["it begins", "price of 7 is &lt;b&gt;odd&lt;/b&gt;", "it goes on"]
    for each in ("WARNING", "orders[0]", "attempt 1", "Traceback: shop.py, line 4", "slot 1"):
        assert each in answer


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("level=WARNING", ["price of 7 is &lt;b&gt;odd&lt;/b&gt;"]),
        ("subtask=slot+1", ["it goes on"]),
        ("text=GOES", ["it goes on"]),
        ("text=shop.py", ["price of 7 is &lt;b&gt;odd&lt;/b&gt;"]),
        ("text=nothing", []),
        ("level=WARNING&subtask=slot", []),
    ],
)
def test_lines_are_found_by_level_subtask_and_text(
    run: Run, operator: Client, query: str, found: list[str]
) -> None:
    assert shown(page(operator, query)) == found


def test_a_link_still_shows_its_line_and_neighbours_after_newer_lines(
    run: Run, operator: Client
) -> None:
    link = LINKS.findall(page(operator))[1]
    keep(run, *(said(f"later {number}") for number in range(LINES_SHOWN)))

    answer = page(operator, link)

    [meant] = re.findall(r'<tr id="line-[0-9-]+" aria-current="true">(.*?)</tr>', answer, re.DOTALL)
    assert "price of 7" in meant
    assert shown(answer)[0] == "it begins"
    assert "later 3" in shown(answer)
    assert "it begins" not in shown(page(operator))  # the newest page is full


def test_older_lines_are_on_the_next_page_without_a_gap(run: Run, operator: Client) -> None:
    keep(run, *(said(f"later {number}") for number in range(LINES_SHOWN)))
    newest = page(operator)

    [older] = re.findall(r'href="\?([^"]*before=[0-9-]+)"', newest)

    assert shown(page(operator, older)) + shown(newest) == [
        *("it begins", "price of 7 is &lt;b&gt;odd&lt;/b&gt;", "it goes on"),
        *(f"later {number}" for number in range(LINES_SHOWN)),
    ]


def test_a_refresh_of_the_followed_part_has_the_new_lines(run: Run, operator: Client) -> None:
    keep(run, said("news"))

    answer = operator.get(reverse("logs-regions", args=["flights"]) + "?text=news")

    assert shown(answer.content.decode()) == ["news"]


def test_a_run_of_another_pipeline_is_not_shown_here(run: Run, operator: Client) -> None:
    other = new_run("views")
    Story(other).started()

    assert shown(page(operator, f"run={run.run_id}", name="views")) == []
    assert shown(page(operator, "run=..", name="flights")) == []
    assert operator.get(reverse("logs", args=["absent"])).status_code == 404


def test_the_pipeline_page_links_to_the_logs_which_need_a_sign_in(
    run: Run, operator: Client, site: Path
) -> None:
    address = reverse("logs", args=["flights"])

    assert (
        f'href="{address}"' in operator.get(reverse("pipeline", args=["flights"])).content.decode()
    )
    assert Client().get(address).status_code == 302
