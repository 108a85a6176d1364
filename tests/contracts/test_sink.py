"""The contract of sinks: whenever a writer dies, the output ends up exact.

`Host` is the smallest runtime that keeps the contract's side of it: points with pending
committables, rewinding before each attempt, restored committables first. A life of it ends at a
seam, by abandoning every object or, in a process of its own, by SIGKILL; the next one goes on.
Run as a program, this file is such a process.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.connectors.files import ExactlyOnceFiles
from pipelines.connectors.sink import Sink, SinkContext, SinkWriter, Superseded
from pipelines.connectors.sql import SqlUpsert
from pipelines.domain.errors import InvariantViolated, ProtocolError, Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", tz="UTC")), ("x", pa.float64())])
RECORDS = 60
EVERYTHING = list(range(RECORDS))
SEAMS = [
    "while writing",
    "one subtask prepared",
    "all prepared",
    "complete",
    "one subtask committed",
    "all committed",
]
BIRTH, REBIRTH, OTHER, THIRD = (
    RunId("run-1"),
    RunId("run-1b"),
    RunId("run-2"),
    RunId("run-00000003"),
)


@pytest.fixture(
    params=["fake", "files", "sql", pytest.param("sql unbuffered", marks=pytest.mark.slow)]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> "Target":
    return TARGETS[request.param](tmp_path)


@pytest.fixture(params=["files", "sql"])
def real_target(request: pytest.FixtureRequest, tmp_path: Path) -> "Target":
    return TARGETS[request.param](tmp_path)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("seam", SEAMS)
def test_output_is_exact_wherever_the_writers_are_abandoned(
    target: "Target", tmp_path: Path, seam: str, parallelism: int
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam)

    host.live(BIRTH, parallelism=parallelism, interval=7)

    assert target.visible() == EVERYTHING


@pytest.mark.slow
@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("kind", ["files", "sql"])
def test_output_is_exact_wherever_the_process_is_killed(
    tmp_path: Path, kind: str, seam: str
) -> None:
    killed = subprocess.run(
        [sys.executable, __file__, kind, str(tmp_path), seam],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    target = TARGETS[kind](tmp_path)

    Host(tmp_path, target.sink).live(BIRTH, interval=7)

    assert killed.returncode == -signal.SIGKILL
    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("seams", [SEAMS, SEAMS[::-1]])
def test_output_is_exact_after_dying_at_every_seam_in_turn(
    target: "Target", tmp_path: Path, seams: list[str]
) -> None:
    host = Host(tmp_path, target.sink)
    for seam in seams:
        with pytest.raises(Killed):
            host.live(BIRTH, seam=seam, interval=3, dies_at=2)

    host.live(BIRTH, interval=7)

    assert target.visible() == EVERYTHING


def test_an_aborted_checkpoint_is_committed_with_the_next_one(
    target: "Target", tmp_path: Path
) -> None:
    Host(tmp_path, target.sink).live(BIRTH, aborted=(2, 3))

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("seam", SEAMS)
def test_a_rewind_leaves_exactly_the_output_of_its_point(
    target: "Target", tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, dies_at=4)
    point = host.point(BIRTH, 2)

    target.sink.rewind(point.lineage, OTHER)

    assert target.visible() == EVERYTHING[: point.offset]


@pytest.mark.parametrize("seam", SEAMS)
def test_a_restore_of_an_older_point_doubles_nothing(
    target: "Target", tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, dies_at=4)

    host.live(OTHER, restore=host.point(BIRTH, 2), parallelism=3, interval=7)

    assert target.visible() == EVERYTHING


def test_a_fall_back_within_the_run_doubles_nothing(target: "Target", tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam="all committed", dies_at=4)
    host.lose(BIRTH, 4)
    host.lose(BIRTH, 3)

    host.live(BIRTH, interval=7)

    assert target.visible() == EVERYTHING


def test_a_fresh_start_begins_with_nothing(target: "Target", tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)

    superseded = target.sink.rewind([], OTHER)

    assert superseded is not None
    assert superseded.items > 0
    assert target.visible() == []


@pytest.mark.parametrize("seam", SEAMS)
def test_output_that_a_later_restore_needs_comes_back(
    target: "Target", tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, dies_at=4)
    with pytest.raises(Killed):
        host.live(OTHER, seam="all committed", dies_at=2, interval=4)

    host.live(THIRD, restore=host.newest(BIRTH), interval=7)

    assert target.visible() == EVERYTHING


def test_a_restore_of_a_restore_keeps_the_whole_lineage(target: "Target", tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH, until=35)
    host.live(OTHER, restore=host.point(BIRTH, 2), interval=7, until=50)

    host.live(THIRD, restore=host.point(OTHER, 2), interval=9)

    assert target.visible() == EVERYTHING


def test_a_run_whose_name_begins_like_another_is_another_run(
    target: "Target", tmp_path: Path
) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)
    host.live(REBIRTH, until=20)

    target.sink.rewind(host.point(BIRTH, 2).lineage, THIRD)

    assert target.visible() == EVERYTHING[:20]


def test_a_rewind_may_be_repeated(target: "Target", tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)
    lineage = host.point(BIRTH, 3).lineage
    target.sink.rewind(lineage, OTHER)

    again = target.sink.rewind(lineage, OTHER)

    assert again is None
    assert target.visible() == EVERYTHING[:30]


def test_a_commit_may_be_repeated(target: "Target") -> None:
    writer = opened(target, BIRTH, 1)
    writer.write(records([1, 2]))
    committables = writer.prepare(CheckpointId(1))
    writer.commit(CheckpointId(1), committables)

    writer.commit(CheckpointId(1), committables)

    assert target.visible() == [1, 2]


def test_what_was_written_but_not_prepared_is_dropped_by_the_next_attempt(
    target: "Target",
) -> None:
    abandoned = opened(target, BIRTH, 1)
    abandoned.write(records([1, 2]))
    target.sink.rewind([], BIRTH)

    writer = opened(target, BIRTH, 2)
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    assert target.visible() == []


@pytest.mark.parametrize("between", [[], [OTHER]])
def test_what_an_incomplete_checkpoint_wrote_never_comes_back(
    target: "Target", between: list[RunId]
) -> None:
    writer = opened(target, BIRTH, 1)
    complete(writer, 1, [1])
    writer.write(records([99]))
    writer.prepare(CheckpointId(2))
    for run_id in between:
        target.sink.rewind([], run_id)

    target.sink.rewind([(BIRTH, CheckpointId(1))], BIRTH)
    complete(opened(target, BIRTH, 2), 3, [2])
    target.sink.rewind([(BIRTH, CheckpointId(3))], BIRTH)

    assert target.visible() == [1, 2]


def test_an_interval_without_records_prepares_nothing(target: "Target") -> None:
    writer = opened(target, BIRTH, 1)

    assert writer.prepare(CheckpointId(1)) == []


@pytest.mark.parametrize("newcomer", [(BIRTH, 2), (OTHER, 1)])
def test_a_writer_that_was_replaced_is_refused_and_changes_nothing(
    target: "Target", newcomer: tuple[RunId, int]
) -> None:
    zombie = opened(target, BIRTH, 1)
    zombie.write(records([1]))
    target.sink.rewind([], newcomer[0])
    writer = opened(target, *newcomer)
    writer.write(records([2]))
    writer.commit(CheckpointId(2), writer.prepare(CheckpointId(2)))

    with pytest.raises(ProtocolError, match="may not write"):
        zombie.commit(CheckpointId(1), zombie.prepare(CheckpointId(1)))

    assert target.visible() == [2]


def test_a_replaced_attempt_cannot_open_again(target: "Target") -> None:
    opened(target, BIRTH, 2)

    with pytest.raises(ProtocolError, match="may not write"):
        opened(target, BIRTH, 1)


def test_subtasks_of_one_attempt_do_not_disturb_each_other(target: "Target") -> None:
    writers = [opened(target, BIRTH, 1, subtask) for subtask in range(3)]
    for subtask, writer in enumerate(writers):
        writer.write(records([subtask]))
    prepared = [writer.prepare(CheckpointId(1)) for writer in writers]
    for writer, committables in zip(writers, prepared, strict=True):
        writer.commit(CheckpointId(1), committables)

    assert target.visible() == [0, 1, 2]


def test_a_target_of_another_pipeline_is_refused_by_name(
    real_target: "Target", tmp_path: Path
) -> None:
    opened(real_target, BIRTH, 1)
    stranger = SINKS[real_target.kind](tmp_path, "stranger")

    with pytest.raises(Rejected, match="belongs to pipeline delays; choose another one"):
        stranger.validate(SCHEMA)
    with pytest.raises(Rejected, match="belongs to pipeline delays"):
        stranger.rewind([], OTHER)


def test_a_target_validates_before_and_after_it_is_made(real_target: "Target") -> None:
    real_target.sink.validate(SCHEMA)
    opened(real_target, BIRTH, 1)

    real_target.sink.validate(SCHEMA)


class Killed(BaseException):
    """The end of a life that leaves everything as it is."""


class Point(msgspec.Struct, frozen=True):
    """What a checkpoint stores, as far as a sink is concerned."""

    ancestors: list[tuple[RunId, CheckpointId]]
    run_id: RunId
    checkpoint_id: CheckpointId
    offset: int
    pending: list[tuple[CheckpointId, list[Json]]]

    @property
    def lineage(self) -> list[tuple[RunId, CheckpointId]]:
        return [*self.ancestors, (self.run_id, self.checkpoint_id)]


class Host:
    """Runs records through a sink, a checkpoint every `interval` of them; survives in `home`."""

    def __init__(self, home: Path, sink: Sink, die: Callable[[], None] | None = None) -> None:
        self._home = home / "points"
        self._home.mkdir(exist_ok=True)
        self._sink = sink
        self._die = die or abandon

    def live(
        self,
        run_id: RunId,
        *,
        restore: Point | None = None,
        parallelism: int = 2,
        interval: int = 10,
        until: int = RECORDS,
        seam: str | None = None,
        dies_at: int = 3,
        aborted: tuple[int, ...] = (),
    ) -> None:
        """`seam` is where it dies, in the `dies_at`-th interval. `aborted` never complete."""
        start = self.newest(run_id) or restore
        lineage = start.lineage if start else []
        ancestors = [entry for entry in lineage if entry[0] != run_id]
        offset = start.offset if start else 0
        self._sink.rewind(lineage, run_id)
        writers = self._open(run_id, parallelism)
        for index, (checkpoint_id, items) in enumerate(start.pending if start else []):
            writers[index % parallelism].commit(checkpoint_id, items)
        pending: list[list[tuple[CheckpointId, list[Json]]]] = [[] for _ in writers]
        count = 0

        def reach(name: str) -> None:
            if name == seam and count == dies_at:
                self._die()

        while offset < until:
            count += 1
            end = min(offset + interval, until)
            middle = (offset + end) // 2
            write(writers, offset, middle)
            reach("while writing")
            write(writers, middle, end)
            checkpoint_id = CheckpointId(self._next(f"{run_id}.checkpoint"))
            for writer, mine in zip(writers, pending, strict=True):
                if committables := writer.prepare(checkpoint_id):
                    mine.append((checkpoint_id, committables))
                reach("one subtask prepared")
            reach("all prepared")
            offset = end
            if count in aborted:
                continue
            everything = [entry for mine in pending for entry in mine]
            self._save(Point(ancestors, run_id, checkpoint_id, offset, everything))
            reach("complete")
            for writer, mine in zip(writers, pending, strict=True):
                for prepared_for, committables in mine:
                    writer.commit(prepared_for, committables)
                mine.clear()
                reach("one subtask committed")
            reach("all committed")
        for writer in writers:
            writer.close()

    def point(self, run_id: RunId, checkpoint_id: int) -> Point:
        return msgspec.json.decode(self._file(run_id, checkpoint_id).read_bytes(), type=Point)

    def newest(self, run_id: RunId) -> Point | None:
        files = sorted(self._home.glob(f"{run_id}.*.json"))
        return msgspec.json.decode(files[-1].read_bytes(), type=Point) if files else None

    def lose(self, run_id: RunId, checkpoint_id: int) -> None:
        self._file(run_id, checkpoint_id).unlink()

    def _open(self, run_id: RunId, parallelism: int) -> list[SinkWriter]:
        attempt = Attempt(self._next(f"{run_id}.attempt"))
        contexts = [SinkContext(run_id, attempt, Uid("out"), i) for i in range(parallelism)]
        return [self._sink.open(context, SCHEMA) for context in contexts]

    def _save(self, point: Point) -> None:
        new = self._home / "new"
        new.write_bytes(msgspec.json.encode(point))
        new.rename(self._file(point.run_id, point.checkpoint_id))

    def _file(self, run_id: RunId, checkpoint_id: int) -> Path:
        return self._home / f"{run_id}.{checkpoint_id:08}.json"

    def _next(self, counter: str) -> int:
        file = self._home / counter
        value = int(file.read_text()) + 1 if file.exists() else 1
        file.write_text(str(value))
        return value


class FakeSink:
    """Two-phase commit in its simplest form: a dictionary of prepared and visible batches."""

    guarantee = "exactly-once"

    def __init__(self) -> None:
        self.output: dict[str, Json] = {}  # name to ids, all that was ever committed
        self.current: set[str] = set()
        self.prepared: dict[str, Json] = {}
        self.owner: tuple[RunId, Attempt] | None = None

    def validate(self, schema: pa.Schema) -> None:
        pass

    def open(self, context: SinkContext, schema: pa.Schema) -> SinkWriter:
        self.check_current(context)
        self.owner = (context.run_id, context.attempt)
        return FakeWriter(self, context)

    def rewind(
        self, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
    ) -> Superseded | None:
        if self.owner is None or self.owner[0] != run_id:
            self.owner = (run_id, Attempt(0))
        belonging = {
            name
            for name in self.output
            if any(name.split("/")[0] == r and int(name.split("/")[1]) <= c for r, c in ancestors)
        }
        superseded = len(self.current - belonging)
        self.current = belonging
        return Superseded(superseded, "nowhere") if superseded else None

    def check_current(self, context: SinkContext) -> None:
        if self.owner and (self.owner[0] != context.run_id or self.owner[1] > context.attempt):
            raise ProtocolError("this attempt may not write any more")


class FakeWriter:
    def __init__(self, sink: FakeSink, context: SinkContext) -> None:
        self._sink = sink
        self._context = context
        self._ids: list[int] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._ids += batch["id"].to_pylist()

    def prepare(self, checkpoint_id: CheckpointId) -> list[Json]:
        self._sink.check_current(self._context)
        context = self._context
        name = f"{context.run_id}/{checkpoint_id}/{context.attempt}/{context.subtask}"
        ids, self._ids = self._ids, []
        self._sink.prepared[name] = ids
        return [name] if ids else []

    def commit(self, checkpoint_id: CheckpointId, committables: list[Json]) -> None:
        self._sink.check_current(self._context)
        for name in committables:
            if name not in self._sink.prepared:
                raise InvariantViolated(f"{name} is lost")
            self._sink.output[str(name)] = self._sink.prepared[str(name)]
            self._sink.current.add(str(name))

    def close(self) -> None:
        self._ids = []


class Target:
    """A sink, and how a reader who knows nothing of it sees its output: sorted ids."""

    def __init__(self, kind: str, sink: Sink, visible: Callable[[], list[int]]) -> None:
        self.kind = kind
        self.sink = sink
        self.visible = visible


def files_sink(home: Path, pipeline: str) -> Sink:
    return ExactlyOnceFiles(home / "out", pipeline=pipeline)


def sql_sink(home: Path, pipeline: str, buffer_rows: int = 1000) -> Sink:
    return SqlUpsert(
        f"sqlite:///{home}/out.sqlite",
        "results",
        ("id",),
        pipeline=pipeline,
        buffer_rows=buffer_rows,
    )


def visible_files(home: Path) -> list[int]:
    files = (home / "out").glob("[!._]*.parquet")
    return sorted(i for file in files for i in pq.read_table(file)["id"].to_pylist())


def visible_rows(home: Path) -> list[int]:
    with closing(sqlite3.connect(home / "out.sqlite")) as connection:
        tables = {name for (name,) in connection.execute("select name from sqlite_master")}
        if "results" not in tables:
            return []
        return sorted(i for (i,) in connection.execute("select id from results"))


def fake_target(home: Path) -> Target:
    sink = FakeSink()
    return Target(
        "fake", sink, lambda: sorted(i for name in sink.current for i in sink.output[name])
    )


SINKS: dict[str, Callable[[Path, str], Sink]] = {"files": files_sink, "sql": sql_sink}
TARGETS: dict[str, Callable[[Path], Target]] = {
    "fake": fake_target,
    "files": lambda home: Target("files", files_sink(home, "delays"), lambda: visible_files(home)),
    "sql": lambda home: Target("sql", sql_sink(home, "delays"), lambda: visible_rows(home)),
    "sql unbuffered": lambda home: Target(
        "sql", sql_sink(home, "delays", buffer_rows=2), lambda: visible_rows(home)
    ),
}


def opened(target: Target, run_id: RunId, attempt: int, subtask: int = 0) -> SinkWriter:
    context = SinkContext(run_id, Attempt(attempt), Uid("out"), subtask)
    return target.sink.open(context, SCHEMA)


def complete(writer: SinkWriter, checkpoint_id: int, ids: list[int]) -> None:
    writer.write(records(ids))
    writer.commit(CheckpointId(checkpoint_id), writer.prepare(CheckpointId(checkpoint_id)))


def records(ids: list[int]) -> pa.RecordBatch:
    values = [pa.array(ids, pa.int64()), pa.array(ids, SCHEMA.field("at").type)]
    return pa.record_batch([*values, pa.array([i / 3 for i in ids])], schema=SCHEMA)


def write(writers: list[SinkWriter], start: int, end: int) -> None:
    """Each record goes to one subtask, by its id, in batches of two."""
    for subtask, writer in enumerate(writers):
        mine = [i for i in range(start, end) if i % len(writers) == subtask]
        for index in range(0, len(mine), 2):
            writer.write(records(mine[index : index + 2]))


def abandon() -> None:
    raise Killed


def main() -> None:
    kind, home, seam = sys.argv[1:]
    sink = SINKS[kind](Path(home), "delays")
    Host(Path(home), sink, die=lambda: os.kill(os.getpid(), signal.SIGKILL)).live(BIRTH, seam=seam)


if __name__ == "__main__":
    main()
