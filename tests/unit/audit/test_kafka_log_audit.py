"""An audit of a Kafka topic that is written from a log: segment by segment."""

from pathlib import Path
from uuid import uuid4

import pytest

from pipelines.audit.auditor import audit_sinks
from pipelines.audit.report import Covers
from pipelines.connectors import KafkaAddress, WriteAheadKafka
from tests.brokers.kafka_broker import ANSWER_S, KafkaBroker
from tests.unit.audit.audited_run import OUT, SCHEMA, AuditedRun

pytestmark = pytest.mark.slow
GIVEN = {1: (1, 2, 3, 4), 2: (6, 7, 8, 9), 3: (11, 12, 13, 14)}


@pytest.fixture
def sink(kafka_server: KafkaBroker) -> WriteAheadKafka:
    topic = f"logged-{uuid4().hex}"
    kafka_server.create_topic(topic, 2)
    address = KafkaAddress(kafka_server.bootstrap_servers)
    return WriteAheadKafka(address, topic, pipeline="p", key="id")


@pytest.fixture
def run(sink: WriteAheadKafka, tmp_path: Path) -> AuditedRun:
    """The last of the three checkpoints is completed but not published."""
    run = AuditedRun(tmp_path, "run-1", sink)
    run.begin()
    for number, ids in GIVEN.items():
        run.write(*ids)
        run.checkpoint(number, commits=number < 3)
    return run


def test_published_records_are_proven_and_an_extra_one_is_reported(
    run: AuditedRun, sink: WriteAheadKafka, kafka_server: KafkaBroker
) -> None:
    untouched, covers = run.proven(), run.sink_report().covers
    producer = kafka_server.producer()
    producer.produce(sink.topic, b'{"id":1}', partition=0)
    producer.flush(ANSWER_S)

    difference = run.sink_report().difference

    assert (untouched, covers) == (("run-1", 2, 8), Covers.DIGESTED)
    assert difference is not None
    assert "1 records that no checkpoint gave it" in difference.what
    assert run.proven() == ("run-1", 2, 8)


def test_an_unpublished_segment_is_missed(run: AuditedRun) -> None:
    run.say_committed(3)

    difference = run.sink_report().difference

    assert difference is not None
    assert (difference.checkpoint_id, difference.expected_rows, difference.found_rows) == (3, 2, 0)
    assert run.proven() == ("run-1", 2, 8)


def test_records_published_during_the_audit_belong_to_a_checkpoint(run: AuditedRun) -> None:
    before = run.history()
    run.begin((run, 3))

    report = audit_sinks([(OUT, run.sink, SCHEMA)], iter([before, run.history()]).__next__)

    assert (report.is_as_recorded, report.committed_checkpoint_id) == (True, 2)


def test_records_published_for_an_abandoned_checkpoint_are_reported(run: AuditedRun) -> None:
    run.begin((run, 1))

    difference = run.sink_report().difference

    assert difference is not None
    assert "has 4 records that no checkpoint gave it" in difference.what
    assert run.proven() == ("run-1", 1, 4)


def test_a_restored_run_publishes_what_its_point_had_logged(
    run: AuditedRun, tmp_path: Path
) -> None:
    restored = AuditedRun(tmp_path, "run-2", run.sink)
    restored.begin((run, 3))
    restored.write(16, 17)
    restored.checkpoint(4)

    assert restored.proven() == ("run-2", 4, 14)
    assert restored.audit().is_as_recorded


def test_a_log_without_its_beginning_is_reported_as_not_judged(
    run: AuditedRun, sink: WriteAheadKafka, kafka_server: KafkaBroker
) -> None:
    kafka_server.delete_before(sink.topic, 1)

    report = run.sink_report()

    assert (report.covers, report.unread_checkpoint_id) == (Covers.NOTHING, 2)
    assert report.difference is None
