"""The PostgreSQL sink on a real server: values, outages, answers that were lost, bad input."""

import os
import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from django.db.utils import ConnectionHandler

from ftdash.embedded.installation import free_port
from ftdash.settings import database_at
from pipelines.connectors.postgres import tables as postgres_tables
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.postgres.two_phase import PostgresTwoPhase
from pipelines.connectors.sink import SinkContext
from pipelines.connectors.sink_bases import WriteAheadWriter
from pipelines.connectors.sql import database as sql_database
from pipelines.connectors.sql.tables import origin_of
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.clock import waiting_at_most
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from tests.contracts.sink_host import EVERYTHING, SCHEMA, Host, records
from tests.hostile_names import HOSTILE
from tests.polling import wait_until
from tests.postgres_server import PostgresServer, execute, postgres_server, query
from tests.takeovers import rewound

pytestmark = pytest.mark.slow

RUN, FIRST, SECOND = RunId("run-1"), CheckpointId(1), CheckpointId(2)
Output = PostgresInsert | PostgresTwoPhase | SqlUpsert
WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
TEXTS = ["", "a,b", 'say "x"', "two\nlines", "\\.", "a\n\\.\nb", "ü", None, "null", "\t", "\r\n"]


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url_of(f"s{uuid.uuid4().hex}")


def test_every_value_arrives_as_it_was_written(url: str) -> None:
    floats = [0.1, float("nan"), float("inf"), -0.0, 1e-300, None]
    columns = {
        "text": pa.array(TEXTS),
        "wide": pa.array(pad(floats), pa.float64()),
        "short": pa.array(pad([0.1, None]), pa.float32()),
        "whole": pa.array(pad([2**63 - 1, -(2**63), None]), pa.int64()),
        "flag": pa.array(pad([True, False, None])),
        "day": pa.array(pad([0, 19_000, None]), pa.int32()).cast(pa.date32()),
        "at": pa.array(pad([1, -1, None]), pa.timestamp("us", "America/New_York")),
        "local": pa.array(pad([1, None]), pa.timestamp("ms")),
    }
    batch = pa.record_batch(columns)
    writer = opened(url, schema=batch.schema)

    complete(writer, FIRST, batch)

    stored = query(url, f"select {', '.join(columns)} from results")
    wanted = [tuple(row.values()) for row in batch.to_pylist()]
    assert [repr(row) for row in in_utc(stored)] == [repr(row) for row in in_utc(wanted)]


def test_database_connections_set_keepalive_and_a_user_timeout(
    url: str, postgres: PostgresServer
) -> None:
    """Reads the kernel's settings for a sink's connections and for one of the control plane."""
    rows = ConnectionHandler({"default": database_at(postgres.url)})["default"]
    sink = sql_database.SqlDatabase(url)

    with (
        closing(rows.get_new_connection(rows.get_connection_params())) as of_rows,
        sink.connected() as of_sink,
    ):
        told = [silence_of(of_rows), silence_of(of_sink)]
        told.append(sink.transaction(lambda each: silence_of(each.connection.driver_connection)))

    sink.close()
    assert told == [(30_000, 1, 10, 10)] * 3


def test_a_stopped_control_database_is_given_up_but_not_a_slow_one(
    postgres: PostgresServer,
) -> None:
    rows = ConnectionHandler({"default": database_at(f"{postgres.url}?connect_timeout=2")})
    open_one, params = rows["default"].get_new_connection, rows["default"].get_connection_params()

    with closing(open_one(params)) as connection, waiting_at_most(0.2):
        assert connection.execute("select 7, pg_sleep(1)").fetchone()[0] == 7
        with postgres.stopped(), pytest.raises(psycopg.OperationalError, match="answers nothing"):
            connection.execute("select 1")
        assert connection.closed, "what it was asked is not known"
        with closing(open_one(params)) as another:
            assert another.execute("select 7").fetchone() == (7,)


def test_a_lost_reply_does_not_publish_the_records_twice(url: str) -> None:
    """The transaction itself looks for the marker, whatever the writer knew before."""
    writer = opened(url)
    writer.write(records([1, 2]))
    (segment,) = writer.prepare(FIRST)
    writer.commit(FIRST, [segment])
    writer._target.published = lambda marker: False  # type: ignore[method-assign]

    writer.commit(FIRST, [segment])

    assert ids(url) == [1, 2]


@pytest.mark.parametrize("table", ["results", "ftdash_published"])
def test_a_commit_still_under_way_after_a_lost_reply_publishes_once(url: str, table: str) -> None:
    """The first look finds nothing; only then do the other transaction's rows or marker appear."""
    opened(url).close()
    execute(url, "create unique index on results (id)")
    writer = opened(url)
    writer.write(records([1, 2]))
    committables = writer.prepare(FIRST)
    rows = f"insert into results values (1, now(), 0, {origin_of(1, FIRST)})"
    marker = f"insert into ftdash_published values ('results', '{RUN}', 'out', 0, {FIRST})"
    with (
        psycopg.connect(url.replace("+psycopg", "")) as under_way,
        ThreadPoolExecutor(1) as pool,
    ):
        if table == "results":
            under_way.execute(rows.encode())
        under_way.execute(marker.encode())
        commit = pool.submit(writer.commit, FIRST, committables)
        wait_until(lambda: query(url, WAITING) == [(1,)])
        under_way.commit()
        commit.result()

    assert query(url, "select count(*) from ftdash_published") == [(1,)]
    assert ids(url) == ([1] if table == "results" else [])


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase, SqlUpsert])
def test_a_commit_refused_during_a_failover_succeeds_on_retry(
    kind: type[Output], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections from that time do not stay in use afterwards."""
    monkeypatch.setattr(sql_database, "LONGEST_PAUSE_S", 0.0)
    with postgres_server(max_prepared_transactions=4) as server:
        url = server.url_of("public")
        writer = built(kind, url).open(context_of(), SCHEMA)
        writer.write(records([1, 2]))
        committables = [] if kind is SqlUpsert else writer.prepare(FIRST)

        with read_only(server), pytest.raises(Retryable, match="takes no writes now: cannot exec"):
            writer.commit(FIRST, committables or writer.prepare(FIRST))
        writer.commit(FIRST, committables or writer.prepare(FIRST))

        assert ids(url) == [1, 2]


def test_rows_that_a_table_keeps_refusing_end_the_run(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "LONGEST_PAUSE_S", 0.0)
    opened(url).close()
    execute(url, "create unique index on results (id)")

    with pytest.raises(Rejected, match="refused a write: duplicate key"):
        complete(opened(url), FIRST, records([1, 1]))


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase])
def test_narrow_columns_take_every_value_that_fits(url: str, kind: type[Output]) -> None:
    """An operator made the table; binary COPY has no conversions."""
    execute(url, "create table results (small smallint, middle integer, name varchar(3))")
    execute(url, "alter table results add ftdash_origin bigint")
    ends = {"small": [2**15 - 1, -(2**15), None], "middle": [2**31 - 1, -(2**31), None]}
    batch = pa.record_batch({**ends, "name": ["äöü", "", None]})
    output = built(kind, url)
    output.validate(batch.schema)

    complete(output.open(context_of(), batch.schema), FIRST, batch)

    rows = query(url, "select * from results")
    assert rows == [(*row.values(), origin_of(1, FIRST)) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("smallint", pa.array([2**15])),
        ("bigint", pa.array([2**63], pa.uint64())),
        ("varchar(3)", pa.array(["four"])),
        ("text", pa.array(["a\0b"])),
        ("date", pa.array([-(2**31)], pa.int32()).cast(pa.date32())),
        ("date", pa.array([2**31 - 1], pa.int32()).cast(pa.date32())),
        ("timestamp", pa.array([-(2**63)], pa.int64()).cast(pa.timestamp("us"))),
        ("timestamp", pa.array([2**62], pa.int64()).cast(pa.timestamp("s"))),
    ],
    ids=lambda each: each if isinstance(each, str) else None,
)
def test_a_value_that_no_row_can_hold_refuses_its_whole_interval(
    url: str, column: str, value: pa.Array
) -> None:
    execute(url, f"create table results (x {column}, ftdash_origin bigint)")
    batch = pa.record_batch({"x": value})
    writer = opened(url, schema=batch.schema)
    writer.write(pa.record_batch([pa.nulls(1, value.type)], schema=batch.schema))
    writer.write(batch)

    with pytest.raises(Rejected, match=r"column x|refused a write|table results") as refused:
        writer.commit(FIRST, writer.prepare(FIRST))

    assert "\n" not in str(refused.value)
    assert query(url, "select * from results") == []
    assert query(url, "select * from ftdash_published") == []


def test_markers_do_not_pile_up(url: str) -> None:
    writer = opened(url)
    for checkpoint_id in (1, 2, 3):
        complete(writer, CheckpointId(checkpoint_id), records([checkpoint_id]))

    assert query(url, "select sink, run, uid, subtask, checkpoint from ftdash_published") == [
        ("results", RUN, "out", 0, 3)
    ]


def test_subtasks_open_and_publish_at_the_same_time(url: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        writers = list(pool.map(lambda subtask: opened(url, subtask=subtask), range(4)))
        list(pool.map(lambda w: complete(w, FIRST, records(EVERYTHING)), writers))

    assert ids(url) == sorted(EVERYTHING * 4)


def test_a_writer_that_hangs_while_publishing_does_not_block_the_driver(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "TRIES", 1)
    monkeypatch.setattr(postgres_tables, "TAKE_OVER_WAIT_MS", 50)
    opened(url).close()
    with psycopg.connect(url.replace("+psycopg", "")) as hanging:
        hanging.execute("select * from ftdash_fence for share")

        with pytest.raises(Retryable, match=r"does not answer: canceling .* due to lock timeout"):
            rewound(sink(url), [], RunId("run-2"))

    rewound(sink(url), [], RunId("run-2"))


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase, SqlUpsert])
def test_validation_does_not_wait_for_a_locked_table(url: str, kind: type[Output]) -> None:
    opened(url).close()
    with psycopg.connect(url.replace("+psycopg", "")) as locking:
        locking.execute("lock table ftdash_fence in access exclusive mode")

        with waiting_at_most(0.2), pytest.raises(Rejected, match="due to statement timeout"):
            built(kind, url).validate(SCHEMA)


def test_a_server_restart_between_prepare_and_commit_loses_no_rows(
    tmp_path: Path,
) -> None:
    with postgres_server() as server:
        url = server.url_of("public")
        writer = opened(url)
        writer.write(records([1, 2]))
        committables = writer.prepare(FIRST)
        server.kill()
        with pytest.raises(Retryable, match="does not answer"):
            writer.commit(FIRST, committables)

        server.start()
        writer.commit(FIRST, committables)
        assert ids(url) == [1, 2]

        server.kill()
        server.start()
        writer.commit(FIRST, committables)
        Host(tmp_path, sink(url)).live(RunId("run-2"), interval=20)

        assert ids(url) == EVERYTHING


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase, SqlUpsert])
def test_a_column_of_another_type_is_refused_by_name(url: str, kind: type[Output]) -> None:
    execute(
        url,
        "create table results (id bigint primary key, at timestamp with time zone, x text,"
        " ftdash_origin bigint)",
    )

    with pytest.raises(Rejected, match=r"Column x of table results of .* is TEXT, and the results"):
        built(kind, url).validate(SCHEMA)


def test_times_without_a_zone_are_refused_by_a_column_with_one(url: str) -> None:
    opened(url).close()
    schema = SCHEMA.set(1, pa.field("at", pa.timestamp("ms")))

    with pytest.raises(Rejected, match="is TIMESTAMP WITH TIME ZONE, and the results need TIMEST"):
        sink(url).validate(schema)


def test_a_table_without_a_needed_column_is_refused_by_name(url: str) -> None:
    execute(url, "create table results (id bigint)")

    with pytest.raises(Rejected, match=r"Table results of postgresql.* has no column at"):
        sink(url).validate(SCHEMA)


@pytest.mark.parametrize("name", ['x"; drop table victim; --', "select", "Ünder", "a.b", HOSTILE])
@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase, SqlUpsert])
def test_a_table_name_may_contain_any_characters(url: str, name: str, kind: type[Output]) -> None:
    execute(url, "create table victim (x int)")
    output = built(kind, url, name)
    output.validate(SCHEMA)
    writer = output.open(context_of(), SCHEMA)

    complete(writer, FIRST, records([1]))
    rewound(output, [(RUN, FIRST)], RunId("run-2"))

    quoted = name.replace('"', '""')
    assert query(url, f'select id from "{quoted}"') == [(1,)]
    assert query(url, "select * from victim") == []


@pytest.mark.parametrize("name", ["", "x" * 53, "ü" * 27, "a\0b"])
def test_an_invalid_table_name_is_refused(url: str, name: str) -> None:
    with pytest.raises(Rejected, match=r"is not one of 1 to 52 bytes without NUL\.$"):
        PostgresInsert(url, name, pipeline="p").validate(SCHEMA)


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase, SqlUpsert])
def test_a_column_name_may_contain_any_characters(url: str, kind: type[Output]) -> None:
    """The second start finds the columns that the first one has made."""
    execute(url, "create table victim (x int)")
    schema = pa.schema([SCHEMA.field("id"), (HOSTILE, pa.string())])
    output = built(kind, url)
    writer = output.open(context_of(), schema)

    complete(writer, FIRST, pa.record_batch([pa.array([1]), pa.array(["v"])], schema=schema))
    output.validate(schema)
    output.open(context_of(), schema).close()

    quoted = HOSTILE.replace('"', '""')
    assert query(url, f'select id, "{quoted}" from results') == [(1, "v")]
    assert query(url, "select * from victim") == []


def test_an_unreachable_server_is_reported_in_one_sentence_without_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sql_database, "TRIES", 1)
    url = f"postgresql+psycopg://u:secret@127.0.0.1:{free_port()}/x?password=secret"

    with pytest.raises(Rejected, match=r"does not answer: .*Connection refused") as refused:
        sink(url).validate(SCHEMA)

    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "secret" not in repr(sink(url)) + repr(built(SqlUpsert, url))


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase, SqlUpsert])
def test_a_refused_password_does_not_appear_in_the_message(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, kind: type[Output]
) -> None:
    monkeypatch.setattr(sql_database, "TRIES", 1)
    url = f"postgresql+psycopg://{postgres.guest()}:wr0ng@127.0.0.1:{postgres.port}/postgres"

    with pytest.raises(
        Rejected, match='password authentication failed for user "guest"'
    ) as refused:
        built(kind, url).validate(SCHEMA)

    assert "wr0ng" not in f"{refused.value}{built(kind, url)!r}"
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase])
def test_a_value_of_64_mib_is_written_like_any_other(url: str, kind: type[Output]) -> None:
    texts = pa.record_batch({"id": [1, 2], "text": ["x", "y" * (64 << 20)]})
    writer = built(kind, url).open(context_of(), texts.schema)

    complete(writer, FIRST, texts)

    assert query(url, "select id, length(text) from results") == [(1, 1), (2, 64 << 20)]


def test_a_database_other_than_postgresql_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="is not PostgreSQL; use SqlUpsert"):
        sink(f"sqlite:///{tmp_path}/x.sqlite").validate(SCHEMA)


def sink(url: str) -> PostgresInsert:
    return PostgresInsert(url, "results", pipeline="p")


def built(kind: type[Output], url: str, table: str = "results") -> Output:
    if kind is SqlUpsert:
        return SqlUpsert(url, table, ("id",), pipeline="p")
    return kind(url, table, pipeline="p")


def context_of(subtask: int = 0) -> SinkContext:
    return SinkContext(RUN, Attempt(1), Uid("out"), subtask, 4)


@contextmanager
def read_only(server: PostgresServer) -> Iterator[None]:
    """Makes sessions that begin meanwhile read-only while they last, like those of a standby."""
    switch = "alter database postgres {} default_transaction_read_only {}".format
    with psycopg.connect(server.url, autocommit=True) as before:
        before.execute(switch("set", "= on").encode())
        others = f"pid not in (pg_backend_pid(), {before.info.backend_pid})"
        server.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {others}")
        yield
        before.execute(switch("reset", "").encode())


def silence_of(connection: psycopg.Connection) -> tuple[int, ...]:
    """Returns the timeout of sent data in ms, then the keepalive: on or off, idle s, interval s."""
    tcp = socket.IPPROTO_TCP
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as own:
        return (
            own.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
            own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            own.getsockopt(tcp, socket.TCP_KEEPIDLE),
            own.getsockopt(tcp, socket.TCP_KEEPINTVL),
        )


def opened(url: str, *, subtask: int = 0, schema: pa.Schema = SCHEMA) -> WriteAheadWriter:
    return sink(url).open(context_of(subtask), schema)


def complete(writer: WriteAheadWriter, checkpoint_id: CheckpointId, batch: pa.RecordBatch) -> None:
    writer.write(batch)
    writer.commit(checkpoint_id, writer.prepare(checkpoint_id))


def pad(values: list[object]) -> list[object]:
    return [*values, *[None] * (len(TEXTS) - len(values))]


def in_utc(rows: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Times compare by the moment they mean, not by the zone they are shown in."""
    return [tuple(v.timestamp() if hasattr(v, "timestamp") else v for v in row) for row in rows]


def ids(url: str) -> list[object]:
    return [i for (i,) in query(url, "select id from results order by id")]
