"""Compares the output of `flight_delays` with the result of a plain Spark SQL batch query.

Shares no code with the engine. `python -m pipelines.spark.flight_oracle DATA FILES SQLITE OUT`:
the prepared input, the directory of Parquet output, the SQLite file, and the file for the verdict.
"""

import argparse
import json
import math
import sqlite3
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

QUERY = """
SELECT f.carrier, date_trunc('HOUR', f.time_hour) AS window_start, count(*) AS flights,
       avg(f.dep_delay) AS mean_dep_delay, max(f.dep_delay) AS max_dep_delay,
       avg(w.wind_speed) AS mean_wind_speed, avg(w.visib) AS mean_visib
FROM flights f JOIN weather w ON f.origin = w.origin AND f.time_hour = w.time_hour
WHERE f.dep_delay IS NOT NULL
GROUP BY f.carrier, date_trunc('HOUR', f.time_hour)
"""
VALUES = ("flights", "mean_dep_delay", "max_dep_delay", "mean_wind_speed", "mean_visib")
RELATIVE_TOLERANCE = 1e-9
SAMPLES = 5

Key = tuple[str, int]  # carrier; window start in seconds since the epoch
Row = tuple[float | None, ...]


@dataclass(slots=True)
class Comparison:
    rows: int = 0
    missing: int = 0
    duplicated: int = 0
    different: int = 0
    sample_differences: list[str] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("files", type=Path)
    parser.add_argument("sqlite", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    session = _session()
    found = verdict(session, options.data, options.files, options.sqlite)
    session.stop()
    options.out.write_text(json.dumps(found))


def verdict(session: SparkSession, data: Path, files: Path, sqlite: Path) -> dict[str, Any]:
    """Returns plain values: the expected number of rows, and a `Comparison` for each output."""
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for name in ("flights", "weather"):
        session.read.parquet(str(data / name)).createOrReplaceTempView(name)
    expected = dict(_rows(session.sql(QUERY)))
    return {
        "rows_expected": len(expected),
        "files": asdict(_compare(expected, _file_rows(session, files))),
        "sql": asdict(_compare(expected, _sql_rows(sqlite))),
    }


def _session() -> SparkSession:
    builder = SparkSession.builder.master("local[2]").appName("flight oracle")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _rows(frame: DataFrame) -> list[tuple[Key, Row]]:
    columns = ["carrier", "unix_timestamp(window_start) AS start", *VALUES]
    return [((r[0], int(r[1])), tuple(r[2:])) for r in frame.selectExpr(*columns).collect()]


def _file_rows(session: SparkSession, directory: Path) -> list[tuple[Key, Row]]:
    """Reads only committed files: names with a leading dot or underscore are not output."""
    finals = [str(p) for p in directory.glob("*.parquet") if not p.name.startswith((".", "_"))]
    return _rows(session.read.parquet(*finals)) if finals else []


def _sql_rows(path: Path) -> list[tuple[Key, Row]]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        query = f"SELECT carrier, window_start, {', '.join(VALUES)} FROM flight_delays"
        found = connection.execute(query).fetchall()
    return [((row[0], _seconds(row[1])), tuple(row[2:])) for row in found]


def _seconds(stored: str) -> int:
    """Parses a time of SQLite, which stores times as text, in UTC."""
    moment = datetime.fromisoformat(stored)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _compare(expected: dict[Key, Row], found: list[tuple[Key, Row]]) -> Comparison:
    counts = Counter(key for key, _ in found)
    result = Comparison(rows=len(found))
    result.missing = len(expected.keys() - counts.keys())
    result.duplicated = sum(count - 1 for count in counts.values())
    for key, row in found:
        if key not in expected or not _same(expected[key], row):
            result.different += 1
            if len(result.sample_differences) < SAMPLES:
                result.sample_differences.append(f"{key}: {row}, not {expected.get(key)}")
    return result


def _same(expected: Row, found: Row) -> bool:
    return all(_close(a, b) for a, b in zip(expected, found, strict=True))


def _close(expected: float | None, found: float | None) -> bool:
    if expected is None or found is None:
        return expected is found
    return math.isclose(expected, found, rel_tol=RELATIVE_TOLERANCE)


if __name__ == "__main__":
    main()
