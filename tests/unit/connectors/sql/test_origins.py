"""Origins: which rows belong to which run, up to the edges of a run's range."""

import pytest
import sqlalchemy as sa

from pipelines.connectors.sql.tables import (
    RUN_STEP,
    RUNS,
    early_origin_of,
    is_of_run,
    is_up_to,
    number_of,
    numbers_of,
    origin_of,
)
from pipelines.domain.ids import CheckpointId, RunId

LAST = CheckpointId(RUN_STEP - 1)
LAST_WRITER = RUN_STEP - 2
ORIGINS = {
    (number, name): origin
    for number in (1, 2, 3)
    for name, origin in {
        "first": origin_of(number, CheckpointId(1)),
        "second": origin_of(number, CheckpointId(2)),
        "last": origin_of(number, LAST),
        "early": early_origin_of(number, 0),
        "last early": early_origin_of(number, LAST_WRITER),
    }.items()
}


def test_a_row_belongs_to_exactly_one_run_whatever_its_checkpoint() -> None:
    assert len(set(ORIGINS.values())) == len(ORIGINS)
    for number in (1, 2, 3):
        own = {each for each in ORIGINS if each[0] == number}
        assert {each for each in ORIGINS if holds(is_of_run, each, number)} == own


@pytest.mark.parametrize(("newest", "names"), [(0, []), (1, ["first"]), (2, ["first", "second"])])
def test_rows_without_a_checkpoint_belong_to_no_point(newest: int, names: list[str]) -> None:
    found = {each for each in ORIGINS if holds(is_up_to, each, 2, newest)}

    assert found == {(2, name) for name in names}


def test_runs_are_numbered_per_table_and_keep_their_numbers() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        RUNS.create(connection)
        given = [
            number_of(connection, sink, RunId(run))
            for sink, run in [("a", "x"), ("a", "y"), ("b", "y"), ("a", "x"), ("b", "z")]
        ]

        assert given == [1, 2, 1, 1, 2]
        assert numbers_of(connection, "a") == {"x": 1, "y": 2}


def holds(condition: object, origin: tuple[int, str], *numbers: int) -> bool:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        value = sa.literal(ORIGINS[origin], sa.BigInteger)
        return bool(connection.scalar(sa.select(condition(value, *numbers))))  # type: ignore[operator]
