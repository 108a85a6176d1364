"""The driver process of a run without Spark, as the control plane starts one.

`python -m tests.processes.supervised_driver RUN_DIR`
"""

import sys
from pathlib import Path

from pipelines.domain.run import RunDirectory
from tests.processes.host import drive_to_the_end, log_to

if __name__ == "__main__":
    directory = RunDirectory(Path(sys.argv[1]))
    log_to(directory)
    drive_to_the_end(directory)
