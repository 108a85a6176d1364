"""How long from `kill -9` of a slot to all subtasks running, and to the first committed output?

Expected: a closed connection shows the failure (under 10 ms), the restart delay is 100 ms, and
Spark starts the workers of a stage in about 200 ms: about 0.5 s. Output follows with the next
checkpoint. A million keys (`--keys 1000000`) are about 25 MB to verify and to restore: some 0.3 s
more.
"""

import os
import signal
import statistics
from collections.abc import Callable

from bench.benchmark import Benchmark, Fields, at_most, progress
from bench.page_views import Start, Work, endless_run, on_spark
from pipelines.domain.events import (
    CheckpointCommitted,
    CheckpointCompleted,
    Envelope,
    Event,
    JobStatusChanged,
    RecoveryPhaseReached,
    SlotConnected,
)
from pipelines.domain.status import JobStatus, RecoveryPhase
from pipelines.runtime.clocks import SystemClock
from tests.driven_run import StartedRun

STEP_TIMEOUT_S = 60.0
FILL_TIMEOUT_S = 300.0
KEY_OF = {1_000: "app_id", 1_000_000: "user_id"}
"""Maps a number of keys to the column of the events that has about that many values."""
BARS = {
    1_000: (at_most("running_ms_median", 1_000), at_most("output_ms_median", 2_000)),
    1_000_000: (at_most("running_ms_median", 3_000),),
}
"""The bars by number of keys."""


def main() -> None:
    benchmark = Benchmark("recovery", __doc__)
    benchmark.options.add_argument("--kills", type=int, default=5)
    benchmark.options.add_argument("--keys", type=int, choices=sorted(KEY_OF), default=min(KEY_OF))
    benchmark.options.add_argument("--backend", choices=("hashmap", "rocksdb"), default="hashmap")
    options = benchmark.options.parse()
    work = Work(KEY_OF[options.keys], options.backend)
    fields = measure(work, options.kills)
    benchmark.report({**fields, "keys": options.keys}, BARS[options.keys])


def measure(work: Work, kills: int, start: Start = on_spark) -> Fields:
    running, output = [], []
    with endless_run(work, start) as run:
        _wait_for_all_keys(run, work.events)
        for kill in range(kills):
            _wait_for_checkpoint(run)
            killed_ms = _kill_a_slot(run, kill % 2)
            running_ms = first_after(run, killed_ms, is_running)
            running.append(running_ms - killed_ms)
            output.append(first_after(run, running_ms, is_committed) - killed_ms)
            progress(
                f"kill {kill}: running {running[-1]} ms, output {output[-1]} ms; {_phases(run)}"
            )
        return {
            "backend": work.backend,
            "running_ms_median": statistics.median(running),
            "output_ms_median": statistics.median(output),
            "running_ms": running,
            "output_ms": output,
            "kills": kills,
            "state_bytes": run.completed()[-1].state_bytes,
        }


def _wait_for_all_keys(run: StartedRun, events: int) -> None:
    """Waits for a checkpoint after the first reading of all files, which holds nearly all keys."""
    run.wait_for(
        lambda _: any(event.source_records >= events for event in run.completed()), FILL_TIMEOUT_S
    )


def _wait_for_checkpoint(run: StartedRun) -> None:
    seen = len(run.poll())
    run.wait_for(
        lambda es: any(isinstance(e.event, CheckpointCompleted) for e in es[seen:]), STEP_TIMEOUT_S
    )


def _kill_a_slot(run: StartedRun, slot: int) -> int:
    """Kills a slot; returns the time by the wall clock, which also stamps the journal."""
    connected = [e.event for e in run.of(SlotConnected)]
    pid = [e.pid for e in connected if isinstance(e, SlotConnected) and e.slot == slot][-1]
    killed_ms = SystemClock().wall_ms()
    os.kill(pid, signal.SIGKILL)
    return killed_ms


def _phases(run: StartedRun) -> str:
    """Returns the phases of the newest recovery, in milliseconds."""
    reached = [e.event for e in run.of(RecoveryPhaseReached)]
    phases = [e for e in reached if isinstance(e, RecoveryPhaseReached)]
    begins = max(i for i, event in enumerate(phases) if event.phase is RecoveryPhase.DETECT)
    return ", ".join(f"{event.phase} {event.duration_ms:.0f}" for event in phases[begins:])


def first_after(run: StartedRun, since_ms: int, holds: Callable[[Event], bool]) -> int:
    def found(envelopes: list[Envelope]) -> bool:
        return any(e.at_ms >= since_ms and holds(e.event) for e in envelopes)

    run.wait_for(found, STEP_TIMEOUT_S)
    return next(e.at_ms for e in run.envelopes if e.at_ms >= since_ms and holds(e.event))


def is_running(event: Event) -> bool:
    return isinstance(event, JobStatusChanged) and event.status is JobStatus.RUNNING


def is_committed(event: Event) -> bool:
    return isinstance(event, CheckpointCommitted)


if __name__ == "__main__":
    main()
