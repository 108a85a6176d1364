"""The pages of a wide pipeline and of a large fleet, as a browser requests them.

Django has to be loaded with a separate home.
"""

import time

import httpx
from django.conf import settings
from django.urls import reverse

from bench.benchmark import Fields, progress
from bench.dashboard.dashboard_pages import ANSWER_S, Page, server, sign_in
from ftdash.checkpoints.answers import quantile
from ftdash.projection.projector import Projector
from tests.new_home import new_home
from tests.web.simulated_site import beat, people
from tests.web.wide_site import WIDE, WideRun, fleet, heard

CHECKPOINTS = 6
PAGES = (
    "pipeline",
    "pipeline-metrics",
    "checkpoints",
    "recovery",
    "pipeline-planner",
    "guarantee",
    "savepoints",
)
FLEET_QUERIES = ("?q=pay", "?sort=-throughput", "?state=FAILED", "?group=state", "?page=3")
REFRESH = "refresh of "


def measure(parallelism: int, pipelines: int, rounds: int) -> Fields:
    new_home(settings.FTDASH_HOME)
    people()
    rows = fleet(pipelines)
    wide = WideRun(parallelism, time.time_ns() // 1_000_000 - CHECKPOINTS * 2_000)
    projector = Projector()
    with wide.story.in_one_go():
        wide.start()
        for _ in range(CHECKPOINTS):
            go_on(wide)
    while projector.run_once():
        pass
    progress("rows folded")
    taken: dict[str, list[tuple[float, float]]] = {}
    with server() as address, httpx.Client(base_url=address, timeout=ANSWER_S) as browser:
        sign_in(browser)
        for number in range(rounds + 1):
            go_on(wide)
            while projector.run_once():  # one fold takes only a part of such a wide checkpoint
                pass
            beat(projector)
            heard(rows)
            for page in addresses(int(wide.story.next_checkpoint) - 1):
                found = measured_fetch(browser, page)
                if number:  # the first request loads what the server needs
                    taken.setdefault(page.name, []).append(found)
            progress(f"round {number} of {rounds}")
    return fields(taken) | {
        "parallelism": parallelism,
        "pipelines": pipelines,
        "requests_of_each": rounds,
    }


def go_on(wide: WideRun) -> None:
    wide.clock.now_ms = max(time.time_ns() // 1_000_000, wide.clock.now_ms + 1_000)
    wide.second()
    wide.checkpoint()


def addresses(newest: int) -> list[Page]:
    """Returns each page, and the address that an open tab requests after a change."""
    found = [
        Page(
            "fleet",
            reverse("fleet"),
        ),
        Page(REFRESH + "fleet", reverse("fleet-regions")),
    ]
    found += [Page("fleet" + query, reverse("fleet") + query) for query in FLEET_QUERIES]
    for name in PAGES:
        found.append(Page(name, reverse(name, args=[WIDE])))
        found.append(Page(REFRESH + name, reverse(f"{name}-regions", args=[WIDE])))
    for name, query in (("checkpoint", ""), ("checkpoint", f"?against={newest - 1}")):
        found.append(Page(name + query[:8], reverse(name, args=[WIDE, newest]) + query))
        regions = reverse(f"{name}-regions", args=[WIDE, newest]) + query
        found.append(Page(REFRESH + name + query[:8], regions))
    return found


def measured_fetch(browser: httpx.Client, page: Page) -> tuple[float, float]:
    """Measures the milliseconds to the last byte, and the kB over the network."""
    began_s = time.perf_counter()
    with browser.stream("GET", page.address) as answer:
        answer.raise_for_status()
        size = sum(len(part) for part in answer.iter_raw())
    return (time.perf_counter() - began_s) * 1000, size / 1000


def fields(taken: dict[str, list[tuple[float, float]]]) -> Fields:
    by_page = {
        name: {
            "p95_ms": round(quantile(sorted(ms for ms, _ in found), 0.95), 1),
            "median_ms": round(quantile(sorted(ms for ms, _ in found), 0.5), 1),
            "kb": round(max(kb for _, kb in found), 1),
        }
        for name, found in taken.items()
    }
    refreshes = {name for name in by_page if name.startswith(REFRESH)}
    of_fleet = {name for name in by_page if "fleet" in name}
    return {
        "p95_ms": max(each["p95_ms"] for each in by_page.values()),
        "kb_max": max(each["kb"] for each in by_page.values()),
        "refresh_kb_max": max(by_page[name]["kb"] for name in refreshes),
        "fleet_p95_ms": max(by_page[name]["p95_ms"] for name in of_fleet),
        "by_page": dict(sorted(by_page.items(), key=lambda each: -each[1]["p95_ms"])),
    }
