"""The driver process of a run without Spark, as the control plane starts one.

`python -m tests.processes.supervised_driver RUN_DIR`
"""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from unittest.mock import patch

import msgspec

from pipelines.domain.errors import BrokenCode, Rejected
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.flows.finding import find_flow
from pipelines.packages.store import CodeStore
from tests.processes.host import PACKAGES, drive_to_the_end, log_to

STANDARD = (0, 1, 2)


def fork_server_of_slots(spec: RunSpec) -> None:
    """Forks the server of the slots from this process, which has imported everything.

    A server of its own would import all of it again, for seconds at each start of a driver. Call
    it before any thread starts and any file is locked, because the server inherits both.
    """
    if spec.code is None:
        with suppress(Rejected, BrokenCode):  # the driver itself will say so
            find_flow(spec.pipeline)
    resource_tracker.ensure_running()  # it is started in the same way, but as another Python
    with patch.object(forkserver.util, "spawnv_passfds", _forked):  # type: ignore[attr-defined]
        forkserver.ensure_running()


def _forked(path: str, words: list[str], kept: Sequence[int]) -> int:
    """Replaces the start of another Python; `kept` are the server's two file descriptors."""
    if pid := os.fork():
        return pid
    listener, alive = kept
    for descriptor in set(map(int, os.listdir("/proc/self/fd"))) - {*STANDARD, *kept}:
        with suppress(OSError):  # the one by which the directory was read
            os.close(descriptor)  # else the server would hold open the pipe that ends it
    try:
        forkserver.main(listener, alive, [])
    finally:
        os._exit(0)


def send_code(directory: RunDirectory, spec: RunSpec) -> None:
    """Does what Spark would do: the slots find the package in a directory."""
    if spec.code is not None:
        os.environ[PACKAGES] = str(CodeStore(directory.jobs_root).place_of(spec.code))


if __name__ == "__main__":
    directory = RunDirectory(Path(sys.argv[1]))
    spec = msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
    fork_server_of_slots(spec)
    log_to(directory)
    send_code(directory, spec)
    drive_to_the_end(directory, sys.stdin.read())
