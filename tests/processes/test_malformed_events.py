"""Events that a parser cannot read are set aside with their place; a better parser reads them."""

import json
import uuid
from pathlib import Path

import pytest

from pipelines.connectors.files.target import FINAL
from pipelines.connectors.redis.stream_entries import offset_of
from pipelines.domain.commands import StopWithSavepoint
from pipelines.domain.events import FailureOccurred
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.processes.host import hosted_run
from tests.processes.malformed import NAME, SERVER, numbers_in
from tests.processes.savepoint_requests import WHO, manifest_of, savepoint_by

pytestmark = pytest.mark.slow

STEP_S = 60.0
AT = "2026-01-01T00:00:00Z"
SETTINGS = {
    "execution.poison-records.policy": "quarantine",
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.exponential-delay.initial-backoff": "10 ms",
}
Log = tuple[str, str, dict[int, tuple[str, str]]]
"""The split, its server, and {offset: (text of the error, kept record)} of its bad records."""


def kafka_log(broker: KafkaBroker, name: str) -> Log:
    broker.create_topic(name)
    good = [json.dumps({"n": n, "at": AT}).encode() for n in range(10)]
    bad = [b"10;oops", b'{"n": 11}', json.dumps({"n": "12", "at": AT}).encode()]
    producer = broker.producer()
    for value in [*good[:5], *bad, *good[5:]]:
        producer.produce(name, value, partition=0)
    producer.flush(STEP_S)
    place = f"of partition 0 of topic {name}"
    said = [f"offset 5 {place} is malformed", f"offset 6 {place} has no at", f"offset 7 {place} is"]
    aside = zip(said, (value.decode() for value in bad), strict=True)
    return f"{name}-0", broker.bootstrap_servers, dict(enumerate(aside, 5))


def redis_log(broker: RedisBroker, name: str) -> Log:
    bad = [{"n": "ten 10", "at": AT}, {"n": "11"}, {"n": "12", "at": "yesterday"}]
    good: list[dict[str, str]] = [{"n": str(n), "at": AT} for n in range(10)]
    client = broker.client()
    for number, entry in enumerate([*good[:5], *bad, *good[5:]]):
        client.xadd(name, entry, id=f"1-{number}")  # type: ignore[arg-type]
    said = ["1-5 of the stream", "1-6 of the stream", "does not fit column at"]
    aside = zip(said, (json.dumps(each, separators=(",", ":")) for each in bad), strict=True)
    places = [offset_of(f"1-{number}".encode()) for number in (5, 6, 7)]
    return name, broker.url, dict(zip(places, aside, strict=True))


@pytest.mark.parametrize("system", ["kafka", "redis"])
def test_malformed_events_are_set_aside_and_replayed_by_a_better_parser(
    tmp_path: Path, system: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(f"{system}_server")
    name = f"malformed-{uuid.uuid4().hex[:8]}"
    make = kafka_log if system == "kafka" else redis_log
    split, address, aside = make(server, name)
    parameters = {"system": system, "log": name}
    run_on = {"settings": SETTINGS, "environment": {SERVER: address}, "parallelism": 1}

    with hosted_run(tmp_path, parameters, spec_fields={"pipeline": NAME}, **run_on) as run:  # type: ignore[arg-type]
        run.wait_for(lambda _: numbers_in(tmp_path / "output") == list(range(10)), STEP_S)
        savepoint = savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    kept = lines_by_checkpoint(tmp_path)
    lines = [line for of_one in kept.values() for line in of_one]
    assert {line["offset"]: line["record"] for line in lines} == {
        offset: record for offset, (_, record) in aside.items()
    }
    for line in lines:
        assert (line["source"], line["split"], line["operator"]) == ("events", split, "events")
        assert aside[line["offset"]][0] in line["error"]
        assert line["error_type"].endswith("MalformedRecord")
    for each in run.completed():
        in_it = sum(len(of_one) for number, of_one in kept.items() if number <= each.checkpoint_id)
        assert each.counters.get("events.records_quarantined", 0) == in_it, "in that checkpoint"

    replayed: dict[str, object] = {
        "pipeline": NAME,
        "restore_from": str(savepoint),
        "first_checkpoint_id": manifest_of(savepoint).checkpoint_id + 1,
        "replayed_sources": ["events"],
    }
    with hosted_run(
        tmp_path, parameters | {"fixed": "true"}, spec_fields=replayed, **run_on
    ) as run:  # type: ignore[arg-type]
        run.wait_for(lambda _: numbers_in(tmp_path / "output") == list(range(13)), STEP_S)
        savepoint_by(run, StopWithSavepoint(**WHO))
        run.wait_until_over(STEP_S)
    assert not run.of(FailureOccurred)
    assert numbers_in(tmp_path / "output") == list(range(13))


def lines_by_checkpoint(root: Path) -> dict[int, list[dict[str, object]]]:
    found: dict[int, list[dict[str, object]]] = {}
    for file in (root / NAME / "quarantine" / "events").glob("part-*.jsonl"):
        name = FINAL.fullmatch(file.name)
        assert name is not None
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found.setdefault(int(name["checkpoint"]), []).extend(lines)
    return found
