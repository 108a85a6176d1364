"""The contract of sinks: whenever a writer dies, the output ends up exact.

Run as a program, this file is one life of a `Host` that ends by SIGKILL.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.connectors.sink import SinkWriter
from pipelines.domain.errors import ProtocolError, Rejected
from pipelines.domain.ids import CheckpointId, RunId
from tests.contracts.sink_host import EVERYTHING, SCHEMA, SEAMS, Host, Killed, records
from tests.contracts.sink_targets import (
    REDIS_URL,
    SINKS,
    TARGETS,
    Target,
    give_database,
    opened,
)

ROOT = Path(__file__).parents[2]
BIRTH, REBIRTH, OTHER, THIRD = (
    RunId("run-1"),
    RunId("run-1b"),
    RunId("run-2"),
    RunId("run-00000003"),
)


LOCAL = [
    "fake",
    "fake log",
    "fake transactions",
    "files",
    pytest.param("json lines", marks=pytest.mark.slow),  # the writer is that of "files"
    "sql",
    pytest.param("sql unbuffered", marks=pytest.mark.slow),
    "redis",
    pytest.param("redis unbuffered", marks=pytest.mark.slow),
]
SLOWER = [pytest.param("postgres", marks=pytest.mark.slow)]
VARIANTS = [  # held to what their own way of writing could break
    pytest.param("postgres two-phase", marks=pytest.mark.slow),
    pytest.param("postgres upsert", marks=pytest.mark.slow),
]
KILLS = [(kind, seam) for kind in ("files", "sql", "redis", "postgres") for seam in SEAMS]
KILLS += [("postgres two-phase", seam) for seam in ("all prepared", "one subtask committed")]


@pytest.fixture(params=[*LOCAL, *SLOWER])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return made(request.param, tmp_path, request)


@pytest.fixture(params=["files", "sql", "redis", pytest.param("postgres", marks=pytest.mark.slow)])
def real_target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return made(request.param, tmp_path, request)


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
@pytest.mark.parametrize("seam", SEAMS)
def test_output_is_exact_wherever_the_writers_are_abandoned(
    target: Target, tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam)

    host.live(BIRTH, parallelism=3, interval=7)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", LOCAL, indirect=True)
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("seam", SEAMS)
def test_output_is_exact_at_any_parallelism(
    target: Target, tmp_path: Path, seam: str, parallelism: int
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam)

    host.live(BIRTH, parallelism=parallelism, interval=7)

    assert target.visible() == EVERYTHING


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "seam"), KILLS)
def test_output_is_exact_wherever_the_process_is_killed(
    tmp_path: Path, kind: str, seam: str, request: pytest.FixtureRequest
) -> None:
    target = made(kind, tmp_path, request)
    killed = subprocess.run(
        [sys.executable, __file__, kind, str(tmp_path), seam],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )

    Host(tmp_path, target.sink).live(BIRTH, interval=7)

    assert killed.returncode == -signal.SIGKILL
    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
@pytest.mark.parametrize("seams", [SEAMS, SEAMS[::-1]])
def test_output_is_exact_after_dying_at_every_seam_in_turn(
    target: Target, tmp_path: Path, seams: list[str]
) -> None:
    host = Host(tmp_path, target.sink)
    for seam in seams:
        with pytest.raises(Killed):
            host.live(BIRTH, seam=seam, interval=3, dies_at=2)

    host.live(BIRTH, interval=7)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
def test_an_aborted_checkpoint_is_committed_with_the_next_one(
    target: Target, tmp_path: Path
) -> None:
    Host(tmp_path, target.sink).live(BIRTH, aborted=(2, 3))

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("seam", SEAMS)
def test_a_rewind_leaves_exactly_the_output_of_its_point(
    target: Target, tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, dies_at=4)
    point = host.point(BIRTH, 2)

    target.sink.rewind(point.lineage, OTHER)

    assert target.visible() == EVERYTHING[: point.offset]


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
@pytest.mark.parametrize("seam", SEAMS)
def test_a_restore_of_an_older_point_doubles_nothing(
    target: Target, tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, dies_at=4)

    host.live(OTHER, restore=host.point(BIRTH, 2), parallelism=3, interval=7)

    assert target.visible() == EVERYTHING


def test_a_fall_back_within_the_run_doubles_nothing(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam="all committed", dies_at=4)
    host.lose(BIRTH, 4)
    host.lose(BIRTH, 3)

    host.live(BIRTH, interval=7)

    assert target.visible() == EVERYTHING


def test_a_fresh_start_begins_with_nothing(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)

    superseded = target.sink.rewind([], OTHER)

    assert superseded is not None
    assert superseded.items > 0
    assert target.visible() == []


@pytest.mark.parametrize("seam", SEAMS)
def test_output_that_a_later_restore_needs_comes_back(
    target: Target, tmp_path: Path, seam: str
) -> None:
    host = Host(tmp_path, target.sink)
    with pytest.raises(Killed):
        host.live(BIRTH, seam=seam, dies_at=4)
    with pytest.raises(Killed):
        host.live(OTHER, seam="all committed", dies_at=2, interval=4)

    host.live(THIRD, restore=host.newest(BIRTH), interval=7)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
def test_a_restore_of_a_restore_keeps_the_whole_lineage(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH, until=35)
    host.live(OTHER, restore=host.point(BIRTH, 2), interval=7, until=50)

    host.live(THIRD, restore=host.point(OTHER, 2), interval=9)

    assert target.visible() == EVERYTHING


def test_a_run_whose_name_begins_like_another_is_another_run(
    target: Target, tmp_path: Path
) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)
    host.live(REBIRTH, until=20)

    target.sink.rewind(host.point(BIRTH, 2).lineage, THIRD)

    assert target.visible() == EVERYTHING[:20]


def test_a_rewind_may_be_repeated(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)
    lineage = host.point(BIRTH, 3).lineage
    target.sink.rewind(lineage, OTHER)

    again = target.sink.rewind(lineage, OTHER)

    assert again is None
    assert target.visible() == EVERYTHING[:30]


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
def test_a_commit_may_be_repeated(target: Target) -> None:
    writer = opened(target, BIRTH, 1)
    writer.write(records([1, 2]))
    committables = writer.prepare(CheckpointId(1))
    writer.commit(CheckpointId(1), committables)

    writer.commit(CheckpointId(1), committables)

    assert target.visible() == [1, 2]


def test_what_was_written_but_not_prepared_is_dropped_by_the_next_attempt(
    target: Target,
) -> None:
    abandoned = opened(target, BIRTH, 1)
    abandoned.write(records([1, 2]))
    target.sink.rewind([], BIRTH)

    writer = opened(target, BIRTH, 2)
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    assert target.visible() == []


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
@pytest.mark.parametrize("between", [[], [OTHER]])
def test_what_an_incomplete_checkpoint_wrote_never_comes_back(
    target: Target, between: list[RunId]
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


def test_an_interval_without_records_prepares_nothing(target: Target) -> None:
    writer = opened(target, BIRTH, 1)

    assert writer.prepare(CheckpointId(1)) == []


@pytest.mark.parametrize("target", [*LOCAL, *SLOWER, *VARIANTS], indirect=True)
@pytest.mark.parametrize("newcomer", [(BIRTH, 2), (OTHER, 1)])
def test_a_writer_that_was_replaced_is_refused_and_changes_nothing(
    target: Target, newcomer: tuple[RunId, int]
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


def test_a_replaced_attempt_cannot_open_again(target: Target) -> None:
    opened(target, BIRTH, 2)

    with pytest.raises(ProtocolError, match="may not write"):
        opened(target, BIRTH, 1)


def test_subtasks_of_one_attempt_do_not_disturb_each_other(target: Target) -> None:
    writers = [opened(target, BIRTH, 1, subtask) for subtask in range(3)]
    for subtask, writer in enumerate(writers):
        writer.write(records([subtask]))
    prepared = [writer.prepare(CheckpointId(1)) for writer in writers]
    for writer, committables in zip(writers, prepared, strict=True):
        writer.commit(CheckpointId(1), committables)

    assert target.visible() == [0, 1, 2]


def test_a_target_of_another_pipeline_is_refused_by_name(
    real_target: Target, tmp_path: Path
) -> None:
    opened(real_target, BIRTH, 1)
    stranger = SINKS[real_target.kind](tmp_path, "stranger")

    with pytest.raises(Rejected, match="belongs to pipeline delays; choose another one"):
        stranger.validate(SCHEMA)
    with pytest.raises(Rejected, match="belongs to pipeline delays"):
        stranger.rewind([], OTHER)


def test_a_target_validates_before_and_after_it_is_made(real_target: Target) -> None:
    real_target.sink.validate(SCHEMA)
    opened(real_target, BIRTH, 1)

    real_target.sink.validate(SCHEMA)


def made(kind: str, home: Path, request: pytest.FixtureRequest) -> Target:
    """A server that the sink needs is started, and known to all processes of the test."""
    if kind.startswith("redis"):
        (home / REDIS_URL).write_text(request.getfixturevalue("redis_server").url)
    if kind.startswith("postgres"):
        give_database(home, request.getfixturevalue("postgres"))
    return TARGETS[kind](home)


def complete(writer: SinkWriter, checkpoint_id: int, ids: list[int]) -> None:
    writer.write(records(ids))
    writer.commit(CheckpointId(checkpoint_id), writer.prepare(CheckpointId(checkpoint_id)))


def main() -> None:
    kind, home, seam = sys.argv[1:]
    sink = SINKS[kind](Path(home), "delays")
    Host(Path(home), sink, die=lambda: os.kill(os.getpid(), signal.SIGKILL)).live(BIRTH, seam=seam)


if __name__ == "__main__":
    main()
