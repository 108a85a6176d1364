"""Exchanges send each record where the kind of edge says, once, and marks to every subtask."""

import random

import pyarrow as pa
import pytest

from pipelines.channels.channel import Output
from pipelines.domain.elements import Records, Watermark
from pipelines.domain.errors import InvariantViolated
from pipelines.domain.graph import EdgeKind
from pipelines.domain.ids import ChannelId
from pipelines.domain.key_groups import owner_of
from pipelines.runtime.subtask.chains.exchange import Exchange
from pipelines.state.hashing import key_groups, key_hashes
from tests.unit.runtime.fakes import batch_of, keys_of
from tests.unit.runtime.hosted import MAX_PARALLELISM, RecordingOutput


@pytest.mark.parametrize("seed", range(30))
def test_a_hash_edge_sends_each_record_once_to_the_owner_of_its_key_in_order(seed: int) -> None:
    rng = random.Random(seed)
    outputs = outputs_of(rng.randint(2, 5))
    exchange = Exchange(("key",), as_outputs(outputs), MAX_PARALLELISM)
    batches = random_batches(rng)

    for batch in batches:
        exchange.send(batch)

    sent = [key for batch in batches for key in keys_of(batch)]
    for target, output in enumerate(outputs):
        assert received(output) == [key for key in sent if owner(key, len(outputs)) == target]


@pytest.mark.parametrize("seed", range(30))
def test_a_rebalanced_edge_sends_each_record_once_and_equal_shares_to_all(seed: int) -> None:
    rng = random.Random(seed)
    outputs = outputs_of(rng.randint(2, 5))
    exchange = Exchange((), as_outputs(outputs), MAX_PARALLELISM, EdgeKind.REBALANCE)
    batches = random_batches(rng) + [batch_of([(7, 0)])] * 20

    for batch in batches:
        exchange.send(batch)

    got = [received(output) for output in outputs]
    sent = [key for batch in batches for key in keys_of(batch)]
    assert sorted(key for keys in got for key in keys) == sorted(sent)
    assert min(map(len, got)) >= 20 // len(outputs)


def test_a_broadcast_edge_sends_every_record_to_every_subtask() -> None:
    outputs = outputs_of(3)
    exchange = Exchange((), as_outputs(outputs), MAX_PARALLELISM, EdgeKind.BROADCAST)

    exchange.send(batch_of([(1, 0), (2, 0)]))

    assert [received(output) for output in outputs] == [[1, 2]] * 3


@pytest.mark.parametrize("kind", list(EdgeKind))
def test_marks_reach_every_downstream_subtask(kind: EdgeKind) -> None:
    outputs = outputs_of(1 if kind is EdgeKind.FORWARD else 3)
    exchange = Exchange(("key",), as_outputs(outputs), MAX_PARALLELISM, kind)

    exchange.broadcast(Watermark(5))

    assert [output.sent for output in outputs] == [[Watermark(5)]] * len(outputs)


def test_a_forward_edge_has_one_reader() -> None:
    with pytest.raises(InvariantViolated, match="one subtask"):
        Exchange((), as_outputs(outputs_of(2)), MAX_PARALLELISM, EdgeKind.FORWARD)


def outputs_of(count: int) -> list[RecordingOutput]:
    return [RecordingOutput(ChannelId(f"channel-{target}")) for target in range(count)]


def as_outputs(outputs: list[RecordingOutput]) -> list[Output]:
    return list(outputs)


def received(output: RecordingOutput) -> list[int]:
    return [key for each in output.sent if isinstance(each, Records) for key in keys_of(each.batch)]


def owner(key: int, parallelism: int) -> int:
    (group,) = key_groups(key_hashes(batch_of([(key, 0)]), ("key",)), MAX_PARALLELISM)
    return owner_of(int(group), parallelism, MAX_PARALLELISM)


def random_batches(rng: random.Random) -> list[pa.RecordBatch]:
    return [
        batch_of([(rng.randint(0, 50), 0) for _ in range(rng.randint(1, 12))])
        for _ in range(rng.randint(1, 6))
    ]
