"""The driver process: `python -m pipelines.spark.driver [--redis-on-stdin] RUN_DIR`.

Takes the lease of the run, starts Spark and hosts the job master until the run is over. Exit status
0: the run finished, was stopped or cancelled. 1: it failed. 3: another driver holds the lease, from
the start or since it took the run over. 4: a system that the run needs does not answer, and another
driver may resume the run later.
"""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pipelines.bus.inbox import Inbox
from pipelines.bus.lease import Lease, LeaseHeld, LeaseLost
from pipelines.domain.errors import Retryable
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.packages.store import CodeStore
from pipelines.runtime.master.driving import EXIT_LEASE_HELD, drive, end_at_once
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.master.requests.request_desk import is_cancelled
from pipelines.runtime.networking import driver_networking
from pipelines.spark.stage import SparkStageHost, open_session

EXIT_FAILED = 1
EXIT_AWAY = 4
STAGE_END_TIMEOUT_S = 10.0

log = logging.getLogger("ftdash.driver")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one pipeline run until it is over.")
    parser.add_argument("run_directory", type=Path, help="directory that holds run.json")
    parser.add_argument(
        "--redis-on-stdin",
        action="store_true",
        help="read the address of the Redis to announce to from standard input, up to its end",
    )
    given = parser.parse_args()
    directory = RunDirectory(given.run_directory)
    # It holds a password, so neither the arguments nor the environment may show it.
    redis_url = sys.stdin.read() if given.redis_on_stdin else ""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        lease = Lease.acquire(directory)
    except LeaseHeld as held:
        log.error("Not started: %s", held)
        return EXIT_LEASE_HELD
    try:
        with lease:
            open_stages = partial(spark_stages, directory)
            status = drive(directory, lease, open_stages, end_at_once, redis_url=redis_url)
    except LeaseLost as lost:
        end_at_once(lost)
    except Retryable as away:
        log.error("Not resumed yet: %s", away)
        return EXIT_AWAY
    return EXIT_FAILED if status is JobStatus.FAILED else 0


@contextmanager
def spark_stages(
    directory: RunDirectory, spec: RunSpec, post: Callable[[JobEvent], None]
) -> Iterator[SparkStageHost]:
    """Starts Spark. Sends the run's package, if it was shipped, to every machine with a slot."""
    settings = parse_settings(spec.settings)
    session = open_session(
        spec,
        driver_networking(settings),
        settings.recovery.slot_request_timeout_ms / 1000,
        partial(is_cancelled, Inbox(directory)),
    )
    if spec.code is not None:
        session.sparkContext.addFile(str(CodeStore(directory.jobs_root).file_of(spec.code)))
    stages = SparkStageHost(session, post)
    try:
        yield stages
    finally:
        stages.wait(STAGE_END_TIMEOUT_S)
        session.stop()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that Spark and its sockets leave behind must not keep a finished run alive.
    os._exit(status)
