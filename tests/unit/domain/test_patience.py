"""How long a question waits: the usual time, or less where a person is waiting."""

import math

from pipelines.domain.clock import patience_s, waiting_at_most


def test_who_is_not_waited_for_waits_as_usual() -> None:
    assert patience_s(10.0) == 10.0


def test_where_somebody_waits_it_is_less_and_never_more_than_usual() -> None:
    with waiting_at_most(3.0):
        assert (patience_s(10.0), patience_s(1.0), patience_s(math.inf)) == (3.0, 1.0, 3.0)
        with waiting_at_most(2.0):
            assert patience_s(10.0) == 2.0
        assert patience_s(10.0) == 3.0
    assert patience_s(10.0) == 10.0
