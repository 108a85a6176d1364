"""The parts of `bench watch`: reports, the page of all pipelines, the doctor, and the listener.

Django has to be loaded with a separate home.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import Client
from django.utils import timezone

from bench.benchmark import Fields, progress
from bench.pairs import median_interval
from ftdash.checkpoints.answers import quantile
from ftdash.watching import reading
from tests.new_home import new_home
from tests.web import watched
from tests.web.people import admin_user, signed_in
from tests.web.simulated_site import people

REPORT_EVENTS = 200
MEASURED_EVENTS = 10_000
LISTENER = settings.BASE_DIR / "pipelines" / "spark" / "listener"


def measure(queries: int, batches: int, rounds: int) -> Fields:
    """Measures `events_per_s` over the last `MEASURED_EVENTS`, when the history is there."""
    new_home(settings.FTDASH_HOME)
    settings.ALLOWED_HOSTS = ["testserver"]
    people()
    client = watched.listener()
    whole = queries * batches
    began_s = time.perf_counter()
    sent, measured, took_s, took_cpu_s = 0, 0, 0.0, 0.0
    for events in _reports(queries, batches):
        before_s, before_cpu_s = time.perf_counter(), time.process_time()
        answer = watched.report(client, *events)
        if answer.status_code != 200 or answer.json()["taken"] != len(events):
            raise RuntimeError(answer.content.decode()[:300])
        sent += len(events)
        if sent > whole - MEASURED_EVENTS:
            measured += len(events)
            took_s += time.perf_counter() - before_s
            took_cpu_s += time.process_time() - before_cpu_s
        if sent % (whole // 10 or 1) < REPORT_EVENTS:
            progress(f"{sent:,} events after {time.perf_counter() - began_s:.0f} s")
    pages = _pages(rounds)
    return {
        "events_per_s": round(measured / took_s),
        "events_per_cpu_s": round(measured / took_cpu_s),
        "p95_ms": round(quantile(sorted(pages), 0.95), 1),
        "median_ms": round(statistics.median(pages), 1),
        "queries": queries,
        "batches": batches,
    }


def _reports(queries: int, batches: int) -> Iterator[list[Any]]:
    """Yields reports as many listeners send them, each about batches of its own query."""
    began = timezone.now() - timedelta(seconds=10 * batches)
    for first in range(0, batches, REPORT_EVENTS):
        numbers = range(first, min(batches, first + REPORT_EVENTS))
        for query in range(queries):
            yield [
                watched.progress(
                    number,
                    query=f"{query:08d}-0000-4000-8000-000000000000",
                    run=f"{query:08d}-1111-4000-8000-000000000000",
                    at=began + timedelta(seconds=10 * number),
                    name=f"query-{query}",
                )
                for number in numbers
            ]


def _pages(rounds: int) -> list[float]:
    browser: Client = signed_in(admin_user("bench"))
    browser.get("/")  # not counted: the first request loads what the server needs
    taken = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        if browser.get("/").status_code != 200:
            raise RuntimeError("the page of all pipelines did not answer")
        taken.append((time.perf_counter() - began_s) * 1000)
    return taken


def doctor(directory: Path, batches: int) -> Fields:
    began = timezone.now() - timedelta(seconds=10 * batches)
    watched.checkpoint_at(directory, watched.QUERY, batches=batches, began=began)
    progress(f"a directory with {batches:,} batches is written")
    began_s = time.perf_counter()
    look = reading.look_into(str(directory), settings.WATCH_ROOTS)
    took_s = time.perf_counter() - began_s
    if look.found.point_count != batches or look.found.damage_count:
        raise RuntimeError("the doctor did not see the whole directory")
    return {"doctor_s": round(took_s, 2)}


def listener_share(home: Path, groups: int) -> Fields:
    """Measures how much longer a query's batches take with the listener, in groups of blocks."""
    if not groups:
        return {"listener_share": None}
    environment = {**os.environ, "PYTHONPATH": str(LISTENER)}
    command = [sys.executable, "-m", "bench.dashboard.watched_query", str(home / "heard")]
    answer = subprocess.run(
        [*command, str(groups)],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd=settings.BASE_DIR,
    )
    took = json.loads(answer.stdout.splitlines()[-1])
    by_group = [
        [took[name][2 * n : 2 * n + 2] for name in ("with", "without")] for n in range(groups)
    ]
    shares = [sum(heard) / sum(without) - 1 for heard, without in by_group]
    return {
        "listener_share": round(statistics.median(shares), 4),
        "listener_interval": median_interval(shares),
        "listener_shares": [round(each, 4) for each in shares],
        "batch_ms": round(statistics.median(took["without"]), 1),
        "listener_cpu_ms": round(
            statistics.median(took["cpu_with"]) - statistics.median(took["cpu_without"]), 2
        ),
    }
