"""The number of rows that a restore or a new start sets aside, by the ledgers of the runs between.

Rows that the ledgers no longer list are unknown.
"""

import pytest

from ftdash.checkpoints.models import LedgerRow
from ftdash.jobs.models import Pipeline, Run
from ftdash.points import queries
from ftdash.points.queries import committed_output, rows_after
from ftdash.projection.projector import Projector
from pipelines.domain.ids import CheckpointId
from tests.web.journals import Story, new_run
from tests.web.lineages import forked, gave, over

pytestmark = pytest.mark.usefixtures("site")


def test_output_committed_after_the_point_is_counted() -> None:
    run_of(new_run(), committed=4)

    assert [after(f"/points/flights-1/{number}") for number in (1, 2, 4)] == [27, 21, 0]


def test_uncommitted_or_void_output_does_not_count() -> None:
    run_of(new_run(), committed=2, prepared=1)
    LedgerRow.objects.filter(checkpoint_id=2).update(is_void=True)

    assert after("/points/flights-1/1") == 0


def test_output_of_later_runs_counts_and_of_each_run_up_to_its_fork() -> None:
    first = over(run_of(new_run(), committed=4))
    run_of(forked(first, 3), committed=2, first=4)

    assert after("/points/flights-1/2") == 9 + (12 + 15)


@pytest.mark.parametrize("path", ["/points/flights-1/4", "/points/other-1/1", "/nowhere"])
def test_output_after_a_point_outside_the_newest_runs_ancestry_is_unknown(path: str) -> None:
    first = over(run_of(new_run(), committed=4))
    run_of(forked(first, 3), committed=1, first=4)
    run_of(new_run("other"), committed=1)

    assert after(path) is None


def test_output_is_unknown_where_the_ledger_does_not_reach_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_of(new_run(), committed=4)
    monkeypatch.setattr(queries, "ROWS_KEPT", 2)
    known = after("/points/flights-1/3")

    assert (known, after("/points/flights-1/2")) == (12, None)
    LedgerRow.objects.all().delete()
    assert after("/points/flights-1/3") is None


def test_output_set_aside_by_a_fresh_start_is_counted_by_sink() -> None:
    first = over(run_of(new_run(), committed=4))
    run_of(forked(first, 3), committed=2, prepared=1, first=4)

    [each] = committed_output(Pipeline.objects.get(name="flights"))

    assert (each.sink, each.rows, each.is_whole) == ("delays", 3 + 6 + 9 + (12 + 15), True)
    assert each.first_at <= each.last_at


def test_a_sum_beyond_the_kept_ledger_is_marked_as_incomplete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_of(new_run(), committed=4)
    monkeypatch.setattr(queries, "ROWS_KEPT", 2)

    [each] = committed_output(Pipeline.objects.get(name="flights"))

    assert (each.rows, each.is_whole) == (9 + 12, False)


def run_of(run: Run, *, committed: int, prepared: int = 0, first: int = 1) -> Run:
    """Makes a run in which checkpoint `n` gives `3 * n` rows."""
    story = Story(run).started()
    story.next_checkpoint = CheckpointId(first)
    for number in range(first, first + committed):
        story.completed(path=f"/points/{run.run_id}/{number}")
    for number in range(first, first + committed + prepared):
        story.tell(gave(run, number))
    Projector().run_once()
    return run


def after(path: str) -> int | None:
    return rows_after(path, Pipeline.objects.get(name="flights"))
