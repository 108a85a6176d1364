"""Rows that a PostgreSQL table gets before their checkpoint has completed, on a real server.

No reader sees them, and the segment is published once, whatever happens to them.
"""

import dataclasses
import logging
import uuid
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from pipelines.connectors.postgres.insert import (
    STAGES_MAX,
    PlainTransactions,
    PostgresInsert,
    Stage,
)
from pipelines.connectors.sink import Segment, SinkContext
from pipelines.connectors.sink_bases import WriteAheadWriter
from pipelines.connectors.sql.tables import origin_of
from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from tests.contracts.sink_host import SCHEMA, records
from tests.postgres_server import PostgresServer, execute, query
from tests.takeovers import rewound

pytestmark = pytest.mark.slow

RUN, FIRST, SECOND, THIRD = RunId("run-1"), CheckpointId(1), CheckpointId(2), CheckpointId(3)
WRITERS = "select distinct pid from pg_locks where relation = 'results'::regclass"


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return postgres.url_of(f"s{uuid.uuid4().hex}")


def test_staged_rows_are_invisible_until_their_checkpoint_completes(url: str) -> None:
    """Publishing then reads none of them from the segment."""
    writer = opened(url)

    for checkpoint_id in (FIRST, SECOND):
        before = rows(url)
        writer.write(records([checkpoint_id]))
        (segment,) = prepared(writer, checkpoint_id)
        assert rows(url) == before
        writer.commit(checkpoint_id, [unreadable(segment)])

    assert rows(url) == [(1, FIRST), (2, SECOND)]


def test_rows_staged_for_a_skipped_checkpoint_carry_the_next_one(url: str) -> None:
    writer = opened(url)
    complete(writer, FIRST, [1])
    writer.write(records([2]))
    skipped = prepared(writer, THIRD)

    writer.commit(THIRD, skipped)

    assert rows(url) == [(1, FIRST), (2, THIRD)]


def test_a_recovering_attempt_stages_only_after_its_first_checkpoint(url: str) -> None:
    opened(url).close()
    writer = opened(url, attempt=2)
    writer.write(records([1]))
    assert open_transactions(url) == 0
    writer.commit(SECOND, prepared(writer, SECOND))

    writer.write(records([2]))
    (segment,) = prepared(writer, THIRD)
    writer.commit(THIRD, [unreadable(segment)])

    assert rows(url) == [(1, SECOND), (2, THIRD)]


def test_open_transactions_stay_bounded_while_no_checkpoint_completes(url: str) -> None:
    writer = opened(url)
    waiting = []
    for number in range(1, 3 * STAGES_MAX):
        writer.write(records([number]))
        assert open_transactions(url) <= STAGES_MAX
        waiting.append((CheckpointId(number), prepared(writer, CheckpointId(number))))
    assert open_transactions(url) == STAGES_MAX - 1

    for checkpoint_id, segments in waiting:
        writer.commit(checkpoint_id, segments)

    assert rows(url) == [(number, number) for number in range(1, 3 * STAGES_MAX)]
    assert open_transactions(url) == 0


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_cut_connection_neither_loses_nor_doubles_rows(url: str, is_ended: bool) -> None:
    writer = opened(url)
    complete(writer, FIRST, [1])
    writer.write(records([2]))
    segments = prepared(writer, SECOND) if is_ended else []
    cut_all(url)
    writer.write(records([3]))

    writer.commit(SECOND, segments or prepared(writer, SECOND))
    writer.commit(THIRD, prepared(writer, THIRD))

    assert [number for number, _ in rows(url)] == [1, 2, 3]


def test_a_lost_commit_reply_does_not_copy_the_rows_twice(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Stage.commit

    def unheard(stage: Stage, *arguments: object) -> None:
        commit(stage, *arguments)  # type: ignore[arg-type]
        raise Retryable("the answer was lost")

    monkeypatch.setattr(Stage, "commit", unheard)
    writer = opened(url)

    complete(writer, FIRST, [1])

    assert rows(url) == [(1, FIRST)]


def test_rows_staged_by_a_replaced_attempt_are_never_visible(url: str) -> None:
    writer = opened(url)
    writer.write(records([1]))
    segments = prepared(writer, FIRST)
    opened(url, attempt=2)

    with pytest.raises(ProtocolError):
        writer.commit(FIRST, segments)
    writer.close()

    assert rows(url) == []


def test_an_attempt_replaced_just_before_its_commit_commits_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction that has the rows checks the fence, whatever the writer knew before."""
    writer = opened(url)
    writer.write(records([1]))
    segments = prepared(writer, FIRST)
    opened(url, attempt=2)
    monkeypatch.setattr(PlainTransactions, "published", lambda target, marker: False)

    with pytest.raises(ProtocolError):
        writer.commit(FIRST, segments)

    assert rows(url) == []
    writer.close()


def test_rows_of_another_runs_point_are_not_mistaken_for_staged_rows(url: str) -> None:
    """Both belong to their run's first checkpoint."""
    writer = opened(url)
    writer.write(records([1, 2]))
    restored = prepared(writer, FIRST)
    writer.close()
    rewound(sink(url), [(RUN, FIRST)], RunId("run-2"))
    other = opened(url, run_id=RunId("run-2"))
    other.write(records([3]))
    segments = prepared(other, FIRST)

    other.commit(FIRST, restored)
    assert [number for number, _ in rows(url)] == [1, 2]

    other.commit(FIRST, segments)
    assert [number for number, _ in rows(url)] == [1, 2, 3]


def test_rows_staged_by_a_replaced_attempt_block_no_other_run(url: str) -> None:
    """That attempt may be stopped and keep its transactions open for ever."""
    stopped = opened(url)
    complete(stopped, FIRST, [1, 2])
    stopped.write(records([3]))

    set_aside = rewound(sink(url), [], RunId("run-2"))
    complete(opened(url, run_id=RunId("run-2")), FIRST, [4])

    assert set_aside is not None
    assert set_aside.items == 2
    assert rows(url, number=2) == [(4, FIRST)]
    stopped.close()


def test_staging_does_not_wait_for_a_locked_table(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    writer = opened(url)
    with psycopg.connect(url.replace("+psycopg", "")) as locking:
        locking.execute("lock table results in share mode")
        writer.write(records([1]))
        segments = prepared(writer, FIRST)
        assert "due to lock timeout" in caplog.text
        locking.rollback()

    writer.commit(FIRST, segments)

    assert rows(url) == [(1, FIRST)]


def test_rows_are_written_without_a_spare_connection_for_staging(url: str) -> None:
    """Staging also leaves the one connection that publishing needs."""
    role = f"r{uuid.uuid4().hex}"
    schema = url.rpartition("%3D")[2]
    execute(url, f"create role {role} login connection limit 1")
    execute(url, f"grant all on schema {schema} to {role}")
    writer = opened(url.replace("//postgres@", f"//{role}@"))

    complete(writer, FIRST, [1])
    complete(writer, SECOND, [2])

    assert rows(url) == [(1, FIRST), (2, SECOND)]
    writer.close()


@pytest.mark.parametrize(
    "guard",
    [
        "alter table results add unique (id)",
        "create unique index on results (id)",
        "alter table results add exclude (id with =)",
        "create function f() returns trigger language plpgsql as 'begin return new; end';"
        " create trigger t before insert on results for each row execute function f()",
    ],
    ids=["unique", "unique index", "exclusion", "trigger"],
)
def test_rows_that_could_block_another_subtask_are_not_staged(url: str, guard: str) -> None:
    """Otherwise rows staged by one subtask and published by another would block each other."""
    opened(url).close()
    execute(url, guard)
    one, other = opened(url), opened(url, subtask=1)
    one.write(records([1]))
    assert open_transactions(url) == 0

    other.write(records([1]))
    other.commit(FIRST, prepared(other, FIRST))

    assert rows(url) == [(1, FIRST)]


def test_a_value_that_breaks_a_unique_constraint_is_refused(url: str) -> None:
    opened(url).close()
    execute(url, "alter table results add unique (id)")
    writer = opened(url)
    complete(writer, FIRST, [1])

    writer.write(records([1]))
    with pytest.raises(Rejected, match="duplicate key value"):
        writer.commit(SECOND, prepared(writer, SECOND))

    assert rows(url) == [(1, FIRST)]


def test_markers_do_not_pile_up_at_serializable_isolation(url: str) -> None:
    isolated = f"{url}%20-cdefault_transaction_isolation%3Dserializable"
    writer = opened(isolated)
    for checkpoint_id in (FIRST, SECOND, THIRD):
        writer.write(records([checkpoint_id]))
        (segment,) = prepared(writer, checkpoint_id)
        writer.write(records([10 + checkpoint_id]))
        writer.commit(checkpoint_id, [unreadable(segment)])

    assert query(url, "select checkpoint from ftdash_published") == [(3,)]


def test_closing_the_writer_leaves_no_transaction_open(url: str) -> None:
    writer = opened(url)
    complete(writer, FIRST, [1])
    writer.write(records([2]))
    prepared(writer, SECOND)
    writer.write(records([3]))

    writer.close()

    assert open_transactions(url) == 0
    assert rows(url) == [(1, FIRST)]


def sink(url: str) -> PostgresInsert:
    return PostgresInsert(url, "results", pipeline="p")


def opened(
    url: str, *, attempt: int = 1, subtask: int = 0, run_id: RunId = RUN
) -> WriteAheadWriter:
    context = SinkContext(run_id, Attempt(attempt), Uid("out"), subtask, 4)
    return sink(url).open(context, SCHEMA)


def prepared(writer: WriteAheadWriter, checkpoint_id: CheckpointId) -> list[object]:
    return list(writer.prepare(checkpoint_id))


def complete(writer: WriteAheadWriter, checkpoint_id: CheckpointId, ids: list[int]) -> None:
    writer.write(records(ids))
    writer.commit(checkpoint_id, prepared(writer, checkpoint_id))


def unreadable(segment: object) -> Segment:
    assert isinstance(segment, Segment)
    return dataclasses.replace(segment, batches=read_again())


def read_again() -> Iterator[pa.RecordBatch]:
    raise AssertionError("the rows were with the server already")
    yield


def rows(url: str, number: int = 1) -> list[tuple[int, int]]:
    """Returns the ids written by the run of that number, each with its checkpoint."""
    base = origin_of(number, CheckpointId(0))
    found = query(url, f"select id, ftdash_origin - {base} from results order by id")
    return [(int(str(id)), int(str(checkpoint))) for id, checkpoint in found]


def open_transactions(url: str) -> int:
    """Counts the transactions that have written to the table, or begun to."""
    return len(query(url, WRITERS))


def cut_all(url: str) -> None:
    query(url, f"select pg_terminate_backend(pid, 5000) from ({WRITERS}) writers")
