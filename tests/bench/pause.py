"""How long does a subtask stand still for the synchronous cut, with a million keys?

Expected: a cut marks segments and copies nothing, so well under a millisecond for the state; a
sink that prepares nothing adds nothing. The figure is `sync_ms` of every acknowledgement.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from pipelines.domain.events import SubtaskAcknowledged
from tests.bench.events import event_files
from tests.driven_run import started_run

CHECKPOINTS = 30
RUN_TIMEOUT_S = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--key", choices=("app_id", "user_id"), default="user_id")
    options = parser.parse_args()
    parameters = {"data": str(event_files()), "key": options.key, "repeat": "1000000"}
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        started_run(Path(root), "page_view_count", parameters) as run,
    ):
        run.wait_for(lambda _: len(run.completed()) >= CHECKPOINTS, RUN_TIMEOUT_S)
        events = [envelope.event for envelope in run.of(SubtaskAcknowledged)]
        pauses = [e.phases.sync_ms for e in events if isinstance(e, SubtaskAcknowledged)]
        state_bytes = run.completed()[-1].state_bytes
    print(
        json.dumps(
            {
                "benchmark": "pause",
                "key": options.key,
                "pause_ms_p99": round(float(np.percentile(pauses, 99)), 3),
                "pause_ms_max": round(max(pauses), 3),
                "cuts": len(pauses),
                "state_bytes": state_bytes,
            }
        )
    )


if __name__ == "__main__":
    main()
