"""An audit of a Kafka topic: transactions are told apart by producer, even if they interleave."""

from pathlib import Path
from uuid import uuid4

import pytest

from pipelines.audit.auditor import audit_sinks, reader_of
from pipelines.audit.report import Covers
from pipelines.connectors import ExactlyOnceKafka, KafkaAddress
from pipelines.domain.errors import Rejected
from tests.brokers.kafka_broker import ANSWER_S, KafkaBroker
from tests.unit.audit.audited_run import OUT, SCHEMA, AuditedRun

pytestmark = pytest.mark.slow
PARTITIONS = 2
GIVEN = {1: (1, 2, 3, 4), 2: (6, 7, 8, 9), 3: (11, 12, 13, 14)}
PREPARED = (16, 17)
"""Rows with these ids have no null, which JSON could not tell from other values."""


@pytest.fixture
def sink(kafka_server: KafkaBroker) -> ExactlyOnceKafka:
    topic = f"audited-{uuid4().hex}"
    kafka_server.create_topic(topic, PARTITIONS)
    return ExactlyOnceKafka(
        KafkaAddress(kafka_server.bootstrap_servers), topic, pipeline="p", key="id"
    )


@pytest.fixture
def run(sink: ExactlyOnceKafka, tmp_path: Path) -> AuditedRun:
    """Two subtasks write to both partitions, so that their transactions interleave.

    The newest transactions are only prepared.
    """
    run = AuditedRun(tmp_path, "run-1", sink)
    run.begin()
    for number, ids in GIVEN.items():
        run.write(*ids)
        run.checkpoint(number)
    run.write(*PREPARED)
    run.checkpoint(4, commits=False)
    return run


def test_committed_records_are_proven_with_their_digest(run: AuditedRun) -> None:
    assert run.proven() == ("run-1", 3, 12)
    assert run.sink_report().covers is Covers.DIGESTED
    assert run.audit().is_as_recorded


def test_a_transaction_that_never_ended_is_reported_with_its_range(
    run: AuditedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.audit.kafka_output.SETTLING_S", 0.2)
    run.say_committed(4)

    difference = run.sink_report().difference

    assert difference is not None
    assert difference.checkpoint_id == 4
    assert "has not ended" in difference.what
    assert "offsets " in str(difference.part)
    assert run.proven() == ("run-1", 3, 12)


def test_a_record_added_by_hand_is_reported_with_its_offset(
    run: AuditedRun, sink: ExactlyOnceKafka, kafka_server: KafkaBroker
) -> None:
    producer = kafka_server.producer()
    producer.produce(sink.topic, b'{"id":1}', partition=0)
    producer.flush(ANSWER_S)

    difference = run.sink_report().difference

    assert difference is not None
    assert difference.what == f"Topic {sink.topic} has 1 records that no checkpoint gave it."
    assert "of partition 0" in str(difference.part)
    assert run.proven() == ("run-1", 3, 12)
    assert not run.audit().is_as_recorded


def test_records_committed_during_the_audit_belong_to_a_checkpoint(run: AuditedRun) -> None:
    before = run.history()
    run.write(*PREPARED)
    run.checkpoint(5)

    report = audit_sinks([(OUT, run.sink, SCHEMA)], iter([before, run.history()]).__next__)

    assert report.is_as_recorded
    assert report.committed_checkpoint_id == 3


def test_records_of_an_abandoned_run_are_reported_as_extra(run: AuditedRun, tmp_path: Path) -> None:
    """The log cannot be rewound: a reader finds them twice."""
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 2))
    restored.write(*GIVEN[3])
    restored.checkpoint(3)

    difference = restored.sink_report().difference

    assert restored.proven() == ("run-2", 3, 12)
    assert difference is not None
    assert "has 4 records that no checkpoint gave it" in difference.what


def test_a_restored_run_is_proven_with_the_output_prepared_for_its_point(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 4))
    restored.write(18, 19)
    restored.checkpoint(5)

    assert restored.proven() == ("run-2", 5, 16)
    assert restored.sink_report().covers is Covers.DIGESTED
    assert restored.audit().is_as_recorded


def test_records_deleted_by_retention_are_reported_as_not_judged(
    run: AuditedRun, sink: ExactlyOnceKafka, kafka_server: KafkaBroker
) -> None:
    for partition in range(PARTITIONS):
        kafka_server.delete_before(sink.topic, 1, partition=partition)

    report = run.sink_report()

    assert report.unread_checkpoint_id == 1
    assert run.proven() == ("run-1", 3, 8)
    assert run.audit().is_as_recorded


def test_earlier_records_of_other_programs_are_ignored(
    sink: ExactlyOnceKafka, kafka_server: KafkaBroker, tmp_path: Path
) -> None:
    kafka_server.produce(sink.topic, [b"theirs", b"theirs"])
    run = AuditedRun(tmp_path, "run-1", sink)
    run.begin()
    run.write(*GIVEN[1])
    run.checkpoint(1)

    assert run.proven() == ("run-1", 1, 4)
    assert run.audit().is_as_recorded


def test_a_missing_topic_is_reported(kafka_server: KafkaBroker) -> None:
    sink = ExactlyOnceKafka(KafkaAddress(kafka_server.bootstrap_servers), "none", pipeline="p")

    with pytest.raises(Rejected, match=r"The topic none of Kafka at .* cannot be read"):
        reader_of(sink, SCHEMA)
