"""Retained points are read again on schedule; a damaged one is reported and not offered again."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pipelines.domain.errors import Retryable
from pipelines.domain.events import DamageRemembered, Event, PointsVerified, RestorePointRefused
from pipelines.domain.ids import CheckpointId, RequestId
from pipelines.domain.status import DamageFinder, RequestOutcome
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.checkpoints.point_files import PointVerifier
from pipelines.runtime.master.damage_memory import DamageMemory
from pipelines.runtime.master.job_events import JobEvent, PointsLookedAt, WorkFailed
from pipelines.storage.store import Damage
from tests.unit.runtime.fakes import ManualClock
from tests.unit.runtime.shared_points import shared_host

INTERVAL_MS = 1_000
WAIT_S = 60.0
SHARED = "c1-a1-base"  # the first two points refer to it
POINTS = tuple(RetainedPoint(CheckpointId(n), f"/chk-{n}") for n in (1, 2, 3))


@pytest.fixture
def verified() -> Iterator["Verified"]:
    verified = Verified()
    yield verified
    verified.verifier.close()


def test_a_damaged_point_is_reported_with_its_reason_and_dropped(verified: "Verified") -> None:
    verified.damage("/chk-2")

    verified.look()

    assert verified.offered == [3, 1]
    assert verified.events[0] == RestorePointRefused(
        path="/chk-2", message="Looked at again: /chk-2/a.arrow was altered."
    )
    assert verified.counts == [(2, 1)]
    assert verified.found_whole == ["/chk-3", "/chk-1"]


def test_all_points_stay_candidates_while_none_of_them_is_whole(
    verified: "Verified",
) -> None:
    verified.damage("/chk-1", "/chk-2", "/chk-3")

    verified.look()

    assert verified.offered == []
    assert [point.checkpoint_id for point in verified.points.candidates()] == [3, 2, 1]
    assert verified.counts == [(0, 3)]


def test_a_damaged_point_is_verified_again_but_reported_once(verified: "Verified") -> None:
    verified.damage("/chk-2")

    verified.look()
    verified.look()

    assert len([e for e in verified.events if isinstance(e, RestorePointRefused)]) == 1
    assert verified.counts == [(2, 1), (2, 1)]


def test_a_repaired_point_is_offered_again(verified: "Verified") -> None:
    verified.damage("/chk-2")
    verified.look()
    verified.store.damages.clear()

    verified.look()

    assert verified.offered == [3, 2, 1]
    assert verified.found_whole[-3:] == ["/chk-3", "/chk-2", "/chk-1"]


def test_damage_to_a_shared_file_outlives_the_point_that_it_was_found_in(
    verified: "Verified",
) -> None:
    """The point is deleted while it is read, but newer points also refer to the file."""
    shared = Damage(SHARED, f"{SHARED} was altered.", is_shared=True)
    verified.store.damages["/chk-1"] = shared
    looked = verified.read()
    verified.points.on_completed(RetainedPoint(CheckpointId(4), "/chk-4"))

    verified.verifier.on_looked_at(looked, verified.points)

    [remembered] = [e for e in verified.events if isinstance(e, DamageRemembered)]
    assert remembered == DamageRemembered(
        files=[SHARED],
        points=["/chk-2"],
        found_by=DamageFinder.VERIFICATION,
        message=f"{SHARED} was altered.",
        remembered=[SHARED],
    )
    assert verified.offered == [4, 3]
    assert verified.counts == [(2, 0)]


def test_an_unreachable_storage_does_not_count_as_damage(verified: "Verified") -> None:
    verified.store.unreachable.add("/chk-3")

    verified.look()

    assert verified.offered == [3, 2, 1]
    assert verified.counts == [(2, 0)]


def test_an_unmounted_disk_does_not_count_as_damage(verified: "Verified") -> None:
    verified.damage("/chk-1", "/chk-2", "/chk-3")
    verified.store.is_mounted = False

    verified.look()

    assert verified.counts == [(0, 0)]
    assert verified.not_counted == [3]


def test_an_unexpected_error_of_the_storage_is_reported_to_the_master(
    verified: "Verified",
) -> None:
    verified.store.bug = TypeError("a bug of the storage")

    assert verified.heard() == WorkFailed(verified.store.bug)


def test_a_point_that_retention_deleted_meanwhile_is_not_called_damaged(
    verified: "Verified",
) -> None:
    verified.damage("/chk-1")
    looked = verified.read()
    verified.points.on_completed(RetainedPoint(CheckpointId(4), "/chk-4"))

    verified.verifier.on_looked_at(looked, verified.points)

    assert verified.offered == [4, 3, 2]
    assert verified.counts == [(2, 0)]


def test_points_that_retention_deletes_meanwhile_are_reported_as_not_counted(
    verified: "Verified",
) -> None:
    verified.damage("/chk-1")
    looked = verified.read()
    for number in (4, 5, 6):
        verified.points.on_completed(RetainedPoint(CheckpointId(number), f"/chk-{number}"))

    verified.verifier.on_looked_at(looked, verified.points)

    assert verified.counts == [(0, 0)]
    assert verified.not_counted == [3]


def test_a_request_starts_a_verification_at_once_and_gets_its_result(verified: "Verified") -> None:
    verified.damage("/chk-2")

    verified.verifier.on_request(RequestId("verify-1"))
    due_ms = verified.verifier.due_ms
    verified.look()

    assert due_ms == verified.began_ms
    assert verified.offered == [3, 1]
    said = "The driver has read the points: 2 whole, 1 damaged."
    assert verified.answers == [(RequestId("verify-1"), RequestOutcome.SUCCEEDED, said)]
    assert verified.verifier.due_ms == verified.clock.now_ms + INTERVAL_MS


def test_a_request_alone_does_not_make_a_point_damaged(
    verified: "Verified",
) -> None:
    verified.verifier.on_request(RequestId("verify-1"))
    verified.look()

    assert verified.offered == [3, 2, 1]
    assert verified.refused == []


def test_requests_during_a_verification_share_the_next_one(verified: "Verified") -> None:
    """The reading under way may have passed a file before it was damaged."""
    looked = verified.read()
    verified.verifier.on_request(RequestId("verify-1"))
    verified.verifier.on_request(RequestId("verify-2"))
    while_reading = verified.verifier.due_ms
    verified.verifier.on_looked_at(looked, verified.points)
    after_the_first = list(verified.answers)
    due_ms = verified.verifier.due_ms
    verified.damage("/chk-2")
    verified.look()

    assert (while_reading, after_the_first) == (None, [])
    assert due_ms == verified.began_ms + INTERVAL_MS, "at once"
    assert [request_id for request_id, _, _ in verified.answers] == ["verify-1", "verify-2"]
    assert verified.offered == [3, 1]
    assert len(verified.store.asked) == 2 * len(POINTS)


def test_without_a_schedule_a_request_is_served_and_nothing_more_is_due() -> None:
    verified = Verified(interval_ms=0)

    verified.verifier.on_request(RequestId("verify-1"))
    verified.look()

    assert [request_id for request_id, _, _ in verified.answers] == ["verify-1"]
    assert verified.verifier.due_ms is None
    verified.verifier.close()


def test_verifications_run_once_per_interval_and_never_concurrently(verified: "Verified") -> None:
    first_due_ms = verified.verifier.due_ms
    looked = verified.read()
    while_reading = verified.verifier.due_ms
    verified.clock.now_ms += 50
    verified.verifier.on_looked_at(looked, verified.points)

    assert (first_due_ms, while_reading) == (INTERVAL_MS, None)
    assert verified.verifier.due_ms == 2 * INTERVAL_MS + 50


def test_an_interval_of_zero_turns_verification_off() -> None:
    verified = Verified(interval_ms=0)

    verified.clock.now_ms += 10**9
    verified.verifier.start_when_due(verified.clock.now_ms, verified.points)

    assert verified.verifier.due_ms is None
    assert verified.store.asked == []


@dataclass(slots=True)
class Damaged:
    """A store that knows only which points are damaged."""

    damages: dict[str, Damage] = field(default_factory=dict)
    unreachable: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    bug: Exception | None = None
    is_mounted: bool = True

    def names(self, root: str) -> list[str]:
        return ["chk-1"] if self.is_mounted else []

    def verify(self, location: str) -> list[Damage]:
        self.asked.append(location)
        if self.bug is not None:
            raise self.bug
        if location in self.unreachable:
            raise Retryable("the storage is away")
        return [self.damages[location]] if location in self.damages else []


class Verified:
    def __init__(self, interval_ms: int = INTERVAL_MS) -> None:
        self.clock = ManualClock()
        self.began_ms = self.clock.now_ms = 0.0
        self.store = Damaged()
        self.events: list[Event] = []
        self.points = RetainedPoints(3, POINTS)
        files = {CheckpointId(1): [SHARED], CheckpointId(2): [SHARED]}
        self.answers: list[tuple[RequestId, RequestOutcome, str]] = []
        self._posted: list[JobEvent] = []
        self._is_posted = threading.Event()
        self.verifier = PointVerifier(
            store=self.store,  # type: ignore[arg-type]
            clock=self.clock,
            interval_ms=interval_ms,
            damage=DamageMemory(self.points, shared_host(files), self.events.append),
            emit=self.events.append,
            post=self._post,
            answer=self._answer,
        )

    @property
    def offered(self) -> list[int]:
        return [point.checkpoint_id for point in self.points.newest_first()]

    @property
    def counts(self) -> list[tuple[int, int]]:
        return [(e.whole, e.damaged) for e in self.events if isinstance(e, PointsVerified)]

    @property
    def not_counted(self) -> list[int]:
        return [e.not_counted for e in self.events if isinstance(e, PointsVerified)]

    @property
    def refused(self) -> list[Event]:
        return [e for e in self.events if isinstance(e, RestorePointRefused)]

    @property
    def found_whole(self) -> list[str]:
        return [path for e in self.events if isinstance(e, PointsVerified) for path in e.paths]

    def damage(self, *locations: str) -> None:
        for location in locations:
            damage = Damage("a.arrow", f"{location}/a.arrow was altered.")
            self.store.damages[location] = damage

    def read(self) -> PointsLookedAt:
        looked = self.heard()
        assert isinstance(looked, PointsLookedAt)
        return looked

    def heard(self) -> JobEvent:
        self.clock.now_ms += INTERVAL_MS
        self.verifier.start_when_due(self.clock.now_ms, self.points)
        assert self._is_posted.wait(WAIT_S)
        self._is_posted.clear()
        return self._posted.pop()

    def look(self) -> None:
        self.verifier.on_looked_at(self.read(), self.points)

    def _answer(self, request_id: RequestId, outcome: RequestOutcome, said: str) -> None:
        self.answers.append((request_id, outcome, said))

    def _post(self, event: JobEvent) -> None:
        self._posted.append(event)
        self._is_posted.set()
