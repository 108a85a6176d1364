"""The driver process: `python -m pipelines.spark.driver RUN_DIR`.

Takes the lease of the run, starts Spark and hosts the job master until the run is over. Ends with
status 0 when the run finished, was stopped or cancelled; 1 when it failed; 3 when somebody else
holds the lease.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

import msgspec

from pipelines.bus.announce import announcer_from_environment
from pipelines.bus.inbox import Inbox
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease, LeaseHeld
from pipelines.domain.errors import Rejected
from pipelines.domain.events import FailureOccurred, JobStatusChanged, RunEnded
from pipelines.domain.ids import Attempt
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.settings import check_parallelism
from pipelines.domain.status import JobStatus
from pipelines.flows.registry import flow
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.job_master import JobMaster
from pipelines.spark.session import open_session
from pipelines.spark.stage import SparkStageHost
from pipelines.storage.filesystem import FileSystemCheckpointStore

EXIT_FAILED = 1
EXIT_LEASE_HELD = 3
STAGE_END_TIMEOUT_S = 10.0

log = logging.getLogger("ftdash.driver")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run one pipeline run until it is over.")
    parser.add_argument("run_directory", type=Path, help="directory that holds run.json")
    directory = RunDirectory(parser.parse_args().run_directory)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        lease = Lease.acquire(directory)
    except LeaseHeld as held:
        log.error("Not started: %s", held)
        return EXIT_LEASE_HELD
    with lease:
        status = _run(directory, lease)
    return EXIT_FAILED if status is JobStatus.FAILED else 0


def _run(directory: RunDirectory, lease: Lease) -> JobStatus:
    clock = SystemClock()
    announce = announcer_from_environment()
    with JournalWriter(directory, directory.run_id, clock, announce) as journal:
        try:
            return _host(directory, lease, journal, clock)
        except Rejected as refusal:
            _record_refusal(journal, str(refusal))
            log.error("The run failed: %s", refusal)
            return JobStatus.FAILED


def _host(
    directory: RunDirectory, lease: Lease, journal: JournalWriter, clock: SystemClock
) -> JobStatus:
    spec = msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
    settings = parse_settings(spec.settings)
    check_parallelism(spec.parallelism, spec.max_parallelism)
    pipeline = flow(spec.pipeline).build(spec.parameters)
    # What a restored or resumed run has read already need not be there any more.
    if spec.restore_from is None and lease.attempts_so_far() == 0:
        for source in pipeline.sources.values():
            source.validate()
    store = FileSystemCheckpointStore([str(directory.path.parent.parent)])
    inbox = Inbox(directory)
    master = JobMaster(spec, directory, pipeline, settings, store, lease, journal, inbox, clock)
    session = open_session(spec.master, f"{spec.pipeline} {spec.run_id}")
    stages = SparkStageHost(session.sparkContext, master.post)
    try:
        return master.run(stages)
    finally:
        stages.wait(STAGE_END_TIMEOUT_S)
        session.stop()


def _record_refusal(journal: JournalWriter, sentence: str) -> None:
    attempt = Attempt(0)
    journal.append(FailureOccurred(cause=sentence), attempt)
    journal.append(JobStatusChanged(status=JobStatus.FAILED, reason=sentence), attempt)
    journal.append(RunEnded(status=JobStatus.FAILED, reason=sentence), attempt)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that Spark and its sockets leave behind must not keep a finished run alive.
    os._exit(status)
