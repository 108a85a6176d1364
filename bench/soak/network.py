"""Lets packets of some TCP ports of this machine vanish, as when a cable is cut or a line is bad.

Neither end hears of it: connections stay open, and TCP sends again what was not confirmed. Needs
root and iptables. A rule carries the process id of its owner in a comment, by which the next soak
removes those of a killed one.
"""

import os
import re
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress

import psutil

from pipelines.domain.errors import Rejected

COMMENT = "ftdash-soak-"
PORTS_MAX = 15  # of one rule


@contextmanager
def lossy(ports: Collection[int], share: float = 1.0) -> Iterator[None]:
    """So much of what goes to or comes from these ports is lost. Raises Rejected if it cannot be
    done here, or there are no ports, as of a process that has ended."""
    if not ports:
        raise Rejected("nothing is cut off: the process has no connections, or has ended")
    with ExitStack() as undo:
        ordered = sorted(ports)
        for begin in range(0, len(ordered), PORTS_MAX):
            rule = _rule(ordered[begin : begin + PORTS_MAX], share)
            _iptables("-I", *rule)
            undo.callback(_iptables, "-D", *rule)
        yield


def why_not() -> str:
    """Empty: packets can be lost here. Removes what a killed soak has left."""
    try:
        for rule in _iptables("-S", "INPUT").splitlines():
            owner = re.search(rf"{COMMENT}(\d+)", rule)
            if owner is not None and not psutil.pid_exists(int(owner[1])):
                _iptables("-D", *rule.split()[1:])
        with lossy([1], 0.5):
            return ""
    except Rejected as why:
        return str(why)


def ports_in_use(process: psutil.Process) -> set[int]:
    """All at which the process hears others now."""
    with suppress(psutil.NoSuchProcess):
        return {each.laddr.port for each in process.net_connections("tcp") if each.laddr}
    return set()


def _rule(ports: Collection[int], share: float) -> list[str]:
    words = ["INPUT", "-i", "lo", "-p", "tcp", "-m", "multiport", "--ports"]
    words += [",".join(map(str, ports)), "-m", "comment", "--comment"]
    words.append(f"{COMMENT}{os.getpid()}")
    if share < 1:
        words += ["-m", "statistic", "--mode", "random", "--probability", str(share)]
    return [*words, "-j", "DROP"]


def _iptables(*words: str) -> str:
    try:
        done = subprocess.run(["iptables", "-w", *words], capture_output=True, text=True)
    except OSError as error:
        raise Rejected(f"lost packets need iptables; install it: {error}") from error
    if done.returncode:
        raise Rejected(f"lost packets need root and iptables: {done.stderr.strip()}")
    return done.stdout
