"""When a process began, on a clock that nobody sets: what tells it from a later one of its id.

`psutil` gives wall time, which is computed from the time of boot and so moves with every step of
the machine's clock; a living driver would then be taken for dead. Linux counts from the boot.
"""

import os
from pathlib import Path

import psutil

_START_FIELD = 19  # of those behind the name, which may hold anything


def began_after_boot_s(pid: int) -> float:
    """Seconds, where the system tells; elsewhere since the epoch. Raises psutil.NoSuchProcess."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return psutil.Process(pid).create_time()
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    ticks = int(status.rpartition(")")[2].split()[_START_FIELD])
    return ticks / os.sysconf("SC_CLK_TCK")
