"""Is each query of Nexmark exact under `kill -9` of slots and driver, and how long are recoveries?

A seed decides which processes die, and when. Of five kills at least one hits the driver, and one
each slot. The next kill comes at a random moment after the first output that the recovery
committed. When a driver dies, its successor starts at once: the time that a supervisor needs to
notice the death is not part of the figure.
"""

import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from nexmark.queries import QUERIES

from bench.benchmark import Bar, Fields, at_most, progress
from bench.nexmark.runs import Begin, Events, committed
from bench.recovery.recovery import first_after, is_committed, is_running
from pipelines.domain.events import JobStatusChanged, RunEnded
from pipelines.domain.ids import RunId
from pipelines.domain.status import JobStatus
from pipelines.runtime.clocks import SystemClock
from tests.driven_run import POLL_S, StartedRun
from tests.unit.nexmark.answers import Answers, decided

BARS: tuple[Bar, ...] = (at_most("running_ms_median", 1_500), at_most("not_exact", 0))
DRIVER = "driver"
SLOTS = ("slot 0", "slot 1")
BETWEEN_S = (0.1, 1.6)
"""The time from committed output to the next kill: less or more than the checkpoint interval."""

STEP_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Kills:
    """The kills for each query. `rate` is the number of events that are generated in a second."""

    events: Events
    rate: int
    count: int = 5
    seed: int = 1
    interval_ms: int = 1_000
    between_s: tuple[float, float] = BETWEEN_S
    backend: str = "hashmap"

    def victims(self, rng: random.Random) -> list[str]:
        """Draws victims in random order: each process at least once if there are enough kills."""
        once = rng.sample([DRIVER, *SLOTS], k=min(self.count, 3))
        victims = [*once, *rng.choices([DRIVER, *SLOTS], k=self.count - len(once))]
        rng.shuffle(victims)
        return victims


@dataclass(slots=True)
class Recoveries:
    """Milliseconds from each kill to all subtasks running, and to the first committed output."""

    victims: list[str] = field(default_factory=list)
    running_ms: list[int] = field(default_factory=list)
    output_ms: list[int] = field(default_factory=list)

    def described(self) -> Fields:
        return {
            "recovery_ms_median": statistics.median(self.running_ms),
            "output_ms_median": statistics.median(self.output_ms),
            "victims": self.victims,
            "running_ms": self.running_ms,
            "output_ms": self.output_ms,
        }


def measure(queries: Sequence[str], kills: Kills, begin: Begin) -> Fields:
    """Runs all queries in turn. Raises RuntimeError if the events end before the kills."""
    answers = Answers.about(kills.events.model, kills.events.count)
    by_query = {query: of_query(query, kills, begin, answers) for query in queries}
    running = [ms for fields in by_query.values() for ms in fields["running_ms"]]  # type: ignore[attr-defined]
    return {
        "kills": kills.count,
        "seed": kills.seed,
        "events": kills.events.count,
        "events_per_s": kills.rate,
        "backend": kills.backend,
        "running_ms_median": statistics.median(running),
        "not_exact": sum(not fields["same"] for fields in by_query.values()),
        "by_query": by_query,
    }


def of_query(query: str, kills: Kills, begin: Begin, answers: Answers) -> Fields:
    """`same` says that the output is exactly DuckDB's answer to the same events."""
    rng = random.Random(f"{kills.seed} {query}")
    with tempfile.TemporaryDirectory(prefix="ftdash-nexmark-") as root:
        recoveries, ended = _run_killed(query, kills, begin, Path(root), rng)
        result = decided(query, committed(Path(root) / "output"), QUERIES[query].newest_by)
    if ended.status is not JobStatus.FINISHED:
        raise RuntimeError(f"{query} with seed {kills.seed}: {ended.reason}")
    difference = answers.difference(query, result)
    outcome = f"running after {recoveries.running_ms} ms, {', '.join(recoveries.victims)} killed"
    progress(f"{query}: {'exact' if not difference else f'NOT exact: {difference}'}; {outcome}")
    return {"same": not difference, "rows": result.num_rows, **recoveries.described()}


def _run_killed(
    query: str, kills: Kills, begin: Begin, root: Path, rng: random.Random
) -> tuple[Recoveries, RunEnded]:
    run_id = RunId(f"run-{query}-{kills.seed}")
    parameters = {
        **kills.events.made(),
        "query": query,
        "rate": str(kills.rate),
        "output": str(root / "output"),
    }
    settings = {
        "execution.checkpointing.interval": f"{kills.interval_ms} ms",
        "state.backend.type": kills.backend,
    }
    found = Recoveries()
    with ExitStack() as drivers:
        run = drivers.enter_context(begin(root, parameters, settings, run_id))
        run.wait_for_more(1, STEP_TIMEOUT_S)
        for victim in kills.victims(rng):
            _let_run(run, rng.uniform(*kills.between_s))
            killed_ms = SystemClock().wall_ms()
            if victim == DRIVER:
                os.kill(run.process.pid, signal.SIGKILL)
                run.process.wait(STEP_TIMEOUT_S)
                run = drivers.enter_context(begin(root, parameters, settings, run_id))
            else:
                os.kill(run.pid_of(SLOTS.index(victim)), signal.SIGKILL)
            running_ms = first_after(run, killed_ms, is_running)
            output_ms = first_after(run, running_ms, is_committed)
            found.victims.append(victim)
            found.running_ms.append(running_ms - killed_ms)
            found.output_ms.append(output_ms - killed_ms)
        return found, run.wait_until_over(STEP_TIMEOUT_S)


def _let_run(run: StartedRun, for_s: float) -> None:
    """Waits. Raises RuntimeError if the run ends meanwhile, or does not run."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        if any(isinstance(each.event, RunEnded) for each in run.poll()):
            raise RuntimeError("The events ended before the last kill; give more of them.")
        time.sleep(POLL_S)
    newest = run.of(JobStatusChanged)[-1].event
    if not is_running(newest):
        raise RuntimeError(f"A process failed that was not killed: {newest}")
