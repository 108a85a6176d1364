"""How long does a subtask stand still for the synchronous cut, with a million keys?

Expected: a cut marks segments and copies nothing, so well under a millisecond for the state; a
sink that prepares nothing adds nothing. The figure is `sync_ms` of every acknowledgement.
"""

import numpy as np

from bench.benchmark import Benchmark, Fields, at_most
from bench.page_views import Start, Work, add_state_options, endless_run, on_spark
from pipelines.domain.events import SubtaskAcknowledged

BARS = (at_most("pause_ms_p99", 20),)
CHECKPOINTS = 30
RUN_TIMEOUT_S = 180.0


def main() -> None:
    benchmark = Benchmark("pause", __doc__)
    add_state_options(benchmark.options, key="user_id")
    benchmark.options.add_argument("--checkpoints", type=int, default=CHECKPOINTS)
    options = benchmark.options.parse()
    work = Work(options.key, options.backend, events=options.events)
    benchmark.report(measure(work, options.checkpoints), BARS)


def measure(work: Work, checkpoints: int, start: Start = on_spark) -> Fields:
    with endless_run(work, start) as run:
        run.wait_for(lambda _: len(run.completed()) >= checkpoints, RUN_TIMEOUT_S)
        events = [envelope.event for envelope in run.of(SubtaskAcknowledged)]
        pauses = [e.phases.sync_ms for e in events if isinstance(e, SubtaskAcknowledged)]
        return {
            "key": work.key,
            "backend": work.backend,
            "pause_ms_p99": round(float(np.percentile(pauses, 99)), 3),
            "pause_ms_max": round(max(pauses), 3),
            "pause_ms_median": round(float(np.median(pauses)), 3),
            "cuts": len(pauses),
            "state_bytes": run.completed()[-1].state_bytes,
        }


if __name__ == "__main__":
    main()
