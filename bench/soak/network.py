"""Drops packets of some TCP ports of this machine, as when a cable is cut or a line is bad.

Neither end notices: connections stay open, and TCP resends data that was not confirmed. It needs
root and iptables. The comment of a rule has the process id of its owner, so that the next soak can
remove the rules of a killed one.
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
    """Drops this share of the packets to and from these ports.

    Raises Rejected if that is not possible here, or if there are no ports because the process has
    ended.
    """
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
    """Returns why packets cannot be dropped here, or an empty text if they can.

    Removes the rules that a killed soak has left.
    """
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
    """Returns the local ports of all current TCP connections of the process."""
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
