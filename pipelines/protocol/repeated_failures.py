"""Decides whether a failure is deterministic, and finds the record that causes it.

Pure: monotonic times are passed in. A restart reads the same records again. So an error of the
user's function on one of them returns until the user changes the function or the data; restarting
forever would hide that. A service that the function calls also fails in the same way while it is
down, and most clients then raise errors of their own, which no list can name. Only time tells the
two apart. So a failure counts as deterministic once it has come back at the same record for a
minimum time and a minimum number of tries. Errors that are known to come from outside (a network, a
disk) never count.

To find the record, the next attempt reads a range that failed as a whole in `PARTS` parts. The part
that fails again is split in the same way, until a single record fails. That record is quarantined:
no attempt gives it to an operator again. Each step is a new attempt, from the newest checkpoint.
Trying the halves of a batch again within an attempt would be quicker and wrong: the failed try has
changed the state of its operator, and sent some of its output on. Finding a record costs one
attempt for each factor of `PARTS` in its batch, but a run without failures pays nothing.

The output is right even if nothing here survives. The checkpoint alone decides whether a record was
quarantined: it holds the source's position and the quarantine's prepared file of the same cut.
Remembering a finding only saves the failures that would find the same records again.
"""

import re
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import Uid
from pipelines.domain.origins import Firing, Origins, RecordOrigin
from pipelines.domain.poison import (
    ERROR_CHARS_MAX,
    TRACE_CHARS_MAX,
    IsolatedRange,
    Isolation,
    PoisonRecord,
)

REMEMBERED = 64
"""How many failures a new one is compared with; a poison record fails again within a few."""

HELD_FACTOR = 2.0
HELD_MS = 10_000.0
"""An attempt that ran for this much longer than the newest try has got past its records."""

_VARYING = re.compile(r"0x[0-9a-fA-F]+|'[^']*'|\"[^\"]*\"|[0-9]+(?:[.:_-][0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorError:
    """A subtask's report of an exception.

    `is_of_the_world` means that it may pass by itself. `is_of_record` means that records caused it:
    an operator raised it on records that it was given, or a source on one that it cannot read.
    `candidates` replaces `origin` where batches were joined and any may be at fault; the next
    attempt handles them one by one.
    """

    operator: Uid
    error_type: str  # qualified name of the exception's class
    message: str
    origin: RecordOrigin | None
    is_of_the_world: bool
    is_of_record: bool = False
    is_refused: bool = False  # as invalid in itself: no outage looks like this
    firing: Firing | None = None  # what was due, if no record was being processed
    candidates: Origins = ()

    @property
    def place(self) -> "Place | None":
        """Where a restart meets the error again, or None if that is not known."""
        if self.firing is not None and self.firing.is_one_timer:
            return self.firing
        return self.origin


Place = RecordOrigin | Firing


@dataclass(frozen=True, slots=True)
class Fingerprint:
    operator: Uid
    error_type: str
    skeleton: str  # the message without what varies from one occurrence to the next


@dataclass(frozen=True, slots=True)
class Returning:
    """The failure has come back, but not yet often or long enough: a restart may help."""

    place: Place  # the records that all tries were working on, or the timer
    tries: int
    over_ms: float  # from the first try to the newest


@dataclass(frozen=True, slots=True)
class Deterministic:
    """A restart would only repeat the failure."""

    place: Place  # the records that all tries were working on, or the timer
    tries: int
    over_ms: float  # from the first try to the newest


Repeated = Returning | Deterministic | None
"""None means that the failure is new, may pass by itself, or its place is not known."""


@dataclass(slots=True)
class _Streak:
    """Tries that failed in the same way, all at the records of `place` or all in the same timer."""

    fingerprint: Fingerprint
    place: Place
    first_ms: float
    tries: int = 1
    ran_ms: float = 0.0  # how long the newest attempt that failed again had run
    is_of_this_attempt: bool = True


class RepeatedFailures:
    """Guarantee: `Deterministic` only for a fingerprint that has failed at least `tries_min` times,
    over at least `over_min_ms`, each time while the same record was being processed. A record that
    fails whenever it is processed gets there. A refused error needs to come back only once.

    An outage that an attempt has survived leaves nothing behind: the machine forgets failures that
    an attempt got past, and failures that a quarantined record explains.
    """

    def __init__(self, *, tries_min: int, over_min_ms: float) -> None:
        check(tries_min >= 2 and over_min_ms >= 0, "what comes back was there at least twice")
        self._tries_min = tries_min
        self._over_min_ms = over_min_ms
        self._streaks: list[_Streak] = []  # the least recently met first

    def on_error(self, error: OperatorError, now_ms: float) -> Repeated:
        place = error.place
        if error.is_of_the_world or place is None:
            return None
        fingerprint = fingerprint_of(error)
        met = [s for s in self._streaks if s.fingerprint == fingerprint and _meet(s.place, place)]
        for streak in met:
            streak.place = _shared(streak.place, place)
            streak.tries += 1
            streak.is_of_this_attempt = True
        newest = met or [_Streak(fingerprint, place, now_ms)]
        others = [streak for streak in self._streaks if streak not in met]
        self._streaks = [*others, *newest][-REMEMBERED:]
        verdicts = [(s.place, s.tries, now_ms - s.first_ms) for s in met]
        for verdict in verdicts:
            if error.is_refused or self._is_enough(*verdict[1:]):
                return Deterministic(*verdict)
        return Returning(*max(verdicts, key=lambda verdict: verdict[1:])) if verdicts else None

    def on_attempt_over(self, ran_ms: float) -> None:
        """The attempt has ended, for whatever reason, `ran_ms` after its start."""
        self._streaks = [s for s in self._streaks if s.is_of_this_attempt or not _held(s, ran_ms)]
        for streak in self._streaks:
            if streak.is_of_this_attempt and streak.tries > 1:
                streak.ran_ms = ran_ms
            streak.is_of_this_attempt = False

    def on_explained(self, error: OperatorError) -> None:
        """A record was found to be at fault, which says nothing against the records next to it."""
        fingerprint, place = fingerprint_of(error), error.place
        self._streaks = [
            streak
            for streak in self._streaks
            if place is None or streak.fingerprint != fingerprint or not _meet(streak.place, place)
        ]

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        count = len(self._streaks)
        check(count <= REMEMBERED, "few failures are remembered", count=count)
        for streak in self._streaks:
            check(streak.tries >= 1, "a streak begins with a try", tries=streak.tries)
            has_run = streak.ran_ms == 0.0 or streak.tries > 1
            check(has_run, "the time of a try that failed again is kept", tries=streak.tries)

    def _is_enough(self, tries: int, over_ms: float) -> bool:
        return tries >= self._tries_min and over_ms >= self._over_min_ms


def _meet(one: Place, other: Place) -> bool:
    if isinstance(one, RecordOrigin) and isinstance(other, RecordOrigin):
        return one.meets(other)
    return one == other


def _shared(one: Place, other: Place) -> Place:
    if isinstance(one, RecordOrigin) and isinstance(other, RecordOrigin):
        return one.shared_with(other)
    return one


def _held(streak: _Streak, ran_ms: float) -> bool:
    return ran_ms > HELD_FACTOR * streak.ran_ms + HELD_MS


def fingerprint_of(error: OperatorError) -> Fingerprint:
    return Fingerprint(error.operator, error.error_type, skeleton_of(error.message))


def skeleton_of(message: str) -> str:
    """Replaces numbers, addresses and quoted values: they name the occurrence, not the kind."""
    return _VARYING.sub("•", message)


PARTS = 256
"""Two steps narrow a batch of 65,536 records down to one; each step adds at most twice this many
batches."""


@dataclass(frozen=True, slots=True)
class Isolate:
    """The next attempt reads the range in parts."""

    range: IsolatedRange


@dataclass(frozen=True, slots=True)
class Quarantine:
    """From the next attempt on, no operator is given the record."""

    record: PoisonRecord


@dataclass(frozen=True, slots=True)
class LimitReached:
    """Quarantining one more record would exceed the limit."""

    limit: int


@dataclass(frozen=True, slots=True)
class NobodysFault:
    """No single record is at fault: the run itself fails."""


Finding = Isolate | Quarantine | LimitReached | NobodysFault


class PoisonRecords:
    """Guarantee: each repeated failure isolates a smaller range, so that a series of them ends in
    `Quarantine`, `LimitReached` or `NobodysFault`; and at most `limit` records are quarantined.

    Needs a source that gives an offset the same record each time.
    """

    def __init__(self, limit: int, found: Isolation | None = None) -> None:
        """`found` is what earlier drivers of the run have found."""
        found = found or Isolation()
        self._limit = limit
        self._poison = {record.position: record for record in found.poison}
        self._found_count = len(self._poison)  # a limit may have been lowered since
        self._ranges = list(found.ranges)

    @property
    def isolation(self) -> Isolation:
        return Isolation(poison=list(self._poison.values()), ranges=list(self._ranges))

    def on_repeated(self, error: OperatorError, trace: str) -> Finding:
        """The same error has come back, and both tries were processing the same record.

        That record does not matter: it may be a good one between two bad ones. The batch that is
        being processed now contains a bad one.
        """
        origin = error.origin
        if not error.is_of_record or origin is None:
            return NobodysFault()
        if origin.records == 1:
            return self._on_record(_poison(error, origin, trace))
        step = -(-origin.records // PARTS)
        if self._is_read_in_parts(origin, step):
            return NobodysFault()
        found = IsolatedRange(
            source=origin.source,
            split=origin.split,
            first_offset=origin.first_offset,
            last_offset=origin.last_offset,
            step=step,
        )
        self._ranges.append(found)
        return Isolate(found)

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        count = len(self._poison)
        check(count <= max(self._limit, self._found_count), "the limit holds", count=count)
        is_its_own = all(r.position == place for place, r in self._poison.items())
        check(is_its_own, "a record is kept by its position")
        has_steps = all(known.step >= 1 for known in self._ranges)
        check(has_steps, "a range is read in parts of at least one record")

    def _on_record(self, record: PoisonRecord) -> Finding:
        if record.position in self._poison:
            return NobodysFault()  # no operator was given it, so another record is at fault
        if len(self._poison) >= self._limit:
            return LimitReached(self._limit)
        self._poison[record.position] = record
        return Quarantine(record)

    def _is_read_in_parts(self, origin: RecordOrigin, step: int) -> bool:
        return any(
            (known.source, known.split) == (origin.source, origin.split)
            and known.first_offset <= origin.first_offset
            and known.last_offset >= origin.last_offset
            and known.step <= step
            for known in self._ranges
        )


def _poison(error: OperatorError, origin: RecordOrigin, trace: str) -> PoisonRecord:
    return PoisonRecord(
        source=origin.source,
        split=origin.split,
        offset=origin.first_offset,
        operator=error.operator,
        error_type=error.error_type,
        error=error.message[:ERROR_CHARS_MAX],
        trace=trace[-TRACE_CHARS_MAX:],
    )
