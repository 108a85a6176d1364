"""Windows that fire before they end, compared with plain Python's windows."""

import builtins
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from pipelines.domain.errors import Rejected
from pipelines.operators.windowing.windows import AlignedWindows
from pipelines.stream import (
    Environment,
    Pipeline,
    Trigger,
    TriggerResult,
    TriggerWindows,
    continuous_event_time,
    continuous_processing_time,
    count,
    count_distinct,
    count_trigger,
    max,
    processing_time,
    purging,
    session,
    sliding,
    sum,
    tumbling,
)
from pipelines.testing import OperatorHarness, assert_exactly_once
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.timestamp("ms", "UTC")), ("x", pa.int64())])
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MS = timedelta(milliseconds=1)
CONTINUE, FIRE, PURGE = TriggerResult.CONTINUE, TriggerResult.FIRE, TriggerResult.PURGE
Row = tuple[str, int, int]


class EveryOther(Trigger):
    """Fires on every second batch of a window, and purges its rows on every third."""

    def __init__(self) -> None:
        self.columns = {"batches": 10}

    def on_rows(self, windows: TriggerWindows) -> np.ndarray:
        batches = windows.read("batches") + 1
        windows.write("batches", batches)
        return np.where(batches % 2 == 0, int(FIRE), 0) + np.where(batches % 3 == 0, int(PURGE), 0)


@dataclass
class Window:
    values: list[int] = field(default_factory=list)
    new: int = 0
    batches: int = 10


Decide = Callable[[Window], int]


def every_other(window: Window) -> int:
    window.batches += 1
    return (FIRE if window.batches % 2 == 0 else 0) + (PURGE if window.batches % 3 == 0 else 0)


@dataclass
class Kind:
    trigger: Trigger
    on_rows: Decide = lambda window: CONTINUE
    every: int | None = None  # milliseconds of event time


KINDS = {
    "count": Kind(count_trigger(3), lambda window: FIRE if window.new >= 3 else CONTINUE),
    "purging": Kind(purging(count_trigger(3)), lambda w: FIRE + PURGE if w.new >= 3 else CONTINUE),
    "event time": Kind(continuous_event_time(4 * MS), every=4),
    "custom": Kind(EveryOther(), every_other),
}


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    is_on_disk = request.param == "rocksdb"
    with rocksdb_backends(TINY_BYTES) if is_on_disk else nullcontext() as backends:
        if is_on_disk:
            monkeypatch.setattr("pipelines.testing.operators.HashMapBackend", backends)
        yield


@dataclass
class Model:
    windows: AlignedWindows
    lateness: int
    watermark: int
    kind: Kind
    open: dict[tuple[str, int], Window] = field(default_factory=dict)
    fired: list[tuple] = field(default_factory=list)

    def add(self, rows: list[Row]) -> list[tuple]:
        touched = {}
        size, slide = self.windows.size_ms, self.windows.slide_ms
        for key, time, value in rows:
            for start in range(time - size + 1, time + 1):
                if start % slide == 0 and start + size - 1 + self.lateness > self.watermark:
                    window = self.open.setdefault((key, start), Window())
                    window.values.append(value)
                    window.new += 1
                    touched[key, start] = window
        for (key, start), window in touched.items():
            is_due = start + size - 1 <= self.watermark
            self._act(key, start, window, FIRE if is_due else self.kind.on_rows(window))
        return self._taken()

    def advance(self, watermark: int) -> list[tuple]:
        before, self.watermark = self.watermark, watermark
        last = self.windows.size_ms - 1
        for (key, start), window in list(self.open.items()):
            if start + last <= watermark and window.new:
                self._act(key, start, window, FIRE)
            if start + last + self.lateness <= watermark:
                del self.open[key, start]
        every = self.kind.every
        if every is not None and watermark // every > before // every:
            for (key, start), window in self.open.items():
                if start <= watermark < start + last and window.new:
                    self._act(key, start, window, FIRE)
        return self._taken()

    def _act(self, key: str, start: int, window: Window, result: int) -> None:
        values = window.values
        if result & FIRE and values:
            total, highest = builtins.sum(values), builtins.max(values)
            self.fired.append((key, start, len(values), total, highest))
            window.new = 0
        if result & PURGE:
            window.values, window.new = [], 0

    def _taken(self) -> list[tuple]:
        fired, self.fired = self.fired, []
        return sorted(fired)


@pytest.mark.parametrize("windows", [tumbling(10 * MS), sliding(12 * MS, every=4 * MS)], ids=str)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("lateness", [0, 6])
@pytest.mark.parametrize("seed", range(2))
def test_windows_fire_by_trigger_and_at_their_end_across_restores(
    seed: int, lateness: int, name: str, windows: AlignedWindows, backend: None
) -> None:
    rng = random.Random(seed)
    pipeline = triggered(windows, KINDS[name].trigger, lateness)
    host = OperatorHarness(pipeline, "early", parallelism=rng.randint(1, 3))
    host.watermark(-30)
    model = Model(windows, lateness, -30, KINDS[name])

    for _ in range(30):
        rows = [
            (rng.choice("abc"), model.watermark + rng.randint(-9, 20), rng.randint(-5, 5))
            for _ in range(rng.choice([1, 3, 12]))
        ]
        host.push([row(*each) for each in rows])
        assert results(host) == model.add(rows)
        watermark = model.watermark + rng.randint(0, 6)
        host.watermark(watermark)
        assert results(host) == model.advance(watermark)
        if rng.random() < 0.3:
            parallelism = rng.randint(1, 3)
            host = OperatorHarness(
                pipeline, "early", parallelism=parallelism, restore=host.snapshot()
            )

    host.watermark(10_000)
    assert results(host) == model.advance(10_000)
    assert not any(host.state(name) for name in host.state_names)


def test_processing_time_fires_only_windows_that_have_changed() -> None:
    pipeline = triggered(tumbling(100 * MS), continuous_processing_time(10 * MS))
    host = OperatorHarness(pipeline, "early")
    (operator,) = host._operators
    assert not operator.awaits_processing_time

    host.push([row("a", 1, 5), row("b", 2, 6)])
    host.pass_time(9 * MS)
    assert results(host) == []
    host.pass_time(1 * MS)
    assert results(host) == [("a", 0, 1, 5, 5), ("b", 0, 1, 6, 6)]
    assert not operator.awaits_processing_time

    host.push([row("a", 3, 1)])
    host = OperatorHarness(pipeline, "early", parallelism=2, restore=host.snapshot())
    host.pass_time(10 * MS)
    assert results(host) == [("a", 0, 2, 6, 5)]
    host.watermark(99)
    assert results(host) == []


def test_unsupported_combinations_of_triggers_and_windows_are_refused() -> None:
    stream = Environment().from_rows([], SCHEMA, uid="in", timestamp_column="at").key_by("key")
    trigger = count_trigger(2)

    for windows in session(MS), processing_time(tumbling(MS)):
        with pytest.raises(Rejected, match="tumbling or sliding windows of event time"):
            stream.window(windows).trigger(trigger)
    windowed = stream.window(tumbling(MS)).trigger(trigger)
    with pytest.raises(Rejected, match="'x' has a trigger; count_distinct is not possible"):
        windowed.aggregate(n=count_distinct("x"), uid="x")
    with pytest.raises(Rejected, match="'x' has a trigger, which only aggregate can have"):
        windowed.apply(lambda window, rows: rows, SCHEMA, uid="x")
    with pytest.raises(Rejected, match="leave out trigger"):
        windowed.max_by("x", uid="x")
    with pytest.raises(Rejected, match="cannot fire every 0 rows"):
        count_trigger(0)
    with pytest.raises(Rejected, match=r"cannot fire every 0:00:00"):
        continuous_event_time(timedelta(0))


@pytest.mark.parametrize(
    "trigger",
    [count_trigger(3), continuous_event_time(4 * MS), continuous_processing_time(5 * MS)],
    ids=["count", "event time", "clock"],
)
@pytest.mark.parametrize("windows", [tumbling(20 * MS), sliding(40 * MS, every=20 * MS)], ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_the_newest_result_of_a_window_survives_kills(
    seed: int, windows: AlignedWindows, trigger: Trigger
) -> None:
    rows = [row("abc"[n % 3], n, n) for n in range(300)]

    assert_exactly_once(
        triggered(windows, trigger),
        rows,
        kills=seed,
        parallelism=1 + seed % 3,
        newest_by={"out": ["key", "window_start"]},
    )


def triggered(windows: AlignedWindows, trigger: Trigger, lateness: int = 0) -> Pipeline:
    env = Environment()
    stream = env.from_rows(
        [], SCHEMA, uid="in", timestamp_column="at", out_of_orderness=timedelta(seconds=1)
    )
    windowed = stream.key_by("key").window(windows).trigger(trigger)
    windowed.allowed_lateness(lateness * MS).aggregate(
        n=count(), total=sum("x"), highest=max("x"), uid="early"
    ).collect(uid="out")
    return env.build()


def row(key: str, at: int, x: int) -> dict:
    return {"key": key, "at": EPOCH + at * MS, "x": x}


def results(host: OperatorHarness) -> list[tuple]:
    found = []
    for each in host.output():
        start = (each["window_start"] - EPOCH) // MS
        found.append((each["key"], start, each["n"], each["total"], each["highest"]))
    return sorted(found)
