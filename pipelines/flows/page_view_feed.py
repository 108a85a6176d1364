"""Makes up page views from a seed, and feeds them to a log at a given pace."""

import argparse
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from pipelines.connectors.in_process import Draws
from pipelines.domain.errors import Rejected, Retryable
from pipelines.flows.page_view_logs import KEPT_VIEWS, ViewLog, open_log

VIEWS = pa.schema(
    [
        ("user_id", pa.int64()),
        ("app_id", pa.string()),
        ("page", pa.string()),
        ("at", pa.timestamp("ms", tz="UTC")),
    ]
)
OUT_OF_ORDER_MS = 1_000
"""How far the time of a view may lie behind that of an earlier view in the same split."""

FIRST_MS = 1_767_225_600_000  # the first moment of 2026
STEP_MS = 10
"""Average time from one view of a split to the next."""

APPS = pa.array([f"app-{number:02}" for number in range(20)])
PAGES = pa.array(["/", "/search", "/item", "/item/reviews", "/cart", "/checkout", "/help"])
USERS = 100_000


def page_views(seed: int, split: int, first: int, end: int) -> pa.RecordBatch:
    """The views numbered from `first` up to but not including `end`."""
    draws = Draws(seed, split, np.arange(first, end, dtype=np.int64))
    lateness_ms = draws.integers("lateness", 0, OUT_OF_ORDER_MS)
    at_ms = FIRST_MS + draws.offsets * STEP_MS + OUT_OF_ORDER_MS - lateness_ms
    columns = [
        pa.array(draws.integers("user", 0, USERS)),
        APPS.take(pa.array(_apps(draws))),
        PAGES.take(pa.array(draws.integers("page", 0, len(PAGES)))),
        pa.array(at_ms).cast(VIEWS.field("at").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=VIEWS)


def _apps(draws: Draws) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Some apps are viewed far more than others."""
    one, other = (draws.integers(name, 0, len(APPS)) for name in ("app", "rival"))
    return np.minimum(one, other)


TURN_S = 0.05
BATCH_VIEWS = 2_000
"""The most that is appended at once. The feed does not catch up after the server was away."""

log = logging.getLogger("ftdash.page_views")


@dataclass(slots=True, kw_only=True)
class Feed:
    """All splits share `views_per_s`. One thread uses it."""

    log: ViewLog
    seed: int
    splits: int
    views_per_s: float
    views_per_split: int | None = None  # None: without end
    now_s: Callable[[], float] = time.monotonic
    _counts: list[int] = field(default_factory=list)
    _began_s: float = 0.0
    _begun_with: int = 0

    def append_due(self) -> None:
        """Appends what is due and not there yet. Raises Retryable, Rejected."""
        if not self._counts:
            self._counts = [self.log.count(split) for split in range(self.splits)]
            self._began_s, self._begun_with = self.now_s(), min(self._counts)
        due = self._begun_with + self._elapsed_views()
        if self.views_per_split is not None:
            due = min(due, self.views_per_split)
        for split in range(self.splits):
            self._append(split, due)

    def begin_again(self) -> None:
        """After a failure: only the log knows what it has."""
        self._counts = []

    def _elapsed_views(self) -> int:
        return int((self.now_s() - self._began_s) * self.views_per_s / self.splits)

    def _append(self, split: int, due: int) -> None:
        first = self._counts[split]
        end = min(due, first + BATCH_VIEWS)
        if first < end:
            self.log.append(split, page_views(self.seed, split, first, end))
            self._counts[split] = end


def run(feed: Feed, ends: threading.Event) -> None:
    """Appends until `ends` is set. Raises Rejected if the server refuses."""
    while not ends.wait(TURN_S):
        try:
            feed.append_due()
        except Retryable as failure:
            log.warning("Waiting: %s.", failure)
            feed.begin_again()


def main() -> None:
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    ends = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.set())
    try:
        view_log = open_log(options.to, options.name, kept=options.kept)
        feed = Feed(
            log=view_log,
            seed=options.seed,
            splits=options.splits,
            views_per_s=options.views_per_s,
            views_per_split=options.views_per_split,
        )
        run(feed, ends)
        view_log.close()
    except Rejected as refusal:
        raise SystemExit(str(refusal)) from refusal


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Append made-up page views to a log.")
    parser.add_argument("--to", choices=("redis", "kafka"), required=True)
    parser.add_argument("--name", default="page-views", help="of the topic, or of the streams")
    parser.add_argument("--splits", type=int, default=2, help="streams or partitions")
    parser.add_argument("--views-per-s", type=float, default=200.0)
    parser.add_argument(
        "--views-per-split", type=int, help="after that many it waits to be ended (default: never)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kept", type=int, default=KEPT_VIEWS, help="views that a stream keeps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
