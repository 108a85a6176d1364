"""Mode ACKED with all its parts: no record is lost, and every message is counted."""

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.elements import Barrier
from pipelines.domain.errors import Retryable
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import Json
from pipelines.operators.operator import Operator
from pipelines.operators.stateless import BatchFunction, PassOn
from pipelines.runtime.subtask.mailbox import InjectBarrier
from pipelines.runtime.subtask.operator_failure import OperatorFailed
from pipelines.runtime.subtask.sources.direct_reader import DirectReader
from tests.unit.runtime.acked_topology import RELAY, SINK, SOURCE, TIMEOUT_MS, Topology
from tests.unit.runtime.fakes import SCHEMA, ListSource, ManualClock
from tests.unit.runtime.hosted import MemorySink, Remembering

KEYS = range(120)
HOPS = 2  # source to relay, relay to sink


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("parallelism", "ackers"), [(1, 1), (2, 1), (2, 3)])
def test_without_failures_each_record_arrives_once_and_is_acked_per_hop(
    tmp_path: Path, seed: int, parallelism: int, ackers: int
) -> None:
    topology = Topology(tmp_path, KEYS, parallelism, ackers, relay=PassOn, seed=seed)

    topology.run_out()

    assert sorted(topology.sink.written) == topology.kept
    assert topology.count("acker_inits") == topology.count("spout_acked") == len(KEYS)
    assert topology.count("acker_acks") == HOPS * len(topology.kept)
    assert topology.count("acker_messages") < (1 + HOPS) * len(KEYS), "one speaks of many"
    assert topology.count("spout_replayed") == 0


def test_a_source_ends_only_when_all_its_records_are_processed(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, asleep={SINK})

    topology.turns(2_000)
    assert topology.reporter.sources_over == 0
    topology.asleep.clear()
    topology.run_out()

    assert sorted(topology.sink.written) == topology.kept


def test_ackers_await_all_output_of_an_operator_that_does_not_map_its_rows(
    tmp_path: Path,
) -> None:
    """The ackers follow each record into both parts of its batch's output."""
    topology = Topology(tmp_path, KEYS, parallelism=2)

    topology.run_out()

    assert sorted(topology.sink.written) == topology.kept
    least = HOPS * len(topology.kept)
    assert least < topology.count("acker_acks") <= least + len(topology.kept)
    assert topology.count("spout_acked") == len(KEYS)


@pytest.mark.parametrize("seed", range(4))
def test_records_of_a_transient_failure_are_emitted_again_until_success(
    tmp_path: Path, seed: int
) -> None:
    tries = Counter[int]()

    def moody(batch: pa.RecordBatch) -> pa.RecordBatch:
        tries.update(batch["key"].to_pylist())
        if pc.any(pc.equal(batch["key"], 5)).as_py() and tries[5] < 3:
            raise Retryable("not now")
        return batch

    def relay() -> Operator:
        return BatchFunction(moody, SCHEMA)

    topology = Topology(tmp_path, KEYS, relay=relay, seed=seed, turn_ms=1.0)
    topology.run_out()

    assert set(topology.sink.written) == set(topology.kept)
    assert tries[5] == 3
    assert topology.count("acker_fails") >= 2
    assert topology.count("spout_replayed") >= topology.count("spout_failed") >= 2


def test_records_that_time_out_are_emitted_again_and_may_arrive_twice(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, asleep={RELAY})
    topology.run(lambda: topology.count("acker_inits") == len(KEYS))

    for _ in range(3):
        topology.clock.now_ms += TIMEOUT_MS / 2
        topology.turns(200)
    topology.asleep.clear()
    topology.run_out()
    topology.run(lambda: len(topology.sink.written) == 2 * len(topology.kept))

    twice = dict.fromkeys(topology.kept, 2)
    assert Counter(topology.sink.written) == twice
    assert topology.count("spout_timed_out") == topology.count("spout_replayed") == len(twice)


@pytest.mark.parametrize(("unanchored", "steps"), [(SOURCE, 0), ("kept", 0), (RELAY, 1)])
def test_the_source_does_not_wait_for_unanchored_records(
    tmp_path: Path, unanchored: str, steps: int
) -> None:
    topology = Topology(tmp_path, KEYS, relay=PassOn, unanchored=unanchored, asleep={SINK})

    topology.run_out()

    assert topology.sink.written == []
    assert topology.count("spout_acked") == len(KEYS)
    assert topology.count("acker_acks") == steps * len(topology.kept)


def test_no_more_records_are_in_flight_than_allowed(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, pending=10, asleep={RELAY})
    topology.turns(500)

    assert topology.count("acker_inits") - topology.count("spout_acked") == 2 * 10


def test_without_ackers_no_record_is_tracked(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, ackers=0)

    topology.run_out()
    topology.run(lambda: len(topology.sink.written) == len(topology.kept))

    assert topology.count("acker_messages") == 0
    assert topology.count("spout_acked") == len(KEYS)


def test_an_acker_forgets_records_that_are_never_settled(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, relay=PassOn, asleep={RELAY})
    topology.run(lambda: topology.count("acker_inits") == len(KEYS))
    topology.turns(100)
    topology.asleep = {SOURCE}  # nothing is emitted again

    for _ in range(3):
        topology.clock.now_ms += TIMEOUT_MS
        for acker in topology.acker_tasks:
            acker.step()
    topology.turns(1_000)

    late = sum(acker.statistics().late_count for acker in topology.acker_tasks)
    assert late == HOPS * len(topology.kept)


def test_a_cut_stores_the_position_before_the_unprocessed_records(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, parallelism=1, asleep={SINK})
    topology.run(lambda: topology.count("acker_inits") == len(KEYS))
    (source,) = topology.sources()

    source.mailbox.post(InjectBarrier(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0)))
    topology.run(lambda: SOURCE in positions_at(1, topology))
    topology.asleep.clear()
    topology.run_out()
    source.mailbox.post(InjectBarrier(Barrier(checkpoint_id=CheckpointId(2), trigger_ms=0)))
    topology.run(lambda: SOURCE in positions_at(2, topology))

    fresh = DirectReader(
        source=ListSource([[]] * 4),
        restored=(),
        subtask=0,
        parallelism=1,
        clock=ManualClock(),
        event_hours_per_s=None,
    )
    assert positions_at(1, topology)[SOURCE] == fresh.positions()
    assert positions_at(2, topology)[SOURCE] != fresh.positions()


def test_a_barrier_is_counted_once_per_output_channel(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, parallelism=2)

    for source in topology.sources():
        source.mailbox.post(InjectBarrier(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0)))
    topology.run(lambda: len(topology.reporter.cuts[1]) == 3 * 2)

    assert topology.count("barriers_sent") == HOPS * 2**2


def test_event_time_advances_only_past_processed_records(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, parallelism=1, asleep={SINK})
    topology.run(lambda: topology.count("acker_inits") == len(KEYS))
    (source,) = topology.sources()

    assert source.watermark_ms() is None
    topology.asleep.clear()
    topology.run_out()
    assert source.watermark_ms() is not None


def test_a_checkpoint_with_acking_holds_no_state(tmp_path: Path) -> None:
    topology = Topology(tmp_path, KEYS, parallelism=1, relay=Remembering)
    topology.run_out()

    topology.sources()[0].mailbox.post(
        InjectBarrier(Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0))
    )
    topology.run(lambda: len(topology.reporter.cuts[1]) == 3)

    cuts = topology.reporter.cuts[1]
    assert {cut.vertex for cut in cuts} == {SOURCE, RELAY, SINK}
    assert [operator.states for cut in cuts for operator in cut.operators] == [[]] * 4
    relay = next(s for s in topology.subtasks if s.place.vertex.uid == RELAY)
    assert relay.chain.state_bytes() > 0


def test_a_sink_that_fails_ends_the_attempt(tmp_path: Path) -> None:
    """The sink may have lost acked records; only a recovery reads them again."""

    class Broken(MemorySink):
        def write(self, batch: pa.RecordBatch) -> None:
            raise Retryable("the connection is lost")

    topology = Topology(tmp_path, KEYS, sink=Broken())

    with pytest.raises(OperatorFailed, match="the connection is lost"):
        topology.run_out()


def test_a_permanent_error_ends_the_attempt(tmp_path: Path) -> None:
    def broken() -> Operator:
        return BatchFunction(lambda batch: batch.select(["nothing"]), SCHEMA)

    with pytest.raises(OperatorFailed, match="nothing"):
        Topology(tmp_path, KEYS, relay=broken).run_out()


def positions_at(checkpoint_id: int, topology: Topology) -> dict[Uid, Json]:
    cuts = topology.reporter.cuts[checkpoint_id]
    return {cut.vertex: cut.operators[0].positions for cut in cuts}
