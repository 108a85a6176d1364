"""Finds the slot that a fault has stopped at a named point, and waits for processes to end."""

import time

import psutil

from pipelines.domain.events import SlotConnected
from tests.driven_run import StartedRun

POLL_S = 0.005


def stopped_slot(run: StartedRun, slot: int, *, attempt: int, within_s: float) -> psutil.Process:
    run.wait_for(lambda _: slot in pids_of(run, attempt), within_s)
    process = psutil.Process(pids_of(run, attempt)[slot])
    wait_until_stopped(process, within_s)
    return process


def pids_of(run: StartedRun, attempt: int) -> dict[int, int]:
    """{slot: pid}"""
    connected = [e.event for e in run.of(SlotConnected) if e.attempt == attempt]
    return {e.slot: e.pid for e in connected if isinstance(e, SlotConnected)}


def wait_until_stopped(process: psutil.Process, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while process.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline, f"{process} does not stop"
        time.sleep(POLL_S)


def wait_until_gone(process: psutil.Process, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while _is_alive(process):
        assert time.monotonic() < deadline, f"{process} lives on"
        time.sleep(POLL_S)


def _is_alive(process: psutil.Process) -> bool:
    """Returns False for a zombie, whose parent may not have collected its exit status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
