"""Event time assigned after a source that has none: whole runs, compared with plain Python."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.connectors.files.csv import CsvFiles
from pipelines.domain.errors import Rejected
from pipelines.local import run_local
from pipelines.stream import Environment, Pipeline, count, sliding, tumbling
from pipelines.testing import assert_exactly_once

BEGIN_MS = 1_767_225_600_000
NUMBERS = pa.schema([("key", pa.string()), ("at", pa.int64())])
PARSED = pa.schema([("key", pa.string()), ("at", pa.timestamp("s"))])
BOUND_MS = 400


def rows_of(rng: random.Random, number: int = 400) -> list[dict[str, object]]:
    """Returns rows that arrive at most BOUND_MS out of order."""
    times = [BEGIN_MS + 25 * n for n in range(number)]
    times.sort(key=lambda at: at + rng.randint(0, BOUND_MS))
    return [{"key": rng.choice("abc"), "at": at} for at in times]


def per_second(splits: int = 1, idle_after: timedelta | None = None) -> Pipeline:
    env = Environment()
    numbers = env.from_rows([], NUMBERS, uid="numbers", splits=splits)
    assigned = numbers.assign_timestamps(
        "at",
        out_of_orderness=timedelta(milliseconds=BOUND_MS),
        idle_after=idle_after,
        uid="assigned",
    )
    windows = assigned.key_by("key").window(tumbling(seconds=1))
    totals = windows.aggregate(n=count(), uid="windows")
    totals.collect(uid="out")
    totals.side_output("late", uid="late").collect(uid="late-out")
    return env.build()


def counted(rows: list[dict], width_ms: int = 1_000) -> Counter:
    return Counter((row["key"], row["at"] - row["at"] % width_ms) for row in rows)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_windows_over_assigned_timestamps_match_plain_python(seed: int, parallelism: int) -> None:
    rows = rows_of(random.Random(seed))
    env = Environment()
    numbers = env.from_rows(rows, NUMBERS, uid="numbers", splits=1)
    assigned = numbers.assign_timestamps(
        "at", out_of_orderness=timedelta(milliseconds=BOUND_MS), uid="assigned"
    )
    windows = assigned.key_by("key").window(tumbling(seconds=1))
    totals = windows.aggregate(n=count(), uid="windows")
    totals.collect(uid="out")
    totals.side_output("late", uid="late").collect(uid="late-out")

    result = run_local(env.build(), parallelism=parallelism)

    found = {
        (row["key"], round(row["window_start"].timestamp() * 1_000)): row["n"]
        for row in result.rows("out")
    }
    assert found == counted(rows)
    assert result.rows("late-out") == []


@pytest.mark.parametrize("seed", range(6))
def test_assigned_timestamps_survive_kills(seed: int) -> None:
    assert_exactly_once(
        per_second(), rows_of(random.Random(seed)), kills=seed, parallelism=1 + seed % 3
    )


def test_a_text_column_of_a_file_can_become_event_time(tmp_path: Path) -> None:
    text = "".join(f"{'ab'[n % 2]},2026-01-01 00:00:{n:02}\n" for n in range(60))
    (tmp_path / "part.csv").write_text(text)
    schema = pa.schema([("key", pa.string()), ("at", pa.string())])

    def parsed(batch: pa.RecordBatch) -> pa.RecordBatch:
        at = pc.strptime(batch["at"], format="%Y-%m-%d %H:%M:%S", unit="s")
        return pa.RecordBatch.from_arrays([batch["key"], at], schema=PARSED)

    env = Environment()
    lines = env.source(CsvFiles(str(tmp_path), schema=schema), uid="lines")
    timed = lines.map_batches(parsed, PARSED, uid="parsed").assign_timestamps("at", uid="timed")
    windows = timed.key_by("key").window(sliding(timedelta(minutes=1), every=timedelta(minutes=1)))
    windows.aggregate(n=count(), uid="windows").collect(uid="out")

    found = run_local(env.build()).rows("out")

    assert [(row["key"], row["window_start"], row["n"]) for row in found] == [
        (key, datetime(2026, 1, 1, tzinfo=UTC), 30) for key in "ab"
    ]


def test_assigned_timestamps_replace_the_event_time_of_the_source() -> None:
    """In the source's time all records share a window; in the assigned time each has its own."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"key": "a", "received": at, "at": BEGIN_MS + 60_000 * n} for n in range(5)]
    env = Environment()
    stream = env.from_rows(rows, uid="in", timestamp_column="received")
    timed = stream.assign_timestamps("at", uid="timed")
    timed.key_by("key").window(tumbling(minutes=1)).aggregate(n=count(), uid="w").collect(uid="out")

    assert [row["n"] for row in run_local(env.build()).rows("out")] == [1] * 5


def test_impossible_timestamp_arguments_are_refused_by_uid() -> None:
    env = Environment()
    numbers = env.from_rows([], NUMBERS, uid="numbers")

    with pytest.raises(Rejected, match=r"'x' cannot be built: .*'key' is string"):
        numbers.assign_timestamps("key", uid="x")
    with pytest.raises(Rejected, match=r"'y' cannot be built: .* out of order by -1 ms"):
        numbers.assign_timestamps("at", out_of_orderness=timedelta(milliseconds=-1), uid="y")
    with pytest.raises(Rejected, match=r"'z' cannot be built: .* must be positive"):
        numbers.assign_timestamps("at", idle_after=timedelta(0), uid="z")
