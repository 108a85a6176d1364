"""The verdict on a restore before anything starts: findings, and whether it may go ahead."""

import statistics
from dataclasses import dataclass, field
from enum import StrEnum

from pipelines.domain.ids import CheckpointId, RunId, Uid


class Check(StrEnum):
    """The subjects of the check, in this order."""

    MANIFEST = "manifest"
    PIPELINE = "pipeline"  # the flow can be built with these parameters
    GUARANTEE = "guarantee"  # end to end
    COMPATIBILITY = "compatibility"  # uids, states, columns, parallelism
    FILES = "files"  # every one of them
    SOURCES = "sources"  # still hold what the positions need
    OUTPUT = "output"  # which run holds it, and what happens to it
    PENDING_COMMITS = "pending commits"
    REPLAY = "replay"
    TIME = "time"


class Outcome(StrEnum):
    FINE = "fine"
    NOTE = "note"  # possible, but a person should know
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    check: Check
    outcome: Outcome
    text: str  # one sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """`findings` are in the order of `Check`. What could not be checked has no finding."""

    path: str
    findings: tuple[Finding, ...]
    run_id: RunId | None = None  # the run that wrote the point; None: its manifest is unreadable
    checkpoint_id: CheckpointId | None = None
    kind: str = ""
    matched: tuple[Uid, ...] = ()
    new: tuple[Uid, ...] = ()
    dropped: tuple[Uid, ...] = ()
    file_count: int = 0
    file_bytes: int = 0
    pending_commits: dict[Uid, int] = field(default_factory=dict)  # per sink
    records_to_replay: int | None = None
    estimated_ms: float | None = None  # until everything that was read before is read again

    @property
    def is_possible(self) -> bool:
        return not self.refusals

    def found(self, check: Check) -> bool:
        return any(finding.check is check for finding in self.findings)

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(f.text for f in self.findings if f.outcome is Outcome.REFUSED)


@dataclass(frozen=True, slots=True)
class Measured:
    """Earlier measurements: how far the sources had come, and how long recoveries took."""

    source_records: int | None = None  # read by the newest run of the pipeline
    recoveries_ms: tuple[float, ...] = ()  # failure to all subtasks running
    records_per_s: float | None = None

    def records_after(self, source_records: int) -> int | None:
        """The records read after a point at which that many had been read; None: not known."""
        return None if self.source_records is None else max(0, self.source_records - source_records)

    def until_caught_up_ms(self, records: int | None) -> float | None:
        """The duration of a recovery, plus that of `records` at the measured speed.

        None if one of the three was never measured.
        """
        if not self.recoveries_ms or records is None or (records and not self.records_per_s):
            return None
        replay_ms = 1000.0 * records / self.records_per_s if self.records_per_s else 0.0
        return statistics.median(self.recoveries_ms) + replay_ms
