"""An audit of a table: rows are digested if none can have been overwritten, else counted."""

import dataclasses
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from pipelines.audit.report import Covers
from pipelines.connectors import PostgresInsert, PostgresTwoPhase, SqlUpsert
from pipelines.connectors.postgres.tables import Gid
from pipelines.connectors.sql.database import SqlDatabase
from pipelines.connectors.sql.tables import origin_of
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import CheckpointId
from tests.hostile_names import HOSTILE
from tests.postgres_server import PostgresServer
from tests.unit.audit.audited_run import SCHEMA, AuditedRun

Inserting = type[PostgresInsert] | type[PostgresTwoPhase]
WITH_HOSTILE = SCHEMA.set(3, SCHEMA.field("name").with_name(HOSTILE))
SECOND, THIRD, FOURTH = (origin_of(1, CheckpointId(number)) for number in (2, 3, 4))
OF_ANOTHER = origin_of(9, CheckpointId(2))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "output.sqlite"


@pytest.fixture
def run(tmp_path: Path, database: Path) -> AuditedRun:
    """Three committed checkpoints of six keys each."""
    run = AuditedRun(tmp_path, "run-1", upsert(database))
    run.begin()
    for number in (1, 2, 3):
        run.write(*range(6 * number, 6 * number + 6))
        run.checkpoint(number)
    return run


def test_rows_that_were_written_once_are_proven_with_their_digest(run: AuditedRun) -> None:
    assert run.proven() == ("run-1", 3, 18)
    assert run.sink_report().covers is Covers.DIGESTED


def test_overwritten_rows_are_counted_and_the_report_says_so(run: AuditedRun) -> None:
    run.write(8, 9, 12)
    run.checkpoint(4)

    assert run.proven() == ("run-1", 4, 21)
    assert run.sink_report().covers is Covers.COUNTED


def test_rows_of_an_unknown_checkpoint_are_not_judged_yet(tmp_path: Path, database: Path) -> None:
    run = AuditedRun(tmp_path, "run-1", upsert(database, buffer_rows=2))
    run.begin()
    # The origin of such rows has the number of a writer, which is not a checkpoint's.
    run.write(1, 2)
    run.checkpoint(1)
    run.write(3, 4)
    run.checkpoint((1 << 16) + 1)
    run.write(5, 6, 7, 8)

    assert run.proven() == ("run-1", (1 << 16) + 1, 4)


def test_each_table_numbers_its_own_runs(run: AuditedRun, database: Path) -> None:
    alter(database, "INSERT INTO ftdash_runs VALUES ('another', 'run-9', 1)")

    assert run.proven() == ("run-1", 3, 18)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE output SET x = 99 WHERE id = 13",
        "UPDATE output SET x = 'text' WHERE id = 13",
        "UPDATE output SET name = NULL WHERE id = 13",
        "INSERT INTO output SELECT 99, at, x, name, ftdash_origin FROM output WHERE id = 13",
    ],
)
def test_the_first_difference_is_reported_with_its_checkpoint(
    run: AuditedRun, database: Path, damage: str
) -> None:
    alter(database, damage)

    report = run.sink_report()

    assert report.difference is not None
    assert (report.difference.checkpoint_id, report.difference.part) == (2, "output")
    assert run.proven() == ("run-1", 1, 6)


def test_a_missing_row_is_treated_like_an_overwritten_one(run: AuditedRun, database: Path) -> None:
    """The audit cannot tell the two apart, so it counts these rows and does not digest them."""
    alter(database, "DELETE FROM output WHERE id = 13")

    assert run.proven() == ("run-1", 3, 18)
    assert run.sink_report().covers is Covers.COUNTED


@pytest.mark.parametrize(
    "gone", [f"DELETE FROM output WHERE ftdash_origin = {THIRD}", "DROP TABLE output"]
)
def test_some_rows_of_the_last_checkpoint_must_exist(
    run: AuditedRun, database: Path, gone: str
) -> None:
    alter(database, gone)

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.expected_rows, difference.found_rows) == (3, 6, 0)


@pytest.mark.parametrize(
    ("named", "told"),
    [("INSERT INTO ftdash_runs VALUES ('output', 'run-9', 9)", "run-9"), ("SELECT 1", "number 9")],
)
def test_rows_of_another_run_prove_nothing(
    run: AuditedRun, database: Path, named: str, told: str
) -> None:
    alter(database, named)
    alter(
        database, f"UPDATE output SET ftdash_origin = {OF_ANOTHER} WHERE ftdash_origin = {SECOND}"
    )

    report = run.sink_report()

    assert report.difference is not None
    assert report.difference.run_id == told
    assert report.proven_checkpoint_id is None


def test_extra_rows_of_an_empty_checkpoint_are_found(run: AuditedRun, database: Path) -> None:
    run.checkpoint(4)
    alter(database, f"UPDATE output SET ftdash_origin = {FOURTH} WHERE ftdash_origin = {THIRD}")

    report = run.sink_report()

    assert report.difference is not None
    assert report.difference.checkpoint_id == 4
    assert run.proven() == ("run-1", 3, 18)


def test_a_restored_run_is_proven_together_with_its_ancestor(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2))
    restored.write(70, 71)
    restored.checkpoint(3)

    assert restored.proven() == ("run-2", 3, 14)
    assert restored.sink_report().covers is Covers.DIGESTED


def test_a_missing_database_is_reported_without_password_and_not_created(
    run: AuditedRun, database: Path
) -> None:
    database.unlink()

    with pytest.raises(Rejected, match=r"The table output of .* cannot be read for the audit"):
        run.audit()

    assert not database.exists()


def test_no_target_is_read_before_the_first_commit(tmp_path: Path, database: Path) -> None:
    """The target may not exist yet."""
    run = AuditedRun(tmp_path, "run-1", upsert(database / "nowhere"))

    report = run.audit()

    assert (report.is_as_recorded, report.sinks) == (True, [])


def test_a_table_with_sql_in_its_names_is_read_like_any_other(
    tmp_path: Path, database: Path
) -> None:
    sink = dataclasses.replace(upsert(database), table=HOSTILE)
    run = AuditedRun(tmp_path, "run-1", sink, schema=WITH_HOSTILE)

    assert proven_after_one(run) == ("run-1", 1, 3, Covers.DIGESTED)


@pytest.mark.slow
def test_a_postgresql_table_with_sql_in_its_names_is_read_like_any_other(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    sink = PostgresInsert(postgres.url_of(f"a{uuid.uuid4().hex}"), HOSTILE, pipeline="p")
    run = AuditedRun(tmp_path, "run-1", sink, schema=WITH_HOSTILE)

    assert proven_after_one(run) == ("run-1", 1, 3, Covers.DIGESTED)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase])
def test_insert_only_rows_are_digested_and_none_may_be_missing(
    postgres: PostgresServer, tmp_path: Path, kind: Inserting
) -> None:
    run = inserting(postgres, tmp_path, kind)
    untouched, covers = run.proven(), run.sink_report().covers

    change(run, "DELETE FROM output WHERE id = 13")

    difference = run.sink_report().difference
    assert (untouched, covers) == (("run-1", 2, 12), Covers.DIGESTED)
    assert difference is not None
    assert (difference.checkpoint_id, difference.expected_rows, difference.found_rows) == (2, 6, 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [PostgresInsert, PostgresTwoPhase])
def test_a_duplicated_row_is_reported_with_its_checkpoint(
    postgres: PostgresServer, tmp_path: Path, kind: Inserting
) -> None:
    run = inserting(postgres, tmp_path, kind)

    change(run, "INSERT INTO output SELECT * FROM output WHERE id = 13")

    difference = run.sink_report().difference
    assert difference is not None
    assert (difference.checkpoint_id, difference.expected_rows, difference.found_rows) == (2, 6, 7)
    assert run.proven() == ("run-1", 1, 6)


@pytest.mark.slow
def test_rows_prepared_for_an_aborted_checkpoint_belong_to_the_next_one(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """Their origin names the start of their interval; other checkpoints may come in between."""
    run = inserting(postgres, tmp_path, PostgresTwoPhase)
    run.checkpoint(4, completes=False)
    run.write(30, 31)
    run.checkpoint(5, completes=False)
    run.write(32, 33, 34)
    run.checkpoint(6)
    untouched = run.proven()
    tokens = {t for o in run.history().committed[-1].outputs for t in o.share.tokens}

    change(run, "DELETE FROM output WHERE id = 31")

    assert untouched == ("run-1", 6, 23)
    assert all(Gid.parsed(token) is not None for token in tokens)
    assert run.proven() == ("run-1", 3, 18)
    assert run.sink_report().covers is Covers.DIGESTED


@pytest.mark.slow
def test_a_run_from_a_point_of_another_run_is_proven_with_its_prepared_rows(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    run = inserting(postgres, tmp_path, PostgresTwoPhase)
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 3))
    restored.write(70, 71)
    restored.checkpoint(4)

    assert restored.proven() == ("run-2", 4, 20)
    assert restored.sink_report().covers is Covers.DIGESTED


def proven_after_one(run: AuditedRun) -> tuple[str | None, int | None, int, Covers | None]:
    run.begin()
    run.write(1, 2, 3)
    run.checkpoint(1)
    return (*run.proven(), run.sink_report().covers)


def inserting(postgres: PostgresServer, root: Path, kind: Inserting) -> AuditedRun:
    """Three checkpoints of six rows each; the last one is not committed yet."""
    sink = kind(postgres.url_of(f"a{uuid.uuid4().hex}"), "output", pipeline="p")
    run = AuditedRun(root, "run-1", sink)
    run.begin()
    for number in (1, 2, 3):
        run.write(*range(6 * number, 6 * number + 6))
        run.checkpoint(number, commits=number < 3)
    return run


def change(run: AuditedRun, statement: str) -> None:
    with closing(SqlDatabase(run.sink.url)) as database:  # type: ignore[attr-defined]
        database.transaction(lambda connection: connection.execute(sa.text(statement)))


def upsert(database: Path, buffer_rows: int = 100) -> SqlUpsert:
    url = f"sqlite:///{database}"
    return SqlUpsert(url, "output", ("id",), pipeline="p", buffer_rows=buffer_rows)


def alter(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(statement)
