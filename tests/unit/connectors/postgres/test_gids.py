"""Names of prepared transactions: each tells its owner; a foreign one is never taken for ours."""

import pytest

from pipelines.connectors.postgres.tables import Gid, place_of
from pipelines.connectors.sink import SinkContext
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, RunId, Uid

HERE = place_of("shop", "public", "views")


@pytest.mark.parametrize("run", ["run-00000001", "r-a1-s2-i3", "ü", "a b"])
def test_a_gid_is_parsed_back_for_any_run_id(run: str) -> None:
    gid = Gid.of(HERE, context_of(run=run, attempt=12, subtask=3), interval=45)

    assert Gid.parsed(str(gid)) == gid


@pytest.mark.parametrize(
    "text", ["", "other", "ftdash-", f"x{HERE}", f"ftdash-{HERE}-run-a1-s1-i1"]
)
def test_a_gid_of_another_program_is_not_taken_for_ours(text: str) -> None:
    assert Gid.parsed(text) is None


def test_database_schema_table_sink_run_attempt_subtask_and_interval_tell_names_apart() -> None:
    places = [HERE, *(place_of(*names) for names in OTHER_PLACES)]
    gids = [str(Gid.of(place, context_of(), 1)) for place in places]
    gids += [str(Gid.of(HERE, context_of(**change), 1)) for change in CHANGES]
    gids.append(str(Gid.of(HERE, context_of(), 2)))

    assert len(set(gids)) == len(gids)


def test_orphans_are_transactions_of_earlier_attempts_the_subtask_inherits() -> None:
    mine = context_of(attempt=3, subtask=1)  # of two
    assert of(attempt=2, subtask=1).is_orphan_of(HERE, mine)
    assert of(attempt=1, subtask=5).is_orphan_of(HERE, mine)

    others = [
        of(attempt=3, subtask=1),
        of(attempt=2, subtask=2),
        of(attempt=2, subtask=1, run="run-0"),
        of(attempt=2, subtask=1, uid="other"),
        of(attempt=2, subtask=1, place=place_of("shop", "public", "others")),
    ]
    assert not any(gid.is_orphan_of(HERE, mine) for gid in others)


def test_only_later_intervals_of_the_same_run_are_behind_the_starting_point() -> None:
    behind = [of(interval=each).is_behind(HERE, RunId("run-1"), 5) for each in (4, 5, 6)]

    assert behind == [False, False, True]
    assert not of(interval=6, run="run-0").is_behind(HERE, RunId("run-1"), 5)
    assert not of(interval=6, place="elsewhere").is_behind(HERE, RunId("run-1"), 5)


def test_a_gid_that_the_server_would_refuse_is_refused_beforehand() -> None:
    with pytest.raises(Rejected, match="too long for a prepared transaction of PostgreSQL"):
        Gid.of(HERE, context_of(run="x" * 170), 1)


OTHER_PLACES = [("s", "public", "views"), ("shop", "p", "views"), ("shop", "publicviews", "")]
CHANGES: list[dict[str, object]] = [{"run": "x"}, {"attempt": 9}, {"subtask": 7}, {"uid": "x"}]


def context_of(**changes: object) -> SinkContext:
    values: dict[str, object] = {"run": "run-1", "attempt": 1, "uid": "out", "subtask": 0}
    values |= changes
    return SinkContext(
        RunId(str(values["run"])),
        Attempt(int(str(values["attempt"]))),
        Uid(str(values["uid"])),
        int(str(values["subtask"])),
        2,
    )


def of(*, place: str = HERE, interval: int = 1, **changes: object) -> Gid:
    return Gid.of(place, context_of(**changes), interval)
