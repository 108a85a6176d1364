"""The contract of sinks: whenever a writer dies, the output ends up exact.

A reader that looks all the time never sees a row twice, a part of a file, or an uncommitted row.

Writers die at each `Seam`. Every real sink dies by SIGKILL. Fakes die at each seam when the test
abandons all objects of the attempt, which then linger as zombies; every sink dies so at all seams
in turn. Tests of one system are in `test_kafka_transactions`, `test_kafka_write_ahead`,
`test_postgres`, `test_postgres_two_phase`, `test_redis_hashes` and `unit/connectors/files`.
"""

import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipelines.connectors.sink import OwnsPlace, SinkContext, SinkWriter
from pipelines.domain.errors import OutputLost, ProtocolError, Rejected, TargetTaken
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.ownership import Holder
from pipelines.stream.environment import check_places
from tests.contracts.sink_host import EVERYTHING, SCHEMA, SEAMS, Host, Seam, deaths, records
from tests.contracts.sink_lives import Lives, lives
from tests.contracts.sink_readers import Watch
from tests.contracts.sink_targets import FAKES, KINDS, PIPELINE, Target, made, opened
from tests.takeovers import claim_of, held, rewound

if TYPE_CHECKING:
    from pipelines.domain.snapshots import Json

BIRTH, REBIRTH, OTHER, THIRD = (
    RunId("run-1"),
    RunId("run-1b"),
    RunId("run-2"),
    RunId("run-00000003"),
)
HERE = ["files", "sqlite upsert", "redis"]  # available on every machine
TABLES = ["postgres", "postgres two-phase", "postgres upsert"]
LOGS = ["kafka transactions", "kafka log"]  # keep what they published, so there is no rewinding
UPSERTING_LOGS = ["kafka upsert"]  # writes as "kafka transactions" does
OTHERWISE_SET = ["json lines", "sqlite unbuffered", "redis unbuffered"]
SLOW = [*TABLES, *LOGS, *UPSERTING_LOGS, *OTHERWISE_SET]
UNTOLD = ["kafka log"]  # nothing leaves before a manifest is durable
NEVER_PENDING = ["sqlite upsert", "sqlite unbuffered", "postgres upsert"]
"""Their rows are visible before their checkpoint, and exact again once they are written again."""


def marked(kinds: list[str]) -> list[object]:
    return [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in kinds]


REWOUND = [*FAKES, *HERE, "postgres", *OTHERWISE_SET]
REWINDING = marked(REWOUND)
EVERY_TABLE = marked([*FAKES, *HERE, *TABLES])
EVERY = marked([*FAKES, *HERE, *TABLES, *LOGS])
OWNED = marked([*HERE, "postgres"])  # refuse another pipeline instead of replacing it


def leftovers(kinds: list[str]) -> list[object]:
    """Deaths that leave something different behind an older point."""
    few = [Seam.DURABLE, Seam.COMMITTING]  # a life with a database server takes long
    unlike = [Seam.WRITING, Seam.ACKNOWLEDGED, Seam.DURABLE, Seam.COMMITTING, Seam.COMMITTED]
    return [
        pytest.param(k, seam, marks=[pytest.mark.slow] * (k in SLOW))
        for k in kinds
        for seam in (few if k in TABLES else unlike)
    ]


def seams_of(kind: str) -> list[Seam]:
    """A recovery of a kind without pending output commits nothing."""
    return [seam for seam in SEAMS if seam is not Seam.RECOVERING or kind not in NEVER_PENDING]


def kills_of(kind: str) -> list[Seam]:
    seams = seams_of(kind)
    return seams[seams.index(Seam.ACKNOWLEDGED) :] if kind in UNTOLD else seams


@pytest.fixture(params=REWINDING)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return made(request.param, tmp_path, request)


@pytest.fixture(scope="module")
def killed() -> Iterator[Lives]:
    with lives() as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "seam", "parallelism"),
    [
        (kind, seam, parallelism)
        for kind in [*HERE, "json lines", *TABLES, *LOGS]
        for seam, parallelism in zip(kills_of(kind), cycle([1, 3, 2]), strict=False)
    ],
)
def test_output_is_exact_wherever_the_process_is_killed(
    kind: str,
    seam: Seam,
    parallelism: int,
    killed: Lives,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """One reader looks all the time, and another begins when everything is over."""
    target = made(kind, tmp_path, request)
    host = Host(tmp_path, target.sink)
    covered = None if kind in NEVER_PENDING else partial(completed_in, host)

    with Watch(partial(KINDS[kind].reader, tmp_path), covered) as watch:
        ends = [killed.live(kind, tmp_path, BIRTH, death) for death in deaths(seam)]
        host.live(BIRTH, parallelism=parallelism, interval=20)

        assert ends == [-signal.SIGKILL] * len(ends)
        assert watch.comes_to(EVERYTHING)
    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", marked([*FAKES]), indirect=True)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("seam", SEAMS)
def test_output_is_exact_wherever_the_writers_are_abandoned(
    target: Target, tmp_path: Path, seam: Seam, parallelism: int
) -> None:
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, seam)

    host.live(BIRTH, parallelism=parallelism, interval=7)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize(
    "kind", marked([*FAKES, *HERE, *TABLES, *LOGS, *UPSERTING_LOGS, *OTHERWISE_SET])
)
def test_output_is_exact_after_dying_at_every_seam_in_turn(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Seams come in order, then backwards if a life is short.

    Abandoned writers still exist, are connected, and may hold locks.
    """
    target = made(kind, tmp_path, request)
    host = Host(tmp_path, target.sink)
    backwards = [] if kind in TABLES + LOGS + UPSERTING_LOGS else seams_of(kind)[::-1]
    for seam in [*seams_of(kind), *backwards]:
        host.perish(BIRTH, seam, interval=2, parallelism=2)

    host.live(BIRTH, parallelism=2, interval=20)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_an_aborted_checkpoint_is_committed_with_the_next_one(
    target: Target, tmp_path: Path
) -> None:
    Host(tmp_path, target.sink).live(BIRTH, aborted=(2, 3), interval=15, parallelism=1)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize(("target", "seam"), leftovers(REWOUND), indirect=["target"])
def test_a_rewind_leaves_exactly_the_output_of_its_point(
    target: Target, tmp_path: Path, seam: Seam
) -> None:
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, seam, dies_at=4)
    point = host.point(BIRTH, 2)

    rewound(target.sink, point.lineage, OTHER)

    assert target.visible() == EVERYTHING[: point.offset]


@pytest.mark.parametrize(
    ("target", "seam"), leftovers([*FAKES, *HERE, *TABLES]), indirect=["target"]
)
def test_a_restore_of_an_older_point_doubles_nothing(
    target: Target, tmp_path: Path, seam: Seam
) -> None:
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, seam, dies_at=4)

    host.live(OTHER, restore=host.point(BIRTH, 2), parallelism=2, interval=20)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_a_restore_into_another_run_loses_nothing_and_leaves_nothing_open(
    target: Target, tmp_path: Path
) -> None:
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, Seam.COMMITTING)

    host.live(OTHER, restore=host.newest(BIRTH), parallelism=2, interval=20)

    assert target.visible() == EVERYTHING


def test_a_fallback_within_the_run_doubles_nothing(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, Seam.COMMITTED, dies_at=4)
    host.lose(BIRTH, 4)
    host.lose(BIRTH, 3)

    host.perish(BIRTH, Seam.COMMITTED, interval=7)  # the recovery after it doubles nothing either
    host.live(BIRTH, interval=7)

    assert target.visible() == EVERYTHING


def test_a_fresh_start_begins_with_empty_output(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)

    superseded = rewound(target.sink, [], OTHER)

    assert superseded is not None
    assert superseded.items > 0
    assert target.visible() == []


@pytest.mark.parametrize(("target", "seam"), leftovers(REWOUND), indirect=["target"])
def test_a_later_restore_recovers_the_output_that_it_needs(
    target: Target, tmp_path: Path, seam: Seam
) -> None:
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, seam, dies_at=4)
    host.perish(OTHER, Seam.COMMITTED, interval=4)

    host.live(THIRD, restore=host.newest(BIRTH), interval=20)

    assert target.visible() == EVERYTHING


def test_a_restore_of_a_restore_keeps_the_whole_lineage(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH, until=35)
    host.live(OTHER, restore=host.point(BIRTH, 2), interval=7, until=50)

    host.live(THIRD, restore=host.point(OTHER, 2), interval=9)

    assert target.visible() == EVERYTHING


def test_runs_whose_names_share_a_prefix_are_different_runs(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)
    host.live(REBIRTH, until=20)

    rewound(target.sink, host.point(BIRTH, 2).lineage, THIRD)

    assert target.visible() == EVERYTHING[:20]


def test_a_rewind_may_be_repeated(target: Target, tmp_path: Path) -> None:
    host = Host(tmp_path, target.sink)
    host.live(BIRTH)
    lineage = host.point(BIRTH, 3).lineage
    rewound(target.sink, lineage, OTHER)

    again = rewound(target.sink, lineage, OTHER)

    assert again is None
    assert target.visible() == EVERYTHING[:30]


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_a_commit_may_be_repeated(target: Target) -> None:
    writer = opened(target, BIRTH, 1)
    writer.write(records([1, 2]))
    committables = writer.prepare(CheckpointId(1))
    writer.commit(CheckpointId(1), committables)

    writer.commit(CheckpointId(1), committables)

    assert target.visible() == [1, 2]


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_the_next_attempt_drops_what_was_written_but_not_prepared(
    target: Target,
) -> None:
    abandoned = opened(target, BIRTH, 1)
    abandoned.write(records([1, 2]))
    rewound(target.sink, [], BIRTH)

    writer = opened(target, BIRTH, 2)
    writer.commit(CheckpointId(1), writer.prepare(CheckpointId(1)))

    assert target.visible() == []


@pytest.mark.parametrize("target", EVERY_TABLE, indirect=True)
@pytest.mark.parametrize("between", [[], [OTHER]])
def test_output_of_an_incomplete_checkpoint_never_reappears(
    target: Target, between: list[RunId]
) -> None:
    writer = opened(target, BIRTH, 1)
    complete(writer, 1, [1])
    writer.write(records([99]))
    writer.prepare(CheckpointId(2))
    for run_id in between:
        rewound(target.sink, [], run_id)

    rewound(target.sink, [(BIRTH, CheckpointId(1))], BIRTH)
    complete(opened(target, BIRTH, 2), 3, [2])
    rewound(target.sink, [(BIRTH, CheckpointId(3))], BIRTH)

    assert target.visible() == [1, 2]


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_an_interval_without_records_prepares_nothing(target: Target) -> None:
    writer = opened(target, BIRTH, 1)

    assert writer.prepare(CheckpointId(1)) == []


@pytest.mark.parametrize("target", EVERY, indirect=True)
@pytest.mark.parametrize(
    ("newcomer", "refusal"),
    [
        ((BIRTH, 2), "may not write"),
        ((OTHER, 1), r"^Run run-2 .* has taken over .* run run-1 ends"),
    ],
)
def test_a_replaced_writer_is_refused_and_changes_nothing(
    target: Target, newcomer: tuple[RunId, int], refusal: str
) -> None:
    zombie = opened(target, BIRTH, 1)
    zombie.write(records([1]))
    rewound(target.sink, [], newcomer[0])
    writer = opened(target, *newcomer)
    writer.write(records([2]))
    writer.commit(CheckpointId(2), writer.prepare(CheckpointId(2)))

    kind = ProtocolError if newcomer[0] == BIRTH else TargetTaken
    with pytest.raises(kind, match=refusal):
        zombie.commit(CheckpointId(1), zombie.prepare(CheckpointId(1)))

    assert target.visible() == [2]


@pytest.mark.parametrize("target", EVERY_TABLE, indirect=True)
def test_a_dying_slot_shows_nothing_that_a_rewind_has_left_out(target: Target) -> None:
    """Its checkpoint was complete, but is damaged, and the next attempt has not begun to write."""
    slot = opened(target, BIRTH, 1)
    complete(slot, 1, [1])
    slot.write(records([2]))
    committables = slot.prepare(CheckpointId(2))
    rewound(target.sink, [(BIRTH, CheckpointId(1))], BIRTH)

    with suppress(ProtocolError, OutputLost):
        slot.commit(CheckpointId(2), committables)
    with suppress(ProtocolError):
        complete(slot, 3, [3])

    assert target.visible() == [1]
    complete(opened(target, BIRTH, 2), 4, [2])
    assert target.visible() == [1, 2]


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_a_run_that_lost_its_target_never_takes_it_back(target: Target, tmp_path: Path) -> None:
    """It is refused however often it starts again, whatever it has left to commit."""
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, Seam.COMMITTING)
    host.live(OTHER, restore=host.newest(BIRTH), parallelism=2, interval=20)

    for _ in range(2):
        with pytest.raises(TargetTaken, match=r"^Run run-2 of installation host of run-2, started"):
            host.live(BIRTH)

    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_only_one_of_two_runs_that_saw_the_same_holder_takes_over(target: Target) -> None:
    held(target.sink, BIRTH)
    claims = [claim_of(target.sink, run_id) for run_id in (OTHER, THIRD)]
    target.sink.hold(claims[0])

    with pytest.raises(TargetTaken, match=r"^Run run-2 .* has taken over"):
        target.sink.hold(claims[1])
    with pytest.raises(TargetTaken, match=r"^Run run-2 .* has taken over"):
        target.sink.rewind([], THIRD)

    assert target.sink.holder() == claims[0].holder


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_epochs_count_the_runs_that_held_a_target(target: Target) -> None:
    assert target.sink.holder() is None
    for run_id in (BIRTH, BIRTH, OTHER, THIRD):
        held(target.sink, run_id, installation="elsewhere", started_by="grace")

    assert target.sink.holder() == Holder(
        run_id=THIRD, epoch=3, installation="elsewhere", started_by="grace"
    )


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_reading_the_holder_of_a_target_does_not_change_it(target: Target) -> None:
    assert target.sink.holder() is None

    opened(target, BIRTH, 1)

    target.sink.validate(SCHEMA)


@pytest.mark.parametrize("target", EVERY, indirect=True)
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


@pytest.mark.parametrize("kind", marked([*HERE, *TABLES, *LOGS, *UPSERTING_LOGS, *OTHERWISE_SET]))
def test_two_sinks_of_a_pipeline_in_one_place_are_refused_or_stay_exact(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Both have the same run, attempt and subtask; only the uid tells them apart.

    One passes the barrier and writes on before the other has passed it. A recovery commits the
    third checkpoint.
    """
    target = made(kind, tmp_path, request)
    twin = KINDS[kind].sink(tmp_path, PIPELINE)
    if isinstance(target.sink, OwnsPlace):
        with pytest.raises(Rejected, match="'a' and 'b' both write to"):
            check_places({Uid("a"): target.sink, Uid("b"): twin})
        return
    lineage: list[tuple[RunId, CheckpointId]] = []
    due: dict[str, list[Json]] = {}
    for attempt in (1, 2):
        for sink in (target.sink, twin):
            rewound(sink, lineage, BIRTH)
        contexts = [SinkContext(BIRTH, Attempt(attempt), Uid(uid), 0, 1) for uid in "ab"]
        writers = {each.uid: target.sink.open(each, SCHEMA) for each in contexts}
        for uid, committables in due.items():
            writers[Uid(uid)].commit(CheckpointId(3), committables)
        for checkpoint in range(3 * attempt - 2, 3 * attempt + 1):
            first = 4 * checkpoint
            writers[Uid("a")].write(records([first, first + 1]))
            writers[Uid("b")].write(records([first + 2, first + 3]))
            due = {"a": writers[Uid("a")].prepare(CheckpointId(checkpoint))}
            if checkpoint == 3:
                writers[Uid("a")].write(records([98, 99]))  # their interval never completes
            due["b"] = writers[Uid("b")].prepare(CheckpointId(checkpoint))
            lineage = [(BIRTH, CheckpointId(checkpoint))]
            if checkpoint != 3:
                for uid, writer in writers.items():
                    writer.commit(CheckpointId(checkpoint), due[uid])
        for writer in writers.values():
            writer.close()

    assert target.visible() == list(range(4, 28))


@pytest.mark.parametrize("kind", OWNED)
def test_a_target_of_another_pipeline_is_refused_by_name(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    opened(made(kind, tmp_path, request), BIRTH, 1)
    stranger = KINDS[kind].sink(tmp_path, "stranger")

    with pytest.raises(Rejected, match="belongs to pipeline delays; choose another one"):
        stranger.validate(SCHEMA)
    with pytest.raises(Rejected, match="belongs to pipeline delays"):
        rewound(stranger, [], OTHER)


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_a_target_validates_before_and_after_it_is_made(target: Target) -> None:
    target.sink.validate(SCHEMA)
    complete(opened(target, BIRTH, 1), 1, [0, 1, 2])

    target.sink.validate(SCHEMA)

    assert target.visible() == [0, 1, 2]


def completed_in(host: Host) -> int:
    """Returns the offset below which all ids belong to a completed checkpoint."""
    point = host.newest(BIRTH)
    return 0 if point is None else point.offset


def complete(writer: SinkWriter, checkpoint_id: int, ids: list[int]) -> None:
    writer.write(records(ids))
    writer.commit(CheckpointId(checkpoint_id), writer.prepare(CheckpointId(checkpoint_id)))
