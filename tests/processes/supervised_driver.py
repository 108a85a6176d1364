"""The driver process of a run without Spark, as the control plane starts one.

`python -m tests.processes.supervised_driver RUN_DIR`
"""

import os
import sys
from pathlib import Path

import msgspec

from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.packages.store import CodeStore
from tests.processes.host import PACKAGES, drive_to_the_end, log_to


def send_code(directory: RunDirectory) -> None:
    """Does what Spark would do: the slots find the package in a directory."""
    spec = msgspec.json.decode(directory.spec_file.read_bytes(), type=RunSpec)
    if spec.code is not None:
        os.environ[PACKAGES] = str(CodeStore(directory.jobs_root).place_of(spec.code))


if __name__ == "__main__":
    directory = RunDirectory(Path(sys.argv[1]))
    log_to(directory)
    send_code(directory)
    drive_to_the_end(directory, sys.stdin.read())
