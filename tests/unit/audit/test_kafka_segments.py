"""Which of a producer's transactions, on several partitions, form its next segment."""

import pytest

from pipelines.audit.kafka_output import SUBSETS_MAX, Committed, PublishedSegments
from pipelines.audit.report import Covers, Rows

ONE, OTHER = 7, 8


def test_segments_are_taken_in_order_from_any_partitions() -> None:
    segments = PublishedSegments(
        {ONE: [on(0, 1, 5), on(0, 2, 6), on(1, 1, 7), on(1, 3, 8)], OTHER: [on(0, 1, 9)]}
    )

    assert segments.take(ONE, Rows(2, 12)) is Covers.DIGESTED
    assert segments.take(ONE, Rows(1, 6)) is Covers.DIGESTED
    assert segments.take(OTHER, Rows(1, 9)) is Covers.DIGESTED
    assert segments.left(ONE) == [on(1, 3, 8)]


def test_matching_digests_overrule_clocks_that_disagree() -> None:
    segments = PublishedSegments({ONE: [on(0, 9, 5), on(1, 1, 6)]})

    assert segments.take(ONE, Rows(1, 5)) is Covers.DIGESTED


def test_on_many_partitions_the_earliest_transaction_comes_first() -> None:
    many = SUBSETS_MAX + 1
    segments = PublishedSegments({ONE: [on(partition, -partition, 5) for partition in range(many)]})

    segments.take(ONE, Rows(1, 5))

    assert {each.partition for each in segments.left(ONE)} == set(range(many - 1))


@pytest.mark.parametrize("expected", [Rows(1, 99), Rows(3, 11)], ids=["other rows", "a row more"])
def test_transactions_that_match_no_segment_stay_and_are_reported(expected: Rows) -> None:
    segments = PublishedSegments({ONE: [on(0, 1, 5), on(1, 1, 6)]})

    assert segments.take(ONE, expected) == Rows(2, 11)
    assert len(segments.left(ONE)) == 2


@pytest.mark.parametrize(("there", "given"), [(None, 5), (5, None)])
def test_a_segment_that_cannot_be_digested_is_counted(there: int | None, given: int | None) -> None:
    segments = PublishedSegments({ONE: [on(0, 1, there)]})

    assert segments.take(ONE, Rows(1, given)) is Covers.COUNTED


def test_a_producer_that_wrote_nothing_has_no_segment() -> None:
    assert PublishedSegments({}).take(ONE, Rows(1, 5)) == Rows(0, 0)


def on(partition: int, at_ms: int, digest: int | None) -> Committed:
    """Returns a committed transaction of one record."""
    return Committed(partition, at_ms, at_ms, Rows(1, digest), at_ms)
