"""Kafka's transactions beyond the contract: losses, reused ids, strangers, order and refusals."""

import time
from contextlib import closing
from datetime import timedelta
from itertools import chain, count
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from kafka.protocol.producer import EndTxnRequest

from pipelines.connectors.kafka import connection as connecting
from pipelines.connectors.kafka import coordinator as coordinating
from pipelines.connectors.kafka import producer as producing
from pipelines.connectors.kafka import sink as kafka_owner
from pipelines.connectors.kafka.connection import KafkaAddress
from pipelines.connectors.kafka.coordinator import NEWEST_END_TXN, KafkaCoordinator, PreparedAtKafka
from pipelines.connectors.kafka.producer import KafkaOutput, TransactionalProducer
from pipelines.connectors.kafka.sink import KafkaOwnership, KafkaSink
from pipelines.connectors.kafka.transactions import ExactlyOnceKafka
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from pipelines.connectors.sink import SinkWriter
from pipelines.domain.errors import OutputLost, ProtocolError, Rejected, Retryable
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ownership import Claim
from pipelines.domain.snapshots import Json
from tests.brokers.kafka_broker import ANSWER_S, PASSWORD, USER, KafkaBroker
from tests.contracts.sink_host import EVERYTHING, SCHEMA, Host, Seam, records
from tests.contracts.sink_readers import PARTITIONS, KafkaReader
from tests.contracts.sink_targets import Target, kafka_target, opened
from tests.takeovers import held, rewound

pytestmark = pytest.mark.slow
RUN, OTHER = RunId("run-1"), RunId("run-2")
FIRST = CheckpointId(1)
SHORT = timedelta(seconds=1)
OUTLASTED = timedelta(seconds=4)
"""Shorter than a broker's restart, but long enough to write and to prepare on a busy machine."""
NUMBERS = count()
END = -1
"""Means the end of a partition in DeleteRecords."""


@pytest.fixture
def topic(kafka_server: KafkaBroker) -> str:
    name = f"transactions-{next(NUMBERS)}"
    kafka_server.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def target(kafka_server: KafkaBroker, topic: str) -> Target:
    return kafka_target(ExactlyOnceKafka, kafka_server, topic)


def test_too_long_an_outage_is_reported_with_its_range_but_a_log_survives_it(
    kafka_server: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers five writers of a broker that dies.

    Three have prepared when it dies; for one of them the outage exceeds the timeout. One prepares
    during the outage. One, a later attempt without a marker yet, may not prepare then.
    """
    topics = [f"outage-{next(NUMBERS)}" for _ in range(5)]
    for topic in topics:
        kafka_server.create_topic(topic, PARTITIONS)
    short = kafka_target(ExactlyOnceKafka, kafka_server, topics[0], timeout=OUTLASTED)
    long = kafka_target(ExactlyOnceKafka, kafka_server, topics[1])
    log = kafka_target(WriteAheadKafka, kafka_server, topics[2], timeout=OUTLASTED)
    late = kafka_target(WriteAheadKafka, kafka_server, topics[3])
    later = kafka_target(WriteAheadKafka, kafka_server, topics[4])
    writers = [opened(target, RUN, 1) for target in (short, long, log)]
    late_writer, later_writer = opened(late, RUN, 1), opened(later, RUN, 2)
    for writer in (late_writer, later_writer):
        writer.write(records([1, 2, 3]))
    prepared = []
    for writer in writers:
        writer.write(records([1, 2, 3]))
        prepared.append(writer.prepare(FIRST))

    kafka_server.server.kill()
    in_the_dark = late_writer.prepare(FIRST)
    with monkeypatch.context() as patch:
        patch.setattr(producing, "ANSWER_TIMEOUT_S", SHORT.total_seconds())
        with pytest.raises(Retryable):
            later_writer.prepare(FIRST)
    kafka_server.server.start()
    wait_until_nothing_is_open(kafka_server, topics[0], beside=topics[1])

    with pytest.raises(OutputLost, match=r"3 records of out.*are lost.*offsets 0 to "):
        writers[0].commit(FIRST, prepared[0])
    writers[1].commit(FIRST, prepared[1])
    writers[1].write(records([4]))
    writers[1].commit(CheckpointId(2), writers[1].prepare(CheckpointId(2)))
    opened(log, RUN, 2).commit(FIRST, prepared[2])
    assert [short.visible(), long.visible(), log.visible()] == [[], [1, 2, 3, 4], [1, 2, 3]]
    assert_published_once_or_told(kafka_server, late, in_the_dark, topics[3])
    later_writer = opened(later, RUN, 3)
    later_writer.write(records([1, 2, 3]))
    assert_published_once_or_told(kafka_server, later, later_writer.prepare(FIRST), topics[4])


def test_a_transaction_that_ended_before_its_barrier_declines_the_checkpoint(
    kafka_server: KafkaBroker, topic: str
) -> None:
    writer = opened(kafka_target(ExactlyOnceKafka, kafka_server, topic, timeout=SHORT), RUN, 1)
    writer.write(records([1]))
    wait_until_nothing_is_open(kafka_server, topic, but_first=1)

    with pytest.raises(Retryable):
        writer.prepare(FIRST)


def test_a_strangers_transaction_under_our_id_is_not_published(
    kafka_server: KafkaBroker, topic: str, target: Target
) -> None:
    """Another producer id or epoch is another transaction, whatever its name."""
    writer = opened(target, RUN, 1)
    writer.write(records([1]))
    committables = writer.prepare(FIRST)
    reused = {"transactional.id": committables[0]["handle"]["transactional_id"]}
    producer = kafka_server.producer(**reused)
    producer.init_transactions(ANSWER_S)
    producer.begin_transaction()
    producer.produce(topic, b'{"id": 99}', partition=0)
    producer.flush(ANSWER_S)

    with pytest.raises((OutputLost, Retryable)):
        writer.commit(FIRST, committables)
    producer.abort_transaction(ANSWER_S)
    told = r"1 records of out.* are lost.*of before checkpoint 1, .* Kafka takes nothing back\.$"
    with pytest.raises(OutputLost, match=told):
        writer.commit(FIRST, committables)

    assert target.visible() == []


def test_a_writer_that_ends_leaves_no_transaction_open(
    kafka_server: KafkaBroker, topic: str, target: Target
) -> None:
    writer = opened(target, RUN, 1)
    writer.write(records([1]))

    writer.close()

    wait_until_nothing_is_open(kafka_server, topic)
    assert target.visible() == []


@pytest.mark.parametrize("kind", [ExactlyOnceKafka, WriteAheadKafka])
def test_a_permanent_reader_gets_the_records_of_a_subtask_in_order(
    kafka_server: KafkaBroker, topic: str, tmp_path: Path, kind: type[KafkaSink]
) -> None:
    host = Host(tmp_path, kafka_target(kind, kafka_server, topic).sink)

    with closing(KafkaReader(kafka_server.bootstrap_servers, topic)) as reader:
        for seam in (Seam.ACKNOWLEDGED, Seam.DURABLE):
            host.perish(RUN, seam, parallelism=1, interval=10)
            reader.look()
        host.live(RUN, parallelism=1, interval=20)
        seen = [polled(reader, partition) for partition in range(PARTITIONS)]

    assert [sorted(ids) for ids in seen] == seen
    assert sorted(chain(*seen)) == EVERYTHING


def test_a_record_that_did_not_arrive_declines_the_checkpoint(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that raises nothing does not prove that every record arrived."""
    write = TransactionalProducer.write
    writer = opened(target, RUN, 1)
    monkeypatch.setattr(
        TransactionalProducer, "write", lambda p, batch: 1 + write(p, batch.slice(1))
    )
    writer.write(records([1, 2, 3]))

    with pytest.raises(Retryable):
        writer.prepare(FIRST)

    assert target.visible() == []


def test_the_log_proves_a_commit_that_the_coordinator_has_forgotten(
    kafka_server: KafkaBroker, target: Target
) -> None:
    writer = opened(target, RUN, 1)
    writer.write(records([1]))
    committables = writer.prepare(FIRST)
    writer.commit(FIRST, committables)
    with closing(coordinator(kafka_server)) as asked:
        asked.end(committables[0]["handle"]["transactional_id"], SHORT)

    writer.commit(FIRST, committables)

    assert target.visible() == [1]


@pytest.mark.parametrize("is_committed", [True, False])
def test_after_retention_an_abort_is_lost_output_and_a_commit_is_a_warning(
    kafka_server: KafkaBroker,
    topic: str,
    target: Target,
    caplog: pytest.LogCaptureFixture,
    is_committed: bool,
) -> None:
    writer = opened(target, RUN, 1)
    writer.write(records([1, 2, 3]))
    committables = writer.prepare(FIRST)
    prepared = msgspec.convert(committables[0]["handle"], PreparedAtKafka)  # type: ignore[index,call-overload]
    with closing(coordinator(kafka_server)) as asked:
        if is_committed:
            writer.commit(FIRST, committables)
            asked.end(prepared.transactional_id, SHORT)  # makes the coordinator forget it
        else:
            abort(asked, prepared)
    for partition in range(PARTITIONS):
        kafka_server.delete_before(topic, END, partition=partition)

    restored = opened(target, RUN, 2)
    if is_committed:
        restored.commit(FIRST, committables)
        assert "that they were committed before that cannot be proven" in caplog.text
    else:
        with pytest.raises(OutputLost, match=r"3 records of out.*are lost.*offsets 0 to "):
            restored.commit(FIRST, committables)


def test_an_older_savepoint_is_restored_although_newer_records_are_published(
    target: Target,
) -> None:
    writer = opened(target, RUN, 1)
    writer.write(records([1]))
    savepoint = writer.prepare(FIRST)
    writer.commit(FIRST, savepoint)
    writer.write(records([2]))
    writer.commit(CheckpointId(2), writer.prepare(CheckpointId(2)))
    rewound(target.sink, [(RUN, FIRST)], OTHER)

    restored = opened(target, OTHER, 1)
    restored.commit(FIRST, savepoint)
    restored.write(records([2]))
    restored.commit(CheckpointId(3), restored.prepare(CheckpointId(3)))

    assert target.visible() == [1, 2, 2]


def test_transactions_of_others_are_left_alone(
    kafka_server: KafkaBroker, topic: str, target: Target
) -> None:
    neighbour = f"ftdash/delays/{topic}/out2/run-1/t/1/0/1"
    producer = kafka_server.producer(**{"transactional.id": neighbour})
    producer.init_transactions(ANSWER_S)
    producer.begin_transaction()
    producer.produce(topic, b"{}")
    producer.flush(ANSWER_S)

    writer = opened(target, RUN, 2)
    writer.write(records([1]))

    with closing(coordinator(kafka_server)) as asked:
        assert neighbour in asked.ongoing()
    producer.abort_transaction(ANSWER_S)


def test_orphans_of_a_replaced_run_hold_up_no_reader(target: Target) -> None:
    orphaned = opened(target, RUN, 1)
    orphaned.write(records([99]))
    orphaned.prepare(FIRST)
    rewound(target.sink, [], OTHER)

    writer = opened(target, OTHER, 1)
    writer.write(records([1]))
    writer.commit(FIRST, writer.prepare(FIRST))

    assert target.visible() == [1]


def test_a_replaced_writer_does_not_end_the_transaction_of_a_newer_one(target: Target) -> None:
    zombie = opened(target, RUN, 1)
    newer = opened(target, RUN, 2)
    newer.write(records([1]))
    committables = newer.prepare(FIRST)

    with pytest.raises(ProtocolError, match="may not write"):
        zombie.write(records([99]))
    newer.commit(FIRST, committables)

    assert target.visible() == [1]


def test_a_run_renews_its_claim_on_a_topic_when_it_is_due(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one subtask of each run renews the claim, and only when it is due."""
    renewed: list[RunId] = []
    put = KafkaOwnership.put

    def counted(
        ownership: KafkaOwnership, asked: KafkaCoordinator, output: KafkaOutput, claim: Claim
    ) -> None:
        renewed.append(claim.holder.run_id)
        put(ownership, asked, output, claim)

    held(target.sink, RUN)
    before = target.sink.holder()
    monkeypatch.setattr(KafkaOwnership, "put", counted)
    complete(opened(target, RUN, 1), 1, [1])
    assert renewed == []
    monkeypatch.setattr(kafka_owner, "RENEWED_AFTER_S", 0.0)

    opened(target, RUN, 2, subtask=1).close()
    by_another_subtask = list(renewed)
    opened(target, RUN, 2, subtask=0).close()

    assert by_another_subtask == []
    assert set(renewed) == {RUN}
    assert target.sink.holder() == before


def test_a_topic_that_an_older_version_wrote_to_is_taken_over(
    target: Target, kafka_server: KafkaBroker, topic: str
) -> None:
    with closing(coordinator(kafka_server)) as asked:
        mark = '{"run_id":"run-0","attempt":3}'
        asked.remember(KafkaOwnership("delays", topic).prefix, topic, 0, mark)

    held(target.sink, RUN)

    holder = target.sink.holder()
    assert holder is not None
    assert (holder.run_id, holder.epoch) == (RUN, 1)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"topic": "nowhere"}, r"There is no topic nowhere at Kafka 127\.0\.0\.1:\d+\."),
        ({"value": "x"}, "The value column x of topic .* holds double; Kafka takes text or bytes."),
        ({"key": "y"}, "The key column y of topic .* is not in the results."),
        ({"transaction_timeout": timedelta(hours=1)}, "timeout of 3600 s is longer than Kafka"),
        (
            {"address": KafkaAddress("127.0.0.1:1", {"sasl.kerberos.keytab": "s3cret"})},
            "The security setting sasl.kerberos.keytab is not known",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_in_a_sentence(
    kafka_server: KafkaBroker, topic: str, changed: dict[str, object], refusal: str
) -> None:
    address = KafkaAddress(kafka_server.bootstrap_servers)
    arguments = {"address": address, "topic": topic, "pipeline": "delays", **changed}
    sink = ExactlyOnceKafka(**arguments)

    with pytest.raises(Rejected, match=refusal) as refused:
        sink.validate(SCHEMA)

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("kind", [ExactlyOnceKafka, WriteAheadKafka])
def test_an_unreachable_broker_is_reported_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, kind: type[KafkaSink]
) -> None:
    monkeypatch.setattr(coordinating, "ANSWER_TIMEOUT_S", 0.5)
    monkeypatch.setattr(connecting, "ANSWER_TURNS", 1)
    sink = kind(KafkaAddress("127.0.0.1:1"), "t", pipeline="delays")

    with pytest.raises(Rejected, match=r"^.*Kafka.*127\.0\.0\.1:1 does not answer.*\.$"):
        sink.validate(SCHEMA)


def test_a_writer_that_logs_in_with_a_password_publishes_exactly_once(
    kafka_server: KafkaBroker, topic: str
) -> None:
    sink = ExactlyOnceKafka(secured(kafka_server, PASSWORD), topic, pipeline="delays")
    sink.validate(SCHEMA)
    writer = opened(Target(sink, list), RUN, 1)
    writer.write(records([1]))
    committables = writer.prepare(FIRST)
    writer.commit(FIRST, committables)

    assert kafka_target(ExactlyOnceKafka, kafka_server, topic).visible() == [1]
    assert PASSWORD not in f"{committables}{sink}"


def test_a_refused_password_does_not_appear_in_the_message(
    kafka_server: KafkaBroker, topic: str
) -> None:
    sink = ExactlyOnceKafka(secured(kafka_server, "wr0ng"), topic, pipeline="delays")

    with pytest.raises(Rejected, match="refuses the user and password") as refused:
        sink.validate(SCHEMA)

    assert "wr0ng" not in str(refused.value)


@pytest.mark.parametrize("kind", [ExactlyOnceKafka, WriteAheadKafka])
def test_a_record_too_large_for_the_topic_is_refused_in_a_sentence(
    kafka_server: KafkaBroker, topic: str, kind: type[KafkaSink]
) -> None:
    address = KafkaAddress(kafka_server.bootstrap_servers)
    sink = kind(address, topic, pipeline="delays", value="value")
    writer = opened(Target(sink, list), RUN, 1)
    writer.write(pa.record_batch({"value": [b"x" * (64 << 20)]}))

    with pytest.raises(Rejected, match=rf"to topic {topic}: it takes no record that large"):
        writer.commit(FIRST, writer.prepare(FIRST))


@pytest.mark.parametrize("kind", [ExactlyOnceKafka, WriteAheadKafka])
def test_a_record_of_64_mib_is_published_if_the_topic_allows_it(
    kafka_server: KafkaBroker, topic: str, kind: type[KafkaSink]
) -> None:
    kafka_server.let_topic_take(topic, record_bytes=80 << 20)
    target = kafka_target(kind, kafka_server, topic)
    address = KafkaAddress(kafka_server.bootstrap_servers)
    target.sink = kind(address, topic, pipeline="delays", value="value")
    writer = opened(target, RUN, 1)
    sizes = [(1, 1), (2, 64 << 20), (3, 1)]
    values = [b'{"id": %d, "text": "%s"}' % (id, b"x" * size) for id, size in sizes]
    writer.write(pa.record_batch({"value": values}))

    writer.commit(FIRST, writer.prepare(FIRST))

    assert target.visible() == [1, 2, 3]


def complete(writer: SinkWriter, checkpoint_id: int, ids: list[int]) -> None:
    writer.write(records(ids))
    writer.commit(CheckpointId(checkpoint_id), writer.prepare(CheckpointId(checkpoint_id)))


def assert_published_once_or_told(
    broker: KafkaBroker, target: Target, committables: list[Json], topic: str
) -> None:
    """Later attempts publish it once; after the broker forgets the marker, they raise."""
    for attempt in (4, 5):
        opened(target, RUN, attempt).commit(FIRST, committables)
    broker.delete_group(KafkaOwnership("delays", topic).log_id(Uid("out"), RUN, 0))
    with pytest.raises(OutputLost, match=r"3 records of out.* behind checkpoint 0 up to"):
        opened(target, RUN, 6).commit(FIRST, committables)
    assert target.visible() == [1, 2, 3]


def polled(reader: KafkaReader, partition: int) -> list[int]:
    """Returns the ids of a partition, once the reader has got all of them or the time is up."""
    deadline_s = time.monotonic() + ANSWER_S
    while len(reader.look()) < len(EVERYTHING) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return reader.ids[partition]


def secured(broker: KafkaBroker, password: str) -> KafkaAddress:
    return KafkaAddress(
        broker.secured,
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": password,
        },
    )


def coordinator(broker: KafkaBroker) -> KafkaCoordinator:
    return KafkaCoordinator(KafkaAddress(broker.bootstrap_servers))


def abort(asked: KafkaCoordinator, prepared: PreparedAtKafka) -> None:
    """Aborts the transaction as its timeout would."""
    request = EndTxnRequest(
        transactional_id=prepared.transactional_id,
        producer_id=prepared.producer_id,
        producer_epoch=prepared.epoch,
        committed=False,
        max_version=NEWEST_END_TXN,
    )
    asked._send(prepared.transactional_id, request)


def wait_until_nothing_is_open(
    broker: KafkaBroker, topic: str, *, but_first: int = 0, beside: str = ""
) -> None:
    """Waits until the topic has no open transaction; a broker checks timeouts every half second.

    A broker that has just started knows no transactions. It knows all of them once it knows those
    of the topic `beside`.
    """
    with closing(coordinator(broker)) as asked:
        end = time.monotonic() + ANSWER_S
        seen = 0
        while time.monotonic() < end:
            names = asked.ongoing()
            is_open = any(f"/{topic}/" in name for name in names)
            knows_all = not beside or any(f"/{beside}/" in name for name in names)
            seen += is_open
            if knows_all and not is_open and seen >= but_first:
                return
            time.sleep(0.05)
    pytest.fail("a transaction stays open")
