"""Decides which unfinished output the recovery points of a pipeline's runs still need.

Reads points and changes nothing. A point needs what its committables name: a run that restores it
commits that first. A point that cannot be read does not count as absent: its run is then in doubt,
and its output stays.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from pipelines.bus.journal_reading import UndecodableEvent, newest_event
from pipelines.bus.journal_segments import segments_of
from pipelines.bus.lease import is_driven
from pipelines.domain.decoding import UNDECODABLE
from pipelines.domain.errors import Rejected, Retryable
from pipelines.domain.events import CheckpointCompleted, SettingsChanged
from pipelines.domain.ids import RunId
from pipelines.domain.places import MEMORY, SnapshotPlaces, scheme_of
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.snapshots import Json, Manifest
from pipelines.storage.store import CheckpointStore


class InDoubt(Exception):
    """It is not known what the points of a run need. Says why in a sentence."""


@dataclass(frozen=True, slots=True)
class Need:
    """`names`: of output that a point needs. `doubts`: why that is not known of a run."""

    names: frozenset[str] = frozenset()
    doubts: Mapping[RunId, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NeededOutput:
    """As the driver of the run in `own` sees it. The first of `storage_roots` holds all runs."""

    own: RunDirectory
    store: CheckpointStore
    storage_roots: Collection[str]

    def of(self, runs: Collection[RunId], start: str | None) -> Need:
        """The output that points of these runs of the pipeline need, or the point at `start`.

        Only a run's own points name its unfinished output: a run that restores one of them commits
        that before it takes a point of its own.
        """
        names: set[str] = set()
        doubts: dict[RunId, str] = {}
        for run_id in runs:
            run = RunDirectory(self.own.path.parent / run_id)
            try:
                names |= self._named_by_run(run, start)
            except InDoubt as doubt:
                doubts[run_id] = str(doubt)
        return Need(frozenset(names), doubts)

    def _named_by_run(self, run: RunDirectory, start: str | None) -> set[str]:
        """Looks at the lease first: without a driver, the run adds no point meanwhile."""
        try:
            if not run.spec_file.exists():
                raise InDoubt(f"This installation knows nothing of run {run.run_id}.")
            if run.run_id != self.own.run_id and is_driven(run):
                raise InDoubt(f"The driver of run {run.run_id} has not ended.")
            points = {
                point for places in self._places(run) for point in self._points(places, run)
            } | ({start} if start is not None else set())
            return {name for point in points for name in named_by(self.store.manifest(point))}
        except (Retryable, Rejected, OSError, UndecodableEvent, *UNDECODABLE) as error:
            raise InDoubt(f"The points of run {run.run_id} cannot be read: {error}") from error

    def _places(self, run: RunDirectory) -> list[SnapshotPlaces]:
        """Where its settings send points: the settings of its start, and those it has since."""
        spec = msgspec.json.decode(run.spec_file.read_bytes(), type=RunSpec)
        changed = newest_event(run.journal_file, SettingsChanged)
        given = [spec.settings, *([changed.settings] if changed is not None else [])]
        return [SnapshotPlaces.of(run, parse_settings(settings)) for settings in given]

    def _points(self, places: SnapshotPlaces, run: RunDirectory) -> Iterator[str]:
        of_all_runs = places.checkpoints.rpartition("/")[0]
        for root, filled in ((places.checkpoints, of_all_runs), (places.savepoints,) * 2):
            if scheme_of(root) == MEMORY:
                continue  # these points ended with their driver
            names = self.store.names(root)
            if not names:
                self._check_mounted(root, filled, run)
            own = [name for name in names if places.checkpoint_id_of(name) is not None]
            yield from self.store.published(root, among=own)

    def _check_mounted(self, root: str, filled: str, run: RunDirectory) -> None:
        """An empty `root` has no point, or its disk is not mounted: then `filled`, which also holds
        points of other runs, is empty, too. Raises InDoubt."""
        home = next(iter(self.storage_roots))
        if scheme_of(root) or root.startswith(f"{home.rstrip('/')}/") or self.store.names(filled):
            return
        if _may_have_points(root, run):
            raise InDoubt(
                f"Run {run.run_id} has completed checkpoints, and {root} is empty: see that the"
                " storage is mounted."
            )


def _may_have_points(root: str, run: RunDirectory) -> bool:
    """A journal of several segments has only the newest point."""
    is_cut_short = any(segment.base for segment in segments_of(run.journal_file))
    newest = newest_event(
        run.journal_file,
        CheckpointCompleted,
        lambda event: is_cut_short or event.path.startswith(f"{root}/"),
    )
    return newest is not None


def named_by(manifest: Manifest) -> Iterator[str]:
    """All texts in what the sinks of a point have prepared; the names of output are among them."""
    for subtask in manifest.subtasks:
        for operator in subtask.operators:
            yield from texts_in(operator.committables)
            yield from texts_in(operator.quarantined)


def texts_in(value: Json) -> Iterator[str]:
    """The texts in plain JSON, without the names of fields."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_in(each)
        case dict():
            for each in value.values():
                yield from texts_in(each)
