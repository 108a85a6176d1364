"""Records that cannot be decoded go to a topic of their own, once, although slots are killed."""

import json
import os
import signal
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipelines.connectors import JsonValues, KafkaAddress, KafkaTopics
from pipelines.connectors.dead_letters import LETTER
from pipelines.domain.commands import StopWithSavepoint
from tests.brokers.kafka_broker import KafkaBroker
from tests.processes.dead_letters import EVENTS, NAME, SERVER
from tests.processes.host import hosted_run
from tests.processes.savepoint_requests import WHO, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
SETTINGS = {
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}
RECORDS = 3_000


def test_each_record_is_in_one_of_the_two_topics_once_after_kills(
    tmp_path: Path, kafka_server: KafkaBroker
) -> None:
    topic = f"letters-{uuid.uuid4().hex[:8]}"
    for each in (topic, f"{topic}-good", f"{topic}-bad"):
        kafka_server.create_topic(each, 2)
    run_on = {"settings": SETTINGS, "environment": {SERVER: kafka_server.bootstrap_servers}}

    with hosted_run(tmp_path, {"topic": topic}, spec_fields={"pipeline": NAME}, **run_on) as run:  # type: ignore[arg-type]
        for part in range(3):
            produce(kafka_server, topic, range(part * RECORDS, (part + 1) * RECORDS))
            run.wait_for_more(1, STEP_S)
            os.kill(run.pid_of(0), signal.SIGKILL)
            run.wait_for_more(2, STEP_S)
        run.wait_for(
            lambda _: len(rows(kafka_server, f"{topic}-good", EVENTS)) >= good_count(), STEP_S
        )
        savepoint_by(run, StopWithSavepoint(**WHO))  # type: ignore[arg-type]
        run.wait_until_over(STEP_S)

    good = rows(kafka_server, f"{topic}-good", EVENTS)
    bad = rows(kafka_server, f"{topic}-bad", AS_JSON)
    assert sorted(row["n"] for row in good) == [n for n in range(3 * RECORDS) if is_good(n)]
    assert sorted(row["offset"] + row["partition"] * 10**6 for row in bad) == bad_places()
    assert {row["topic"] for row in bad} == {topic}
    assert all("is malformed" in row["error"] for row in bad)


AS_JSON = LETTER.remove(LETTER.get_field_index("key")).remove(4)


def is_good(n: int) -> bool:
    return n % 5 != 0


def good_count() -> int:
    return sum(map(is_good, range(3 * RECORDS)))


def bad_places() -> list[int]:
    """Returns the places of bad records: record n is in partition n % 2, at offset n // 2."""
    return sorted(n // 2 + n % 2 * 10**6 for n in range(3 * RECORDS) if not is_good(n))


def produce(broker: KafkaBroker, topic: str, numbers: range) -> None:
    producer = broker.producer()
    for n in numbers:
        event = json.dumps({"n": n, "at": "2026-01-01T00:00:00Z"})
        producer.produce(topic, event if is_good(n) else event[:-3], partition=n % 2)
    producer.flush(STEP_S)


def rows(broker: KafkaBroker, topic: str, schema: Any) -> list[dict[str, Any]]:
    """Returns all committed rows."""
    address = KafkaAddress(broker.bootstrap_servers)
    source = KafkaTopics(address, (topic,), format=JsonValues(schema), is_bounded=True)
    with closing(source.open()) as reader:
        return [
            row
            for split in source.find(set(), is_start=True)
            for batch in reader.read(split)
            for row in batch.records.to_pylist()
        ]
