"""PREPARE TRANSACTION on a real server: what is left behind, lost, refused or not prepared."""

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import LiteralString

import psycopg
import pytest

from pipelines.connectors import sink_bases
from pipelines.connectors.postgres.tables import Gid, place_of
from pipelines.connectors.postgres.two_phase import CopyTransaction, PostgresTwoPhase
from pipelines.connectors.sink import PrepareRefused, SinkContext
from pipelines.connectors.sink_bases import TwoPhaseCommitWriter
from pipelines.domain.errors import (
    OutputLost,
    ProtocolError,
    Rejected,
    Retryable,
    TargetTaken,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.snapshots import Json
from tests.contracts.sink_host import SCHEMA, records
from tests.postgres_server import PostgresServer, execute, postgres_server, query
from tests.takeovers import rewound

pytestmark = pytest.mark.slow

OLDER, RUN, LATER = RunId("run-0"), RunId("run-1"), RunId("run-2")


@pytest.fixture
def schema() -> str:
    return f"s{uuid.uuid4().hex}"


@pytest.fixture
def url(postgres: PostgresServer, schema: str) -> str:
    return postgres.url_of(schema)


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill, and restart with other settings."""
    with postgres_server() as server:
        yield server


def test_rows_are_on_the_server_before_they_are_visible(url: str) -> None:
    writer = opened(url)
    prepared = prepare(writer, 1, [1, 2])
    assert ids(url) == []
    assert len(gids(url)) == 1

    writer.commit(CheckpointId(1), prepared)

    assert ids(url) == [1, 2]
    assert gids(url) == []


def test_a_commit_repeated_after_newer_ones_is_recognised_as_done(url: str) -> None:
    writer = opened(url)
    first, second = prepare(writer, 1, [1]), prepare(writer, 2, [2])
    writer.commit(CheckpointId(1), first)
    writer.commit(CheckpointId(2), second)

    opened(url, attempt=2).commit(CheckpointId(1), first)

    assert ids(url) == [1, 2]
    assert query(url, "select checkpoint from ftdash_published") == [(2,)]


def test_a_strangers_transaction_under_the_name_of_a_committed_one_stays_prepared(
    url: str,
) -> None:
    writer = opened(url)
    prepared = prepare(writer, 1, [1])
    (gid,) = gids(url)
    writer.commit(CheckpointId(1), prepared)
    prepare_by_hand(url, gid, "insert into results select 99, at, x, ftdash_origin from results")

    again = opened(url, attempt=2)
    again.commit(CheckpointId(1), prepared)
    again.prepare(CheckpointId(2))

    assert ids(url) == [1]
    assert gids(url) == [gid]


def test_a_transaction_rolled_back_by_hand_is_reported_as_lost(url: str) -> None:
    writer = opened(url)
    prepared = prepare(writer, 1, [1, 2, 3])
    (gid,) = gids(url)
    execute(url, f"rollback prepared '{gid}'")

    with pytest.raises(
        OutputLost,
        match=r"^3 records of out, subtask 0, .* are lost: the server has neither the prepared .*"
        r"before checkpoint 1, .*: rows that came after it are moved to \w+_superseded and written",
    ):
        opened(url, attempt=2).commit(CheckpointId(1), prepared)


def test_the_next_attempt_ends_only_the_transactions_of_an_abandoned_one(
    url: str, schema: str
) -> None:
    """Transactions: due, behind the point, of an older run, another table, another program."""
    prepare(opened(url, run=OLDER), 1, [100])
    rewound(sink(url), [], RUN)
    dead = opened(url)
    due = prepare(dead, 1, [1])
    prepare(dead, 2, [2])
    strangers = [f"{schema}-stranger", str(Gid.of(place_of("x", schema, "x"), context_of(RUN), 9))]
    for gid in strangers:
        prepare_by_hand(url, gid)
    older, *_ = sorted(gids(url), key=lambda gid: "run-0" not in gid)

    writer = opened(url, attempt=2)
    writer.commit(CheckpointId(1), due)
    writer.prepare(CheckpointId(3))

    assert ids(url) == [1]
    assert sorted(gids(url)) == sorted([older, *strangers])


def test_a_start_rolls_back_only_what_the_run_prepared_after_its_point(
    url: str,
) -> None:
    prepare(opened(url, run=OLDER), 1, [100])
    rewound(sink(url), [], RUN)
    dead = opened(url)
    due = prepare(dead, 1, [1])
    prepare(dead, 2, [2])

    rewound(sink(url), [(RUN, CheckpointId(1))], RUN)

    assert [(gid.run_id, gid.interval) for gid in parsed(url)] == [(OLDER, 1), (RUN, 1)]
    opened(url, attempt=2).commit(CheckpointId(1), due)
    assert ids(url) == [1]


def test_rows_belong_to_the_checkpoint_that_ended_their_interval(url: str) -> None:
    """This includes empty intervals before it, and an attempt that began in between."""
    writer = opened(url)
    complete(writer, 1, [1])
    complete(writer, 2, [])
    complete(writer, 4, [4])
    rewound(sink(url), [(RUN, CheckpointId(4))], RUN)
    writer = opened(url, attempt=2)
    complete(writer, 6, [])
    complete(writer, 7, [7])

    visible = {}
    for checkpoint_id in (1, 2, 4, 6, 7):
        rewound(sink(url), [(RUN, CheckpointId(checkpoint_id))], LATER)
        visible[checkpoint_id] = ids(url)

    assert visible == {1: [1], 2: [1], 4: [1, 4], 6: [1, 4], 7: [1, 4, 7]}


def test_the_first_interval_of_an_attempt_does_not_belong_to_older_points(url: str) -> None:
    rewound(sink(url), [(RUN, CheckpointId(9))], RUN)
    complete(opened(url), 10, [10])

    rewound(sink(url), [(RUN, CheckpointId(9))], LATER)

    assert ids(url) == []


def test_a_handle_of_another_table_is_left_to_that_table(url: str) -> None:
    prepared = prepare(opened(url), 1, [1])
    other = PostgresTwoPhase(url, "others", pipeline="p").open(context_of(RUN), SCHEMA)

    other.commit(CheckpointId(1), prepared)

    assert len(gids(url)) == 1


def test_a_prepare_that_the_server_turned_into_a_rollback_does_not_count(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = opened(url)
    writer.write(records([1]))
    monkeypatch.setattr(psycopg.Connection, "tpc_prepare", lambda connection: None)

    with pytest.raises(Retryable, match=r"rolled back what it was to prepare: ftdash-.*\.$"):
        writer.prepare(CheckpointId(1))
    writer.close()


def test_a_failed_transaction_is_not_prepared(url: str) -> None:
    writer = opened(url)
    writer.write(records([1]))
    transaction = writer._transaction
    assert isinstance(transaction, CopyTransaction)
    transaction._copying.close()
    with suppress(psycopg.Error):
        transaction._connection.execute("select 1 / 0")

    with pytest.raises(Retryable, match="rolled back what it was to prepare"):
        transaction._prepare()
    writer.close()


def test_a_writer_replaced_while_preparing_leaves_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    zombie = opened(url)
    zombie.write(records([1]))
    prepare_really = CopyTransaction._prepare

    def prepare_late(transaction: CopyTransaction) -> None:
        opened(url, attempt=2)
        prepare_really(transaction)

    monkeypatch.setattr(CopyTransaction, "_prepare", prepare_late)

    with pytest.raises(ProtocolError, match="may not write"):
        zombie.prepare(CheckpointId(1))

    assert gids(url) == []


def test_a_writer_whose_run_loses_the_table_while_preparing_leaves_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that holds the table by now may already have looked for such transactions."""
    zombie = opened(url)
    zombie.write(records([1]))
    prepare_really = CopyTransaction._prepare

    def prepare_late(transaction: CopyTransaction) -> None:
        rewound(sink(url), [], LATER)
        prepare_really(transaction)

    monkeypatch.setattr(CopyTransaction, "_prepare", prepare_late)

    with pytest.raises(TargetTaken, match="has taken over"):
        zombie.prepare(CheckpointId(1))

    assert gids(url) == []


@pytest.mark.parametrize(
    "statement",
    [
        "",
        "insert into results (id, ftdash_origin) values (99, 1)",
        "insert into ftdash_published select 'x', 'x', 'x', 1, 1",
        "insert into others (id, ftdash_origin) values (99, 1)",
    ],
)
def test_a_strangers_transaction_with_our_name_is_not_listed_as_ours(
    url: str, statement: LiteralString
) -> None:
    """It has a name that our writer would choose, but has not written what our writer writes."""
    complete(opened(url), 1, [1])
    PostgresTwoPhase(url, "others", pipeline="p").open(context_of(RUN), SCHEMA).close()
    schema = url.rpartition("%3D")[2]
    name = str(Gid.of(place_of("postgres", schema, "results"), context_of(RUN), 7))
    prepare_by_hand(url, name, statement)

    assert sink(url).unfinished() == []
    execute(url, f"rollback prepared '{name}'")


def test_each_table_lists_only_its_own_prepared_transactions(url: str) -> None:
    prepare(opened(url), 1, [1])
    other = PostgresTwoPhase(url, "others", pipeline="p")
    other.open(context_of(OLDER), SCHEMA).close()
    writer = other.open(context_of(OLDER), SCHEMA)
    prepare(writer, 1, [2])

    assert [each.run_id for each in sink(url).unfinished()] == [RUN]
    assert [each.run_id for each in other.unfinished()] == [OLDER]


def test_a_writer_that_ends_leaves_no_transaction_open(url: str) -> None:
    writer = opened(url)
    writer.write(records([1]))
    transaction = writer._transaction
    assert isinstance(transaction, CopyTransaction)

    writer.close()

    assert transaction._connection.closed
    assert ids(url) == []


def test_prepared_transactions_survive_a_server_restart(
    own_server: PostgresServer,
) -> None:
    url = restarted(own_server, max_prepared_transactions=10)
    writer = opened(url)
    prepared = prepare(writer, 1, [1])
    writer.write(records([2]))
    own_server.kill()
    with pytest.raises(Retryable, match="does not answer"):
        writer.commit(CheckpointId(1), prepared)
    with pytest.raises(Retryable, match="does not answer"):
        writer.prepare(CheckpointId(2))
    writer.close()

    own_server.start()
    assert [each.run_id for each in sink(url).unfinished()] == [RUN]
    again = opened(url, attempt=2)
    again.commit(CheckpointId(1), prepared)
    complete(again, 2, [2])

    assert ids(url) == [1, 2]
    assert gids(url) == []


def test_a_server_without_prepared_transactions_is_refused_with_a_next_step(
    own_server: PostgresServer,
) -> None:
    url = restarted(own_server, max_prepared_transactions=0)

    with pytest.raises(Rejected, match=r"set max_prepared_transactions .* or use PostgresInsert,"):
        sink(url).validate(SCHEMA)


def test_a_full_server_declines_the_checkpoint_but_loses_no_records(
    own_server: PostgresServer,
) -> None:
    url = restarted(own_server, max_prepared_transactions=1)
    first, second = (opened(url, subtask=subtask) for subtask in (0, 1))
    prepared = prepare(first, 1, [1])
    second.write(records([2]))
    with pytest.raises(PrepareRefused, match="as many prepared transactions as max_prepared"):
        second.prepare(CheckpointId(1))
    first.commit(CheckpointId(1), prepared)

    second.write(records([3]))
    second.commit(CheckpointId(2), second.prepare(CheckpointId(2)))

    assert ids(url) == [1, 2, 3]
    first.close()
    second.close()


def test_a_server_full_of_the_writers_own_transactions_gets_room_by_a_recovery(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were prepared for a checkpoint that failed, so they wait for one that completes."""
    monkeypatch.setattr(sink_bases, "ROOM_WITHIN_S", 0.0)
    url = restarted(own_server, max_prepared_transactions=1)
    writer = opened(url)
    prepare(writer, 1, [1])
    writer.write(records([2]))
    with pytest.raises(PrepareRefused):
        writer.prepare(CheckpointId(2))
    with pytest.raises(Retryable, match="Transactions since checkpoint 1 wait"):
        writer.prepare(CheckpointId(3))
    writer.close()

    again = opened(url, attempt=2)
    complete(again, 4, [1, 2])
    again.close()

    assert ids(url) == [1, 2]
    assert gids(url) == []


def restarted(server: PostgresServer, *, max_prepared_transactions: int) -> str:
    """Restarts the server and returns its address, with a schema for this test alone.

    Nothing may be prepared on it now, and older prepared transactions must be out of the log: a
    server with a smaller limit could not replay them.
    """
    server.execute("checkpoint")
    server.kill()
    server.max_prepared_transactions = max_prepared_transactions
    server.start()
    return server.url_of(f"s{uuid.uuid4().hex}")


def sink(url: str) -> PostgresTwoPhase:
    return PostgresTwoPhase(url, "results", pipeline="p")


def context_of(run: RunId, attempt: int = 1, subtask: int = 0) -> SinkContext:
    return SinkContext(run, Attempt(attempt), Uid("out"), subtask, 2)


def opened(
    url: str, *, run: RunId = RUN, attempt: int = 1, subtask: int = 0
) -> TwoPhaseCommitWriter:
    return sink(url).open(context_of(run, attempt, subtask), SCHEMA)


def prepare(writer: TwoPhaseCommitWriter, checkpoint_id: int, ids: list[int]) -> list[Json]:
    writer.write(records(ids))
    return writer.prepare(CheckpointId(checkpoint_id))


def complete(writer: TwoPhaseCommitWriter, checkpoint_id: int, ids: list[int]) -> None:
    writer.commit(CheckpointId(checkpoint_id), prepare(writer, checkpoint_id, ids))


def prepare_by_hand(url: str, gid: str, statement: LiteralString = "") -> None:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.tpc_begin(gid)
        if statement:
            connection.execute(statement)
        connection.tpc_prepare()
        connection.close()


def gids(url: str) -> list[str]:
    """Returns the ids of prepared transactions: those of our tables, and those made by hand."""
    schema = url.rpartition("%3D")[2]
    places = {place_of("postgres", schema, table) for table in ("results", "others")}
    places.add(place_of("x", schema, "x"))
    found = [str(gid) for (gid,) in query(url, "select gid from pg_prepared_xacts")]
    return [gid for gid in found if gid.startswith(schema) or gid[7:23] in places]


def parsed(url: str) -> list[Gid]:
    found = [gid for gid in map(Gid.parsed, gids(url)) if gid is not None]
    return sorted(found, key=lambda gid: (gid.run_id, gid.interval))


def ids(url: str) -> list[object]:
    return [i for (i,) in query(url, "select id from results order by id")]
