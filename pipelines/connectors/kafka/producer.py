"""A transactional producer at Kafka: makes records, queues them, and knows when all have arrived.

The queue is bounded. The producer fences the previous user of its transactional id. The client's
`close` would abort a prepared transaction, so it is never called: the client is just dropped. This
module decides the form of a record's value and key; the client's `PARTITIONER` decides the
partition. It does not decide when a transaction ends.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from queue import SimpleQueue
from threading import Thread

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from pipelines.connectors.json_rows import has_json, json_lines_of
from pipelines.connectors.kafka import connection as kafka_connection
from pipelines.connectors.kafka.connection import ANSWER_TIMEOUT_S, TURN_S, KafkaAddress
from pipelines.connectors.kafka.values import Encoder, RowFormat, check_columns
from pipelines.connectors.sink import last_changes, without_kind
from pipelines.domain.errors import Rejected, Retryable

PARTITIONER = "murmur2_random"
"""By key like Java's clients, to agree with other writers; without a key, batches take turns."""

Blobs = list[bytes | None]
EndedClients = SimpleQueue[tuple[float, Producer]]


@dataclass(frozen=True, slots=True)
class RecordForm:
    """How rows become the values and keys of records.

    `value` names a column of text or bytes; None: the whole row, as `format` writes it, or as
    `json_rows` does. `key` may also name a column of whole numbers, which become decimal digits.

    `keys` replaces `key` if a record overwrites those of its key: it is one column as above, or
    several, which become a JSON object. With `applies_changes` the rows are a changelog. A row that
    is taken back becomes a tombstone, which has the key and no value, unless the batch adds a newer
    row of its key.
    """

    value: str | None = None
    key: str | None = None
    format: RowFormat | None = None
    encoder: Encoder | None = None
    keys: tuple[str, ...] = ()
    applies_changes: bool = False

    def check(self, schema: pa.Schema, topic: str) -> None:
        """Raises Rejected naming the column that does not fit."""
        if self.applies_changes:
            schema = without_kind(schema)
        if self.value is not None and self.format is not None:
            raise Rejected(
                f"Give topic {topic} either a value column or a format: a format writes whole rows."
            )
        if self.value is not None:
            self._check_column(schema, self.value, topic, "value", _is_bytes)
        elif self.format is not None:
            check_columns(self.format, schema, topic)
        else:
            _check_json(schema, topic)
        one = self._key_column
        if one is not None:
            self._check_column(schema, one, topic, "key", _is_key)
        for key in self.keys if one is None else ():
            self._check_column(schema, key, topic, "key", has_json)

    def columns(self, batch: pa.RecordBatch) -> list[Blobs]:
        """Returns the values of the records, and their keys if they have any.

        Raises Rejected if rows overwrite by key and a key is null.
        """
        for key in self.keys:
            if batch.column(key).null_count:
                raise Rejected(
                    f"Key column {key} of a row for Kafka is null; each row needs its key."
                )
        if self.applies_changes:
            return self._changes(batch)
        values, keys = self._values(batch), self._keys(batch)
        return [values] if keys is None else [values, keys]

    @property
    def _key_column(self) -> str | None:
        """The one key column; None: there is no key, or it is an object of several columns."""
        return self.keys[0] if len(self.keys) == 1 else self.key

    def _keys(self, batch: pa.RecordBatch) -> Blobs | None:
        if self._key_column is not None:
            return _as_bytes(batch.column(self._key_column))
        return _json(batch.select(list(self.keys))) if self.keys else None

    def _changes(self, batch: pa.RecordBatch) -> list[Blobs]:
        """Makes one record per key, so the records of a batch need no order."""
        last = last_changes([batch], self.keys)
        values: Blobs = [None] * last.gone.num_rows
        keys: Blobs = []
        for gone in last.gone.combine_chunks().to_batches():
            keys += self._keys(gone) or []
        for kept in last.kept.combine_chunks().to_batches():
            values += self._values(kept)
            keys += self._keys(kept) or []
        return [values, keys]

    def _values(self, batch: pa.RecordBatch) -> Blobs:
        if self.value is not None:
            return _as_bytes(batch.column(self.value))
        if self.encoder is not None:
            return list(self.encoder.encoded(batch))
        return _json(batch)

    def _check_column(
        self,
        schema: pa.Schema,
        column: str,
        topic: str,
        role: str,
        fits: Callable[[pa.DataType], bool],
    ) -> None:
        if column not in schema.names:
            raise Rejected(f"The {role} column {column} of topic {topic} is not in the results.")
        type_ = schema.field(column).type
        if not fits(type_):
            wanted = "text or bytes" if role == "value" else "text, bytes or whole numbers"
            if fits is has_json:
                wanted = "what JSON has, if there are several key columns"
            raise Rejected(
                f"The {role} column {column} of topic {topic} holds {type_}; Kafka takes {wanted}."
            )


def _check_json(schema: pa.Schema, topic: str) -> None:
    column = next((column for column in schema if not has_json(column.type)), None)
    if column is not None:
        raise Rejected(
            f"Column {column.name} of type {column.type} cannot be written as JSON to topic"
            f" {topic}."
        )


def _json(batch: pa.RecordBatch) -> Blobs:
    return list(json_lines_of(pa.Table.from_batches([batch])).split(b"\n")[:-1])


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_large_string(type_)
        or pa.types.is_large_binary(type_)
    )


def _is_key(type_: pa.DataType) -> bool:
    return _is_bytes(type_) or bool(pa.types.is_integer(type_))


def _as_bytes(column: pa.Array) -> Blobs:
    text = column.cast(pa.string()) if pa.types.is_integer(column.type) else column
    found: Blobs = text.cast(pa.binary()).to_pylist()
    return found


CHUNK_ROWS = 20_000
BUFFER_BYTES = 64 * 1024 * 1024
"""About how much may wait in the client; a larger record waits alone."""

QUEUE_RECORDS = 1_000_000
DELIVERY = timedelta(minutes=1)
"""How long the client tries to deliver a record; a shorter transaction timeout shortens it."""

RECONNECT = timedelta(seconds=1)
ROOM_TURN_S = 0.05
ANSWERS_S = 90.0
"""How long a client is kept whose producer ended amid a transaction. After 60 s without an answer,
librdkafka gives a request up."""

LARGEST_RECORD_BYTES = 1_000_000_000
"""The client does not limit sizes; the broker knows what the topic accepts."""

MILLISECOND = timedelta(milliseconds=1)
REFUSALS = {
    KafkaError.MSG_SIZE_TOO_LARGE: "takes no record that large (max.message.bytes)",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "does not let this user write to it",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "does not let this user hold transactions",
    KafkaError.INVALID_TRANSACTION_TIMEOUT: (
        "allows no transaction as long as the sink's timeout (transaction.max.timeout.ms)"
    ),
    KafkaError.POLICY_VIOLATION: "has a policy against such records",
    KafkaError.INVALID_RECORD: "refuses such records, as a compacted topic does without a key",
}
ENDED_BY_BROKER = frozenset(
    {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
)


@dataclass(frozen=True, slots=True)
class KafkaOutput:
    """Where records go, and in which form. `timeout` is the transaction timeout."""

    address: KafkaAddress
    topic: str
    form: RecordForm
    timeout: timedelta

    @property
    def place(self) -> str:
        return f"topic {self.topic} of Kafka at {self.address.bootstrap_servers}"

    def translated(self, error: KafkaError) -> Rejected | Retryable:
        refusal = REFUSALS.get(error.code())
        if refusal is not None:
            return Rejected(
                f"Kafka at {self.address.bootstrap_servers} does not take what goes to topic"
                f" {self.topic}: it {refusal}."
            )
        if error.code() in ENDED_BY_BROKER:
            return Retryable(
                f"Kafka at {self.address.bootstrap_servers} has ended a transaction on topic"
                f" {self.topic}: it was open for longer than its timeout, or another producer has"
                " taken it over"
            )
        return self.address.translated(error)


@cache
def ended_clients() -> EndedClients:
    """Returns the queue of clients to keep, each until a time of the monotonic clock.

    A thread of this process drops them. When the process ends they just stay: its thread was there
    before, because a process that is ending can no longer start one.
    """
    clients: EndedClients = SimpleQueue()
    Thread(target=_drop_in_time, args=[clients], daemon=True).start()
    return clients


def _drop_in_time(clients: EndedClients) -> None:
    while True:
        _drop_next(clients)


def _drop_next(clients: EndedClients) -> None:
    until_s, _client = clients.get()
    time.sleep(max(0.0, until_s - time.monotonic()))


class TransactionalProducer:
    """Guarantee: when `flush` returns, the broker has every record; otherwise `flush` raises.

    Used by one thread. Raises Retryable or Rejected, translated by `KafkaOutput`.
    """

    def __init__(self, output: KafkaOutput, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self._output = output
        self._problem: KafkaError | None = None
        self._has_unanswered = False
        self._widest_bytes = 1.0  # of the records that wait
        self._ended = ended_clients()
        delivery = min(DELIVERY, output.timeout / 2)
        self._delivery_s = delivery.total_seconds()
        with output.address.settings_are_understood():
            self._client = Producer(
                {
                    **output.address.settings(kafka_connection.weakly(self._on_error)),
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": output.timeout // MILLISECOND,
                    "message.timeout.ms": delivery // MILLISECOND,
                    "message.max.bytes": LARGEST_RECORD_BYTES,
                    "queue.buffering.max.messages": QUEUE_RECORDS,
                    "queue.buffering.max.kbytes": 2 * LARGEST_RECORD_BYTES // 1024,
                    "linger.ms": 20,
                    "reconnect.backoff.max.ms": RECONNECT // MILLISECOND,
                    "partitioner": PARTITIONER,
                    "delivery.report.only.error": True,
                    "on_delivery": kafka_connection.weakly(self._on_delivery),
                }
            )
        self._ask(lambda: self._client.init_transactions(ANSWER_TIMEOUT_S))

    def begin(self) -> None:
        self._ask(self._client.begin_transaction)

    def write(self, batch: pa.RecordBatch) -> int:
        """Returns how many records the rows became."""
        records = 0
        for part in _parts(batch):
            self._wait_for_room(part)
            columns = self._output.form.columns(part)
            self._has_unanswered = True
            self._ask(partial(self._queue, columns))
            self._check()
            records += len(columns[0])
        return records

    def flush(self) -> None:
        """Checks for errors in between, because no record after a refused one arrives."""
        for _ in range(math.ceil((self._delivery_s + ANSWER_TIMEOUT_S) / TURN_S)):
            left = self._serve(lambda: self._client.flush(TURN_S))
            self._check()
            if not left:
                self._has_unanswered = False
                return
        raise Retryable(
            f"Kafka at {self._output.address.bootstrap_servers} has not taken"
            f" {left} records of topic {self._output.topic} in time"
        )

    def commit(self, group: str, offset: TopicPartition) -> None:
        """Commits the flushed records and the group's offset together, or neither."""
        with self._output.address.settings_are_understood():
            consumer = Consumer(
                {**self._output.address.settings(self._on_error), "group.id": group}
            )
        metadata = consumer.consumer_group_metadata()
        consumer.close()
        self._has_unanswered = True
        send = partial(self._client.send_offsets_to_transaction, [offset], metadata)
        self._ask(lambda: _in_time(partial(send, ANSWER_TIMEOUT_S)))
        self._ask(lambda: self._client.commit_transaction(ANSWER_TIMEOUT_S))
        self._has_unanswered = False

    def abandon(self) -> None:
        """Aborts the transaction; if the broker does not answer, its timeout aborts it."""
        with suppress(KafkaException, SystemError):
            self._client.purge()
            self._client.abort_transaction(ANSWER_TIMEOUT_S)
            self._has_unanswered = False

    def __del__(self) -> None:
        """Keeps the client until the broker has answered all its requests.

        librdkafka 2.16 uses freed memory if a client that was just fenced ends before the answer to
        its request to add partitions has come. That may end the process, by a signal or with the
        assertion `txn_req_cnt > 0` of `rd_kafka_txn_handle_AddPartitionsToTxn`.
        """
        if self._has_unanswered:
            with suppress(KafkaException, SystemError):
                self._client.purge(in_flight=False)
            self._ended.put((time.monotonic() + ANSWERS_S, self._client))

    def _queue(self, columns: list[Blobs]) -> None:
        """Loops over the records in C: a Python loop would double the cost."""
        deque(map(partial(self._client.produce, self._output.topic), *columns), maxlen=0)

    def _wait_for_room(self, part: pa.RecordBatch) -> None:
        """Waits no longer than a delivery may take; by then the waiting records have failed."""
        waiting = len(self._client)
        mean_bytes = max(1.0, part.nbytes / part.num_rows)
        self._widest_bytes = max(self._widest_bytes, mean_bytes) if waiting else mean_bytes
        most = min(QUEUE_RECORDS - CHUNK_ROWS, BUFFER_BYTES / self._widest_bytes)
        while len(self._client) > most:
            self._serve(lambda: self._client.poll(ROOM_TURN_S))
            self._check()

    def _check(self) -> None:
        self._serve(lambda: self._client.poll(0))
        if self._problem is not None:
            raise self._output.translated(self._problem)

    def _ask(self, question: Callable[[], object]) -> None:
        try:
            question()
        except BufferError as error:
            self._check()
            raise Retryable(
                f"the queue of the client of Kafka at {self._output.address.bootstrap_servers} is"
                f" full; topic {self._output.topic} does not take what goes there in time"
            ) from error
        except KafkaException as error:
            self._serve(lambda: self._client.poll(0))
            raise self._output.translated(self._problem or error.args[0]) from error

    def _serve(self, callbacks: Callable[[], int]) -> int:
        """Runs the client's callbacks, from which it raises fatal errors.

        From a nested callback the error comes as the cause of a SystemError, or without a cause if
        two callbacks raise.
        """
        try:
            return callbacks()
        except (KafkaException, SystemError) as error:
            fatal = error if isinstance(error, KafkaException) else error.__cause__ or self._fatal()
            if not isinstance(fatal, KafkaException):
                raise
            raise self._output.translated(fatal.args[0]) from error

    def _fatal(self) -> KafkaException | None:
        """Returns why the client refuses to work; it says so when asked to begin a transaction."""
        try:
            self._client.begin_transaction()
        except KafkaException as error:
            return error if error.args[0].fatal() else None
        return None

    def _on_delivery(self, error: KafkaError | None, message: object) -> None:
        self._problem = self._problem or error

    def _on_error(self, error: KafkaError) -> None:
        """Keeps only lasting errors; the client reconnects by itself."""
        if error.fatal() or error.code() in kafka_connection.REFUSALS:
            self._problem = self._problem or error


def _in_time(question: Callable[[], object]) -> None:
    """Raises KafkaException if the client does not come back from `question` in time.

    librdkafka 2.16 ignores the time limit of `send_offsets_to_transaction` while it cannot reach
    the coordinator of the group (its issue 5456): it waits for a change of some connection, which
    may never come. The question then stays in its thread, with the client.
    """
    answer: Future[object] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # whatever it is, it is raised where the answer is awaited
            answer.set_exception(error)

    Thread(target=ask, daemon=True).start()
    try:
        answer.result(ANSWER_TIMEOUT_S + TURN_S)
    except TimeoutError as error:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    mean_bytes = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(CHUNK_ROWS, BUFFER_BYTES // mean_bytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
