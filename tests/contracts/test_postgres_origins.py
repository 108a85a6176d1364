"""How PostgreSQL tells the rows of runs apart when several sessions number runs at once."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.sink import Segment, SinkContext
from pipelines.connectors.sink_bases import WriteAheadWriter
from pipelines.connectors.sql.tables import origin_of
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json
from tests.documented_sql import documented
from tests.postgres_server import PostgresServer, execute, query
from tests.takeovers import rewound

SCHEMA = pa.schema([("id", pa.int64())])
OLD, NEW = RunId("run-1"), RunId("run-2")
FIRST = CheckpointId(1)
SUBTASKS = 4
RUN_1 = origin_of(2, CheckpointId(0))  # run-0 is number 1
IN_VIEWS = [(OLD, 1, 1, RUN_1 + 1), (OLD, 2, 2, RUN_1 + 2), (OLD, -1, 4, -RUN_1 - 1)]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url_of(f"s{uuid.uuid4().hex}")


def test_writers_publishing_another_runs_rows_at_once_give_it_one_number(url: str) -> None:
    """This happens after a restore into a table where that run has never written."""
    before = [opened(url, "before", OLD, subtask) for subtask in range(SUBTASKS)]
    prepared = [segment_of(writer, subtask) for subtask, writer in enumerate(before)]
    after = [opened(url, "after", NEW, subtask) for subtask in range(SUBTASKS)]
    together = threading.Barrier(SUBTASKS)

    def publish(subtask: int) -> None:
        together.wait(timeout=30)
        after[subtask].commit(FIRST, [prepared[subtask]])

    with ThreadPoolExecutor(SUBTASKS) as pool:
        list(pool.map(publish, range(SUBTASKS)))

    assert query(url, "select run, number from ftdash_runs where sink = 'after' order by 2") == [
        (NEW, 1),
        (OLD, 2),
    ]
    assert query(url, "select id, ftdash_origin from after order by id") == [
        (subtask, origin_of(2, FIRST)) for subtask in range(SUBTASKS)
    ]


def test_an_older_table_is_refused_until_it_is_converted_as_documented(url: str) -> None:
    """After the conversion, a restore knows which of the rows belong to its point."""
    for table in ("views", "views_superseded"):
        columns = "id bigint, ftdash_run text not null, ftdash_checkpoint bigint not null"
        execute(url, f"create table {table} ({columns})")
    execute(url, f"insert into views values (1, '{OLD}', 1), (2, '{OLD}', 2), (4, '{OLD}', -1)")
    execute(url, "insert into views_superseded values (3, 'run-0', 1)")
    sink = PostgresInsert(url, "views", pipeline="p")
    with pytest.raises(Rejected, match=r"earlier version.* docs/reference/sinks\.md says\.$"):
        sink.validate(SCHEMA)

    execute(url, documented("CREATE TABLE IF NOT EXISTS ftdash_runs"))
    assert query(url, documented("SELECT run, ftdash_origin")) == IN_VIEWS
    sink.validate(SCHEMA)
    rewound(sink, [(RunId("run-0"), FIRST), (OLD, FIRST)], NEW)

    assert query(url, "select id from views order by id") == [(1,), (3,)]
    assert query(url, "select id from views_superseded order by id") == [(2,), (4,)]


def test_an_origin_column_that_is_too_narrow_is_refused(url: str) -> None:
    execute(url, "create table views (id bigint, ftdash_origin integer)")

    with pytest.raises(Rejected, match=r"ftdash_origin of table views .* is INTEGER, .* BIGINT"):
        PostgresInsert(url, "views", pipeline="p").validate(SCHEMA)


def opened(url: str, table: str, run_id: RunId, subtask: int) -> WriteAheadWriter:
    return PostgresInsert(url, table, pipeline="p").open(context_of(run_id, subtask), SCHEMA)


def context_of(run_id: RunId, subtask: int = 0) -> SinkContext:
    return SinkContext(run_id, Attempt(1), Uid("out"), subtask, SUBTASKS)


def segment_of(writer: WriteAheadWriter, number: int) -> Json | Segment:
    writer.write(pa.record_batch([pa.array([number])], schema=SCHEMA))
    (segment,) = writer.prepare(FIRST)
    return segment
