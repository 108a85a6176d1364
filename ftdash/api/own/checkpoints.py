"""Addresses of checkpoints: their history and statistics, and one of them, or two, in full."""

from django.http import HttpRequest
from ninja import Query

from ftdash.api.own.door import api, known
from ftdash.api.own.shapes import AskingForHistory, Count, InPath, Limit, NumberInPath, Page
from ftdash.checkpoints.answers import AlignmentTimeline, CheckpointHistory
from ftdash.checkpoints.comparison import ComparedCheckpoints, compared
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.checkpoints.queries import history
from ftdash.checkpoints.queries.history import HistoryPart
from ftdash.checkpoints.queries.statistics import RunStatistics, statistics_of


@api.get("/runs/{run_id}/checkpoints", response=CheckpointHistory)
def checkpoints(
    request: HttpRequest, run_id: InPath, page: Page = 1, per_page: Limit = 25
) -> CheckpointHistory:
    """Newest first; a page beyond the last is the last."""
    return known(checkpoint_queries.checkpoints(run_id, page, per_page), f"run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/statistics", response=RunStatistics)
def statistics(request: HttpRequest, run_id: InPath) -> RunStatistics:
    """Counts, the latest of each kind, and the distribution of sizes and durations."""
    return known(statistics_of(run_id), f"run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/history", response=HistoryPart)
def checkpoint_history(
    request: HttpRequest, run_id: InPath, asked: Query[AskingForHistory]
) -> HistoryPart:
    """Checkpoints that match a filter, newest first; a part names the places of its neighbours."""
    found = history.history(
        run_id, asked.chosen, after=asked.after, before=asked.before, limit=asked.limit
    )
    return known(found, f"run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/{checkpoint_id}", response=AlignmentTimeline)
def checkpoint(
    request: HttpRequest, run_id: InPath, checkpoint_id: NumberInPath
) -> AlignmentTimeline:
    """The part of each subtask and channel, and which was the slowest."""
    found = checkpoint_queries.alignment(run_id, checkpoint_id)
    return known(found, f"checkpoint {checkpoint_id} of run {run_id!r}")


@api.get("/runs/{run_id}/checkpoints/{checkpoint_id}/comparison", response=ComparedCheckpoints)
def comparison_of_checkpoints(
    request: HttpRequest, run_id: InPath, checkpoint_id: NumberInPath, other: Count
) -> ComparedCheckpoints:
    """Compares it with another one of the run, and says what made one of them take longer."""
    found = compared(run_id, checkpoint_id, other)
    return known(found, f"checkpoint {checkpoint_id} or {other} of run {run_id!r}")
