"""How many events a second does each query of Nexmark take?

It measures from the first record to the last committed output, exactly once, checkpointed every
second. With peers, it compares with Flink SQL and Structured Streaming on the same files, and says
whether the result is the same as Flink's (`check.py`).

Expected: a filter costs as much as reading the file. A window that is combined before the exchange
costs some 50 ns a bid. A join or a ranking, which looks up and stores whole rows, costs some
microseconds. Flink handles each row by itself, so ours is at least six times as fast in the mean.

A pair is Flink, ours, ours, Flink (`pairs.py`). Flink runs with mini-batches and without before the
pairs, and the pairs use its better setting. `ratio` compares events a second. `cpu_ratio` compares
processor seconds, and says more if others use the machine. Every event counts, even if a query does
not read its kind, as in Nexmark's own reports. Checkpoints are incremental, because full ones of a
growing state take ever longer. Flink's are too, with RocksDB; its heap has no incremental ones.

A query that is over too soon gets so many events that our run takes ten seconds. A stateless query
reads the same files again, any other one reads more files.
"""

import math
import os
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from bench.benchmark import Bar, Fields, at_least, at_most, progress
from bench.nexmark import check
from bench.nexmark.peers import Flink, NotMeasured, PeerMeasured, Structured
from bench.nexmark.runs import Begin, Events, kinds_of
from bench.pairs import Pair, described, mean_rate, run_pairs
from bench.whole_run import RUN_TIMEOUT_S, ProcessorTime
from pipelines.domain.events import (
    CheckpointFailed,
    Envelope,
    FailureOccurred,
    RunEnded,
    SlotConnected,
)
from pipelines.domain.ids import RunId
from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun

OURS = "ours"
LEAST_S, MARGIN = 10.0, 1.2
LOOKS_PER_SAMPLE = 20
STATELESS = frozenset({"q0", "q1", "q2", "q10", "q14", "q21", "q22"})
BARS: dict[str, tuple[Bar, ...]] = {
    "hashmap": (
        at_least("geometric_mean", 6),
        at_least("worst", 1.5),
        at_most("checkpoint_ms_p99_max", 1_000),
        *check.BARS,
    ),
    "rocksdb": (
        at_least("geometric_mean_stateful", 5),
        at_most("checkpoint_ms_p99_max", 1_000),
        *check.BARS,
    ),
}
"""The bars of each backend."""


@dataclass(frozen=True, slots=True)
class Work:
    events: Events
    backend: str = "hashmap"
    pairs: int = 3
    with_peers: bool = False
    least_s: float = LEAST_S  # the least time that our run takes
    interval: str = "1 s"
    checked: Events = check.CHECKED  # over these, the result is compared with Flink's


@dataclass(frozen=True, slots=True)
class OurRun:
    events_per_s: float
    took_s: float
    cpu_s: float
    checkpoints: int
    checkpoint_ms_p99: float
    late_checkpoints: int  # failed or given up
    state_bytes: int
    peak_bytes: int


def measure(queries: Sequence[str], work: Work, begin: Begin) -> Fields:
    by_query = {query: of_query(query, work, begin) for query in queries}
    ratios = {query: _float(each, "ratio") for query, each in by_query.items() if each["ratio"]}
    stateful = [ratio for query, ratio in ratios.items() if query not in STATELESS]
    worst = min(ratios, key=lambda query: ratios[query], default=None)
    compared = [each["same"] for each in by_query.values() if each["same"] is not None]
    return {
        "events": work.events.count,
        "backend": work.backend,
        "geometric_mean": _mean(list(ratios.values())),
        "geometric_mean_stateful": _mean(stateful),
        "worst": None if worst is None else ratios[worst],
        "worst_query": worst,
        "not_same": compared.count(False) if compared else None,
        "checkpoint_ms_p99_max": max(_float(e, "checkpoint_ms_p99") for e in by_query.values()),
        "by_query": by_query,
    }


def of_query(query: str, work: Work, begin: Begin) -> Fields:
    """Returns the fields of a query; for a peer without a measurement, a sentence says why."""
    work = _long_enough(query, work, begin)
    directory = _directory(query, work)
    ours = partial(_seen, query, work, begin)
    if not work.with_peers:
        runs = [ours() for _ in range(work.pairs)]
        return {"ratio": None, "cpu_ratio": None, "same": None, **_of_runs(work, runs)}
    flink = Flink(directory, work.events.read)
    same = None
    try:
        same = check.of_query(query, work.checked)["same"]
        mini_batch, tried = _better_setting(query, flink, work.backend)
        limit = partial(flink.run, query, work.backend, mini_batch=mini_batch)
        pairs = run_pairs(work.pairs, limit, {OURS: ours}, rate=lambda run: run.events_per_s)
    except NotMeasured as why:
        progress(str(why))
        runs = [ours() for _ in range(work.pairs)]
        beside: Fields = {"ratio": None, "cpu_ratio": None, "flink": str(why)}
    else:
        runs = [run for pair in pairs for run in pair.ours[OURS]]
        beside = _beside(pairs, runs, {"mini_batch": mini_batch, "tried": tried})
    theirs = _structured(query, work, directory, runs)
    return {**beside, "same": same, **_of_runs(work, runs), "structured": theirs}


def _long_enough(query: str, work: Work, begin: Begin) -> Work:
    """Returns the work with enough events that our run takes `least_s`."""
    while work.least_s and (took_s := run_once(query, work, begin).took_s) < work.least_s:
        times, events = math.ceil(work.least_s * MARGIN / took_s), work.events
        if query in STATELESS:
            more = replace(events, rounds=events.rounds * times)
        else:
            more = replace(events, count=events.count * times)
        work = replace(work, events=more)
    return work


def _directory(query: str, work: Work) -> Path:
    return work.events.files(kinds_of(query))


def _seen(query: str, work: Work, begin: Begin) -> OurRun:
    """Raises RuntimeError if the run was over before its processor time could be measured."""
    run = run_once(query, work, begin)
    if not run.cpu_s:
        raise RuntimeError(
            f"{query}: the run was over in {run.took_s:.1f} s, before its processor time could be "
            "measured. Give it more events (--events), or leave --least-s as it is."
        )
    return run


def run_once(query: str, work: Work, begin: Begin) -> OurRun:
    """Measures a run from all subtasks running to everything committed.

    Raises RuntimeError if the run fails.
    """
    parameters = {"query": query, "data": str(_directory(query, work))}
    settings = {
        "execution.checkpointing.interval": work.interval,
        "execution.checkpointing.incremental": "true",
        "state.backend.type": work.backend,
    }
    with (
        tempfile.TemporaryDirectory(prefix="ftdash-bench-") as root,
        begin(Path(root), parameters, settings, RunId(f"run-{query}")) as run,
    ):
        processor, memory = ProcessorTime(run), Memory(run)

        def is_over_when_looked_at(envelopes: list[Envelope]) -> bool:
            processor.look()
            memory.look()
            return bool(envelopes) and isinstance(envelopes[-1].event, RunEnded)

        run.wait_for(is_over_when_looked_at, RUN_TIMEOUT_S)
        ended = run.wait_until_over(RUN_TIMEOUT_S)
        if ended.status is not JobStatus.FINISHED or run.of(FailureOccurred):
            raise RuntimeError(f"{query}: {ended.reason or run.of(FailureOccurred)}")
        completed = run.completed()
        took_s = (run.envelopes[-1].at_ms - run.running_at_ms()) / 1000.0
        late = len(run.of(CheckpointFailed))
    durations_ms = [each.end_to_end_ms for each in completed]
    progress(f"{query}: {took_s:.1f} s, {processor.seconds:.1f} s of cores, {durations_ms} ms")
    return OurRun(
        work.events.read / took_s,
        took_s,
        processor.seconds,
        len(completed),
        float(np.percentile(durations_ms, 99)),
        late,
        max(each.state_bytes for each in completed),
        memory.peak_bytes,
    )


class Memory:
    """The most memory that the driver, its children and the slots held at one look.

    Pages that several of them share count for each in proportion.
    """

    def __init__(self, run: StartedRun) -> None:
        self._run = run
        self.peak_bytes = 0
        self._looks = 0

    def look(self) -> None:
        """Measures only at every twentieth call, because a measurement takes a while."""
        self._looks += 1
        if self._looks % LOOKS_PER_SAMPLE:
            return
        connected = [envelope.event for envelope in self._run.of(SlotConnected)]
        pids = {event.pid for event in connected if isinstance(event, SlotConnected)}
        with suppress(psutil.NoSuchProcess):  # one of them has just ended
            driver = psutil.Process(self._run.process.pid)
            pids |= {driver.pid, *(each.pid for each in driver.children(recursive=True))}
            held = sum(psutil.Process(pid).memory_full_info().pss for pid in pids)
            self.peak_bytes = max(self.peak_bytes, held)


def _better_setting(query: str, flink: Flink, backend: str) -> tuple[bool, Fields]:
    runs = {name: flink.run(query, backend, mini_batch=name == "on") for name in ("off", "on")}
    better = max(runs, key=lambda name: runs[name].events_per_s)
    return better == "on", {name: round(run.events_per_s) for name, run in runs.items()}


def _beside(
    pairs: Sequence[Pair[PeerMeasured, OurRun]], runs: Sequence[OurRun], setting: Fields
) -> Fields:
    ratios = [
        mean_rate([run.events_per_s for run in pair.ours[OURS]])
        / mean_rate([run.events_per_s for run in pair.limits])
        for pair in pairs
    ]
    cpu_ratios = [
        sum(run.cpu_s for run in pair.limits) / sum(run.cpu_s for run in pair.ours[OURS])
        for pair in pairs
    ]
    middle = sorted(
        (run for pair in pairs for run in pair.limits), key=lambda run: run.events_per_s
    )[len(pairs)]
    return {
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "cpu_ratio": round(statistics.median(cpu_ratios), 2),
        "flink": {**middle.described(_cores()), **setting},
        **described(pairs),
    }


def _structured(query: str, work: Work, directory: Path, runs: Sequence[OurRun]) -> object:
    try:
        theirs = Structured(directory, work.events.read).run(query, work.backend)
    except NotMeasured as why:
        return str(why)
    ours = statistics.median(run.events_per_s for run in runs)
    return {"ratio": round(ours / theirs.events_per_s, 2), **theirs.described(_cores())}


def _of_runs(work: Work, runs: Sequence[OurRun]) -> Fields:
    rate = statistics.median(run.events_per_s for run in runs)
    return {
        "events": work.events.read,
        "seconds": round(statistics.median(run.took_s for run in runs), 1),
        "records_per_s": round(rate),
        "records_per_s_per_core": round(rate / _cores()),
        "cpu_s": round(statistics.median(run.cpu_s for run in runs), 2),
        "checkpoints": min(run.checkpoints for run in runs),
        "checkpoint_ms_p99": round(max(run.checkpoint_ms_p99 for run in runs)),
        "late_checkpoints": sum(run.late_checkpoints for run in runs),
        "state_bytes": max(run.state_bytes for run in runs),
        "peak_bytes": max(run.peak_bytes for run in runs),
    }


def _mean(ratios: Sequence[float]) -> float | None:
    return round(statistics.geometric_mean(ratios), 2) if ratios else None


def _float(fields: Fields, name: str) -> float:
    return float(str(fields[name]))


def _cores() -> int:
    return os.cpu_count() or 1
