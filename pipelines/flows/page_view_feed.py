"""Appends the page views of a seed to a log, at a pace, until it is told to end.

A program of its own: `python -m pipelines.flows.page_view_feed --to redis --name page-views`; the
server is named by the environment, see `page_view_servers`. Started again it goes on where the log
ends. A server that is away is waited for.
"""

import argparse
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.domain.errors import Rejected, Retryable
from pipelines.flows.page_view_data import page_views
from pipelines.flows.page_view_logs import KEPT_VIEWS, ViewLog, open_log

TURN_S = 0.05
BATCH_VIEWS = 2_000
"""Appended at once, at most. What fell due while the server was away is made up for by nobody."""

log = logging.getLogger("ftdash.page_views")


@dataclass(slots=True)
class Feed:
    """`views_per_s` is shared by all splits. Used by one thread."""

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
        """What is due by now and not there yet. Raises Retryable, Rejected."""
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
    """Until `ends` is set. Raises Rejected: the server will not have it."""
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
            view_log,
            options.seed,
            options.splits,
            options.views_per_s,
            options.views_per_split,
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
