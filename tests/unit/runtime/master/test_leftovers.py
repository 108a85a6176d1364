"""A run ends the unfinished output of earlier runs only when no point can need it."""

import random
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.announce import announce_nothing
from pipelines.bus.journal import JournalWriter
from pipelines.bus.lease import Lease, LeaseLost
from pipelines.connectors.contract import Unfinished
from pipelines.domain.errors import Rejected, Retryable, TargetTaken
from pipelines.domain.events import (
    CheckpointCompleted,
    Event,
    LeftoversDiscarded,
    LeftoversKept,
    SettingsChanged,
)
from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory, SnapshotPlaces
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.settings.resources import CHECKPOINT_DIR, SAVEPOINT_DIR
from pipelines.domain.snapshots import Json
from pipelines.domain.status import CheckpointKind
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.master.output.leftovers import (
    NEEDED,
    RUNS_NAMED_MAX,
    Leftovers,
    Need,
    NeededOutput,
    shares,
)
from pipelines.storage.filesystem import FileSystemCheckpointStore
from tests.unit.runtime.hosted import MemorySink
from tests.unit.runtime.points import PIPELINE, manifest_of, operator_of, spec_of

OLD, OLDER, OWN = RunId("run-1"), RunId("run-0"), RunId("run-2")
ONE = CheckpointId(1)
OUT = Uid("out")


@pytest.mark.parametrize("seed", range(100))
def test_every_item_is_listed_once_and_discarded_only_if_surely_unneeded(seed: int) -> None:
    rng = random.Random(seed)
    runs = [RunId(f"run-{number}") for number in range(4)]
    found = [
        Unfinished(f"name-{number}", rng.choice(runs), rng.choice(["files", "lists"]))
        for number in range(rng.randint(0, 12))
    ]
    needed = {each.name for each in found if rng.random() < 0.3}
    doubts = {run_id: f"{run_id} is away." for run_id in runs if rng.random() < 0.3}

    made = shares(found, Need(frozenset(needed), doubts))

    fates = {item.name: share.why_kept for share in made for item in share.items}
    assert len(fates) == sum(len(share.items) for share in made) == len(found)
    for item in found:
        expected = NEEDED if item.name in needed else doubts.get(item.run_id)
        assert fates[item.name] == expected
    assert all({item.what for item in share.items} == {share.what} for share in made)


def test_transactions_that_writers_end_anyway_are_not_reported_as_kept() -> None:
    item = Unfinished("a", OLD, "transactions", is_ended_by_writers=True)

    assert shares([item], Need(frozenset({"a"}))) == []
    assert shares([item], Need(doubts={OLD: "It is away."})) == []
    assert [share.why_kept for share in shares([item], Need())] == [None]


def test_the_total_size_is_reported_only_when_all_sizes_are_known() -> None:
    sized = [Unfinished(name, OLD, "files", size_bytes=5) for name in "ab"]

    assert shares(sized, Need())[0].size_bytes == 10
    assert shares([*sized, Unfinished("c", OLD, "files")], Need())[0].size_bytes is None


def test_leftovers_of_a_run_without_points_are_discarded_and_reported(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(OLD)
    sink = LeavingSink({"a": OLD, "b": OLD, "mine": OWN})

    events = scene.discard_earlier(sink)

    assert list(sink.left) == ["mine"], "what the run left itself is rewound"
    assert events == [
        LeftoversDiscarded(
            sink=OUT, target="", what="things", count=2, runs=(OLD,), run_count=1, size_bytes=None
        )
    ]


@pytest.mark.parametrize("field", ["committables", "quarantined"])
@pytest.mark.parametrize("is_savepoint", [False, True])
def test_output_that_a_point_names_stays_as_long_as_the_point(
    tmp_path: Path, field: str, is_savepoint: bool
) -> None:
    scene = Scene(tmp_path)
    point = scene.run(OLD).point([{"handle": {"gids": ["a"]}}], field, is_savepoint=is_savepoint)
    sink = LeavingSink({"a": OLD, "b": OLD})

    events = scene.discard_earlier(sink)

    assert list(sink.left) == ["a"]
    kept = LeftoversKept(
        sink=OUT, target="", what="things", why=NEEDED, count=1, runs=(OLD,), run_count=1
    )
    assert kept in events
    shutil.rmtree(point)
    scene.discard_earlier(sink)
    assert not sink.left


def test_the_starting_point_of_the_run_counts_wherever_it_is_stored(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    taken_away = scene.run(OLD).point(["a"]).rename(tmp_path / "kept by hand")
    sink = LeavingSink({"a": OLD, "b": OLD})

    scene.discard_earlier(sink, start=str(taken_away))

    assert list(sink.left) == ["a"]


def _is_unknown(scene: "Scene", run: "Run") -> None:
    shutil.rmtree(run.directory.path)


def _is_driven(scene: "Scene", run: "Run") -> None:
    scene.keep(Lease.acquire(run.directory))


def _has_a_damaged_point(scene: "Scene", run: "Run") -> None:
    manifest = run.point(["c"]) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-20])


def _has_no_readable_specification(scene: "Scene", run: "Run") -> None:
    run.directory.spec_file.write_text("{")


def _has_points_outside_of_the_roots(scene: "Scene", run: "Run") -> None:
    run.specify({CHECKPOINT_DIR: "/elsewhere"})


def _has_a_storage_that_does_not_answer(scene: "Scene", run: "Run") -> None:
    scene.store.is_away = True


def _has_points_on_a_disk_that_is_not_there(scene: "Scene", run: "Run") -> None:
    run.specify({CHECKPOINT_DIR: str(scene.mounted)})
    run.say(completed(scene.mounted / OLD))


def _has_moved_its_savepoints_there(scene: "Scene", run: "Run") -> None:
    run.say(
        SettingsChanged(
            settings={SAVEPOINT_DIR: str(scene.mounted)},
            changed={},
            requested_by="ada",
            reason="test",
        )
    )
    run.say(completed(scene.mounted))


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (_is_unknown, r"^This installation knows nothing of run run-1\.$"),
        (_is_driven, r"^The driver of run run-1 has not ended\.$"),
        (_has_a_damaged_point, r"^The points of run run-1 cannot be read: .*manifest\.json"),
        (_has_no_readable_specification, "^The points of run run-1 cannot be read"),
        (_has_points_outside_of_the_roots, "^The points of run run-1 cannot be read"),
        (_has_a_storage_that_does_not_answer, "^The points of run run-1 cannot be read: .* away"),
        (_has_points_on_a_disk_that_is_not_there, "^Run run-1 has completed checkpoints, and"),
        (_has_moved_its_savepoints_there, "^Run run-1 has completed checkpoints, and"),
    ],
)
def test_all_leftovers_of_a_run_stay_while_its_points_are_in_doubt(
    tmp_path: Path, happens: Callable[["Scene", "Run"], None], why: str
) -> None:
    scene = Scene(tmp_path)
    scene.run(OLDER)
    happens(scene, scene.run(OLD))
    sink = LeavingSink({"a": OLD, "b": OLD, "c": OLDER})

    events = scene.discard_earlier(sink)

    assert {"a", "b"} <= set(sink.left)
    (kept,) = [e for e in events if isinstance(e, LeftoversKept) and e.runs == (OLD,)]
    assert kept.count == 2
    assert re.search(why, kept.why), kept.why


def test_an_empty_directory_of_a_run_without_checkpoints_raises_no_doubt(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(OLD).specify({CHECKPOINT_DIR: str(scene.mounted)})
    sink = LeavingSink({"a": OLD})

    scene.discard_earlier(sink)

    assert not sink.left


def test_a_directory_with_points_of_other_runs_counts_as_mounted(
    tmp_path: Path,
) -> None:
    """This run's points were deleted."""
    scene = Scene(tmp_path)
    _has_points_on_a_disk_that_is_not_there(scene, scene.run(OLD))
    (scene.mounted / "run-9").mkdir(parents=True)
    sink = LeavingSink({"a": OLD})

    scene.discard_earlier(sink)

    assert not sink.left


def test_points_are_also_found_in_the_directory_of_changed_settings(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    run = scene.run(OLD)
    changed = {CHECKPOINT_DIR: str(scene.mounted)}
    run.say(SettingsChanged(settings=changed, changed={}, requested_by="ada", reason="test"))
    run.point(["a"], settings=changed)
    sink = LeavingSink({"a": OLD, "b": OLD})

    scene.discard_earlier(sink)

    assert list(sink.left) == ["a"]


def test_an_ending_run_discards_only_its_own_leftovers(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.run(OLD)
    scene.run(OWN).point(["a"])
    scene.keep(Lease.acquire(scene.run(OWN).directory))
    sink = LeavingSink({"a": OWN, "b": OWN, "c": OLD})

    events = scene.discard_own(sink)

    assert sorted(sink.left) == ["a", "c"]
    assert [type(event) for event in events] == [LeftoversKept, LeftoversDiscarded]


@pytest.mark.parametrize(
    "error", [Retryable("it is away"), Rejected("it refuses."), TargetTaken("it is taken.")]
)
def test_the_end_of_a_run_does_not_wait_for_its_targets(tmp_path: Path, error: Exception) -> None:
    scene = Scene(tmp_path)
    scene.run(OWN)
    sink = LeavingSink({"a": OWN}, error)

    (said,) = scene.discard_own(sink)

    assert isinstance(said, LeftoversKept)
    assert said.why.endswith(str(error))


@pytest.mark.parametrize("way", ["discard_earlier", "discard_own"])
def test_a_driver_that_has_lost_the_run_discards_nothing(tmp_path: Path, way: str) -> None:
    scene = Scene(tmp_path)
    scene.run(OLD)
    scene.run(OWN)
    sink = LeavingSink({"a": OLD, "b": OWN})

    def lost() -> None:
        raise LeaseLost(scene.run(OWN).directory, None)

    scene.check_held = lost
    with pytest.raises(LeaseLost):
        getattr(scene, way)(sink)

    assert sorted(sink.left) == ["a", "b"]


def test_a_start_does_not_continue_while_its_target_is_away_or_taken(
    tmp_path: Path,
) -> None:
    scene = Scene(tmp_path)
    scene.run(OLD)

    for error in (Retryable("it is away"), TargetTaken("it is taken.")):
        with pytest.raises(type(error)):
            scene.discard_earlier(LeavingSink({"a": OLD}, error))
    (said,) = scene.discard_earlier(LeavingSink({"a": OLD}, Rejected("it refuses.")))
    assert isinstance(said, LeftoversKept)


def test_an_event_names_a_bounded_number_of_runs(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    runs = [RunId(f"run-{number + 10}") for number in range(RUNS_NAMED_MAX + 5)]
    for run_id in runs:
        scene.run(run_id)

    (said,) = scene.discard_earlier(LeavingSink({f"of {run_id}": run_id for run_id in runs}))

    assert isinstance(said, LeftoversDiscarded)
    assert (len(said.runs), said.run_count, said.count) == (RUNS_NAMED_MAX, len(runs), len(runs))


def test_the_storage_is_not_asked_when_there_are_no_leftovers(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.store.is_away = True

    assert scene.discard_earlier(LeavingSink({})) == []
    assert scene.discard_earlier(MemorySink()) == []


class LeavingSink(MemorySink):
    """A sink with leftovers: `left` maps names to runs. `discard` raises `error`, if any."""

    def __init__(self, left: dict[str, RunId], error: Exception | None = None) -> None:
        super().__init__()
        self.left = left
        self._error = error

    def unfinished(self) -> list[Unfinished]:
        return [Unfinished(name, run_id, "things") for name, run_id in self.left.items()]

    def discard(self, names: Collection[str], run_id: RunId) -> int:
        assert run_id == OWN
        if self._error is not None:
            raise self._error
        return len([self.left.pop(name) for name in names])


class AwayStore(FileSystemCheckpointStore):
    is_away = False

    def names(self, root: str) -> list[str]:
        if self.is_away:
            raise Retryable("the storage is away")
        return super().names(root)


class Scene:
    """Runs of one pipeline; the run OWN cleans up. `mounted` is a place on another disk."""

    def __init__(self, root: Path) -> None:
        self.mounted = root / "mounted"
        self._jobs = root / "jobs"
        roots = [str(self._jobs), str(root)]
        self.store = AwayStore(roots)
        own = RunDirectory.of(self._jobs, PIPELINE, OWN)
        self._needed = NeededOutput(own, self.store, roots)
        self.check_held: Callable[[], None] = lambda: None
        self._kept: list[object] = []

    def run(self, run_id: RunId) -> "Run":
        return Run(RunDirectory.of(self._jobs, PIPELINE, run_id), self.store)

    def keep(self, lease: Lease) -> None:
        self._kept.append(lease)

    def discard_earlier(self, sink: MemorySink, start: str | None = None) -> list[Event]:
        events: list[Event] = []
        self._leftovers(events).discard_earlier([(OUT, sink)], start)
        return events

    def discard_own(self, sink: MemorySink) -> list[Event]:
        events: list[Event] = []
        self._leftovers(events).discard_own([(OUT, sink)])
        return events

    def _leftovers(self, events: list[Event]) -> Leftovers:
        return Leftovers(OWN, self._needed, events.append, self.check_held)


class Run:
    def __init__(self, directory: RunDirectory, store: FileSystemCheckpointStore) -> None:
        self.directory = directory
        self._store = store
        if not directory.spec_file.exists():
            directory.path.mkdir(parents=True)
            self.specify({})

    def specify(self, settings: dict[str, str]) -> None:
        spec = spec_of(run_id=self.directory.run_id, settings=settings)
        self.directory.spec_file.write_bytes(msgspec.json.encode(spec))

    def say(self, event: Event) -> None:
        run_id = self.directory.run_id
        with JournalWriter(self.directory, run_id, SystemClock(), announce_nothing) as journal:
            journal.append(event, Attempt(1))

    def point(
        self,
        prepared: list[Json],
        field: str = "committables",
        *,
        is_savepoint: bool = False,
        settings: dict[str, str] | None = None,
    ) -> Path:
        places = SnapshotPlaces.of(self.directory, parse_settings(settings or {}).storage)
        location = places.savepoint(ONE) if is_savepoint else places.checkpoint(ONE)
        self._store.prepare(location)
        manifest = manifest_of([[operator_of(**{field: prepared})]])
        self._store.publish(location, manifest)
        return Path(location)


def completed(root: Path) -> CheckpointCompleted:
    return CheckpointCompleted(
        checkpoint_id=ONE,
        kind=CheckpointKind.CHECKPOINT,
        path=f"{root}/chk-1",
        end_to_end_ms=1.0,
        state_bytes=0,
        uploaded_bytes=0,
        buffered_records=0,
        buffered_bytes=0,
        source_records=0,
        watermark_ms=None,
        counters={},
    )
