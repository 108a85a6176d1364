"""Values that an auditor expects of one sink and finds there, and how it compares them.

It compares sums over all subtasks of a cut: rows that moved between the files of one cut are the
same output. It names the file at fault where it can.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pipelines.audit.history import Cut, History, Point
from pipelines.domain.ids import Uid
from pipelines.domain.ledger import OutputShare, SinkOutput
from pipelines.state.row_digest import MODULUS


class Covers(StrEnum):
    """How thoroughly output was compared in which nothing differs."""

    DIGESTED = "digested"
    COUNTED = "counted, not digested"
    NOTHING = "not audited"


@dataclass(frozen=True, slots=True)
class Rows:
    """`digest` None: the rows were only counted."""

    count: int
    digest: int | None

    @property
    def digest_text(self) -> str | None:
        return None if self.digest is None else f"{self.digest:016x}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the output is not what the ledger says; `what` is one sentence."""

    what: str
    cut: Cut | None = None
    expected: Rows | None = None
    found: Rows | None = None
    part: str | None = None


class TargetReader(Protocol):
    """Reads one sink's target again, without the code that wrote it."""

    def stray(self, history: History, sink: Uid) -> Difference | None:
        """What a reader would take for output although no checkpoint has it."""
        ...

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        """Compares the target with what the sink was given for `point`. Covers.NOTHING: the target
        no longer keeps that output, or it cannot be identified."""
        ...

    def beside(self, later: History, sink: Uid) -> Difference | None:
        """A difference that leaves the proven output proven; `later` was read after the target."""
        ...


JudgeCut = Callable[[Cut, Sequence[SinkOutput]], Difference | Covers]


def judged_by_cut(point: Point, sink: Uid, judge: JudgeCut) -> Difference | Covers:
    """Judges a target that tells apart what each checkpoint gave, aborted ones included."""
    covers = Covers.DIGESTED
    for cut, outputs in point.given_to(sink).items():
        judged = judge(cut, outputs)
        if isinstance(judged, Difference):
            return judged
        covers = weaker(covers, judged)
    return covers


def weaker(one: Covers, other: Covers) -> Covers:
    return max(one, other, key=list(Covers).index)


def total(parts: Iterable[Rows]) -> Rows:
    every = list(parts)
    digests = [part.digest for part in every if part.digest is not None]
    digest = sum(digests) % MODULUS if len(digests) == len(every) else None
    return Rows(sum(part.count for part in every), digest)


def given(outputs: Iterable[SinkOutput]) -> Rows:
    return total(_given(output.share) for output in outputs)


def compared(
    cut: Cut, outputs: Sequence[SinkOutput], parts: dict[str, Rows]
) -> Difference | Covers:
    """Compares what a cut's subtasks were given with what its parts hold, {token: rows}."""
    expected, found = given(outputs), total(parts.values())
    part = _part_at_fault(outputs, parts)
    if found.count != expected.count:
        what = f"{found.count} rows were found where {expected.count} were given."
        return Difference(what, cut, expected, found, part)
    is_digested = None not in (found.digest, expected.digest)
    if is_digested and found.digest != expected.digest:
        what = f"{expected.count} rows were given, and so many are there, but not the same."
        return Difference(what, cut, expected, found, part)
    return Covers.DIGESTED if is_digested else Covers.COUNTED


def _given(share: OutputShare) -> Rows:
    return Rows(share.rows, None if share.digest is None else int(share.digest, 16))


def _part_at_fault(outputs: Sequence[SinkOutput], parts: dict[str, Rows]) -> str | None:
    """The parts of the first subtask that do not add up to what it was given; None: all do."""
    for output in outputs:
        own = total(parts[token] for token in output.share.tokens if token in parts)
        if own not in (given([output]), Rows(output.share.rows, None)):
            return ", ".join(output.share.tokens)
    return None
