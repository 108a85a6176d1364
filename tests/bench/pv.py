"""How fast is a keyed count, exactly once, checkpointed every second, against the machine's limit?

Expected by a sketch: parsing alone is 60 % of the limit program's work here, and counts of 1,000
keys are combined before the exchange, so at least 0.5; with a million keys every record crosses
the exchange and one index lookup more, so at least 0.3.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from pipelines.domain.status import JobStatus
from tests.bench.events import EVENTS, event_files
from tests.bench.limit import limit_records_per_s
from tests.driven_run import started_run

RUN_TIMEOUT_S = 300.0
ROUNDS = {"app_id": 30, "user_id": 12}
"""Times 10 million records: at least ten seconds and ten checkpoints on the reference machine."""


def run_once(
    directory: Path, key: str, rounds: int, interval: str, backend: str = "hashmap"
) -> tuple[float, int]:
    """Records per second from all subtasks running to everything committed; and checkpoints."""
    parameters = {"data": str(directory), "key": key, "repeat": str(rounds)}
    settings = {"execution.checkpointing.interval": interval, "state.backend.type": backend}
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        started_run(Path(root), "page_view_count", parameters, settings=settings) as run,
    ):
        ended = run.wait_until_over(RUN_TIMEOUT_S)
        if ended.status is not JobStatus.FINISHED:
            raise RuntimeError(ended.reason)
        last = run.completed()[-1]
        if last.source_records != rounds * EVENTS:
            raise RuntimeError(f"read {last.source_records} of {rounds * EVENTS} records")
        took_s = (run.envelopes[-1].at_ms - run.running_at_ms()) / 1000.0
        return rounds * EVENTS / took_s, len(run.completed())


def measure(key: str, rounds: int, pairs: int, backend: str) -> dict[str, object]:
    directory = event_files()
    ours, limits, checkpoints = [], [], []
    for pair in range(pairs):
        limits.append(limit_records_per_s(directory, key, rounds))
        rate, count = run_once(directory, key, rounds, "1 s", backend)
        ours.append(rate)
        checkpoints.append(count)
        print(f"pair {pair}: {rate:,.0f} of {limits[-1]:,.0f} records/s", file=sys.stderr)
    ratios = [one / limit for one, limit in zip(ours, limits, strict=True)]
    return {
        "benchmark": "pv",
        "key": key,
        "backend": backend,
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "records_per_s": round(statistics.median(ours)),
        "limit_records_per_s": round(statistics.median(limits)),
        "checkpoints": min(checkpoints),
        "flink_ratio": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", choices=("app_id", "user_id"), default="app_id")
    parser.add_argument("--rounds", type=int, help="times 10 million records")
    parser.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    rounds = options.rounds or ROUNDS[options.key]
    print(json.dumps(measure(options.key, rounds, options.pairs, options.backend)))


if __name__ == "__main__":
    main()
