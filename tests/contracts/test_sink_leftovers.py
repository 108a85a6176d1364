"""The contract of sinks, for what dead writers leave behind.

The sink lists it by run and finds it by the names that a point has for it. Only the run that holds
the target may end it.
"""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from pipelines.connectors.kafka.sink import KafkaOwnership, TransactionName
from pipelines.connectors.sink import LeavesUnfinished, Unfinished
from pipelines.domain.errors import TargetTaken
from pipelines.domain.ids import Attempt, RunId, Uid
from pipelines.runtime.master.output.leftovers import texts_in
from tests.contracts.sink_host import EVERYTHING, Host, Seam
from tests.contracts.sink_lives import Lives, lives
from tests.contracts.sink_targets import FAKES, KINDS, Target, made, server_of
from tests.takeovers import held

BIRTH, REBIRTH, OTHER, THIRD = RunId("run-1"), RunId("run-1b"), RunId("run-2"), RunId("run-3")
LEAVE_NOTHING = ["fake log", "kafka log", "sqlite upsert", "sqlite unbuffered", "postgres upsert"]
LEAVE_NOTHING += ["postgres"]
"""Kinds whose target keeps nothing for a checkpoint, or only until the writer ends."""

SLOW = [kind for kind in KINDS if kind not in ("files", "redis", "sqlite upsert")]


def marked(kinds: list[str]) -> list[object]:
    return [pytest.param(k, marks=[pytest.mark.slow] * (k in SLOW)) for k in kinds]


REAL = marked([*KINDS])
EVERY = marked([*FAKES, *KINDS])
LEAVING = marked([kind for kind in [*FAKES, *KINDS] if kind not in LEAVE_NOTHING])


@pytest.fixture
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return made(request.param, tmp_path, request)


@pytest.fixture(scope="module")
def killed() -> Iterator[Lives]:
    with lives() as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("kind", REAL)
def test_leftovers_of_a_killed_writer_are_listed_and_ended(
    kind: str, killed: Lives, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """All subtasks prepare its first checkpoint, which never completes."""
    target = made(kind, tmp_path, request)
    assert killed.live(kind, tmp_path, BIRTH, Seam.ACKNOWLEDGED, dies_at=1) == -signal.SIGKILL

    held(target.sink, OTHER)
    found = unfinished_of(target)
    ended = discarded(target, found, OTHER)

    assert bool(found) is (kind not in LEAVE_NOTHING)
    assert {each.run_id for each in found} <= {BIRTH}
    assert ended == len(found)
    assert unfinished_of(target) == []
    Host(tmp_path, target.sink).live(OTHER, parallelism=2, interval=20)
    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", EVERY, indirect=True)
def test_a_run_that_ended_well_leaves_nothing(target: Target, tmp_path: Path) -> None:
    Host(tmp_path, target.sink).live(BIRTH, parallelism=2, interval=20)

    assert unfinished_of(target) == []


@pytest.mark.parametrize("target", LEAVING, indirect=True)
def test_a_point_and_its_target_name_pending_output_alike(target: Target, tmp_path: Path) -> None:
    """An operator can then end the remaining items and still restore the point."""
    host = Host(tmp_path, target.sink)
    host.perish(BIRTH, Seam.DURABLE, dies_at=1)
    point = host.newest(BIRTH)
    assert point is not None
    needed = {text for _, _, pending in point.pending for text in texts_in(pending)}

    found = unfinished_of(target)
    discarded(target, [each for each in found if each.name not in needed], BIRTH)

    assert found
    assert {each.name for each in found} <= needed
    host.live(OTHER, restore=point, parallelism=2, interval=20)
    assert target.visible() == EVERYTHING


@pytest.mark.parametrize("target", LEAVING, indirect=True)
def test_only_the_run_that_holds_the_target_may_end_leftovers(
    target: Target, tmp_path: Path
) -> None:
    Host(tmp_path, target.sink).perish(BIRTH, Seam.ACKNOWLEDGED, dies_at=1)
    for run_id in (OTHER, THIRD):
        held(target.sink, run_id)
    found = unfinished_of(target)

    for run_id in (BIRTH, OTHER):
        with pytest.raises(TargetTaken, match=r"^Run run-3 .* has taken over"):
            discarded(target, found, run_id)

    assert found
    assert unfinished_of(target) == found


@pytest.mark.parametrize("target", LEAVING, indirect=True)
def test_ending_leftovers_again_ends_none(target: Target, tmp_path: Path) -> None:
    Host(tmp_path, target.sink).perish(BIRTH, Seam.ACKNOWLEDGED, dies_at=1)
    held(target.sink, OTHER)
    found = unfinished_of(target)
    discarded(target, found, OTHER)

    assert found
    assert discarded(target, found, OTHER) == 0


@pytest.mark.parametrize("target", LEAVING, indirect=True)
def test_leftovers_are_attributed_to_the_right_run(target: Target, tmp_path: Path) -> None:
    """This also works if the name of one run begins like another's."""
    host = Host(tmp_path, target.sink)
    host.perish(REBIRTH, Seam.ACKNOWLEDGED, dies_at=1)
    held(target.sink, OTHER)
    before = unfinished_of(target)
    discarded(target, [each for each in before if each.run_id == BIRTH], OTHER)

    assert {each.run_id for each in before} == {REBIRTH}
    assert unfinished_of(target) == before


def test_a_hidden_file_of_another_program_is_left_alone(tmp_path: Path) -> None:
    target = KINDS["files"].target(tmp_path)
    Host(tmp_path, target.sink).perish(BIRTH, Seam.ACKNOWLEDGED, dies_at=1)
    names = [".prepared-report.parquet", ".in-progress", ".hidden", "part-run-1-00000001-0-0.csv"]
    strangers = [tmp_path / "out" / name for name in names]
    for stranger in strangers:
        stranger.write_text("of somebody else")
    held(target.sink, OTHER)
    found = unfinished_of(target)

    ended = discarded(target, [*found, *(Unfinished(n, BIRTH, "files") for n in names)], OTHER)

    assert not {each.name for each in found} & set(names)
    assert ended == len(found)
    assert all(stranger.exists() for stranger in strangers)


def test_a_redis_list_of_another_program_is_left_alone(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    target = made("redis", tmp_path, request)
    Host(tmp_path, target.sink).perish(BIRTH, Seam.ACKNOWLEDGED, dies_at=1)
    held(target.sink, OTHER)
    with closing(redis.Redis.from_url(server_of(tmp_path))) as client:
        stranger = f"{{{tmp_path.name}}}:own:staged:run-1:1:out:0:9"
        client.rpush(stranger, "of somebody else")
        found = unfinished_of(target)

        ended = discarded(target, [*found, Unfinished("run-1:1:out:0:9", BIRTH, "lists")], OTHER)

        assert ended == len(found) > 0
        assert client.lrange(stranger, 0, -1) == [b"of somebody else"]


@pytest.mark.parametrize(
    "name",
    [
        "ftdash/delays/numbers/holder",
        "ftdash/delays/numbers/validation",
        "ftdash/delays/others/out/run-1/t/1/0/1",
        "ftdash/stranger/numbers/out/run-1/t/1/0/1",
        "ftdash/delays/numbers/out/run-1/t/1/0/1/x",
        "of-somebody-else",
    ],
)
def test_only_transaction_ids_of_this_pipeline_and_topic_name_a_run(name: str) -> None:
    ownership = KafkaOwnership("delays", "numbers")
    writer = TransactionName(Uid("a/b"), RunId("run/1"), Attempt(2), 0, 7)

    assert ownership.run_of(name) is None
    assert ownership.run_of(ownership.id_of(writer)) == "run/1"
    assert ownership.run_of(ownership.log_id(Uid("a/b"), RunId("run/1"), 3)) == "run/1"


def unfinished_of(target: Target) -> list[Unfinished]:
    sink = target.sink
    if not isinstance(sink, LeavesUnfinished):
        return []
    return sorted(sink.unfinished(), key=lambda each: each.name)


def discarded(target: Target, items: list[Unfinished], run_id: RunId) -> int:
    sink = target.sink
    if not isinstance(sink, LeavesUnfinished):
        return 0
    return sink.discard([each.name for each in items], run_id)
