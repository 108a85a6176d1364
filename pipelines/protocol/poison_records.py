"""Finds the record that causes a repeated failure, by reading ever smaller parts of a batch.

Pure. When a range fails as a whole, the next attempt reads it in `PARTS` parts. The part that fails
again is split in the same way, until a single record fails. That record is quarantined: no attempt
gives it to an operator again.

Each step is a new attempt, from the newest checkpoint. Trying the halves of a batch again within an
attempt would be quicker and wrong: the failed try has changed the state of its operator, and sent
some of its output on. A record costs one attempt for each factor of `PARTS` in its batch, but a run
without failures pays nothing.

Nothing here has to survive for the output to be right. The checkpoint alone decides whether a
record was quarantined: it holds the source's position and the quarantine's prepared file of the
same cut. Remembering a finding only saves the failures that would find the same records again.
"""

from dataclasses import dataclass

from pipelines.domain.elements import RecordOrigin
from pipelines.domain.poison import (
    ERROR_CHARS_MAX,
    TRACE_CHARS_MAX,
    IsolatedRange,
    Isolation,
    PoisonRecord,
)
from pipelines.protocol.repeated_failures import OperatorError

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
    """No single record is at fault: the failure is one of the run."""


Finding = Isolate | Quarantine | LimitReached | NobodysFault


class PoisonRecords:
    """Guarantee: each repeated failure isolates a smaller range, so that a series of them ends in
    `Quarantine`, `LimitReached` or `NobodysFault`; and at most `limit` records are quarantined.

    Needs a source that gives an offset the same record each time.
    """

    def __init__(self, limit: int, found: Isolation | None = None) -> None:
        """`found`: what the drivers before this one have found."""
        found = found or Isolation()
        self._limit = limit
        self._poison = {record.position: record for record in found.poison}
        self._ranges = list(found.ranges)

    @property
    def isolation(self) -> Isolation:
        return Isolation(poison=list(self._poison.values()), ranges=list(self._ranges))

    def on_repeated(self, error: OperatorError, trace: str) -> Finding:
        """The same error has come back at a record that is also in work now.

        Which records were in work both times does not matter: it may be a good one between two bad
        ones. The batch in work now holds a bad one.
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
