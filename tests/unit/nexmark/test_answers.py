"""Every Nexmark query gives the same result as a DuckDB batch computation on the same events."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from nexmark.flow import Parameters, nexmark, source_of
from nexmark.generator import BID, Model
from nexmark.queries import QUERIES
from nexmark.tables import Tables
from nexmark.writing import write_parquet

from pipelines.local import run_local
from pipelines.stream import Environment, Rejected
from tests.unit.nexmark.answers import SQL, Answers, decided, events_of

EVENTS, PER_S = 20_000, 500
"""Forty seconds of event time: four windows of ten seconds, and sessions that end."""

MILLION, MILLION_PER_S = 1_000_000, 10_000


@pytest.fixture(scope="module")
def few() -> Answers:
    return Answers.about(Model(1, PER_S), EVENTS)


@pytest.fixture(scope="module")
def million() -> Answers:
    return Answers.about(Model(1, MILLION_PER_S), MILLION)


def result_of(query: str, **parameters: object) -> pa.Table:
    env = Environment()
    given = Parameters(query=query, **parameters)
    result = QUERIES[query].build(Tables(env, lambda kind, names: source_of(given, kind, names)))
    result.collect(uid="result")
    return decided(query, run_local(env.build()).table("result"), QUERIES[query].newest_by)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_the_same_result_as_duckdb(query: str, few: Answers) -> None:
    result = result_of(query, events=EVENTS, per_s=PER_S, splits=4)

    assert few.of(query).num_rows > 0
    assert few.difference(query, result) == []


@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_gives_the_same_result_as_duckdb_for_a_million_events(
    query: str, million: Answers
) -> None:
    result = result_of(query, events=MILLION, per_s=MILLION_PER_S, splits=4)

    assert million.difference(query, result) == []


def test_there_is_an_answer_for_every_query_but_q6() -> None:
    assert list(QUERIES) == list(SQL) == [f"q{n}" for n in range(24) if n != 6]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.slice(1),
        lambda table: pa.concat_tables([table, table.slice(0, 1)]),
        lambda table: table.set_column(0, "auction", table["bidder"]),
    ],
    ids=["a row too few", "a row too many", "another value"],
)
def test_the_comparison_sees_each_difference(
    change: Callable[[pa.Table], pa.Table], few: Answers
) -> None:
    assert few.difference("q0", change(events_of(BID, Model(1, PER_S), EVENTS))) != []


def test_the_flow_reads_files_and_writes_its_result(few: Answers, tmp_path: Path) -> None:
    write_parquet(tmp_path / "events", Model(1, PER_S), events=EVENTS, files=2)
    parameters = {
        "query": "q3",
        "data": str(tmp_path / "events"),
        "output": str(tmp_path / "output"),
    }

    run_local(nexmark, parameters=parameters)

    written = pa.concat_tables(
        pa.parquet.read_table(path) for path in (tmp_path / "output").rglob("*.parquet")
    )
    assert few.difference("q3", written) == []


def test_an_unknown_query_is_refused() -> None:
    with pytest.raises(Rejected, match="There is no query 'q6'; choose one of"):
        nexmark.build({"query": "q6"})
