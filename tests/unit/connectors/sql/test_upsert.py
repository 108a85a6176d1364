"""SQL upsert: columns, keys, times and databases that do not fit or do not answer."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from pipelines.connectors.sink import SinkContext
from pipelines.connectors.sql import database as sql_database
from pipelines.connectors.sql import tables as sql_tables
from pipelines.connectors.sql.tables import origin_of
from pipelines.connectors.sql.upsert import SqlUpsert, SqlWriter
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from tests.documented_sql import documented
from tests.hostile_names import HOSTILE, LONG, NUL
from tests.takeovers import rewound

SCHEMA = pa.schema(
    [("carrier", pa.string()), ("at", pa.timestamp("ms", tz="UTC")), ("mean", pa.float64())]
)
FIRST = CheckpointId(1)


def test_a_row_with_the_same_key_replaces_the_older_one(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.write(rows(("UA", 0, 1.5), ("AA", 0, 2.5)))
    writer.prepare(FIRST)

    writer.write(rows(("UA", 0, 9.5)))
    writer.prepare(CheckpointId(2))

    assert stored(tmp_path, "carrier, mean, ftdash_origin") == [
        ("AA", 2.5, origin_of(1, FIRST)),
        ("UA", 9.5, origin_of(1, CheckpointId(2))),
    ]


def test_the_last_row_of_a_key_wins_within_one_batch(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.write(rows(("UA", 0, 1.5), ("UA", 0, 2.5)))
    writer.prepare(FIRST)

    assert stored(tmp_path, "mean") == [(2.5,)]


def test_times_are_stored_as_utc(tmp_path: Path) -> None:
    schema = SCHEMA.set(1, pa.field("at", pa.timestamp("ms", tz="America/New_York")))
    writer = sink(tmp_path).open(CONTEXT, schema)
    writer.write(rows(("UA", 3_600_000, 1.0)).cast(schema))
    writer.prepare(FIRST)

    assert stored(tmp_path, "at") == [("1970-01-01 01:00:00.000000",)]


@pytest.mark.slow
def test_a_value_of_64_mib_is_stored_as_one_row(tmp_path: Path) -> None:
    schema = pa.schema([("carrier", pa.string()), ("text", pa.string())])
    writer = sink(tmp_path, keys=("carrier",)).open(CONTEXT, schema)
    texts = [pa.array(["AA", "UA"]), pa.array(["x", "y" * (64 << 20)])]

    writer.write(pa.record_batch(texts, schema=schema))
    writer.prepare(FIRST)

    assert stored(tmp_path, "carrier, length(text)") == [("AA", 1), ("UA", 64 << 20)]


def test_nulls_are_stored_as_null_but_not_in_a_key(tmp_path: Path) -> None:
    writer = opened(tmp_path)
    writer.write(rows(("UA", 0, None)))
    writer.prepare(FIRST)

    assert stored(tmp_path, "mean") == [(None,)]
    with pytest.raises(Rejected, match="Key column carrier of table delays is null"):
        writer.write(rows((None, 0, 1.0)))


def test_full_buffers_are_written_before_their_checkpoint_is_known(tmp_path: Path) -> None:
    writer = opened(tmp_path, buffer_rows=2)
    writer.write(rows(("A", 0, 1.0), ("B", 0, 1.0)))
    assert stored(tmp_path, "ftdash_origin < 0") == [(1,), (1,)]

    writer.write(rows(("C", 0, 1.0)))
    writer.prepare(FIRST)
    assert stored(tmp_path, "ftdash_origin") == [(origin_of(1, FIRST),)] * 3


@pytest.mark.parametrize("column", ["mean", "ftdash_origin"])
def test_a_table_without_a_needed_column_is_refused_by_name(tmp_path: Path, column: str) -> None:
    opened(tmp_path)
    execute(tmp_path, f"alter table delays drop column {column}")

    with pytest.raises(Rejected, match=f"Table delays of sqlite.* has no column {column}"):
        sink(tmp_path).validate(SCHEMA)


def test_an_older_table_is_refused_until_it_is_converted_as_documented(tmp_path: Path) -> None:
    """After the conversion, a rewind finds the rows of its point."""
    tags = "ftdash_run text not null, ftdash_checkpoint bigint not null"
    with closing(sqlite3.connect(file_of(tmp_path))) as connection:
        connection.executescript(
            f"""create table views (carrier text primary key, {tags});
            create table views_superseded (carrier text, {tags});
            insert into views values ('AA', 'run-1', 1), ('UA', 'run-1', 2), ('B6', 'run-1', -1);
            insert into views_superseded values ('DL', 'run-0', 1);"""
        )
    schema = pa.schema([("carrier", pa.string())])
    output = replace(sink(tmp_path, keys=("carrier",)), table="views")
    with pytest.raises(Rejected, match=r"earlier version.* docs/reference/sinks\.md says\.$"):
        output.validate(schema)

    with closing(sqlite3.connect(file_of(tmp_path))) as connection:
        connection.executescript(documented("CREATE TABLE IF NOT EXISTS ftdash_runs"))
    output.validate(schema)
    rewound(output, [(RunId("run-0"), FIRST), (RunId("run-1"), FIRST)], RunId("run-2"))

    with closing(sqlite3.connect(file_of(tmp_path))) as connection:
        kept, aside = (
            connection.execute(f"select carrier from {table} order by carrier").fetchall()
            for table in ("views", "views_superseded")
        )
    assert (kept, aside) == ([("AA",), ("DL",)], [("B6",), ("UA",)])


def test_a_table_with_another_key_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)

    with pytest.raises(Rejected, match=r"primary key \(carrier, at\), not \(carrier\)"):
        sink(tmp_path, keys=("carrier",)).validate(SCHEMA)


def test_a_key_column_that_is_not_in_the_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="key column airport of table delays is not in the results"):
        sink(tmp_path, keys=("airport",)).validate(SCHEMA)


def test_results_without_a_key_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="needs key columns"):
        sink(tmp_path, keys=()).validate(SCHEMA)


def test_a_type_without_counterpart_is_refused_by_column(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("tags", pa.list_(pa.string())))

    with pytest.raises(Rejected, match=r"Column tags of type list.* has no counterpart in SQL"):
        sink(tmp_path).validate(schema)


@pytest.mark.parametrize("name", ['x"; drop table victim; --', "select", "Ünder", "a.b", HOSTILE])
def test_a_table_name_may_contain_any_characters(tmp_path: Path, name: str) -> None:
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as connection:
        connection.execute("create table victim (x int)")
    output = replace(sink(tmp_path), table=name)
    output.validate(SCHEMA)

    writer = output.open(CONTEXT, SCHEMA)
    writer.write(rows(("UA", 0, 1.5)))
    writer.prepare(FIRST)

    quoted = name.replace('"', '""')
    with closing(sqlite3.connect(tmp_path / "out.sqlite")) as connection:
        assert connection.execute(f'select carrier from "{quoted}"').fetchall() == [("UA",)]
        assert connection.execute("select * from victim").fetchall() == []


@pytest.mark.parametrize("pipeline", ["p", "another"])
def test_a_table_name_in_another_case_is_refused_with_the_existing_name(
    tmp_path: Path, pipeline: str
) -> None:
    """SQLite takes the two names for one table, which would then have two owners."""
    opened(tmp_path).close()
    shouted = replace(sink(tmp_path), table="DELAYS", pipeline=pipeline)

    for using in (shouted.validate, partial(shouted.open, CONTEXT)):
        with pytest.raises(Rejected, match=r"Table DELAYS of sqlite.* is there as delays; call it"):
            using(SCHEMA)


def test_a_column_name_may_contain_any_characters(tmp_path: Path) -> None:
    execute(tmp_path, "create table victim (x int)")
    schema = pa.schema([("carrier", pa.string()), (HOSTILE, pa.string())])
    output = sink(tmp_path, keys=("carrier", HOSTILE))
    writer = output.open(CONTEXT, schema)

    writer.write(pa.record_batch([pa.array(["UA"]), pa.array(["v"])], schema=schema))
    writer.prepare(FIRST)
    output.validate(schema)

    quoted = HOSTILE.replace('"', '""')
    assert stored(tmp_path, f'carrier, "{quoted}"') == [("UA", "v")]
    with closing(sqlite3.connect(file_of(tmp_path))) as connection:
        assert connection.execute("select * from victim").fetchall() == []


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "is not one of 1 to 63 bytes without NUL"),
        (NUL, "is not one of 1 to 63 bytes without NUL"),
        (LONG, "is not one of 1 to 63 bytes without NUL"),
        ("ü" * 32, "is not one of 1 to 63 bytes without NUL"),
        ("carrier", "Two columns of the table would be named carrier"),
        ("ftdash_origin", "Two columns of the table would be named ftdash_origin"),
    ],
    ids=["empty", "NUL", "long", "long in bytes", "twice", "origin"],
)
def test_an_invalid_column_name_is_refused_before_anything_is_created(
    tmp_path: Path, name: str, sentence: str
) -> None:
    schema = SCHEMA.append(pa.field(name, pa.string()))

    with pytest.raises(Rejected, match=rf"{sentence}.*; rename it in the results\.$") as refused:
        sink(tmp_path).validate(schema)

    assert "\0" not in str(refused.value)
    assert not file_of(tmp_path).exists()


def test_a_column_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path)

    with pytest.raises(Rejected, match=r"Column mean of table delays of .* is .*, and the results"):
        sink(tmp_path).validate(SCHEMA.set(2, pa.field("mean", pa.string())))


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nonsense", "cannot be read"),
        ("sqlite://", "in memory is not shared"),
        ("mysql://localhost/x", "The database mysql is not supported"),
        ("postgresql+pg8000://u:secret@localhost/x", "needs the Python package pg8000"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence) as refused:
        SqlUpsert(url, "t", ("carrier",), pipeline="p").validate(SCHEMA)

    assert "secret" not in str(refused.value)


def test_validating_creates_no_database(tmp_path: Path) -> None:
    sink(tmp_path).validate(SCHEMA)

    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Rejected, match="cannot be made in"):
        sink(tmp_path / "file").validate(SCHEMA)


@pytest.mark.slow
def test_a_database_that_stays_locked_is_retryable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "LOCK_TIMEOUT_S", 0.01)
    writer = opened(tmp_path)
    writer.write(rows(("UA", 0, 1.0)))

    with closing(sqlite3.connect(file_of(tmp_path), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Retryable, match=r"does not answer: database is locked"):
            writer.prepare(FIRST)
        other.execute("ROLLBACK")
    writer.prepare(FIRST)

    assert stored(tmp_path, "mean") == [(1.0,)]


@pytest.mark.slow
def test_subtasks_share_one_sqlite_file_by_waiting_not_by_retrying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_database, "TRIES", 1)
    carriers = [f"C{subtask}" for subtask in range(4)]
    writers = [opened(tmp_path, subtask=subtask) for subtask in range(4)]

    def run(writer: SqlWriter, carrier: str) -> None:
        for checkpoint_id in range(1, 11):
            writer.write(rows(*((carrier, checkpoint_id * 100 + i, 1.0) for i in range(50))))
            writer.prepare(CheckpointId(checkpoint_id))

    with ThreadPoolExecutor(len(writers)) as pool:
        list(pool.map(run, writers, carriers))

    counts = stored(tmp_path, "count(*), count(distinct carrier), max(ftdash_origin)")
    assert counts == [(2000, 4, origin_of(1, CheckpointId(10)))]


def test_the_upsert_statement_compiles_for_postgresql() -> None:
    table = sql_tables.output_table("delays", SCHEMA, ("carrier", "at"))

    statement = sql_tables.upsert("postgresql", table).compile(dialect=postgresql.dialect())

    assert "ON CONFLICT (carrier, at) DO UPDATE SET mean = excluded.mean" in str(statement)


CONTEXT = SinkContext(RunId("run-1"), Attempt(1), Uid("out"), 0, 1)


def sink(
    home: Path, *, keys: tuple[str, ...] = ("carrier", "at"), buffer_rows: int = 100
) -> SqlUpsert:
    url = sa.URL.create("sqlite", database=str(file_of(home))).render_as_string()
    return SqlUpsert(url, "delays", keys, pipeline="p", buffer_rows=buffer_rows)


def opened(home: Path, *, buffer_rows: int = 100, subtask: int = 0) -> SqlWriter:
    context = replace(CONTEXT, subtask=subtask)
    return sink(home, buffer_rows=buffer_rows).open(context, SCHEMA)


def rows(*values: tuple[str | None, int, float | None]) -> pa.RecordBatch:
    columns = zip(*values, strict=True)
    arrays = [pa.array(v, f.type) for v, f in zip(columns, SCHEMA, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA)


def stored(home: Path, columns: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(file_of(home))) as connection:
        return connection.execute(f"select {columns} from delays order by carrier").fetchall()


def execute(home: Path, statement: str) -> None:
    with closing(sqlite3.connect(file_of(home))) as connection:
        connection.execute(statement)


def file_of(home: Path) -> Path:
    return home / "out.sqlite"
