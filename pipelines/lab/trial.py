"""Runs the lab's flow once, from an empty directory to its end, and collects the facts.

The driver is this process and holds a lease like any other; slots are processes of their own. A run
that does not end in time is cancelled by a request, as a person would cancel it.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pipelines.bus.inbox import submit
from pipelines.bus.journal_reading import every_envelope
from pipelines.bus.lease import Lease
from pipelines.domain.commands import Cancel
from pipelines.domain.ids import RequestId, RunId
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.status import JobStatus
from pipelines.flows.registry import FLOWS
from pipelines.lab import page_views
from pipelines.lab.measures import Facts, check_comparable
from pipelines.lab.options import LabMode, LabOptions
from pipelines.lab.slot_processes import SlotProcesses
from pipelines.lab.view_input import began_ms, kill_places, reads
from pipelines.lab.view_log import visible_rows
from pipelines.runtime.master.driving import drive
from pipelines.runtime.master.job_events import JobEvent
from pipelines.runtime.networking import SlotAddress
from pipelines.runtime.slot.slot import run_slot

START_S = 60.0
SLOWEST_VIEWS_PER_S = 2_000
RECOVERY_S = 15.0
"""A run may take this much for each of its parts before it counts as stuck."""

RESTARTS_MAX = 10
"""Without a completed checkpoint in between: only a run that cannot go on gives up."""


def run_trial(root: Path, options: LabOptions, mode: LabMode, *, is_faulted: bool) -> Facts:
    """`root` is empty. `is_faulted`: at the input's rate, and with the schedule's faults.

    Raises TrialFailed, and Rejected for what a run refuses.
    """
    _offer_flow()
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
    _offer_flow()
    run_slot(address, slot)
    os._exit(0)


def _offer_flow() -> None:
    """Registers the flow in the lab's own processes; no other process can start it."""
    FLOWS[page_views.NAME] = page_views.__name__


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
        pipeline=page_views.NAME,
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
    """The driver's log is no progress of the lab."""
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
