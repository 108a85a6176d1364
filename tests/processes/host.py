"""Hosts a run without Spark: a driver process whose slots are plain processes.

All are forked from one server that has imported everything, so each starts in milliseconds. The
code of driver and slot is the real one; only Spark's placing and killing of slots is missing.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil

from pipelines.bus import lease as lease_module
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease, LeaseHeld, LeaseLost
from pipelines.domain.events import SlotConnected
from pipelines.domain.faults import PERMISSION
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus
from pipelines.flows.finding import modules_of_flows
from pipelines.lab.lab import SlotProcesses, forks
from pipelines.runtime.master.driving import EXIT_LEASE_HELD, drive, end_at_once
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.slot import run_slot
from tests.driven_run import StartedRun
from tests.emulated_network import enter_machine
from tests.own_flows import declare

OWN = {
    "numbers": "tests.processes.numbers",
    "numbers_tables": "tests.processes.tables",
    "numbers_rows": "tests.processes.rows",
    "relay": "tests.processes.relay",
    "scripted": "tests.processes.scripted",
    "diamond": "tests.processes.diamond",
    "published": "tests.processes.published",
    "silent": "tests.processes.silent",
    "numbers_again": "tests.processes.numbers",  # another pipeline with the same uids
    "numbers_held": "tests.processes.held_restores",
    "numbers_mixed": "tests.processes.mixed",
    "shared_lists": "tests.processes.shared_lists",
    "sleepy": "tests.processes.sleepy",
    "growing": "tests.processes.growing",
    "secretive": "tests.processes.secretive",
    "environments": "tests.processes.environments",
    "timed": "tests.processes.timed",
    "poisoned": "tests.processes.poisoned",
    "dead_letters": "tests.processes.dead_letters",
    "malformed": "tests.processes.malformed",
    "forgetful": "tests.processes.forgetful",
    "ends": "tests.processes.ends",
    "asking": "tests.processes.asking",
    "event_times": "tests.processes.event_times",
    "views": "tests.processes.views",
    "wide_rows": "tests.processes.wide_rows",
    "small_records": "tests.processes.small_records",
}
"""The pipelines that tests use, and their modules."""

for _name, _module in OWN.items():
    declare(_name, _module)
PRELOADED = ["pytest", "tests.processes.host", *modules_of_flows(), "pandas"]
HURRY = "hurry"
STALL = "stall"
"""A file with a number: the driver's next journal line takes so many seconds longer."""

ELSEWHERE = "FTDASH_TEST_ELSEWHERE"
"""Environment variable: the driver acts as if on the machine of this name.

No process id of that machine means anything here.
"""

PACKAGES = "FTDASH_TEST_PACKAGES"
"""Environment variable of a driver: the directory of the package that Spark would send to slots."""

EXIT_FAILED = 1
SLOT_ENDS_S = 30.0

forks.set_forkserver_preload(PRELOADED)


@contextmanager
def plain_stages(spec: RunSpec, post: Callable[[JobEvent], None]) -> Iterator[SlotProcesses]:
    del spec
    yield SlotProcesses(post, _slot_main, lambda: dict(os.environ))


class DriverProcess:
    """Offers for a forked driver what `StartedRun` needs of its driver."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


@contextmanager
def hosted_run(
    root: Path,
    parameters: dict[str, str] | None = None,
    *,
    settings: dict[str, str] | None = None,
    parallelism: int = 2,
    run_id: RunId | None = None,
    restore_from: str | None = None,
    spec_fields: dict[str, object] | None = None,
    allows_faults: bool = True,
    environment: dict[str, str] | None = None,
) -> Iterator[StartedRun]:
    """Hosts the flow `numbers` in a run of its own, or another driver for the run `run_id`.

    `spec_fields` has further fields of the run's specification. A paced run continues at full speed
    once `hurry` is called.
    """
    spec_fields = spec_fields or {}
    pipeline = str(spec_fields.get("pipeline", "numbers"))
    directory = RunDirectory.of(root, pipeline, run_id or RunId(f"run-{uuid.uuid4().hex[:12]}"))
    if not directory.spec_file.exists():
        directory.path.mkdir(parents=True, exist_ok=True)
        values: dict[str, object] = {
            "run_id": directory.run_id,
            "pipeline": pipeline,
            "parallelism": parallelism,
            "master": "processes",
            "parameters": {**_places_in(root, pipeline), **(parameters or {})},
            "settings": settings or {},
            "restore_from": restore_from,
            "first_checkpoint_id": CheckpointId(1),
        }
        spec = RunSpec(**{**values, **spec_fields})  # type: ignore[arg-type]
        directory.spec_file.write_bytes(msgspec.json.encode(spec))
    variables = {PERMISSION: str(int(allows_faults)), **(environment or {})}
    process = forks.Process(target=_driver_main, args=(str(directory.path), variables))
    process.start()
    run = StartedRun(directory, DriverProcess(process))  # type: ignore[arg-type]
    try:
        yield run
    finally:
        if process.is_alive():  # else its id may be another's: the fork server has waited for it
            process.kill()
        process.join()
        _end_slots(run)


def _end_slots(run: StartedRun) -> None:
    """Kills the slots, which would end by themselves soon after their driver.

    Until then they write into the test's directories, which are about to be deleted.
    """
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    slots = []
    for envelope in run.of(SlotConnected):
        event = envelope.event
        with suppress(psutil.NoSuchProcess):
            if isinstance(event, SlotConnected) and psutil.Process(event.pid).ppid() == server:
                slots.append(psutil.Process(event.pid))
    for slot in slots:
        with suppress(psutil.NoSuchProcess):
            slot.kill()
    _, alive = psutil.wait_procs(slots, timeout=SLOT_ENDS_S)
    if alive:
        raise TimeoutError(f"slots outlive SIGKILL by {SLOT_ENDS_S} s: {alive}")


def hurry(root: Path) -> None:
    """From now on, runs of the flow `numbers` in `root` find something to read at any time."""
    (root / HURRY).touch()


def _places_in(root: Path, pipeline: str) -> dict[str, str]:
    output = {"output": str(root / "output")}
    return output | ({"hurry": str(root / HURRY)} if pipeline.startswith("numbers") else {})


def _driver_main(path: str, environment: dict[str, str]) -> None:
    directory = RunDirectory(Path(path))
    log_to(directory)
    # Slots come from the server that forked this process; without this, it would start one.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    os.environ.update(environment)
    enter_machine(0)
    _let_disk_stall(directory.jobs_root)
    if ELSEWHERE in os.environ:
        lease_module.home = lambda: os.environ[ELSEWHERE]
    drive_to_the_end(directory)


def drive_to_the_end(directory: RunDirectory, redis_url: str = "") -> NoReturn:
    """Drives the run to its end, and ends this process."""
    try:
        with Lease.acquire(directory) as lease:
            status = drive(directory, lease, plain_stages, end_at_once, redis_url=redis_url)
    except LeaseLost as lost:
        end_at_once(lost)
    except LeaseHeld as held:
        logging.error("Stopped: %s", held)
        os._exit(EXIT_LEASE_HELD)
    os._exit(EXIT_FAILED if status is JobStatus.FAILED else 0)


def _let_disk_stall(root: Path) -> None:
    write = JournalWriter._write

    def write_slowly(journal: JournalWriter, line: bytes, *, is_decisive: bool) -> None:
        with suppress(FileNotFoundError):
            stall_s = float((root / STALL).read_text())
            (root / STALL).unlink()
            time.sleep(stall_s)
        write(journal, line, is_decisive=is_decisive)

    JournalWriter._write = write_slowly  # type: ignore[method-assign]


def _slot_main(address: SlotAddress, slot: int, environment: dict[str, str]) -> None:
    os.environ.update(environment)  # a slot has its driver's environment, as under Spark
    enter_machine(1 + slot)
    packages = os.environ.get(PACKAGES)
    run_slot(address, slot, Path(packages) if packages else None)
    os._exit(0)


def log_to(directory: RunDirectory) -> None:
    log = os.open(directory.driver_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
