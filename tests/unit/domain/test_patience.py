"""How long a question waits: the usual time, or less where a person is waiting."""

import math

from pipelines.domain.clock import patience_s, waiting_at_most


def test_patience_is_unchanged_when_no_person_waits() -> None:
    assert patience_s(10.0) == 10.0


def test_a_waiting_person_shortens_the_patience_and_never_extends_it() -> None:
    with waiting_at_most(3.0):
        assert (patience_s(10.0), patience_s(1.0), patience_s(math.inf)) == (3.0, 1.0, 3.0)
        with waiting_at_most(2.0):
            assert patience_s(10.0) == 2.0
        assert patience_s(10.0) == 3.0
    assert patience_s(10.0) == 10.0
