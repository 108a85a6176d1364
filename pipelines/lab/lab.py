"""Runs every chosen mode through the same input and the same faults, and reports the results.

Each run of the lab's flow starts from an empty directory. The driver is this process and holds a
lease like any other. A run that does not end in time is cancelled by a request, as a person would
cancel it. Slots are processes of this machine, forked from a server that has everything imported,
so that each starts in milliseconds. A slot works as in production; only Spark's placing of slots is
missing. A stage ends with its first lost slot, or when it is cancelled; its other slots have to end
by themselves.
"""

import logging
import multiprocessing
import os
import platform
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np

from pipelines.bus.inbox import submit
from pipelines.bus.journal import every_envelope
from pipelines.bus.lease import Lease
from pipelines.domain.commands import Cancel
from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointTriggered,
    Envelope,
    JobStatusChanged,
    RunStarted,
    SubtaskAcknowledged,
)
from pipelines.domain.ids import RequestId, RunId
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus
from pipelines.lab import page_views
from pipelines.lab.options import LabMode, LabOptions
from pipelines.lab.page_views import (
    STEPS,
    Numbers,
    apps_of,
    began_ms,
    kill_places,
    reads,
    visible_rows,
)
from pipelines.lab.report import (
    CostRun,
    Facts,
    FaultRun,
    Host,
    LabReport,
    ModeReport,
    TrialFailed,
    broken_promises,
    check_comparable,
    delivered,
    latency,
    read_again,
    views_per_s,
)
from pipelines.runtime.master.driving import drive
from pipelines.runtime.master.job_events import JobEvent, StageEnded
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.slot import run_slot

POLL_S = 0.01

forks = multiprocessing.get_context("forkserver")


class SlotMain(Protocol):
    """The main function of a slot's process; a function of a module, so that it can be pickled."""

    def __call__(self, address: SlotAddress, slot: int, environment: dict[str, str]) -> None: ...


@dataclass(slots=True)
class SlotProcesses:
    """Implements `StageHost`. Calls `environment` for each slot of a stage."""

    post: Callable[[JobEvent], None]
    main: SlotMain
    environment: Callable[[], dict[str, str]] = dict
    _cancelled: dict[int, threading.Event] = field(default_factory=dict)

    def start(self, address: SlotAddress, slot_count: int) -> None:
        slots: list[BaseProcess] = [
            forks.Process(target=self.main, args=(address, slot, self.environment()), daemon=True)
            for slot in range(slot_count)
        ]
        self._cancelled[address.attempt] = threading.Event()
        threading.Thread(target=self._host, args=(address, slots), daemon=True).start()

    def cancel(self, address: SlotAddress) -> None:
        self._cancelled[address.attempt].set()

    def _host(self, address: SlotAddress, slots: list[BaseProcess]) -> None:
        try:
            for slot in slots:
                slot.start()
        except OSError as error:
            problem = f"a slot could not be started: {error}"
        else:
            problem = self._watched(slots, self._cancelled[address.attempt])
        self.post(StageEnded(address.attempt, problem))

    def _watched(self, slots: list[BaseProcess], is_cancelled: threading.Event) -> str:
        """Waits until the stage ends; returns the problem, or an empty text if it ended well."""
        alive = {slot.sentinel: slot for slot in slots}
        problem = ""
        while alive and not problem and not is_cancelled.is_set():
            ended = connection.wait(list(alive), POLL_S)
            for slot in [alive.pop(sentinel) for sentinel in list(alive) if sentinel in ended]:
                slot.join()
                problem = problem or (f"slot ended with {slot.exitcode}" if slot.exitcode else "")
        return problem


START_S = 60.0
SLOWEST_VIEWS_PER_S = 2_000
RECOVERY_S = 15.0
"""The time for a start, the speed of reading and the time for a recovery of a run. A slower run
counts as stuck."""

RESTARTS_MAX = 10
"""The most restarts without a completed checkpoint: only a run that cannot continue gives up."""


def run_trial(root: Path, options: LabOptions, mode: LabMode, *, is_faulted: bool) -> Facts:
    """Runs a mode once in the empty directory `root`.

    With `is_faulted`, the run has the input's rate and the schedule's faults. Raises TrialFailed,
    and Rejected if the run refuses its options.
    """
    places = kill_places(options.seed, options.records, options.faults) if is_faulted else ()
    directory = RunDirectory.of(root / "jobs", page_views.NAME, RunId("lab"))
    output = root / "output"
    output.mkdir(parents=True)
    parameters = _parameters(output, options, mode, places)
    rate = options.rate if is_faulted else 0
    _write_spec(directory, {**parameters, "rate": str(rate)}, options, mode)
    with _cancelled_after(_patience_s(options, is_faulted), directory):
        status = _driven(directory)
    facts = _facts(directory, output)
    check_comparable(facts, status, len(places))
    return facts


def _driven(directory: RunDirectory) -> JobStatus:
    with _logged_to(directory.driver_log), Lease.acquire(directory) as lease:
        return drive(directory, lease, _slot_processes)


@contextmanager
def _slot_processes(spec: RunSpec, post: Callable[[JobEvent], None]) -> Iterator[SlotProcesses]:
    del spec
    yield SlotProcesses(post, _slot_main)


def _slot_main(address: SlotAddress, slot: int, environment: dict[str, str]) -> None:
    del environment
    run_slot(address, slot)
    os._exit(0)


def _parameters(
    output: Path, options: LabOptions, mode: LabMode, places: tuple[int, ...]
) -> dict[str, str]:
    return {
        "directory": str(output),
        "seed": str(options.seed),
        "records": str(options.records),
        "splits": str(options.parallelism),
        "kill_places": " ".join(map(str, places)),
        "is_transactional": "yes" if mode.is_transactional else "no",
    }


def _write_spec(
    directory: RunDirectory, parameters: dict[str, str], options: LabOptions, mode: LabMode
) -> None:
    spec = RunSpec(
        run_id=directory.run_id,
        pipeline=f"{page_views.__name__}:FLOW",  # declared nowhere: only the lab starts it
        parallelism=options.parallelism,
        master="processes",
        parameters=parameters,
        settings={
            **mode.settings,
            "execution.checkpointing.interval": f"{options.interval_ms} ms",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": str(RESTARTS_MAX),
            "restart-strategy.fixed-delay.delay": "0",
        },
    )
    directory.path.mkdir(parents=True)
    directory.spec_file.write_bytes(msgspec.json.encode(spec))


def _patience_s(options: LabOptions, is_faulted: bool) -> float:
    slowest = min(options.rate, SLOWEST_VIEWS_PER_S) if is_faulted else SLOWEST_VIEWS_PER_S
    return START_S + options.records / slowest + RECOVERY_S * options.faults


@contextmanager
def _cancelled_after(patience_s: float, directory: RunDirectory) -> Iterator[None]:
    request = Cancel(
        request_id=RequestId("stuck"),
        requested_by="lab",
        reason=f"It has not ended within {patience_s:.0f} s.",
    )
    timer = threading.Timer(patience_s, submit, (directory, request))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Writes the driver's log to a file, apart from the progress of the lab."""
    handler, root = logging.FileHandler(path), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
        handler.close()


def _facts(directory: RunDirectory, output: Path) -> Facts:
    envelopes = list(every_envelope(directory.journal_file))
    rows, kills = visible_rows(output), page_views.kills(output)
    return Facts(envelopes, rows, reads(output), kills, began_ms(output) if len(rows) else 0)


Say = Callable[[str], None]

BARRIERS = "barriers_sent"
ACKER_IDS = ("acker_inits", "acker_acks", "acker_fails")
ACKER_MESSAGES = "acker_messages"


def run_lab(options: LabOptions, say: Say) -> LabReport:
    """Calls `say` with the progress. Raises TrialFailed, and Rejected if a run is refused."""
    forks.set_forkserver_preload([run_trial.__module__])
    began_s, began_at = time.monotonic(), datetime.now(UTC)
    apps = apps_of(options.seed, np.arange(options.records, dtype=np.int64))
    modes = [_mode_report(options, mode, apps, say) for mode in options.chosen]
    return LabReport(
        began_at=began_at.isoformat(timespec="seconds"),
        took_s=round(time.monotonic() - began_s, 1),
        host=_host(options),
        options=options,
        steps=STEPS,
        kill_places=list(kill_places(options.seed, options.records, options.faults)),
        modes=modes,
    )


def _mode_report(options: LabOptions, mode: LabMode, apps: Numbers, say: Say) -> ModeReport:
    cost = None
    if options.has_cost_run:
        say(f"{mode.name}: undisturbed, at full speed")
        cost = _cost(options, mode, apps, _trial(options, mode, is_faulted=False))
        say(f"{mode.name}: {cost.views_per_s:,.0f} views/s, {cost.control_per_record:.6f} control")
    say(f"{mode.name}: {options.rate:,} views/s and {options.faults} kills")
    facts = _trial(options, mode, is_faulted=True)
    faulted = _faulted(apps, facts)
    say(f"{mode.name}: {faulted.lost:,} lost, {faulted.doubled:,} doubled")
    started = facts.of(RunStarted)[0]
    return ModeReport(
        mode=mode.name,
        promise=started.guarantee,
        reason=started.guarantee_reason,
        faulted=faulted,
        cost=cost,
        broken=broken_promises(started.guarantee, faulted, cost),
    )


def _trial(options: LabOptions, mode: LabMode, *, is_faulted: bool) -> Facts:
    with tempfile.TemporaryDirectory(prefix="ftdash-lab-") as root:
        try:
            return run_trial(Path(root), options, mode, is_faulted=is_faulted)
        except TrialFailed as failure:
            raise TrialFailed(f"{mode.name}: {failure}") from failure


def _faulted(apps: Numbers, facts: Facts) -> FaultRun:
    came, waited = delivered(facts.rows, apps), latency(facts.rows)
    return FaultRun(
        lost=came.lost,
        doubled=came.doubled,
        counted_short=came.counted_short,
        counted_over=came.counted_over,
        killed_at=[view for _, view in facts.kills],
        recovery_ms=[_running_again_ms(facts, at_ms) - at_ms for at_ms, _ in facts.kills],
        read_again=read_again(facts.reads),
        latency_p50_ms=None if waited is None else waited.p50_ms,
        latency_p99_ms=None if waited is None else waited.p99_ms,
    )


def _cost(options: LabOptions, mode: LabMode, apps: Numbers, facts: Facts) -> CostRun:
    came = delivered(facts.rows, apps)
    counted = facts.of(CheckpointCompleted)[-1].counters
    checkpoints = len(facts.of(CheckpointTriggered))
    is_acked = mode.settings["execution.checkpointing.mode"] == "ACKED"
    barriers, ids = _sum(counted, BARRIERS), _sum(counted, *ACKER_IDS)
    return CostRun(
        lost=came.lost,
        doubled=came.doubled,
        views_per_s=round(views_per_s(facts.rows, facts.began_ms), 1),
        checkpoints=checkpoints,
        barriers=barriers,
        barriers_expected=checkpoints * STEPS * options.parallelism**2,
        acknowledgements=len(facts.of(SubtaskAcknowledged)),
        acker_ids=ids,
        acker_ids_expected=(1 + STEPS) * options.records if is_acked else 0,
        acker_messages=_sum(counted, ACKER_MESSAGES),
        control_per_record=(barriers + ids) / options.records,
    )


def _sum(counters: dict[str, int], *names: str) -> int:
    return sum(count for name, count in counters.items() if name.rpartition(".")[2] in names)


def _running_again_ms(facts: Facts, since_ms: int) -> int:
    for envelope in facts.envelopes:
        if envelope.at_ms >= since_ms and _is_running(envelope):
            return envelope.at_ms
    raise TrialFailed("A run that was hit did not run again.")


def _is_running(envelope: Envelope) -> bool:
    event = envelope.event
    return isinstance(event, JobStatusChanged) and event.status is JobStatus.RUNNING


def _host(options: LabOptions) -> Host:
    return Host(
        slots=f"{options.parallelism} processes of one machine, without Spark",
        machine=f"{platform.system()} {platform.machine()}",
        cores=len(os.sched_getaffinity(0)),
        python=platform.python_version(),
    )
