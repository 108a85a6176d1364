"""Runs the soak: pipelines, their input, the faults, the checker and the meter, side by side.

Django has to be loaded in the environment of a separate installation.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import psutil
from django.urls import reverse

from bench.benchmark import progress
from bench.drill.staging import (
    CHECKPOINTS_BEFORE,
    PARALLELISM,
    ROOT,
    STARTED_WITHIN_S,
    Installation,
    Servers,
    Staged,
    end,
    installation,
    small_disk,
)
from bench.soak import changes, disks, faults, flow
from bench.soak.ends import Line, line_of
from bench.soak.fault_context import WHO
from bench.soak.measuring import PARTS, Meter, recoveries_ms
from bench.soak.schedule import Fault, Planned, lasting_at_most, schedule
from bench.soak.slopes import JUDGED_FROM_S, Sample
from ftdash.embedded.check import DashboardClient
from ftdash.embedded.supervisor import LEDGER_NAME, living, wait_until
from ftdash.requests import services
from pipelines.domain.errors import Rejected
from pipelines.state.on_disk.sorted_files import remove_abandoned
from tests.own_flows import declare

FEED_EVERY_S = 0.5
LOOK_EVERY_S = 2.0
LOOK_SHARE = 3  # a look may take a quarter of the time
MEASURE_EVERY_S, UNJUDGED_EVERY_S = 5.0, 15.0
"""How often the soak measures; less often if it is too short to judge growth."""

LONGER = 10  # at most, until enough kinds have come
SPARK = "Spark"
"""The entry of what is left out, if drivers host their slots themselves."""

MEMORY = "state.backend.rocksdb.memory.fixed-per-slot"
LOCAL = "state.backend.rocksdb.localdir"
SETTINGS = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.timeout": "10 s",
    "execution.checkpointing.tolerable-failed-checkpoints": "1000",
    "execution.checkpointing.incremental": "true",
    "state.backend.type": "rocksdb",
    MEMORY: "32 mb",
    "heartbeat.interval": "500 ms",
    "heartbeat.timeout": "5 s",
    "restart-strategy.exponential-delay.max-backoff": "2 s",
}
"""With little memory for RocksDB, the block cache of a slot is full after a few minutes. With the
default it fills for half an hour, and the slope of that would hide a leak."""

OF_LARGE_STATE = {"execution.checkpointing.timeout": "2 min", MEMORY: "256 mb"}
"""Settings of the pipeline with a gigabyte of state: a savepoint holds all of it."""

ENDS_WITHIN_S = 30.0
"""How long the processes of a run may live after it has ended."""

DATABASES = "databases"
"""The directory in the home where all slots keep their RocksDB databases."""

NEEDS = dict.fromkeys((flow.KAFKA_POSTGRES, *flow.TO_KAFKA), "kafka")
"""The server that a pipeline cannot do without."""

Check = Callable[[], None]


@dataclass(slots=True)
class Soaked:
    """The results of a soak.

    `ended` are the runs that ended unasked, with their reasons. `unfinished` are the pipelines
    whose output was not complete in time after the last fault. `left_processes` are the drivers and
    slots that outlive their run, and `left_directories` those of dead slots that their next
    neighbour does not remove.
    """

    planned: tuple[Planned, ...] = ()
    lines: list[Line] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    left_processes: list[str] = field(default_factory=list)
    left_directories: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    recoveries_ms: list[float] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    is_interrupted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Faults come for `seconds`, and longer until at least `kinds_least` kinds have come."""

    seconds: float
    kinds_least: int = 0

    @property
    def seconds_most(self) -> float:
        return self.seconds * (LONGER if self.kinds_least else 1)

    def is_over(self, elapsed_s: float, kinds: int) -> bool:
        return elapsed_s >= self.seconds and kinds >= self.kinds_least

    @property
    def measure_every_s(self) -> float:
        return MEASURE_EVERY_S if self.seconds >= JUDGED_FROM_S else UNJUDGED_EVERY_S


def soak(
    home: Path,
    soaked: Soaked,
    chosen: Sequence[str],
    kinds: Collection[str],
    seed: int,
    length: Length,
) -> None:
    """Fills `soaked` as it runs, so that there are results even if it ends early.

    `chosen` are the pipelines; only the `kinds` of faults come.
    """
    declare(flow.FLOW.name, "bench.soak.flow")
    needs = {"redis", "postgres", *(NEEDS[name] for name in chosen if name in NEEDS)}
    needs |= {"objects"} if faults.IN_OBJECTS in chosen else set()
    with installation(home, needs) as site, ExitStack() as stack:
        names = _possible(chosen, site.servers, soaked.left_out)
        has_spark = SPARK not in soaked.left_out
        targets = faults.targets(names, site.servers, soaked.left_out, has_spark=has_spark)
        fitting = lasting_at_most(length.seconds, kinds)
        of_kinds = {fault: targets[fault] for fault in fitting if fault in targets}
        soaked.planned = schedule(seed, length.seconds_most, of_kinds)
        places = home / ROOT
        soaked.lines = [_line(name, places, site.servers) for name in names]
        staged = {
            line.name: stack.enter_context(_running(site, line, soaked.left_out))
            for line in soaked.lines
        }
        with _beside(soaked, site, length.measure_every_s) as (check, stop_feeding):
            try:
                _wait_all(staged, soaked)
                _act(soaked, staged, seed, length, check)
                stop_feeding()
                _wait_whole(soaked, staged, check)
                if not soaked.unfinished:
                    soaked.left_processes = processes_left(home)
            except KeyboardInterrupt:
                soaked.is_interrupted = True
        soaked.recoveries_ms = recoveries_ms()


def processes_left(home: Path) -> list[str]:
    """Call once all runs have ended; their processes have a while to end too."""

    def found() -> list[str]:
        return [text for each in living(home / LEDGER_NAME) if (text := _of_a_run(each, home))]

    with suppress(Rejected):
        wait_until(lambda: not found(), within_s=ENDS_WITHIN_S, otherwise=lambda: "some stay")
    return found()


def _of_a_run(process: psutil.Process, home: Path) -> str:
    """Returns the id of the process and its run's directory, or nothing for another process."""
    with suppress(psutil.NoSuchProcess):
        for word in process.cmdline():
            if word.startswith(f"{home}/jobs/"):
                return f"{process.pid} {word}"
    return ""


def directories_left(home: Path) -> list[str]:
    """Call once all processes have ended: then one neighbour removes every slot's directory."""
    remove_abandoned(home / DATABASES)
    return sorted(each.name for each in (home / DATABASES).glob("*"))


def _possible(chosen: Sequence[str], servers: Servers, left_out: dict[str, str]) -> list[str]:
    found = []
    for name in chosen:
        missing = servers.missing.get(NEEDS.get(name, ""))
        if missing is None:
            found.append(name)
        else:
            left_out[name] = missing
    return found


def _line(name: str, places: Path, servers: Servers) -> Line:
    if servers.kafka is not None and NEEDS.get(name) == "kafka":
        servers.kafka.create_topic(name, partitions=2)
    line = line_of(name, places, servers)
    line.feed_next()  # a pipeline is refused while its stream does not exist
    while name == changes.LARGE and line.fed < flow.DOCUMENTS:  # its state then stays that large
        line.feed_next()
    return line


def settings_of(pipeline: str) -> dict[str, str]:
    of_size = OF_LARGE_STATE if pipeline == changes.LARGE else {}
    of_poisoned = changes.OF_POISONED if pipeline in faults.FROM_REDIS else {}
    return {**SETTINGS, **of_size, **of_poisoned}


@contextmanager
def _running(site: Installation, line: Line, left_out: dict[str, str]) -> Iterator[Staged]:
    staged = Staged(line.name, line.place, site)
    has_disk = line.name == disks.ON_DISK and Fault.DISK_FULL not in left_out
    where = faults.checkpoints_of(line.name, line.place, site.servers, left_out)
    with small_disk(line.place / disks.DISK if has_disk else None):
        services.submit_pipeline(
            name=line.name,
            flow=flow.FLOW.name,
            requester=WHO,
            reason="the soak",
            parallelism=PARALLELISM,
            parameters={"kind": line.kind, "place": str(line.place), flow.VERSION: "1"},
            settings={**settings_of(line.name), **where, LOCAL: str(site.home / DATABASES)},
            allows_faults=True,
        )
        try:
            yield staged
        finally:
            end(staged)


def _wait_all(staged: dict[str, Staged], soaked: Soaked) -> None:
    for each in staged.values():
        each.wait(
            lambda run: (
                run.is_terminal
                or (run.status == "RUNNING" and (run.last_checkpoint_id or 0) >= CHECKPOINTS_BEFORE)
            )
        )
        _keep_going(each, soaked)


def _keep_going(staged: Staged, soaked: Soaked) -> None:
    if ended := changes.go_on(staged):
        soaked.ended.append(ended)
        progress(ended)


def _act(
    soaked: Soaked, staged: dict[str, Staged], seed: int, length: Length, check: Check
) -> None:
    """Causes the planned faults. One that is late, because an earlier one took long, comes at once.

    No fault comes after the end.
    """
    began_s = time.monotonic()

    def is_over() -> bool:
        return length.is_over(time.monotonic() - began_s, len(soaked.done))

    try:
        for planned in soaked.planned:
            _wait_for(began_s + planned.at_s, is_over, check)
            if is_over():
                return
            cause(soaked, planned, staged[planned.target], seed)
            check()
            seen = sum(len(line.checker.seen) for line in soaked.lines)
            progress(f"{time.monotonic() - began_s:7.1f} s: {seen} rows are checked")
        _wait_for(began_s + length.seconds, is_over, check)
    finally:  # also when a person ends it
        soaked.seconds = round(time.monotonic() - began_s, 1)


def _wait_for(at_s: float, is_over: Callable[[], bool], check: Check) -> None:
    while (wait_s := at_s - time.monotonic()) > 0 and not is_over():
        time.sleep(min(wait_s, 0.5))
        check()


def cause(soaked: Soaked, planned: Planned, staged: Staged, seed: int) -> None:
    """Causes the fault, and notes that it was done, or why it could not be."""
    what = f"{planned.fault} of {planned.target} for {planned.length_s} s"
    began_s = time.monotonic()
    try:
        _keep_going(staged, soaked)
        (line,) = (each for each in soaked.lines if each.name == planned.target)
        with line.rewound() if planned.fault is Fault.CHECKPOINT_DAMAGED else nullcontext():
            faults.do(planned, staged, seed)
        soaked.done[planned.fault] += 1
        progress(f"{what}: done in {time.monotonic() - began_s:.1f} s")
    except (Rejected, psutil.NoSuchProcess, FileNotFoundError) as why:
        # A process may end, or a file be deleted, just before its fault.
        soaked.refused.append(f"{what}: {why}")
        progress(f"{what}: not done: {why}")


def _wait_whole(soaked: Soaked, staged: dict[str, Staged], check: Check) -> None:
    """Waits after the last fault until the output of all numbers has come, and compares it."""
    for line in soaked.lines:  # part of the batch that was going in may be there
        wait_until(
            line.feed_next, within_s=STARTED_WITHIN_S, otherwise=lambda: "no end takes input"
        )

    def is_whole(line: Line) -> bool:
        check()
        return line.checker.has_all(line.fed)

    for line in soaked.lines:
        try:
            _keep_going(staged[line.name], soaked)
            _end_line(line, staged[line.name], lambda line=line: is_whole(line))  # type: ignore[misc]
        except Rejected as why:
            soaked.unfinished.append(str(why))
            progress(str(why))


def _end_line(line: Line, staged: Staged, is_whole: Callable[[], bool]) -> None:
    wait_until(
        is_whole,
        within_s=STARTED_WITHIN_S,
        otherwise=lambda: f"{line.name}: not all of {line.fed} numbers came out in time",
    )
    # After two more checkpoints, the output of the last numbers is committed.
    staged.wait_runs(2)
    changes.drained(staged)
    line.look()
    line.checker.end(line.fed)
    progress(f"{line.name}: {len(line.checker.seen)} rows of {line.fed} numbers are compared")


@contextmanager
def _beside(
    soaked: Soaked, site: Installation, measure_every_s: float
) -> Iterator[tuple[Check, Callable[[], None]]]:
    """Feeds, looks, measures and reads pages in threads until the block ends.

    Yields a check, and a function that stops the feeding. The check raises the error of a thread
    that failed, and restarts processes that died.
    """
    is_over, is_fed, meter = Event(), Event(), Meter(site.home, site.supervisor)

    def feed() -> None:
        while not is_fed.wait(FEED_EVERY_S):
            for line in soaked.lines:
                line.feed_next()

    def look() -> None:
        pause_s = LOOK_EVERY_S
        while not is_over.wait(pause_s):
            began_s = time.monotonic()
            for line in soaked.lines:
                line.look()
            pause_s = max(LOOK_EVERY_S, LOOK_SHARE * (time.monotonic() - began_s))

    def measure() -> None:
        while not is_over.wait(measure_every_s):
            soaked.samples.append(meter.sample())
            with suppress(Rejected):  # a busy web server, which is restarted if it has died
                for page in pages:
                    visitor.read(page)
        meter.close()

    pages = ["/", *(reverse("pipeline", args=[line.name]) for line in soaked.lines)]
    with DashboardClient(site.address) as visitor, ThreadPoolExecutor(3) as threads:
        visitor.sign_in(site.admin)
        feeding = threads.submit(feed)
        beside: list[Future[None]] = [feeding, threads.submit(look), threads.submit(measure)]

        def check() -> None:
            for each in beside:
                if each.done():
                    each.result()
            for part in PARTS:
                pid = site.supervisor.pid_of(part)
                if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                    soaked.ended.append(f"the {part} ended by itself")
            site.supervisor.revive()

        def stop_feeding() -> None:
            is_fed.set()
            feeding.result()

        try:
            yield check, stop_feeding
        finally:
            is_fed.set()
            is_over.set()
