"""The generated views and their feed: the same in every process, none twice, none left out."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import redis

from pipelines.connectors import RedisStreams
from pipelines.domain.errors import Retryable
from pipelines.flows.page_view_feed import (
    BATCH_VIEWS,
    OUT_OF_ORDER_MS,
    VIEWS,
    Feed,
    RedisViewLog,
    page_views,
    stream_of,
)
from tests.brokers.redis_broker import redis_broker

SEED = 3


class ListLog:
    """Implements `ViewLog`. After `breaks_at` views of a split it is away, once."""

    def __init__(self, splits: int, breaks_at: int | None = None) -> None:
        self.views: list[list[dict[str, object]]] = [[] for _ in range(splits)]
        self._breaks_at = breaks_at

    def count(self, split: int) -> int:
        return len(self.views[split])

    def append(self, split: int, views: pa.RecordBatch) -> None:
        rows = views.to_pylist()
        left = len(rows) if self._breaks_at is None else self._breaks_at - self.count(split)
        self.views[split] += rows[:left]
        if left < len(rows):
            self._breaks_at = None
            raise Retryable("away")

    def close(self) -> None:
        pass


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_view_depends_only_on_its_seed_split_and_number() -> None:
    whole = page_views(SEED, 1, 0, 500)
    parts = [page_views(SEED, 1, start, start + 100) for start in range(0, 500, 100)]

    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([whole])
    assert not page_views(SEED, 0, 0, 500).equals(whole)
    assert not page_views(SEED + 1, 1, 0, 500).equals(whole)


def test_views_are_out_of_order_by_the_stated_bound() -> None:
    times_ms = np.asarray(page_views(SEED, 0, 0, 10_000).column("at").cast(pa.int64()))
    behind_ms = np.maximum.accumulate(times_ms) - times_ms

    assert OUT_OF_ORDER_MS / 2 < behind_ms.max() <= OUT_OF_ORDER_MS


def test_all_splits_share_the_pace_of_the_views() -> None:
    log, clock = ListLog(2), Clock()
    feed = Feed(log=log, seed=SEED, splits=2, views_per_s=100.0, now_s=clock)

    feed.append_due()
    assert [len(views) for views in log.views] == [0, 0]
    clock.now_s = 1.0
    feed.append_due()
    clock.now_s = 1.5
    feed.append_due()

    assert [len(views) for views in log.views] == [75, 75]
    assert log.views == [page_views(SEED, split, 0, 75).to_pylist() for split in (0, 1)]


def test_a_bounded_feed_gives_each_split_exactly_its_views() -> None:
    log, clock = ListLog(2), iter([0.0, *range(1, 100)]).__next__
    feed = Feed(log=log, seed=SEED, splits=2, views_per_s=100.0, views_per_split=120, now_s=clock)

    for _ in range(10):
        feed.append_due()

    assert [len(views) for views in log.views] == [120, 120]


def test_one_append_is_bounded_to_one_batch() -> None:
    log, clock = ListLog(1), Clock()
    feed = Feed(log=log, seed=SEED, splits=1, views_per_s=1e6, now_s=clock)

    feed.append_due()
    clock.now_s = 1.0
    feed.append_due()

    assert log.count(0) == BATCH_VIEWS


@pytest.mark.parametrize("breaks_at", [0, 1, 60, 149])
def test_views_that_a_log_refused_are_appended_once_it_recovers(breaks_at: int) -> None:
    log, clock = ListLog(2, breaks_at), Clock()
    feed = Feed(log=log, seed=SEED, splits=2, views_per_s=100.0, now_s=clock)
    feed.append_due()
    clock.now_s = 3.0

    with pytest.raises(Retryable):
        feed.append_due()
    feed.begin_again()
    feed.append_due()
    clock.now_s = 6.0
    feed.append_due()

    assert log.count(0) > breaks_at
    for split, views in enumerate(log.views):
        assert views == page_views(SEED, split, 0, len(views)).to_pylist()


@pytest.mark.slow
def test_a_stream_knows_its_view_count_even_after_trimming_and_a_crash(
    tmp_path: Path,
) -> None:
    with redis_broker(tmp_path) as broker:
        log = RedisViewLog(broker.url, "views", kept=500)
        for first in range(0, 2_000, 400):
            log.append(0, page_views(SEED, 0, first, first + 400))
        broker.server.kill()
        with pytest.raises(Retryable):
            log.append(0, page_views(SEED, 0, 2_000, 2_001))
        broker.server.start()

        assert log.count(0) == 2_000
        assert log.count(1) == 0
        kept = int(broker.client().xlen(stream_of("views", 0)))
        log.close()

        assert 500 <= kept <= 700  # whole nodes of a hundred
        assert read(broker.url, kept) == page_views(SEED, 0, 2_000 - kept, 2_000)


@pytest.mark.slow
def test_a_full_redis_server_is_retryable_and_stores_no_view(tmp_path: Path) -> None:
    with redis_broker(tmp_path, more_settings="maxmemory 1kb") as broker:
        log = RedisViewLog(broker.url, "views")

        with pytest.raises(Retryable, match=r"takes no more views: .*command not allowed"):
            log.append(0, page_views(SEED, 0, 0, 10))

        log.close()
        with pytest.raises(redis.ResponseError, match="no such key"):
            broker.client().xinfo_stream(stream_of("views", 0))


def read(url: str, count: int) -> pa.RecordBatch:
    """Reads the views of the stream as a pipeline does, and checks that there are `count`."""
    source = RedisStreams(url, (stream_of("views", 0),), schema=VIEWS, is_bounded=True)
    [split] = source.find((), is_start=True)
    reader = source.open()
    batches = [batch.records for batch in reader.read(split)]
    reader.close()
    [whole] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    assert whole.num_rows == count
    return whole
