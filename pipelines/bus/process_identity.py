"""When a process began, on a clock that no one sets: tells it from a later one with its id.

`psutil` gives wall time, which is computed from the time of boot and so moves with every step of
the machine's clock; a living driver would then be taken for dead. Linux counts from the boot.
An id is valid only among processes that see each other, which is what `home` names.
"""

import os
import socket
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_START_FIELD = 19  # of the fields behind the name, which may hold any character


def began_after_boot_s(pid: int) -> float:
    """Seconds, if the system has them; otherwise since the epoch. Raises psutil.NoSuchProcess."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return psutil.Process(pid).create_time()
    except ProcessLookupError as error:
        raise psutil.NoSuchProcess(pid) from error
    ticks = int(status.rpartition(")")[2].split()[_START_FIELD])
    return ticks / os.sysconf("SC_CLK_TCK")


@cache
def home() -> str:
    """This machine's boot and its namespace of process ids: in another one, the same id is another
    process."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()
