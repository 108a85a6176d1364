"""Kafka beyond the contract: transactions, retention, new partitions, and refused access."""

import time
from collections.abc import Iterator
from contextlib import closing

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipelines.connectors.kafka import reader as kafka_waiting
from pipelines.connectors.kafka.connection import KafkaAddress, KafkaAdmin
from pipelines.connectors.kafka.reader import partition_of
from pipelines.connectors.kafka.topics import KafkaTopics
from pipelines.connectors.kafka.values import RAW, JsonValues, RawValues
from pipelines.connectors.positions import check_still_there, named_problems_of
from pipelines.connectors.source import LoggedRecords, MalformedRecord, StartAt
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.subtask.sources.direct_reader import DirectReader, ProgressReporter
from tests.brokers.kafka_broker import ANSWER_S, PASSWORD, USER, KafkaBroker
from tests.contracts.growing_places import SCHEMA, rows_of
from tests.hostile_names import HOSTILE

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
DAY_MS = 86_400_000


def test_pausing_a_partition_neither_loses_nor_doubles_its_records(
    kafka_server: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_waiting, "BATCH_ROWS", 10)
    kafka_server.create_topic("paused", 2)
    producer = kafka_server.producer()
    for key in range(2_000):
        producer.produce("paused", f'{{"key": {key}}}'.encode(), partition=key % 2)
    producer.flush(ANSWER_S)
    source = source_of(kafka_server, "paused", is_bounded=True)
    splits = source.find(set(), is_start=True)

    with closing(source.open()) as reader:
        batches = [reader.read(split) for split in splits]
        begun = [first_of(each) for each in batches]
        rest = [[key for key, _ in rows_of(each, 2_000)] for each in batches]

    assert begun[0] + rest[0] == list(range(0, 2_000, 2))
    assert begun[1] + rest[1] == list(range(1, 2_000, 2))


def test_open_and_aborted_transactions_are_not_read(kafka_server: KafkaBroker) -> None:
    kafka_server.create_topic("transactions")
    producer = kafka_server.producer(**{"transactional.id": "t", "linger.ms": 0})
    producer.init_transactions(ANSWER_S)
    for key, commits in [(1, True), (2, False), (3, True)]:
        producer.begin_transaction()
        producer.produce("transactions", f'{{"key": {key}}}'.encode())
        producer.flush(ANSWER_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(ANSWER_S)
    producer.begin_transaction()
    producer.produce("transactions", b'{"key": 4}')
    producer.flush(ANSWER_S)

    source = source_of(kafka_server, "transactions", is_bounded=True)
    (split,) = source.find(set(), is_start=True)
    keys = [key for key, _ in read(source, split, 100)]
    producer.abort_transaction(ANSWER_S)

    assert keys == [1, 3]


def test_a_topic_reports_how_long_it_keeps_unread_records(kafka_server: KafkaBroker) -> None:
    now_ms = time.time_ns() // 1_000_000  # the broker deletes records older than the retention
    kafka_server.create_topic("kept", 2, **{"retention.ms": f"{DAY_MS}"})
    kafka_server.create_topic("kept-for-ever", **{"retention.ms": "-1"})
    kafka_server.create_topic("compacted", **{"cleanup.policy": "compact"})
    for topic in ("kept", "kept-for-ever", "compacted"):
        producer = kafka_server.producer()
        producer.produce(topic, b"{}", partition=0, key=b"k", timestamp=now_ms)
        producer.produce(topic, b"{}", partition=0, key=b"k", timestamp=now_ms + 3_000)
        producer.flush(ANSWER_S)
    source = source_of(kafka_server, "kept")

    def kept_until_ms(*offsets: int) -> int | None:
        splits = [SplitProgress(f"kept-{index}", offset) for index, offset in enumerate(offsets)]
        return source.kept_until_ms(splits)

    assert kept_until_ms(0, 0) == DAY_MS + now_ms
    assert kept_until_ms(1, 0) == DAY_MS + now_ms + 3_000
    assert kept_until_ms(2, 0) is None  # nothing is written there yet
    assert kept_until_ms() is None
    for topic in ("kept-for-ever", "compacted"):
        unlimited = source_of(kafka_server, topic)
        assert unlimited.kept_until_ms([SplitProgress(f"{topic}-0")]) is None


def test_a_position_moves_past_the_markers_after_the_last_record(kafka_server: KafkaBroker) -> None:
    kafka_server.create_topic("caught-up")
    kafka_server.produce("caught-up", [b'{"key": 1}', b'{"key": 2}'])
    source = source_of(kafka_server, "caught-up")
    reader = DirectReader(
        source=source,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )

    position = position_once(reader, offset=4)
    kafka_server.delete_before("caught-up", 4)
    reader.close()

    check_still_there(source, position)


def test_reading_records_that_retention_deleted_is_refused_with_the_range(
    kafka_server: KafkaBroker,
) -> None:
    kafka_server.create_topic("retained")
    kafka_server.produce("retained", [b'{"key": 1}'] * 4)
    source = source_of(kafka_server, "retained")
    kafka_server.delete_before("retained", 5)

    with pytest.raises(
        Rejected, match=r"Partition 0 of topic retained: offsets 2 to 4 are gone \(retention\)"
    ):
        read(source, SplitProgress("retained-0", 2, 1), 1)


def test_a_partition_that_is_added_is_found_and_read_from_its_beginning(
    kafka_server: KafkaBroker,
) -> None:
    kafka_server.create_topic("growing")
    source = source_of(kafka_server, "growing", start_at=StartAt.NEWEST)
    (first,) = source.find(set(), is_start=True)

    kafka_server.add_partitions("growing", 2)
    kafka_server.produce("growing", [b'{"key": 7}'], partition=1)
    (second,) = source.find({first.name}, is_start=False)

    assert (first.name, second.name) == ("growing-0", "growing-1")
    assert {source.owner(name, 2) for name in (first.name, second.name)} == {0, 1}
    assert [key for key, _ in read(source, second, 1)] == [7]


def test_a_run_begins_at_given_offsets_and_elsewhere_at_the_chosen_start(
    kafka_server: KafkaBroker,
) -> None:
    kafka_server.create_topic("given")
    kafka_server.add_partitions("given", 2)
    for partition in range(2):
        kafka_server.produce("given", [b'{"key": 1}'] * 4, partition=partition)
    kafka_server.delete_before("given", 1)

    def begins(**offsets: int) -> list[int]:
        named = {name.replace("_", "-"): offset for name, offset in offsets.items()}
        source = source_of(kafka_server, "given", start_offsets=named)
        return [split.offset for split in source.find(set(), is_start=True)]

    assert begins(given_0=3) == [3, 0]
    assert begins(given_1=4) == [1, 4]
    with pytest.raises(Rejected, match=r"has the offsets 1 to 8.* start offset 0"):
        begins(given_0=0)
    with pytest.raises(Rejected, match="start offset 9"):
        begins(given_1=9)
    with pytest.raises(Rejected, match="none of a partition of given"):
        begins(other_0=1)
    later = source_of(kafka_server, "given", start_offsets={"given-1": 3})
    (found,) = later.find({"given-0"}, is_start=False)
    assert found.offset == 0  # a run reads an added partition from its beginning


def test_a_topic_that_ends_before_the_restored_offset_is_refused(kafka_server: KafkaBroker) -> None:
    kafka_server.create_topic("renewed")
    source = source_of(kafka_server, "renewed")

    with pytest.raises(Rejected, match="ends at offset 0, before offset 9"):
        check_still_there(source, SplitProgress("renewed-0", 9, 9))
    with pytest.raises(Retryable):
        read(source, SplitProgress("renewed-0", 9, 9), 1)


def test_a_recreated_topic_that_is_longer_is_recognised_by_its_id(
    kafka_server: KafkaBroker,
) -> None:
    kafka_server.create_topic("longer")
    kafka_server.produce("longer", [b'{"key": 1}'] * 2)
    source = source_of(kafka_server, "longer")
    reader = DirectReader(
        source=source,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )
    position = position_once(reader, offset=4)
    reader.close()

    check_still_there(source, position)
    renew(kafka_server, "longer", [b'{"key": 2}'] * 9)

    sentence = (
        rf"The topic longer was deleted and created again: .*{position.version} when .*"
        rf"{id_of(kafka_server, 'longer')} now.*start the pipeline without a recovery point"
    )
    with pytest.raises(Rejected, match=sentence):
        check_still_there(source, position)
    assert named_problems_of(Uid("clicks"), source, [NamedPositions((position,), True)], ahead=True)
    check_still_there(source, msgspec.structs.replace(position, version=None))  # from an old point


def test_a_cut_refuses_records_of_a_topic_that_was_recreated_meanwhile(
    kafka_server: KafkaBroker,
) -> None:
    """The client continues by name, and does not report that the topic is another one."""
    kafka_server.create_topic("replaced")
    kafka_server.produce("replaced", [b'{"key": 1}'] * 2)
    source = source_of(kafka_server, "replaced")
    reader = DirectReader(
        source=source,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )
    position_once(reader, offset=4)
    reader.confirm()
    consumer, partition = client_of(reader), partition_of("replaced-0")

    consumer.pause([partition])
    renew(kafka_server, "replaced", [b'{"key": 2}'] * 9)
    consumer.resume([partition])
    position_once(reader, offset=18)  # records of the new topic, without any warning

    with pytest.raises(Rejected, match="The topic replaced was deleted and created again"):
        reader.confirm()
    reader.close()


def test_a_partition_of_an_old_point_gets_its_topic_id_at_the_first_cut(
    kafka_server: KafkaBroker,
) -> None:
    kafka_server.create_topic("unknown-before")
    source = source_of(kafka_server, "unknown-before")
    old = NamedPositions((SplitProgress("unknown-before-0"),), has_looked=True)
    reader = DirectReader(
        source=source,
        restored=(old.to_json(),),
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )
    reader.next()

    reader.confirm()
    (split,) = NamedPositions.from_json(reader.positions()).splits
    reader.close()

    assert split.version == id_of(kafka_server, "unknown-before")


def test_an_unreachable_broker_delays_no_cut_and_confirms_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pipelines.connectors.kafka.reader.CONFIRM_TIMEOUT_S", 0.01)
    address = KafkaAddress("127.0.0.1:1")
    source = KafkaTopics(address, ("t",), format=JsonValues(SCHEMA))

    with closing(source.open()) as reader:
        assert reader.confirmed([SplitProgress("t-0", 4, 2, version="old")]) == {}


def test_raw_values_keep_key_value_and_time(kafka_server: KafkaBroker) -> None:
    """Records are from today, since a broker deletes those older than the topic's retention."""
    now_s = int(time.time())
    kafka_server.create_topic("raw")
    producer = kafka_server.producer()
    producer.produce("raw", b"\xff\x00", b"k", timestamp=1_000 * now_s)
    producer.produce("raw", None, timestamp=1_000 * (now_s + 1))
    producer.flush(ANSWER_S)
    source = source_of(kafka_server, "raw", format=RawValues(), timestamp_column="at")

    with closing(source.open()) as reader:
        (split,) = source.find(set(), is_start=True)
        batches = (each.records for each in reader.read(split))
        rows = next(batch for batch in batches if batch.num_rows).to_pylist()

    assert [(row["key"], row["value"], row["at"].timestamp()) for row in rows] == [
        (b"k", b"\xff\x00", now_s),
        (None, None, now_s + 1),
    ]
    assert source.schema == RAW


def test_the_first_of_two_faulty_records_is_reported_first_and_none_is_lost(
    kafka_server: KafkaBroker,
) -> None:
    """The reader finds a missing time after a malformed value, even if its record comes first."""
    kafka_server.create_topic("faults")
    good = b'{"key": 1, "at": "2026-01-01T00:00:00Z"}'
    producer = kafka_server.producer()
    for value in [good, good, b'{"key": 2}', good, b"oops", good]:
        producer.produce("faults", value, partition=0)
    producer.flush(ANSWER_S)
    schema = pa.schema([("key", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])
    address = KafkaAddress(kafka_server.bootstrap_servers)
    source = KafkaTopics(
        address, ("faults",), format=JsonValues(schema), timestamp_column="at", is_bounded=True
    )
    (split,) = source.find(set(), is_start=True)
    rows: list[int] = []
    refused: list[int] = []

    with closing(source.open()) as reader:
        for _ in range(2):
            with pytest.raises(MalformedRecord) as malformed:
                rows.extend(batch.records.num_rows for batch in reader.read(split))
            refused.append(malformed.value.offset)
            split = msgspec.structs.replace(split, offset=refused[-1] + 1)
        behind = sum(batch.records.num_rows for batch in reader.read(split))

    assert ([count for count in rows if count], refused, behind) == ([2, 1], [2, 4], 1)


def test_a_malformed_value_is_named_with_its_offset(kafka_server: KafkaBroker) -> None:
    kafka_server.create_topic("malformed")
    kafka_server.produce("malformed", [b'{"key": 1}', None, b"oops", b'{"key": 2}'])
    source = source_of(kafka_server, "malformed")
    given: list[int] = []

    with closing(source.open()) as reader:
        match = "offset 4 of partition 0 of topic malformed"
        with pytest.raises(MalformedRecord, match=match) as refused:
            given.extend(
                key
                for batch in reader.read(SplitProgress("malformed-0"))
                for key in batch.records.column(0).to_pylist()
            )
        behind = rows_of(reader.read(SplitProgress("malformed-0", 5, 2)), 1)

    assert given == [1]
    assert (refused.value.offset, refused.value.text) == (4, "oops")
    assert [key for key, _ in behind] == [2]  # read by the same consumer


def test_a_record_of_64_mib_is_read_like_any_other(kafka_server: KafkaBroker) -> None:
    kafka_server.create_topic("wide", **{"max.message.bytes": str(80 << 20)})
    producer = kafka_server.producer(**{"message.max.bytes": 80 << 20})
    for key, size in [(1, 1), (2, 64 << 20), (3, 1)]:
        producer.produce("wide", b'{"key": %d, "text": "%s"}' % (key, b"x" * size))
    producer.flush(ANSWER_S)
    source = source_of(kafka_server, "wide", is_bounded=True)
    (split,) = source.find(set(), is_start=True)

    assert [key for key, _ in read(source, split, 100)] == [1, 2, 3]


@pytest.mark.parametrize("password", [PASSWORD, "wrong-secret"])
def test_a_login_works_and_a_refused_one_is_reported_without_the_password(
    kafka_server: KafkaBroker, password: str
) -> None:
    kafka_server.create_topic(f"secured-{len(password)}")
    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": password,
    }
    address = KafkaAddress(kafka_server.secured, security)
    source = KafkaTopics(address, (f"secured-{len(password)}",), format=JsonValues(SCHEMA))

    assert password not in repr(source)
    if password == PASSWORD:
        source.validate()
        return
    with pytest.raises(Rejected, match="refuses the user and password") as refused:
        source.validate()
    assert password not in str(refused.value)


def test_a_missing_topic_or_broker_is_refused_at_the_start(
    kafka_server: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.connectors.kafka.connection.ANSWER_TURNS", 1)
    with pytest.raises(Rejected, match="There is no topic nowhere"):
        source_of(kafka_server, "nowhere").validate()
    with pytest.raises(Rejected, match=r"127\.0\.0\.1:1 does not answer"):
        KafkaTopics(KafkaAddress("127.0.0.1:1"), ("t",), format=JsonValues(SCHEMA)).validate()
    address = KafkaAddress("127.0.0.1:1", {"sasl.pasword": "a-secret"})
    source = KafkaTopics(address, ("t",), format=JsonValues(SCHEMA))
    for using in (source.validate, source.open):
        with pytest.raises(Rejected, match="make no sense to it") as refused:
            using()
        assert "a-secret" not in str(refused.value)


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_completed_checkpoint_commits_its_offsets_to_the_consumer_group(
    kafka_server: KafkaBroker, is_bounded: bool
) -> None:
    topic = f"followed-{is_bounded}"
    kafka_server.create_topic(topic, 2)
    kafka_server.produce(topic, [b'{"key": 1}', b'{"key": 2}'])
    source = source_of(kafka_server, topic, group=f"{HOSTILE} of {topic}", is_bounded=is_bounded)
    reader = DirectReader(
        source=source,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )
    told = reader.progress_reporter
    if is_bounded:
        read_to_the_end(reader)
    else:
        position_once(reader, offset=4)

    assert committed_by(kafka_server, source) == {}
    told.on_cut(CheckpointId(1), reader.positions())
    told.on_completed(CheckpointId(1))
    counts = {} if is_bounded else counts_once(reader, told)  # an ended reader gets no answers
    reader.close()

    assert counts == ({} if is_bounded else {"commits_succeeded": 1})
    assert committed_by(kafka_server, source) == {0: 4, 1: 0}


def test_refused_offset_commits_are_counted_and_reading_continues(
    kafka_server: KafkaBroker,
) -> None:
    kafka_server.create_topic("contested")
    kafka_server.produce("contested", [b'{"key": 1}'])
    source = source_of(kafka_server, "contested", group="contested")
    member = member_of(kafka_server, "contested")
    reader = DirectReader(
        source=source,
        restored=(),
        subtask=0,
        parallelism=1,
        clock=SystemClock(),
        event_hours_per_s=None,
    )
    position_once(reader, offset=2)

    told = reader.progress_reporter
    told.on_cut(CheckpointId(1), reader.positions())
    told.on_completed(CheckpointId(1))
    counts = counts_once(reader, told)
    kafka_server.produce("contested", [b'{"key": 2}'])
    position_once(reader, offset=4)
    committed = committed_by(kafka_server, source)
    member.close()
    reader.close()

    assert (counts, committed) == ({"commits_failed": 1}, {})


def renew(broker: KafkaBroker, topic: str, values: list[bytes | None]) -> None:
    """Deletes the topic and creates it again under its name, with these records."""
    broker.delete_topic(topic)
    tries = Retrying(
        retry=retry_if_exception_type(KafkaException),  # the broker deletes it a moment later
        stop=stop_after_delay(PATIENCE_S),
        wait=wait_fixed(0.05),
    )
    tries(broker.create_topic, topic)
    broker.produce(topic, values)


def id_of(broker: KafkaBroker, topic: str) -> str:
    """Returns the id that `kafka-topics --describe` shows."""
    (found,) = KafkaAdmin(KafkaAddress(broker.bootstrap_servers)).topic_ids({topic}).values()
    return str(found)


def client_of(reader: DirectReader) -> Consumer:
    """A paused consumer asks for nothing, as if the network were away."""
    return reader._splits._reader._consumer


def source_of(broker: KafkaBroker, topic: str, **options: object) -> KafkaTopics:
    address = KafkaAddress(broker.bootstrap_servers)
    return KafkaTopics(address, (topic,), **{"format": JsonValues(SCHEMA), **options})


def read(source: KafkaTopics, split: SplitProgress, wanted: int) -> list[tuple[int, int | None]]:
    with closing(source.open()) as reader:
        return rows_of(reader.read(split), wanted)


def first_of(batches: Iterator[LoggedRecords]) -> list[int]:
    """Returns the keys of the first batch that is not empty."""
    keys: list[int] = next(b.records for b in batches if b.records.num_rows).column(0).to_pylist()
    return keys


def position_once(reader: DirectReader, offset: int) -> SplitProgress:
    """Returns the reader's position once it has reached that offset."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        reader.next()
        splits = NamedPositions.from_json(reader.positions()).splits
        if splits and splits[0].offset == offset:
            return splits[0]
    pytest.fail(f"the reader never came to offset {offset}: {splits}")


def read_to_the_end(reader: DirectReader) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reader.is_exhausted and time.monotonic() < deadline_s:
        reader.next()


def counts_once(reader: DirectReader, told: ProgressReporter) -> dict[str, int]:
    """Returns the counts of committed offsets once the broker has answered."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        reader.next()
        counts: dict[str, int] = told.take_counts()
        if counts:
            return counts
    pytest.fail("the broker never answered")


def committed_by(broker: KafkaBroker, source: KafkaTopics) -> dict[int, int]:
    """Returns the offset of each partition that `kafka-consumer-groups --describe` shows."""
    group = ConsumerGroupTopicPartitions(source.group)
    admin = broker.admin()
    (told,) = admin.list_consumer_group_offsets([group]).values()
    try:
        places = told.result(ANSWER_S).topic_partitions
    except KafkaException as error:
        if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
            raise
        return {}
    return {each.partition: each.offset for each in places}


def member_of(broker: KafkaBroker, group: str) -> Consumer:
    """Joins the group with a reader, as in a group that is in use."""
    member = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0}
    )
    member.subscribe([group])
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        member.poll(0.1)
        if member.assignment():
            return member
    pytest.fail("the group let nobody in")
