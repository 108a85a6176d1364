"""Passes quarantined records to the operators once more, after a function was corrected.

A replay is a restore that also reads the quarantine; `points.services.restore` stores it. Owns the
choice of the point, and the preview.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from ftdash.checkpoints.found_damage import passing_on_damage
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.jobs.directories import quarantine_directory
from ftdash.jobs.models import Pipeline
from ftdash.jobs.validation import check_place, roots
from ftdash.requests.asking import pipeline_named
from pipelines.domain.errors import CorruptSnapshot, Rejected, Retryable
from pipelines.domain.settings.parsing import parse_settings


@dataclass(frozen=True, slots=True)
class ReplayOutlook:
    """`records` by source; or, in `refusal`, why no replay is possible now."""

    path: str = ""
    records: dict[str, int] = field(default_factory=dict)
    refusal: str = ""

    @property
    def count(self) -> int:
        return sum(self.records.values())


def newest_point(pipeline: str) -> str:
    """Raises Rejected if there is no such pipeline, or no point to start from."""
    pipeline_named(pipeline)
    points = checkpoint_queries.recovery_points(pipeline)
    point = next((each for each in points if each.is_present), None)
    if point is None:
        raise Rejected(
            f"{pipeline} has no recovery point to go on from, and a quarantine belongs to one;"
            " start the pipeline from the beginning instead."
        )
    return point.path


def outlook(pipeline: Pipeline) -> ReplayOutlook:
    """The preview of a replay from the newest point."""
    path = ""
    try:
        path = newest_point(pipeline.name)
        check_place(path)
        return ReplayOutlook(path, replayable(pipeline, path, pipeline.parameters))
    except Rejected as refusal:
        return ReplayOutlook(path, refusal=str(refusal))


def replayable(
    pipeline: Pipeline, path: str, parameters: dict[str, str], only: Collection[str] = ()
) -> dict[str, int]:
    """How many records each source would supply again. Raises Rejected."""
    # The flows load Arrow, which takes longer than a page should; most requests do not need it.
    from pipelines.flows.finding import find_flow
    from pipelines.points.replay import check_replayable
    from pipelines.storage.stores import CheckpointStores

    try:
        with passing_on_damage(path):
            manifest = CheckpointStores(roots(), max_memory_state_bytes=0).manifest(path)
    except CorruptSnapshot as damage:
        raise Rejected(f"{path} cannot be restored: {damage}") from damage
    except Retryable as error:
        raise Rejected(f"{path} cannot be checked now, try again later: {error}") from error
    built = find_flow(pipeline.flow).build(parameters)
    settings = parse_settings(pipeline.settings)
    home = str(quarantine_directory(pipeline))
    return dict(check_replayable(manifest, built, settings, home, only).items())
