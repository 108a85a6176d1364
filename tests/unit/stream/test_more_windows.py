"""Processing-time windows and windows over whole streams, compared with plain Python."""

import builtins
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS
from pipelines.local import run_local
from pipelines.operators.windowing.processing_time import ProcessingTimeWindows
from pipelines.operators.windowing.windows import SessionWindows, Windows
from pipelines.stream import (
    LATE,
    Environment,
    Pipeline,
    Stream,
    count,
    processing_time,
    session,
    sliding,
    sum,
    tumbling,
)
from pipelines.testing import OperatorHarness, assert_exactly_once, run_with_kills
from tests.contracts.rocksdb_slots import TINY_BYTES, rocksdb_backends

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
VALUES = pa.schema([("key", pa.string()), ("value", pa.int64())])
TIMED = VALUES.append(pa.field("at", pa.timestamp("ms", "UTC")))
MS = timedelta(milliseconds=1)
EVERY_KIND = [
    tumbling(milliseconds=10),
    tumbling(10 * MS, offset=3 * MS),
    sliding(12 * MS, every=5 * MS),
    sliding(5 * MS, every=12 * MS),
    session(7 * MS),
]


@pytest.fixture(params=["hashmap", "rocksdb"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    is_on_disk = request.param == "rocksdb"
    with rocksdb_backends(TINY_BYTES) if is_on_disk else nullcontext() as backends:
        if is_on_disk:
            monkeypatch.setattr("pipelines.testing.operators.HashMapBackend", backends)
        yield


def in_processing_time(windows: Windows) -> Pipeline:
    env = Environment()
    windowed = env.from_rows([], VALUES, uid="in").key_by("key").window(processing_time(windows))
    windowed.aggregate(n=count(), total=sum("value"), uid="aggregate").collect(uid="a")
    if not windows.overlap:
        windowed.apply(counted, COUNTED, uid="apply").collect(uid="b")
    return env.build()


COUNTED = pa.schema([("key", pa.string()), ("start", pa.int64()), ("n", pa.int64())])


def counted(window, rows: pa.RecordBatch) -> pa.RecordBatch:
    assert rows.schema.equals(VALUES)
    row = {"key": rows["key"][0].as_py(), "start": window.start_ms, "n": rows.num_rows}
    return pa.RecordBatch.from_pylist([row], schema=COUNTED)


@dataclass
class Clocked:
    """A model in plain Python, one row and one window at a time. Its clock never goes back."""

    windows: Windows
    now: int = 0
    rows: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, key: str, value: int) -> None:
        self.rows.setdefault(key, []).append((self.now, value))

    def take_due(self, now: int) -> Counter:
        """Returns (key, start, number, sum) of each window that has ended since the last call."""
        before, self.now = self.now, max(self.now, now)
        due: Counter = Counter()
        for key, rows in self.rows.items():
            for start, end, values in self._windows_of(rows):
                if before < end <= self.now:
                    due[key, start, len(values), builtin_sum(values)] += 1
        return due

    def _windows_of(self, rows: list[tuple[int, int]]) -> Iterator[tuple[int, int, list[int]]]:
        windows = self.windows
        if isinstance(windows, SessionWindows):
            first = last = rows[0][0]
            values: list[int] = []
            for at, value in rows:
                if at >= last + windows.gap_ms:  # the session was emitted just before
                    yield first, last + windows.gap_ms, values
                    first, values = at, []
                last, values = at, [*values, value]
            yield first, last + windows.gap_ms, values
            return
        found: dict[int, list[int]] = {}
        for at, value in rows:
            for start in range(at - windows.size_ms + 1, at + 1):
                if (start - windows.offset_ms) % windows.slide_ms == 0:
                    found.setdefault(start, []).append(value)
        for start, values in found.items():
            yield start, start + windows.size_ms, values


builtin_sum = __builtins__["sum"] if isinstance(__builtins__, dict) else __builtins__.sum


@pytest.mark.parametrize("windows", EVERY_KIND, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_processing_time_windows_keep_their_rows_over_restores(
    seed: int, windows: Windows, backend: None
) -> None:
    """The clock may go back at a restore: another machine has another clock."""
    rng = random.Random(seed)
    pipeline, model = in_processing_time(windows), Clocked(windows)
    hosts = {
        uid: OperatorHarness(pipeline, uid, parallelism=rng.randint(1, 3))
        for uid in pipeline.operators
    }
    now = 0

    for _ in range(60):
        rows = [
            {"key": rng.choice("abcd"), "value": rng.randint(-9, 9)}
            for _ in range(rng.randint(0, 5))
        ]
        for row in rows:
            model.add(row["key"], row["value"])
        for host in hosts.values():
            host.push(rows)
        if rng.random() < 0.2:
            now -= rng.randint(0, 15)
            parallelism = rng.randint(1, 3)
            hosts = {
                uid: OperatorHarness(
                    pipeline,
                    uid,
                    parallelism=parallelism,
                    restore=replace(host.snapshot(), now_ms=now),
                )
                for uid, host in hosts.items()
            }
        step = rng.randint(0, 9)
        now += step
        for host in hosts.values():
            host.pass_time(step * MS)

        due = model.take_due(now)
        assert results_of(hosts["aggregate"]) == due
        if "apply" in hosts:
            given = hosts["apply"].output()
            applied = Counter((row["key"], row["start"], row["n"]) for row in given)
            assert applied == Counter({each[:3]: times for each, times in due.items()})

    for host in hosts.values():
        host.watermark(MAX_WATERMARK_MS)
        kept = set(host.state_names) - {"operator.processing_time"}
        assert not any(host.state(name) for name in kept)
    assert results_of(hosts["aggregate"]) == model.take_due(model.now + 100)


def results_of(harness: OperatorHarness) -> Counter:
    return Counter(
        (row["key"], round(row["window_start"].timestamp() * 1_000), row["n"], row["total"])
        for row in harness.output()
    )


def test_an_operator_without_open_windows_does_not_await_processing_time() -> None:
    harness = OperatorHarness(in_processing_time(tumbling(milliseconds=10)), "aggregate")
    (operator,) = harness._operators
    assert not operator.awaits_processing_time

    harness.push([{"key": "a", "value": 1}])
    assert operator.awaits_processing_time
    harness.pass_time(10 * MS)

    assert not operator.awaits_processing_time
    assert len(harness.output()) == 1


def test_processing_time_windows_need_no_event_time_and_have_no_late_rows() -> None:
    stream = Environment().from_rows([], VALUES, uid="in")
    windowed = stream.key_by("key").window(processing_time(tumbling(minutes=1)))

    totals = windowed.aggregate(n=count(), uid="n")

    assert totals.time_column is None
    assert totals.schema.names == ["key", "window_start", "n"]
    with pytest.raises(Rejected, match="no record is late"):
        windowed.allowed_lateness(timedelta(seconds=1))
    overlapping = stream.key_by("key").window(processing_time(sliding(2 * MS, every=MS)))
    with pytest.raises(Rejected, match=r"'x' applies a function .* that overlap"):
        overlapping.apply(counted, COUNTED, uid="x")
    with pytest.raises(Rejected, match="'n' has no side output 'late'; it has none"):
        totals.side_output(LATE, uid="late")


@pytest.mark.parametrize("seed", range(4))
def test_processing_time_windows_lose_and_double_no_record_under_kills(seed: int) -> None:
    env = Environment()
    rows = [{"key": "abc"[n % 3], "value": n} for n in range(300)]
    windowed = env.from_rows([], VALUES, uid="in").key_by("key")
    windowed.window(processing_time(tumbling(milliseconds=20))).aggregate(
        n=count(), total=sum("value"), uid="n"
    ).collect(uid="out")

    table = run_with_kills(env.build(), rows, kills=seed).table()

    totals = table.group_by("key").aggregate([("n", "sum"), ("total", "sum")]).to_pylist()
    assert sorted((row["key"], row["n_sum"], row["total_sum"]) for row in totals) == [
        (key, 100, builtin_sum(range(first, 300, 3))) for first, key in enumerate("abc")
    ]
    assert table.group_by(["key", "window_start"]).aggregate([]).num_rows == table.num_rows


def timed_rows(number: int = 200) -> list[dict[str, object]]:
    return [
        {"key": "abc"[n % 3], "value": n, "at": BEGIN + timedelta(seconds=n)} for n in range(number)
    ]


def whole(stream: Stream) -> Stream:
    totals = stream.window_all(tumbling(minutes=1)).aggregate(n=count(), uid="whole")
    return totals.collect(uid="out")


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_windows_over_the_whole_stream_hold_the_records_of_all_keys(parallelism: int) -> None:
    rows = timed_rows()
    env = Environment()
    stream = env.from_rows(rows, TIMED, uid="in", timestamp_column="at", splits=3)
    totals = whole(stream)
    sessions = stream.window_all(session(seconds=30))
    sessions.aggregate(total=sum("value"), uid="sessions").collect(uid="sessions-out")
    applied = stream.window_all(sliding(timedelta(minutes=2), every=timedelta(minutes=1)))
    applied.apply(keys_in, KEYS_IN, uid="apply").collect(uid="apply-out")

    result = run_local(env.build(), parallelism=parallelism)

    assert totals.schema.names == ["window_start", "n"]
    assert totals.time_column == "window_start"
    assert [row["n"] for row in sorted_by(result.rows("out"), "window_start")] == [60, 60, 60, 20]
    (of_session,) = result.rows("sessions-out")
    assert of_session == {
        "window_start": BEGIN,
        "window_end": BEGIN + timedelta(seconds=229),
        "window_time": BEGIN + timedelta(seconds=229) - MS,
        "total": builtin_sum(range(200)),
    }
    found = [row["n"] for row in sorted_by(result.rows("apply-out"), "start")]
    assert found == [60, 120, 120, 80, 20]


KEYS_IN = pa.schema([("start", pa.int64()), ("n", pa.int64())])


def keys_in(window, rows: pa.RecordBatch) -> pa.RecordBatch:
    assert rows.schema.equals(TIMED)
    return pa.RecordBatch.from_pylist(
        [{"start": window.start_ms, "n": pc.count(rows["key"]).as_py()}], schema=KEYS_IN
    )


def sorted_by(rows: list[dict], column: str) -> list[dict]:
    return sorted(rows, key=lambda row: row[column])


def test_late_rows_of_a_window_over_the_whole_stream_are_rows_of_the_input() -> None:
    rows = [{"key": "a", "value": n, "at": BEGIN + timedelta(minutes=at)} for n, at in LATE_ONE]
    env = Environment()
    stream = env.from_arrow(
        pa.Table.from_pylist(rows, TIMED), uid="in", timestamp_column="at"
    ).map_batches(lambda batch: batch, TIMED, uid="same")
    whole(stream).side_output(LATE, uid="late").collect(uid="late-out")
    harness = OperatorHarness(env.build(), "whole", parallelism=2)

    harness.push([{**row, "__all": 0} for row in rows[:2]])
    harness.watermark(BEGIN + timedelta(minutes=2))
    harness.push([{**row, "__all": 0} for row in rows[2:]])

    assert [row["n"] for row in harness.output()] == [1, 1]
    assert harness.side_output(LATE) == [rows[2]]


LATE_ONE = [(1, 0), (2, 1), (3, 0)]


@pytest.mark.parametrize("seed", range(4))
def test_windows_over_the_whole_stream_survive_kills(seed: int) -> None:
    env = Environment()
    whole(env.from_rows([], TIMED, uid="in", timestamp_column="at"))

    assert_exactly_once(env.build(), timed_rows(300), kills=seed, parallelism=1 + seed % 3)


def test_a_processing_time_window_over_the_whole_stream_totals_all_rows() -> None:
    env = Environment()
    rows = [{"key": "a", "value": n} for n in range(10)]
    stream = env.from_rows(rows, VALUES, uid="in")
    windows: ProcessingTimeWindows = processing_time(tumbling(timedelta(days=10_000)))
    stream.window_all(windows).aggregate(total=sum("value"), uid="all").collect(uid="out")

    assert [row["total"] for row in run_local(env.build(), parallelism=2).rows()] == [45]


@pytest.mark.parametrize("parallelism", [1, 2])
def test_rankings_work_in_processing_time_and_whole_stream_windows(parallelism: int) -> None:
    env = Environment()
    rows = [{"key": "abc"[n % 3], "value": n} for n in range(9)]
    stream = env.from_rows(rows, VALUES, uid="in")
    windows = processing_time(tumbling(timedelta(days=10_000)))
    keyed = stream.key_by("key").window(windows).top_n(2, order_by="value", uid="keyed")
    keyed.collect(uid="of-keys")
    stream.window_all(windows).top_n(2, order_by="value", uid="all").collect(uid="of-all")
    timed = env.from_rows(timed_rows(), TIMED, uid="timed", timestamp_column="at")
    timed.window_all(tumbling(minutes=1)).max_by("value", uid="max").collect(uid="of-minutes")

    result = run_local(env.build(), parallelism=parallelism)

    assert sorted(row["value"] for row in result.rows("of-keys")) == [3, 4, 5, 6, 7, 8]
    assert sorted(row["value"] for row in result.rows("of-all")) == [7, 8]
    assert set(result.rows("of-all")[0]) == {"window_start", "key", "value"}
    assert sorted(row["value"] for row in result.rows("of-minutes")) == [59, 119, 179, 199]


def test_an_aggregate_may_have_any_name() -> None:
    env = Environment()
    stream = env.from_rows(timed_rows(), TIMED, uid="in", timestamp_column="at")
    names = {"uid": count(), "self": sum("value"), "a total": sum("value")}
    running = stream.key_by("key").aggregate(names, n=count(), uid="running")
    windowed = stream.key_by("key").window(tumbling(minutes=1))
    per_minute = windowed.aggregate(names, n=count(), uid="minutes")

    assert running.schema.names == ["key", "uid", "self", "a total", "n"]
    assert per_minute.schema.names == ["key", "window_start", "uid", "self", "a total", "n"]
    with pytest.raises(Rejected, match="'twice' names the column 'n' in the mapping and as a"):
        windowed.aggregate({"n": count()}, n=count(), uid="twice")


def test_a_size_is_a_timedelta_or_units() -> None:
    assert tumbling(timedelta(hours=1)) == tumbling(hours=1)
    assert session(timedelta(minutes=2)) == session(minutes=1, seconds=60)
    with pytest.raises(Rejected, match="must be positive"):
        tumbling(timedelta(0))


@pytest.mark.parametrize("windows", EVERY_KIND, ids=str)
def test_a_count_with_a_condition_equals_a_count_of_non_null_values(windows: Windows) -> None:
    rng = random.Random(1)
    rows = [
        {
            "key": rng.choice("ab"),
            "at": BEGIN + rng.randrange(200) * MS,
            "value": None if (is_even := rng.choice([True, False, None])) is not True else 1,
            "is_even": is_even,
        }
        for _ in range(300)
    ]
    env = Environment()
    schema = TIMED.append(pa.field("is_even", pa.bool_()))
    stream = env.from_rows(
        rows, schema, uid="in", timestamp_column="at", out_of_orderness=timedelta(seconds=1)
    )
    windowed = stream.key_by("key").window(windows)
    counts = windowed.aggregate(
        all=count(), some=count(where="is_even"), same=count("value"), uid="n"
    )
    counts.collect(uid="out")

    found = run_local(env.build(), parallelism=2).rows()

    assert [row["some"] for row in found] == [row["same"] for row in found]
    assert (
        0 < builtins.sum(row["some"] for row in found) < builtins.sum(row["all"] for row in found)
    )
