"""The verdict on a restore before anything starts: findings, which point to restore, and why.

The recommendation judges by what is on record. The restore itself always reads every byte of the
point before anything starts. Pure.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RunId, Uid


class Check(StrEnum):
    """The subjects of the check, in this order."""

    MANIFEST = "manifest"
    CODE = "code"  # the code that wrote the point, and the code that would start from it
    SETTINGS = "settings"  # the settings and parameters that the restore changes
    PIPELINE = "pipeline"  # the flow can be built with these parameters
    GUARANTEE = "guarantee"  # end to end
    COMPATIBILITY = "compatibility"  # uids, states, columns, parallelism
    FILES = "files"  # each of them is there and intact
    SOURCES = "sources"  # they still hold the records from the positions on
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
    """`findings` are in the order of `Check`. A subject that was not checked has no finding."""

    path: str
    findings: tuple[Finding, ...]
    run_id: RunId | None = None  # the run that wrote the point; None if its manifest is unreadable
    checkpoint_id: CheckpointId | None = None
    kind: str = ""
    matched: tuple[Uid, ...] = ()
    new: tuple[Uid, ...] = ()
    dropped: tuple[Uid, ...] = ()
    dropped_states: tuple[tuple[Uid, str], ...] = ()  # of operators that are still there
    likely_names: dict[Uid, Uid] = field(default_factory=dict)  # operators that look renamed
    file_count: int = 0
    file_bytes: int = 0
    pending_commits: dict[Uid, int] = field(default_factory=dict)  # per sink
    records_to_replay: int | None = None
    estimated_ms: float | None = None  # until everything that was read before is read again
    gaps: tuple[Gap, ...] = ()  # lost input; a person may accept the loss
    accepted_gaps: tuple[Gap, ...] = ()  # lost input whose loss a person accepted
    reaching: str = ""  # the newest other point from which all sources still have everything

    @property
    def is_possible(self) -> bool:
        return not self.refusals

    @property
    def is_lossy(self) -> bool:
        """Returns True if the run would begin without some state of the point, or skip input."""
        return bool(self.dropped or self.dropped_states or self.accepted_gaps)

    @property
    def with_all_gaps(self) -> str:
        """Returns the texts of all gaps, accepted before or offered now, one per line."""
        return "\n".join(gap.text for gap in (*self.accepted_gaps, *self.gaps))

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
        """Returns how many records were read after a point that had read `source_records`.

        None means not known.
        """
        return None if self.source_records is None else max(0, self.source_records - source_records)

    def until_caught_up_ms(self, records: int | None) -> float | None:
        """Adds the duration of a recovery and the time for `records` at the measured speed.

        Returns None if one of the three is not known.
        """
        if not self.recoveries_ms or records is None or (records and not self.records_per_s):
            return None
        replay_ms = 1000.0 * records / self.records_per_s if self.records_per_s else 0.0
        return statistics.median(self.recoveries_ms) + replay_ms


class Fitness(StrEnum):
    VERIFIED = "verified"  # every byte was read again and is as written
    UNREAD = "unread"  # it exists, and has not been read again since it was written
    REFUSED = "refused"  # it did not verify, or did not fit, when it was checked
    GONE = "gone"  # its manifest is not where it was written

    @property
    def is_usable(self) -> bool:
        return self in (Fitness.VERIFIED, Fitness.UNREAD)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A point that a run could be restored from.

    `is_on_line` says that it belongs to the newest run, or to a run that one was restored from, up
    to that fork. Points are ordered within a line only: across runs their ids say nothing.
    """

    name: str  # "checkpoint 12 of run 3"
    completed_ms: int
    is_on_line: bool
    fitness: Fitness
    records_to_replay: int | None = None  # None if not known


@dataclass(frozen=True, slots=True)
class Recommendation:
    index: int | None  # among the candidates; None if none of them is usable
    reason: str  # one or more sentences


def recommended(candidates: Sequence[Candidate]) -> Recommendation:
    """1. Exclude unusable points.
    2. Prefer points of the line. The others were abandoned: a run was restored from an older point
       or started afresh.
    3. Take the newest, because the run then reads the least again.
    """
    usable = [i for i, each in enumerate(candidates) if each.fitness.is_usable]
    if not usable:
        return Recommendation(None, _why_none(len(candidates)))
    best = max(usable, key=lambda i: (candidates[i].is_on_line, candidates[i].completed_ms))
    chosen = candidates[best]
    passed = [
        each
        for each in candidates
        if not each.fitness.is_usable
        and each.is_on_line == chosen.is_on_line
        and each.completed_ms > chosen.completed_ms
    ]
    return Recommendation(best, " ".join((_why(chosen), *_about(chosen), *_why_not(passed))))


def _why(chosen: Candidate) -> str:
    name = chosen.name[:1].upper() + chosen.name[1:]
    if not chosen.is_on_line:
        return (
            f"{name} is the newest usable point, but the newest run does not descend from it: a"
            " person restored an older point or started over, so make sure that you want this one."
        )
    return f"{name} is the newest usable point, so the least input is read again{_replay(chosen)}."


def _replay(chosen: Candidate) -> str:
    records = chosen.records_to_replay
    if records is None:
        return ""
    about = "about " if records else ""
    return f": {about}{records:,} record{'' if records == 1 else 's'}"


def _about(chosen: Candidate) -> list[str]:
    if chosen.fitness is Fitness.UNREAD:
        return ["Not verified since it was written; the restore verifies it before it starts."]
    return ["All of its files were verified and match their digests."]


def _why_not(passed: list[Candidate]) -> list[str]:
    if not passed:
        return []
    names = ", ".join(f"{each.name} is {each.fitness.value}" for each in passed)
    return [f"Newer, but not usable: {names}."]


def _why_none(count: int) -> str:
    if count == 0:
        return "Nothing has been completed that a run could be restored from."
    points = "The only point" if count == 1 else f"None of the {count} points"
    can = "cannot" if count == 1 else "can"
    return f"{points} {can} be used: gone, or refused when checked."
