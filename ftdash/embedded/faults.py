"""SIGKILL from outside, only for the process that the rows name."""

import psutil

from ftdash.jobs.answers import RunView
from pipelines.domain.errors import Rejected

DRIVER_MODULE = "pipelines.spark.driver"


def kill_slot_process(run: RunView, slot: int) -> int:
    """Kill one slot's Python process; returns its process id. Raises Rejected if it is gone."""
    pids = [each.pid for each in run.slots if each.slot == slot]
    if not pids:
        raise Rejected(f"Slot {slot} of run {run.run_id} is not connected.")
    kill(pids[0], f"slot {slot}", "pyspark")
    return pids[0]


def kill_driver(run: RunView) -> int:
    """Kill the driver of a run; returns its process id. Raises Rejected if it is gone."""
    if run.driver_pid is None:
        raise Rejected(f"The driver of run {run.run_id} is not known.")
    kill(run.driver_pid, "the driver", DRIVER_MODULE)
    return run.driver_pid


def kill(pid: int, what: str, command_part: str) -> None:
    """Kills only the expected process: another one may have its id by now."""
    try:
        process = psutil.Process(pid)
        if not any(command_part in part for part in process.cmdline()):
            raise Rejected(f"Process {pid} is not {what}; it is {process.name()}.")
        process.kill()
    except psutil.NoSuchProcess:
        raise Rejected(f"Process {pid}, {what}, is gone already.") from None
