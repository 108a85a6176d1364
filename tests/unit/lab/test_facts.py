"""A run that did not go as planned is not compared."""

import numpy as np
import pytest

from pipelines.domain.events import Envelope, RunEnded
from pipelines.domain.ids import Attempt, RunId
from pipelines.domain.status import JobStatus
from pipelines.lab.page_views import ROW
from pipelines.lab.report import Facts, TrialFailed, check_comparable


def test_a_run_that_ended_with_all_its_faults_may_be_compared() -> None:
    run = facts(kills=2)

    check_comparable(run, JobStatus.FINISHED, 2)

    with pytest.raises(TrialFailed):
        check_comparable(run, JobStatus.FINISHED, 3)


def test_a_run_that_missed_a_fault_may_not_be_compared() -> None:
    with pytest.raises(TrialFailed, match=r"Of 2 faults only 1 came about in the run\."):
        check_comparable(facts(kills=1), JobStatus.FINISHED, 2)


def test_a_run_that_failed_says_why() -> None:
    with pytest.raises(TrialFailed, match=r"The run is FAILED: The disk is full\."):
        check_comparable(facts(kills=2, reason="The disk is full."), JobStatus.FAILED, 2)


def test_a_canceled_run_without_a_reason_is_reported_as_such() -> None:
    with pytest.raises(TrialFailed, match="CANCELED: its journal does not say why"):
        check_comparable(facts(kills=2), JobStatus.CANCELED, 2)


def facts(*, kills: int, reason: str = "") -> Facts:
    ended = Envelope(
        sequence=1,
        at_ms=0,
        run_id=RunId("lab"),
        attempt=Attempt(1),
        event=RunEnded(status=JobStatus.FINISHED, reason=reason),
    )
    return Facts([ended], np.zeros(0, ROW), [], [(0, 0)] * kills, 0)
