"""The verdict on a restore before anything starts: findings, and which point to restore, and why.

The recommendation judges by what is on record; the restore itself reads every byte of the point
before anything starts, whatever the recommendation. Pure.
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
    CODE = "code"  # what wrote the point, and what would start from it
    SETTINGS = "settings"  # and parameters that the restore changes
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
    dropped_states: tuple[tuple[Uid, str], ...] = ()  # of operators that are still there
    likely_names: dict[Uid, Uid] = field(default_factory=dict)  # operators that look renamed
    file_count: int = 0
    file_bytes: int = 0
    pending_commits: dict[Uid, int] = field(default_factory=dict)  # per sink
    records_to_replay: int | None = None
    estimated_ms: float | None = None  # until everything that was read before is read again
    gaps: tuple[Gap, ...] = ()  # input that is gone; a person may accept that
    accepted_gaps: tuple[Gap, ...] = ()  # and these were accepted
    reaching: str = ""  # the newest other point from which all sources still have everything

    @property
    def is_possible(self) -> bool:
        return not self.refusals

    @property
    def is_lossy(self) -> bool:
        """The run would begin without some of the point's state, or of the input behind it."""
        return bool(self.dropped or self.dropped_states or self.accepted_gaps)

    @property
    def with_all_gaps(self) -> str:
        """The texts of all gaps, one per line: accepted before, or offered now."""
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
    """`is_on_line`: of the newest run, or of a run it was restored from, up to that fork.

    Points are ordered within a line only: across runs their ids say nothing.
    """

    name: str  # "checkpoint 12 of run 3"
    completed_ms: int
    is_on_line: bool
    fitness: Fitness
    records_to_replay: int | None = None  # None: not known


@dataclass(frozen=True, slots=True)
class Recommendation:
    index: int | None  # among the candidates; None: none of them is usable
    reason: str  # sentences


def recommended(candidates: Sequence[Candidate]) -> Recommendation:
    """1. Exclude unusable points.
    2. Prefer points of the line: the others were abandoned when a run was restored to before them,
       or started afresh.
    3. Take the newest, from which the least is read again.
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
    return f"{name} is the newest that can be used, so the least is read again{_replay(chosen)}."


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
