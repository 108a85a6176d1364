"""Lost input: named, counted, and skipped only where exactly that gap was accepted."""

from dataclasses import dataclass, replace

import pytest

from pipelines.connectors.source import PastGap
from pipelines.connectors.split_progress import NamedPositions, SplitProgress
from pipelines.domain.errors import InputLost, Rejected, Retryable
from pipelines.domain.gaps import Gap, checked_gaps
from pipelines.domain.ids import Uid
from pipelines.domain.snapshots import Manifest
from pipelines.points.fit import PointFit, unreachable
from pipelines.points.input import passages, past_accepted
from pipelines.protocol.compatibility import Target
from tests.unit.points.growing_logs import EmptyLog
from tests.unit.runtime.fakes import ListSource
from tests.unit.runtime.hosted import MemorySink, joining_pipeline
from tests.unit.runtime.points import manifest_of, operator_of, spec_of

SOURCE = Uid("left")
GAP = Gap(source=SOURCE, split="a-1", first=7, last=9, records=3)


READ, UNREAD = SplitProgress("a-0", 9, is_finished=True), SplitProgress("a-1", 7)


@dataclass(frozen=True)
class Trimmed(EmptyLog):
    """It can continue after the records that it has lost."""

    is_away: bool = False
    retention_setting: str = "retention.ms"

    def past_gap(self, split: SplitProgress) -> PastGap | None:
        if self.is_away:
            raise Retryable("It is away.")
        if self.first <= split.offset:
            return None
        at = SplitProgress(split.name, self.first, version="behind")
        return PastGap(at, self.first - split.offset)


def test_a_gap_is_found_with_its_range_and_its_loss() -> None:
    found = [each.gap for each in passages(point(), {SOURCE: Trimmed(first=10)})]

    assert found == [GAP]
    assert GAP.text == "left a-1 7-9"
    assert GAP.lost == "up to 3 records of 'left', split a-1, offsets 7 to 9"


def test_there_is_no_gap_if_all_unread_records_are_available() -> None:
    assert list(passages(point(), {SOURCE: Trimmed(first=7)})) == []


def test_an_accepted_gap_is_skipped_and_no_other_position_moves() -> None:
    source = Trimmed(first=10)

    passed, gaps = past_accepted(point(), {SOURCE: source}, [GAP.text])

    [operator] = passed.subtasks[0].operators
    read, unread = NamedPositions.from_json(operator.positions).splits
    assert gaps == (GAP,)
    assert (read, unread) == (READ, SplitProgress("a-1", 10, version="behind"))
    assert unreachable(passed, {SOURCE: source}, ahead=True) == []


@pytest.mark.parametrize("first", [11, 9])
def test_a_gap_that_grew_or_shrank_is_not_the_accepted_one(first: int) -> None:
    passed, gaps = past_accepted(point(), {SOURCE: Trimmed(first=first)}, [GAP.text])

    assert (passed, gaps) == (point(), ())


def test_a_point_with_a_gap_other_than_the_accepted_one_is_refused() -> None:
    sources = {SOURCE: Trimmed(first=11)}
    fit = PointFit(target_of(), sources, "chk-1", (GAP.text,))

    with pytest.raises(InputLost, match=r"7 to 10 are gone\. No accepted gap is exactly"):
        fit.check(point(), "chk-1")
    fit_now = replace(fit, accepted=("left a-1 7-10",))
    assert fit_now.check(point(), "chk-1").problems == ()
    with pytest.raises(InputLost):
        fit_now.check(point(), "chk-2")


def test_checking_an_accepted_gap_is_retryable_while_the_source_is_away() -> None:
    with pytest.raises(Retryable):
        past_accepted(point(), {SOURCE: Trimmed(first=10, is_away=True)}, [GAP.text])


@pytest.mark.parametrize("text", ["", "left a-1", "both 7-9", "left a-1 9-7", "left a-1 7-9x"])
def test_text_that_names_no_gap_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="SOURCE SPLIT FIRST-LAST"):
        checked_gaps([text])


def test_a_split_may_have_any_name() -> None:
    text = "events a stream-of 2 7-9"

    assert checked_gaps([text, text]) == [text]


def point() -> Manifest:
    positions = NamedPositions((READ, UNREAD), has_looked=True).to_json()
    return manifest_of([[operator_of(uid=SOURCE, positions=positions)]])


def target_of() -> Target:
    return PointFit.of(spec_of(), joining_pipeline(ListSource([]), MemorySink())).target
