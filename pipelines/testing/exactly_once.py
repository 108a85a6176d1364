"""Runs a pipeline on a test's rows, kills its processes by seed, and compares the output.

The oracle is a run of the same rows without kills. So the comparison shows that failures change
nothing, but not that the result is correct; use `run_with_kills` to assert that.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from pipelines.connectors.in_process import ArrowRows, Collect, table_of
from pipelines.connectors.source import AnySource
from pipelines.domain.elements import ROW_KIND, TAKE_BACK
from pipelines.domain.errors import Rejected
from pipelines.domain.faults import FaultPoint
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.run import RunSpec
from pipelines.local.running import LocalResult, host
from pipelines.local.slot import FastTime, ProcessKilled
from pipelines.stream import Flow, Pipeline

if TYPE_CHECKING:
    from pipelines.connectors.sink import Sink

Rows: TypeAlias = Sequence[Mapping[str, Any]] | pa.Table
Input: TypeAlias = Mapping[str, Rows] | Rows

BATCHES = 24
"""The batches of each split: enough that several checkpoints complete while they are read."""

SHOWN_MAX = 5
MEMORY = Path("/dev/shm")
SETTINGS: Mapping[str, str] = {
    "execution.checkpointing.interval": "10 ms",  # of simulated time, which each turn advances
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "1000",
    "restart-strategy.fixed-delay.delay": "0",
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Where a process was killed: the named point, and the attempt that it belonged to."""

    point: FaultPoint
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class KilledRun:
    """`kills` are the kills that took effect, in order."""

    result: LocalResult
    kills: tuple[Kill, ...]

    def table(self, uid: str | None = None) -> pa.Table:
        """Returns the rows that the sink `uid` committed; without a uid, those of the only sink."""
        return self.result.table(uid)


@dataclass(slots=True)
class _Passes:
    """Counts how often named points are passed, and kills at some of the passes."""

    points: frozenset[FaultPoint]
    doomed: frozenset[int] = frozenset()
    count: int = 0
    kills: list[Kill] = field(default_factory=list)

    def reach(self, point: FaultPoint, attempt: Attempt) -> None:
        if point not in self.points:
            return
        self.count += 1
        if self.count in self.doomed:
            self.kills.append(Kill(point, attempt))
            raise ProcessKilled


def assert_exactly_once(
    pipeline: Pipeline | Flow,
    input: Input,
    *,
    kills: int,
    kill_count: int = 3,
    parallelism: int = 2,
    points: Sequence[FaultPoint] = tuple(FaultPoint),
    newest_by: Mapping[str, Sequence[str]] | None = None,
    parameters: Mapping[str, str] | None = None,
) -> None:
    """Fail unless a run with kills commits the same rows as a run without.

    Args:
        pipeline: a built pipeline, or one declared with `@flow`. Its sinks are replaced, and the
            rows that they would commit are compared.
        input: {uid of a source: its rows}, or the rows of the only source.
        kills: the seed. It decides where processes are killed, and the order of all turns.
        kill_count: the most processes that are killed, slots and driver alike.
        points: the named points where a process may die.
        newest_by: {uid of a sink: its key columns}, for a sink that overwrites, as an upsert does:
            only the newest row of each key is compared, and none if a changelog takes it back.
            Without it every row counts.
        parameters: {name: text}, of a declared pipeline.

    Raises AssertionError with the seed, the kills and the rows that differ, or if there was nothing
    to compare or no process was killed. Raises Rejected if `input` or `newest_by` names a source or
    sink that the pipeline does not have.
    """
    built = _with_ends(pipeline, input, parallelism, parameters)
    _check_sinks(newest_by or {}, built)
    trial = _Trial(built, kills, parallelism, frozenset(points))
    undisturbed, passes = trial.calm()
    if not any(table.num_rows for table in undisturbed.tables.values()):
        raise AssertionError(
            "No sink committed a row, also without kills, so there is nothing to compare; give rows"
            " that produce output."
        )
    killed = trial.killed(passes, kill_count)
    if kill_count and not killed.kills:
        raise AssertionError(f"With the seed {kills} no process was killed; give more rows.")
    for uid, expected in undisturbed.tables.items():
        keys = (newest_by or {}).get(uid)
        difference = _difference(_counted(expected, keys), _counted(killed.table(uid), keys))
        if difference:
            where = ", ".join(f"{each.point} in attempt {each.attempt}" for each in killed.kills)
            raise AssertionError(
                f"With the seed {kills} (killed at {where}) the sink {uid!r} {difference}."
            )


def run_with_kills(
    pipeline: Pipeline | Flow,
    input: Input | None,
    *,
    kills: int,
    kill_count: int = 3,
    parallelism: int = 2,
    points: Sequence[FaultPoint] = tuple(FaultPoint),
    parameters: Mapping[str, str] | None = None,
    own_sinks: bool = False,
) -> KilledRun:
    """Run with kills like `assert_exactly_once`, but return the committed rows, uncompared.

    A run without kills first counts how often the points are passed; the seed draws among those
    passes. That run reads the input too, and writes to no sink of the pipeline.

    Args:
        input: as in `assert_exactly_once`. If None, the pipeline's own sources are read to the end.
        own_sinks: the run with kills writes to the pipeline's own sinks. Read the committed output
            from their targets; `KilledRun.table` has rows of a `collect` only. A killed process
            does not call `close` of its writers.

    Raises RunFailed if the pipeline fails without a kill.
    """
    built = pipeline.build(parameters or {}) if isinstance(pipeline, Flow) else pipeline
    replaced = _with_ends(built, {} if input is None else input, parallelism, parameters)
    trial = _Trial(replaced, kills, parallelism, frozenset(points))
    _, passes = trial.calm()
    if own_sinks:
        trial = replace(trial, pipeline=replace(replaced, sinks=built.sinks))
    return trial.killed(passes, kill_count)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Runs of one pipeline in the order of one seed."""

    pipeline: Pipeline
    seed: int
    parallelism: int
    points: frozenset[FaultPoint]

    def calm(self) -> tuple[LocalResult, int]:
        """Runs without kills; returns the result and how often the points were passed."""
        counted = _Passes(self.points)
        return self._run(counted), counted.count

    def killed(self, passes: int, kill_count: int) -> KilledRun:
        numbers = range(1, passes + 1)
        doomed = Random(self.seed).sample(numbers, min(kill_count, passes))
        killing = _Passes(self.points, frozenset(doomed))
        return KilledRun(self._run(killing), tuple(killing.kills))

    def _run(self, passes: _Passes) -> LocalResult:
        spec = RunSpec(
            run_id=RunId("tested"),
            pipeline="tested",
            parallelism=self.parallelism,
            master="local",
            parameters={},
            settings=dict(SETTINGS),
            first_checkpoint_id=CheckpointId(1),
        )
        rng = Random(self.seed)
        with tempfile.TemporaryDirectory(prefix="ftdash-test-", dir=_memory()) as root:
            return host(Path(root), spec, self.pipeline, FastTime(), reach=passes.reach, rng=rng)


def _memory() -> Path | None:
    """Returns a directory in memory, where nothing waits for a disk, or None if there is none."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def _with_ends(
    pipeline: Pipeline | Flow,
    input: Input,
    parallelism: int,
    parameters: Mapping[str, str] | None,
) -> Pipeline:
    """Returns the pipeline on the test's rows, with sinks whose rows can be compared."""
    built = pipeline.build(parameters or {}) if isinstance(pipeline, Flow) else pipeline
    given = _by_uid(input, built)
    sources: dict[Uid, AnySource] = dict(built.sources)
    for uid, rows in given.items():
        sources[uid] = _source(uid, built.sources[uid], rows, parallelism)
    sinks: dict[Uid, Sink] = {uid: Collect() for uid in built.sinks}
    return replace(built, sources=sources, sinks=sinks, pace=None)


def _by_uid(input: Input, pipeline: Pipeline) -> dict[Uid, Rows]:
    known = ", ".join(map(repr, pipeline.sources))
    if not isinstance(input, Mapping):
        if len(pipeline.sources) != 1:
            raise Rejected(f"Give the rows of each source by its uid; there are: {known}.")
        return dict.fromkeys(pipeline.sources, input)
    for uid in input:
        if uid not in pipeline.sources:
            raise Rejected(f"There is no source {uid!r}; there are: {known}.")
    return {Uid(uid): rows for uid, rows in input.items()}


def _check_sinks(named: Collection[str], pipeline: Pipeline) -> None:
    known = ", ".join(map(repr, pipeline.sinks))
    for uid in named:
        if uid not in pipeline.sinks:
            raise Rejected(f"There is no sink {uid!r}; there are: {known}.")


def _source(uid: Uid, replaced: AnySource, rows: Rows, parallelism: int) -> ArrowRows:
    """Returns a source with the columns, event time and out-of-orderness of the replaced one."""
    table = rows if isinstance(rows, pa.Table) else table_of(rows, replaced.schema)
    if table.schema != replaced.schema:
        raise Rejected(f"The rows of {uid!r} have other columns than the source: {table.schema}.")
    return ArrowRows(
        table,
        replaced.timestamp_column,
        replaced.out_of_orderness_ms,
        splits=parallelism,
        batch_rows=max(1, table.num_rows // (parallelism * BATCHES)),
    )


def _counted(table: pa.Table, keys: Sequence[str] | None) -> Counter[str]:
    rows: list[dict[str, Any]] = table.to_pylist()
    if keys is not None:
        newest = {tuple(row[key] for key in keys): row for row in rows}
        rows = [row for row in newest.values() if row.get(ROW_KIND) not in TAKE_BACK]
    return Counter(str(row) for row in rows)


def _difference(expected: Counter[str], found: Counter[str]) -> str:
    """Describes the rows that are missing and those that come too often; empty if none do."""
    said = []
    for what, rows in (("lacks", expected - found), ("has too often", found - expected)):
        if rows:
            some = ", ".join(list(rows)[:SHOWN_MAX])
            said.append(f"{what} {rows.total()} of {expected.total()} rows, such as {some}")
    return " and ".join(said)
