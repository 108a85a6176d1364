"""How long after it happened is a record in committed output, at half load?

The latency of a record begins when it is due by the pace of its input, even if no reader is there
at that moment. It ends when its file gets the name that readers look for. The checkpoint interval
is subtracted: a record that comes right behind a barrier waits for all of it. So the 99th
percentile is about the time that source, exchanges, checkpoint and commit add. The median is
negative, because most records come later in an interval. Half load is half the rate of the same
pipeline when all records are there at once, which is measured first. Records of the warm-up do not
count, and neither do those of the last interval, because the final checkpoint does not wait.

Expected: about ten fsyncs one after the other, of a few milliseconds each, for the checkpoint and
the prepared file, and up to 20 ms until an idle source looks again: 50 to 100 ms. Slots are plain
processes here, because the benchmark measures the engine, not how Spark starts it.
"""

import math
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from bench.benchmark import Benchmark, Fields, at_most, progress
from bench.whole_run import Measured, run_to_its_end
from pipelines.lab.page_views import COLUMNS, ROW, Rows, apps_of
from pipelines.lab.report import Delivered, delivered, latency
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.views import FILES, SEED

BARS = (at_most("p99_ms", 200),)
INTERVAL_MS = 1_000
STAMP_LAG_S = 2 * time.clock_getres(5)
"""Linux stamps files by CLOCK_REALTIME_COARSE, which may be two ticks behind on a busy machine."""

RECORDS = 3_000_000
SECONDS, WARM_UP_S = 30.0, 5.0
EXACTLY_ONCE = Delivered(lost=0, doubled=0, counted_short=0, counted_over=0)


def main() -> None:
    benchmark = Benchmark("latency", __doc__)
    help_records = "of the run that tells what full load is"
    benchmark.options.add_argument("--records", type=int, default=RECORDS, help=help_records)
    benchmark.options.add_argument("--seconds", type=float, default=SECONDS)
    options = benchmark.options.parse()
    benchmark.report(measure(options.records, options.seconds), BARS)


def measure(
    records: int,
    seconds: float,
    *,
    warm_up_s: float = WARM_UP_S,
    interval_ms: int = INTERVAL_MS,
) -> Fields:
    """Counts the records that are due in `seconds`.

    Raises RuntimeError unless all records came exactly once.
    """
    full, _ = _run(records, 0, interval_ms)
    progress(f"{full.records_per_s:,.0f} records/s at full load")
    rate = int(full.records_per_s / 2)
    total = int(rate * (warm_up_s + seconds + interval_ms / 1000))
    half, rows = _run(total, rate, interval_ms)
    counted = due_within(rows, warm_up_s, warm_up_s + seconds)
    return {
        **added(counted, interval_ms),
        "interval_ms": interval_ms,
        "records_per_s": rate,
        "full_records_per_s": round(full.records_per_s),
        "records": len(counted),
        "seconds": seconds,
        "checkpoints": half.checkpoints,
    }


def added(rows: Rows, interval_ms: int) -> Fields:
    """Returns the latency beyond the interval. Raises RuntimeError if there are no rows."""
    waited = latency(rows)
    if waited is None:
        raise RuntimeError("no record was due in the seconds that count")
    return {
        "p50_ms": round(waited.p50_ms - interval_ms),
        "p99_ms": round(waited.p99_ms - interval_ms),
    }


def due_within(rows: Rows, from_s: float, to_s: float) -> Rows:
    """Returns the rows due in this range of seconds since the first row was due."""
    since_ms = rows["happened_ms"] - rows["happened_ms"].min()
    return rows[(since_ms >= from_s * 1000) & (since_ms < to_s * 1000)]


def visible_rows(directory: Path) -> Rows:
    """Returns the rows of all visible files, each with the time when it could first be seen."""
    parts = [_read(path) for path in sorted(directory.glob("part-*"))]
    return np.concatenate(parts) if parts else np.zeros(0, ROW)


def check_exactly_once(rows: Rows, records: int) -> None:
    came = delivered(rows, apps_of(SEED, np.arange(records)))
    if came != EXACTLY_ONCE:
        raise RuntimeError(f"not exactly once: {came}")


def _read(path: Path) -> Rows:
    """Reads a file; its rows became visible at its ctime, when it got its name."""
    table = pq.read_table(path, columns=list(COLUMNS))
    rows = np.zeros(table.num_rows, ROW)
    for name in COLUMNS:
        rows[name] = table.column(name).to_numpy()
    rows["visible_ms"] = math.ceil(1000 * (path.stat().st_ctime_ns / 1e9 + STAMP_LAG_S))
    return rows


def _run(records: int, rate: int, interval_ms: int) -> tuple[Measured, Rows]:
    """With `rate` 0, all views have happened. Raises RuntimeError if the output is wrong."""
    settings = {"execution.checkpointing.interval": f"{interval_ms} ms"}
    with tempfile.TemporaryDirectory(prefix="ftdash-bench-") as output:
        parameters = {"output": output, "records": str(records), "rate": str(rate)}
        measured = run_to_its_end(records, parameters, settings, _on_processes)
        rows = visible_rows(Path(output) / FILES)
    check_exactly_once(rows, records)
    return measured, rows


def _on_processes(
    root: Path, parameters: dict[str, str], settings: dict[str, str]
) -> AbstractContextManager[StartedRun]:
    spec_fields: dict[str, object] = {"pipeline": "views", "parameters": parameters}
    return hosted_run(root, settings=settings, spec_fields=spec_fields)


if __name__ == "__main__":
    main()
