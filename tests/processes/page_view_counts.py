"""The counts expected of the flow `page_views`, computed without it; and the feed as a process."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from pipelines.flows.page_view_feed import page_views
from tests.driven_run import ROOT

SEED = 7
WINDOW_S = 2
END_S = 20.0

Totals = dict[str, int]
Windows = dict[tuple[str, str], int]
"""Counts by app and start of the window."""


def counted(views_per_split: Sequence[int]) -> tuple[Totals, Windows]:
    """Counts one view after the other, in plain Python."""
    totals: Counter[str] = Counter()
    windows: Counter[tuple[str, str]] = Counter()
    for split, count in enumerate(views_per_split):
        for view in page_views(SEED, split, 0, count).to_pylist():
            second = int(view["at"].timestamp())
            totals[view["app_id"]] += 1
            windows[view["app_id"], window_of(second - second % WINDOW_S)] += 1
    return dict(totals), dict(windows)


def window_of(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).isoformat()


def each_once(rows: Sequence[Sequence[str]]) -> Windows:
    """Converts rows of app, window and views from any reader; asserts that none is there twice."""
    windows = {(app, iso(start)): int(views) for app, start, views in rows}
    assert len(windows) == len(rows)
    return windows


def pairs(rows: Sequence[Sequence[str]]) -> Totals:
    """Converts rows of app and total; asserts that none is there twice."""
    totals = {app: int(views) for app, views in rows}
    assert len(totals) == len(rows)
    return totals


def iso(shown: str) -> str:
    return datetime.fromisoformat(shown).astimezone(UTC).isoformat()


def windows_in(records: Sequence[str]) -> Windows:
    """Returns the windows in Kafka's JSON records, and skips the totals among them."""
    rows = [row for row in map(json.loads, records) if "window_start" in row]
    return each_once([[row["app_id"], row["window_start"], row["views"]] for row in rows])


def totals_in(records: Sequence[str]) -> Totals:
    """Returns the last total of each app; asserts that a total only grows."""
    totals: Totals = {}
    for row in map(json.loads, records):
        if "window_start" not in row:
            assert row["views"] > totals.get(row["app_id"], 0)
            totals[row["app_id"]] = row["views"]
    return totals


@contextmanager
def feeding(environment: dict[str, str], *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs the feed as a program of its own, and terminates it when the block ends."""
    command = [sys.executable, "-m", "pipelines.flows.page_view_feed", "--seed", str(SEED)]
    feed = subprocess.Popen([*command, *words], cwd=ROOT, env={**os.environ, **environment})
    try:
        yield feed
    finally:
        feed.terminate()
        feed.wait(END_S)
