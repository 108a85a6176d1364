"""How long a point can be restored, as its sources and sinks report it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.ids import CheckpointId, Uid
from pipelines.domain.snapshots import Manifest, OperatorSnapshot
from pipelines.flows.finding import find_flow
from pipelines.points.contents import ShelfLife
from pipelines.points.fit import shelf_life_in
from pipelines.points.stored_output import StoredCommittables
from tests.unit.points.growing_logs import EmptyLog
from tests.unit.points.stored_views import EVENTS, FLOW, VIEWS, write_events
from tests.unit.runtime.points import manifest_of

READ, UNREAD = SplitProgress("a-0", 9, is_finished=True), SplitProgress("a-1", 7)
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Log(EmptyLog):
    """It keeps its records until `until_ms`."""

    until_ms: int | None = None
    problem: Exception | None = None

    def kept_until_ms(self, splits: Sequence[SplitProgress]) -> int | None:
        assert list(splits) == [UNREAD]
        if self.problem is not None:
            raise self.problem
        return self.until_ms


@dataclass(frozen=True)
class Target:
    """A sink whose transactions time out."""

    transaction_timeout_ms: int


def test_a_source_that_deletes_records_limits_the_shelf_life_with_a_reason(tmp_path: Path) -> None:
    found = asked(tmp_path, Log(until_ms=5 * DAY_MS))

    (limit,) = found.limits
    assert limit.until_ms == 5 * DAY_MS
    assert "'events' may delete the first records" in limit.reason
    assert (found.problems, found.unknown) == ([], [])


def test_a_source_that_deletes_nothing_limits_nothing(tmp_path: Path) -> None:
    assert asked(tmp_path, Log()) == ShelfLife([], [], [])


def test_records_that_are_already_gone_are_a_problem(tmp_path: Path) -> None:
    found = asked(tmp_path, Log(first=8))

    assert found.problems == ["The source 'events' cannot go back: a-1: 7 to 7 are gone."]


@pytest.mark.parametrize("problem", [Retryable("it is away"), Rejected("it is another one")])
def test_a_source_that_cannot_report_its_retention_is_listed_as_unknown(
    tmp_path: Path, problem: Exception
) -> None:
    found = asked(tmp_path, Log(problem=problem))

    assert found.limits == []
    assert found.unknown == [
        f"How long the source 'events' keeps its records is not known: {problem}."
    ]


def test_invalid_positions_leave_the_shelf_life_unknown(tmp_path: Path) -> None:
    found = asked(tmp_path, Log(), positions={"colour": "red"})

    assert "its positions make no sense" in found.unknown[0]


def test_pending_transactions_limit_the_shelf_life_to_their_timeout(tmp_path: Path) -> None:
    source, sink = Log(until_ms=5 * DAY_MS), Target(DAY_MS)

    waiting = asked(tmp_path, source, sink)
    committed = asked(tmp_path, source, sink, is_committed=True)

    assert [limit.until_ms for limit in waiting.limits] == [
        manifest().trigger_ms + DAY_MS,
        5 * DAY_MS,
    ]
    assert "gives up the transactions that it had prepared" in waiting.limits[0].reason
    assert [limit.until_ms for limit in committed.limits] == [5 * DAY_MS]


def test_a_sink_without_prepared_transactions_limits_nothing(tmp_path: Path) -> None:
    found = asked(tmp_path, Log(), Target(DAY_MS), prepared=0)

    assert found.limits == []


def asked(
    tmp_path: Path,
    source: Log,
    sink: Target | None = None,
    *,
    is_committed: bool = False,
    prepared: int = 1,
    positions: object = None,
) -> ShelfLife:
    pipeline = find_flow(FLOW).build({"data": str(write_events(tmp_path / "data"))})
    sinks = {VIEWS: cast("Any", sink)} if sink else {}
    changed = replace(pipeline, sources={EVENTS: source}, sinks=sinks)
    return shelf_life_in(manifest(positions, prepared), changed, is_committed=is_committed)


def manifest(positions: object = None, prepared: int = 1) -> Manifest:
    known = NamedPositions((READ, UNREAD), True).to_json()
    items: list[object] = [{"token": number} for number in range(prepared)]
    stored = StoredCommittables(checkpoint_id=CheckpointId(7), items=items)
    source = OperatorSnapshot(uid=EVENTS, positions=positions or known)
    sink = OperatorSnapshot(
        uid=Uid(VIEWS), committables=[msgspec.to_builtins(stored)] * bool(prepared)
    )
    return manifest_of([[source, sink]])
