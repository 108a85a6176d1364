"""An audit of hashes in Redis: digested if none was overwritten; none may be missing."""

from pathlib import Path
from typing import Any

import pytest

from ftdash.embedded.installation import free_port
from pipelines.audit.report import Covers
from pipelines.audit.table_output import RedisOutput
from pipelines.connectors import RedisHashes
from pipelines.domain.errors import Rejected
from tests.brokers.redis_broker import RedisBroker
from tests.hostile_names import HOSTILE
from tests.unit.audit.audited_run import SCHEMA, AuditedRun


@pytest.fixture
def run(redis_server: RedisBroker, tmp_path: Path) -> AuditedRun:
    """Three committed checkpoints of six keys each."""
    sink = RedisHashes(redis_server.url, tmp_path.name, ("id",), pipeline="p", buffer_rows=2)
    run = AuditedRun(tmp_path, "run-1", sink)
    run.begin()
    for number in (1, 2, 3):
        run.write(*range(6 * number, 6 * number + 6))
        run.checkpoint(number)
    return run


@pytest.fixture
def client(redis_server: RedisBroker) -> Any:
    return redis_server.client()


def test_hashes_that_were_written_once_are_proven_with_their_digest(run: AuditedRun) -> None:
    assert run.proven() == ("run-1", 3, 18)
    assert run.sink_report().covers is Covers.DIGESTED
    assert run.audit().is_as_recorded


def test_the_ledger_names_the_transactions(run: AuditedRun) -> None:
    tokens = {t for o in run.history().committed[-1].outputs for t in o.share.tokens}

    assert tokens == {"run-1:1:out:0:2", "run-1:1:out:1:2"}


def test_overwritten_hashes_are_counted(run: AuditedRun) -> None:
    run.write(8, 9, 12)
    run.checkpoint(4)

    assert run.proven() == ("run-1", 4, 21)
    assert run.sink_report().covers is Covers.COUNTED


def test_fields_whose_names_are_patterns_are_read_like_any_other(
    redis_server: RedisBroker, tmp_path: Path
) -> None:
    schema = SCHEMA.set(3, SCHEMA.field("name").with_name(HOSTILE))
    sink = RedisHashes(redis_server.url, tmp_path.name, ("id", HOSTILE), pipeline="p")
    run = AuditedRun(tmp_path, "run-1", sink, schema=schema)
    run.begin()
    run.write(1, 2, 3)
    run.checkpoint(1)

    assert run.proven() == ("run-1", 1, 3)
    assert run.sink_report().covers is Covers.DIGESTED


def test_output_that_is_only_prepared_is_not_looked_for(run: AuditedRun) -> None:
    run.write(40, 41)
    run.checkpoint(4, commits=False)

    assert run.proven() == ("run-1", 3, 18)


@pytest.mark.parametrize(
    ("field", "value"), [("x", "99"), ("x", "text"), ("name", None), ("more", "1")]
)
def test_a_changed_value_is_reported_with_its_checkpoint(
    run: AuditedRun, client: Any, field: str, value: str | None
) -> None:
    if value is None:
        client.hdel(key_of(run, 13), field)
    else:
        client.hset(key_of(run, 13), field, value)

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.found_rows) == (2, 6)
    assert difference.found_digest != difference.expected_digest
    assert run.proven() == ("run-1", 1, 6)


@pytest.mark.parametrize("becomes", ["nothing", "text"])
def test_a_missing_hash_is_reported_even_if_others_were_overwritten(
    run: AuditedRun, client: Any, becomes: str
) -> None:
    run.write(12)
    run.checkpoint(4)
    client.delete(key_of(run, 13))
    if becomes == "text":
        client.set(key_of(run, 13), "text")

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.part) == (2, key_of(run, 13))
    assert run.proven() == ("run-1", 1, 6)


def test_a_hash_that_no_checkpoint_wrote_is_reported(run: AuditedRun, client: Any) -> None:
    client.hset(key_of(run, 99), "id", "99")

    difference = run.sink_report().difference

    assert difference is not None
    assert difference.what == f"{key_of(run, 99)} was written by no checkpoint."
    assert run.proven() == (None, None, 0)


def test_the_loss_of_all_hashes_is_found(run: AuditedRun, client: Any) -> None:
    client.flushdb()

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.expected_rows, difference.found_rows) == (3, 6, 0)


def test_a_restored_run_is_proven_together_with_its_ancestor(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2))
    restored.write(70, 71)
    restored.checkpoint(3)

    assert restored.proven() == ("run-2", 3, 14)
    assert restored.sink_report().covers is Covers.DIGESTED


def test_an_unreachable_server_is_reported_without_its_password() -> None:
    address = f"redis://:open-sesame@127.0.0.1:{free_port()}/0"

    with pytest.raises(Rejected, match="hashes under p cannot be read for the audit") as refusal:
        RedisOutput(address, "p", SCHEMA)

    assert "open-sesame" not in str(refusal.value)


def key_of(run: AuditedRun, number: int) -> str:
    assert isinstance(run.sink, RedisHashes)
    return f"{{{run.sink.prefix}}}:row:{number}"
