"""The output between two cuts is a difference of counts, never a guess."""

import pytest

from pipelines.domain.ids import Uid
from pipelines.domain.ledger import (
    NOTHING_WRITTEN,
    RECORDS_WRITTEN,
    RECORDS_WRITTEN_SINCE,
    WrittenFigure,
    counter_of_sink,
    published_again,
    written_between,
    written_by,
)

OUT = Uid("out")


@pytest.mark.parametrize(
    ("earlier", "later", "between"),
    [
        (NOTHING_WRITTEN, WrittenFigure(640), 640),
        (WrittenFigure(900), WrittenFigure(1_600), 700),
        (WrittenFigure(9), WrittenFigure(8), 0),
        (None, WrittenFigure(640), None),
        (WrittenFigure(640), None, None),
        (NOTHING_WRITTEN, WrittenFigure(640, is_whole=False), None),
        (WrittenFigure(40, is_whole=False), WrittenFigure(640, is_whole=False), 600),
    ],
)
def test_the_output_between_two_cuts_is_unknown_unless_both_were_counted(
    earlier: WrittenFigure | None, later: WrittenFigure | None, between: int | None
) -> None:
    assert written_between(earlier, later) == between


def test_a_sink_restored_from_an_earlier_version_counts_since_the_upgrade() -> None:
    assert counter_of_sink({}, has_state=False) == RECORDS_WRITTEN
    assert counter_of_sink({RECORDS_WRITTEN: 3}, has_state=True) == RECORDS_WRITTEN
    assert counter_of_sink({}, has_state=True) == RECORDS_WRITTEN_SINCE
    assert counter_of_sink({RECORDS_WRITTEN_SINCE: 3}, has_state=True) == RECORDS_WRITTEN_SINCE
    both = {RECORDS_WRITTEN: 3, RECORDS_WRITTEN_SINCE: 4}  # two subtasks merged into one
    assert counter_of_sink(both, has_state=True) == RECORDS_WRITTEN_SINCE


def test_the_figure_of_a_sink_is_found_among_the_counters_of_a_cut() -> None:
    assert written_by(OUT, {"out.records_written": 7, "in.records_read": 9}) == WrittenFigure(7)
    assert written_by(OUT, {"in.records_read": 9}) is None
    since = {"out.records_written": 7, "out.records_written_since_upgrade": 2}
    assert written_by(OUT, since) == WrittenFigure(9, is_whole=False)


def test_the_sentence_names_the_count_the_target_and_any_unknown_figure() -> None:
    exact = published_again("out", "topic t", 1_600, is_at_most=False)
    assert exact.startswith("1,600 records that readers of topic t have already seen will be pub")
    assert published_again("out", "topic t", 5, is_at_most=True).startswith("Up to 5 records")
    assert "is not known" in published_again("out", "topic t", None, is_at_most=True)
