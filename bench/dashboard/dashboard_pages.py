"""A dashboard with a long history, its web server, and a browser's requests for every page.

Django has to be loaded with a separate home. The table of addresses lists the pages.
"""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from django.conf import settings
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from bench.benchmark import Fields, progress
from ftdash.checkpoints.answers import quantile
from ftdash.embedded.installation import free_port
from ftdash.embedded.stack import web, web_address, web_answers
from ftdash.gameday.models import Fault, GameDay
from ftdash.jobs.models import Run
from ftdash.projection.projector import Projector
from tests.new_home import new_home
from tests.web.ended_pipelines import stopped_views
from tests.web.journals import new_run
from tests.web.simulated_site import SimulatedRun, beat, history, people

PIPELINE = "flight_delays"
SAVEPOINT = "views-1-1"  # of the pipeline that has stopped
VARIANTS = {
    "checkpoints": ("?before=5000", "?status=FAILED", "?kind=SAVEPOINT&to_id=500"),
    "checkpoint": ("?against=1",),
}
"""Query strings with which a page costs more than the plain one, or might."""

NO_PAGES = {"events": "a stream without end", "login": "for those who are not signed in"}
BAR_MS = 200
START_S = 60.0
ANSWER_S = 60.0
CHECKPOINT_MS = 1_100
SEED = 7


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    address: str


def measure(checkpoints: int, rounds: int) -> Fields:
    new_home(settings.FTDASH_HOME)
    people()
    simulated = long_history(checkpoints)
    values = {
        "name": PIPELINE,
        "action": "savepoint",
        "checkpoint_id": str(simulated.story.next_checkpoint - 1),
        "key": str(game_day(simulated.story.run)),
        "savepoint_key": SAVEPOINT,
    }
    known, without_values = pages(get_resolver().url_patterns, values)
    with server() as address, httpx.Client(base_url=address, timeout=ANSWER_S) as browser:
        sign_in(browser)
        answered, unanswered = answering(browser, known)
        taken = timed(browser, answered, simulated, rounds)
    by_page = {name: round(quantile(sorted(found), 0.95), 1) for name, found in taken.items()}
    slowest = max(by_page, key=lambda name: by_page[name])
    return {
        "p95_ms": by_page[slowest],
        "slowest_page": slowest,
        "ok": by_page[slowest] <= BAR_MS and not without_values,
        "by_page": dict(sorted(by_page.items(), key=lambda page: -page[1])),
        "median_ms_by_page": {n: round(quantile(sorted(f), 0.5), 1) for n, f in taken.items()},
        "requests_of_each": rounds,
        "checkpoints": checkpoints,
        "not_asked": NO_PAGES | unanswered,
        "without_values": without_values,
    }


def long_history(checkpoints: int) -> SimulatedRun:
    """Writes journals, and folds them with the projector, as if the run had ended just now."""
    began_s = time.monotonic()
    started_ms = time.time_ns() // 1_000_000 - checkpoints * CHECKPOINT_MS
    simulated = SimulatedRun(new_run(PIPELINE), SEED, started_ms)
    with simulated.story.in_one_go():
        history(simulated, checkpoints)
    stopped_views()
    progress(f"journals written after {time.monotonic() - began_s:.0f} s")
    projector = Projector()
    while projector.run_once():
        pass
    beat(projector)
    progress(f"rows folded after {time.monotonic() - began_s:.0f} s")
    return simulated


def game_day(run: Run) -> int:
    """Creates a game day that waits for its fault; returns its key."""
    day = GameDay.objects.create(
        pipeline=run.pipeline,
        run=run,
        fault=Fault.KILL_SLOT,
        slot=1,
        requester="admin",
        reason="to see it recover",
        asked_at=timezone.now(),
    )
    return int(day.pk)


def pages(
    patterns: list[URLPattern | URLResolver], values: Mapping[str, str]
) -> tuple[list[Page], list[str]]:
    """Returns the pages for people, and the names of those whose `values` are not complete.

    Addresses for programs have a namespace, so they are left out.
    """
    known, without_values = [], []
    for each in patterns:
        if isinstance(each, URLResolver):
            if each.namespace is None:
                found = pages(each.url_patterns, values)
                known += found[0]
                without_values += found[1]
        elif set(each.pattern.converters) <= set(values):
            name = str(each.name)
            given = {argument: values[argument] for argument in each.pattern.converters}
            address = reverse(name, kwargs=given)
            queries = ("", *VARIANTS.get(name, ()))
            known += [Page(name + query, address + query) for query in queries]
        else:
            without_values.append(str(each.name))
    return [page for page in known if page.name not in NO_PAGES], without_values


@contextmanager
def server() -> Iterator[str]:
    """Runs the web server of an installation in a separate process, and yields its address."""
    port = free_port()
    process = subprocess.Popen(web(port).command, env=dict(os.environ))
    try:
        retry(
            retry=retry_if_result(lambda answers: not answers),
            stop=stop_after_delay(START_S),
            wait=wait_fixed(0.1),
        )(web_answers)(port)
        yield web_address(port)
    finally:
        process.terminate()
        process.wait()


def sign_in(browser: httpx.Client) -> None:
    browser.get(reverse("login")).raise_for_status()
    browser.post(
        reverse("login"),
        data={"username": "admin", "password": "admin"},
        headers={"X-CSRFToken": browser.cookies["csrftoken"]},
    )
    if "sessionid" not in browser.cookies:
        raise RuntimeError("the dashboard did not let admin sign in")


def answering(browser: httpx.Client, known: list[Page]) -> tuple[list[Page], dict[str, str]]:
    """Makes the first request for each page, which does not count: it loads what the server needs.

    Returns the pages that answered, and the reasons why others did not.
    """
    answered, unanswered = [], {}
    for page in known:
        answer = browser.get(page.address)
        kind = answer.headers.get("Content-Type", "").partition(";")[0]
        if answer.status_code != httpx.codes.OK:
            unanswered[page.name] = f"answered {answer.status_code} to a plain GET"
        elif kind != "text/html":
            unanswered[page.name] = f"{kind}, a file to take away"
        else:
            answered.append(page)
    return answered, unanswered


def timed(
    browser: httpx.Client, answered: list[Page], simulated: SimulatedRun, rounds: int
) -> dict[str, list[float]]:
    """Measures the milliseconds of each request, to the last byte, by page."""
    taken: dict[str, list[float]] = {page.name: [] for page in answered}
    projector = Projector()
    for number in range(rounds):
        go_on(simulated, projector)
        for page in answered:
            began_s = time.perf_counter()
            browser.get(page.address).raise_for_status()
            taken[page.name].append((time.perf_counter() - began_s) * 1000)
        progress(f"round {number + 1} of {rounds}")
    return taken


def go_on(simulated: SimulatedRun, projector: Projector) -> None:
    simulated.clock.now_ms = max(time.time_ns() // 1_000_000, simulated.clock.now_ms)
    simulated.second()
    simulated.checkpoint()
    beat(projector)
