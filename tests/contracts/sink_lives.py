"""Lives of a `Host` that end by SIGKILL, each in a process of its own.

As a program, this file forks one process for every line that it reads, because importing what a
sink needs takes longer than the life itself. It opens no file or connection before the fork.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pipelines.domain.ids import RunId
from tests.contracts.sink_host import Host, Seam
from tests.contracts.sink_targets import KINDS, PIPELINE

ROOT = Path(__file__).parents[2]


class Lives:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def live(self, kind: str, home: Path, run_id: RunId, seam: Seam, *, dies_at: int = 2) -> int:
        """Returns the exit code of a process that dies at `seam`: -9 if it was killed there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, str(home), run_id, seam, dies_at]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def lives() -> Iterator[Lives]:
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        yield Lives(process)
    finally:
        process.kill()
        process.communicate()


def main() -> None:
    pa.array([])  # imports pandas, in which each life would otherwise spend most of its time
    for line in sys.stdin:
        child = os.fork()
        if not child:
            live(*json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def live(kind: str, home: str, run_id: str, seam: str, dies_at: int) -> None:
    """Runs the life and exits the process; never returns."""
    try:
        sink = KINDS[kind].sink(Path(home), PIPELINE)
        host = Host(Path(home), sink, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
        host.live(RunId(run_id), seam=Seam(seam), dies_at=dies_at)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
