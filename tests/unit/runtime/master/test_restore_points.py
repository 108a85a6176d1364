"""The points that a run may start from, and the sentences that refuse all others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pipelines.bus.lease import LeaseLost
from pipelines.connectors.files.quarantine import quarantine_of
from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.events import Event, OutputSuperseded, RestorePointRefused
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.domain.snapshots import FileHandle, Manifest, StateHandle
from pipelines.domain.status import CheckpointKind
from pipelines.points.fit import PointFit
from pipelines.protocol.retention import RetainedPoint, RetainedPoints
from pipelines.runtime.master.start.starting_point import (
    StartingPoint,
    StartingPointChooser,
    next_checkpoint_id,
    own_points,
    requested_point,
)
from tests.takeovers import held, rewound
from tests.unit.runtime.fakes import SCHEMA, ListSource
from tests.unit.runtime.hosted import MemorySink, joining_pipeline
from tests.unit.runtime.points import (
    manifest_of,
    operator_of,
    places_in,
    spec_of,
    store_in,
    stored_keys,
)

JOINING = joining_pipeline(ListSource([]), MemorySink())
GONE = Uid("gone")

HELD = [
    StateHandle(
        state="seen",
        kind="batches",
        file=FileHandle(name="seen.arrow", length=1, digest=""),
        key_groups=(0, 127),
        rows=1,
        schema={name: str(SCHEMA.field(name).type) for name in SCHEMA.names}
        | {"__namespace": "int64", "__key_group": "uint16"},
    )
]

MISFITS: list[tuple[Callable[[], Manifest], list[str]]] = [
    (
        lambda: manifest_of([[operator_of(uid=GONE, positions=[0])]], pipeline="other"),
        ["chk-1", "'other'", "'joining'", "'gone'"],
    ),
    (lambda: manifest_of([[]], max_parallelism=64), ["chk-1", "64", "128"]),
    (
        lambda: manifest_of([[operator_of(states=HELD), operator_of(uid=GONE, positions=[0])]]),
        ["chk-1", "'gone'", "allow"],
    ),
    (lambda: manifest_of([[operator_of(uid=GONE, committables=[{}])]]), ["chk-1", "'gone'"]),
]


@pytest.mark.parametrize(("misfit", "named"), MISFITS)
def test_a_point_that_does_not_fit_is_refused_in_one_sentence_that_names_why(
    misfit: Callable[[], Manifest], named: list[str]
) -> None:
    with pytest.raises(Rejected) as refusal:
        PointFit.of(spec_of(), JOINING).check(misfit(), "/points/chk-1")

    sentence = str(refusal.value)
    assert all(name in sentence for name in named)
    assert sentence.endswith(".")
    assert len(sentence.splitlines()) == 1


def test_an_operator_without_state_may_disappear() -> None:
    stateless = manifest_of([[operator_of(uid=GONE, counters={"read": 1}, watermark_ms=5)]])

    found = PointFit.of(spec_of(), JOINING).check(stateless, "/points/chk-1")

    assert (found.problems, found.dropped, found.dropped_states) == ((), (), ())


def test_a_new_id_is_above_all_directories_of_the_run_even_incomplete_ones(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    publish(tmp_path, places.checkpoint(CheckpointId(3)))
    Path(places.checkpoint(CheckpointId(7))).mkdir(parents=True)
    Path(places.savepoint(CheckpointId(5))).mkdir(parents=True)

    assert next_id(tmp_path) == 8


def test_a_new_id_is_above_savepoints_of_this_run_but_ignores_other_runs(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    Path(places.savepoint(CheckpointId(12))).mkdir(parents=True)
    Path(places.savepoints, "savepoint-run-2-40").mkdir()

    assert next_id(tmp_path) == 13


def test_an_id_that_was_triggered_but_never_stored_is_not_used_again(
    tmp_path: Path,
) -> None:
    publish(tmp_path, places_in(tmp_path).checkpoint(CheckpointId(3)))

    assert next_id(tmp_path, triggered=5) == 6
    assert next_id(tmp_path, triggered=2) == 4


@pytest.mark.parametrize("first", [1, 42])
def test_the_first_id_is_the_one_in_the_run_specification(first: int, tmp_path: Path) -> None:
    spec = spec_of(first_checkpoint_id=CheckpointId(first))

    assert next_id(tmp_path, spec=spec) == first


def test_own_points_are_the_complete_points_of_this_run(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    chk, save = places.checkpoint(CheckpointId(2)), places.savepoint(CheckpointId(3))
    for location in (chk, save, f"{places.savepoints}/savepoint-run-2-9"):
        publish(tmp_path, location)
    Path(places.checkpoint(CheckpointId(4))).mkdir()

    points = own_points(places, store_in(tmp_path))

    assert sorted(points, key=lambda p: p.checkpoint_id) == [
        RetainedPoint(CheckpointId(2), str(chk)),
        RetainedPoint(CheckpointId(3), str(save), is_savepoint=True),
    ]


def test_a_run_without_a_requested_point_starts_from_the_beginning(tmp_path: Path) -> None:
    chooser = Chooser(tmp_path)

    start = chooser.choose()

    assert start == StartingPoint(point=None, lineage=(), source_records=0)
    assert requested_point(spec_of(), store_in(tmp_path)) is None


def test_a_run_starts_from_the_requested_point_with_its_lineage(tmp_path: Path) -> None:
    asked = tmp_path / "elsewhere" / "savepoint-run-0-6"
    publish(
        tmp_path,
        asked,
        run_id=RunId("run-0"),
        checkpoint_id=CheckpointId(6),
        kind=CheckpointKind.SAVEPOINT,
        ancestors=[("run-a", 2)],
    )

    start = Chooser(tmp_path, restore_from=str(asked)).choose()

    assert start.point == RetainedPoint(CheckpointId(6), str(asked), is_savepoint=True)
    assert start.lineage == (("run-a", 2), ("run-0", 6))
    assert start.source_records == 10


def test_a_point_of_the_run_takes_precedence_over_the_requested_one(tmp_path: Path) -> None:
    asked, own = tmp_path / "savepoint-run-0-6", places_in(tmp_path).checkpoint(CheckpointId(7))
    publish(tmp_path, asked, run_id=RunId("run-0"))
    publish(tmp_path, own, checkpoint_id=CheckpointId(7), ancestors=[("run-0", 6)])

    start = Chooser(tmp_path, restore_from=str(asked)).choose()

    assert start.location == str(own)
    assert start.ancestors_of(RunId("run-1")) == [("run-0", 6)]


def test_a_point_of_another_pipeline_with_the_same_uids_is_accepted(tmp_path: Path) -> None:
    asked = tmp_path / "savepoint-run-0-6"
    publish(tmp_path, asked, pipeline="other", checkpoint_id=CheckpointId(6))

    assert Chooser(tmp_path, restore_from=str(asked)).choose().checkpoint_id == 6


def test_a_requested_point_of_a_pipeline_with_other_uids_is_refused(tmp_path: Path) -> None:
    asked = tmp_path / "savepoint-run-0-6"
    foreign = manifest_of([[operator_of(uid=GONE, positions=[0])]], pipeline="other")
    store_in(tmp_path).publish(str(asked), foreign)

    with pytest.raises(Rejected, match="'other'"):
        Chooser(tmp_path, restore_from=str(asked), allow_non_restored_state=True).choose()


def test_a_start_names_the_states_that_it_may_drop(tmp_path: Path) -> None:
    asked = tmp_path / "savepoint-run-0-6"
    store = store_in(tmp_path)
    states = stored_keys(store, str(asked), 0, 1, [1, 2])
    renamed = [msgspec.structs.replace(state, state="former") for state in states]
    store.publish(str(asked), manifest_of([[operator_of(states=[*states, *renamed])]]))

    with pytest.raises(Rejected, match="'former'"):
        Chooser(tmp_path, restore_from=str(asked)).choose()
    start = Chooser(tmp_path, restore_from=str(asked), allow_non_restored_state=True).choose()

    assert start.dropped_states == ((Uid("both"), "former"),)


def test_a_damaged_point_is_read_once_and_reported_each_time_it_is_skipped(tmp_path: Path) -> None:
    places = places_in(tmp_path)
    for checkpoint_id in (1, 2):
        location = places.checkpoint(CheckpointId(checkpoint_id))
        publish(tmp_path, location, checkpoint_id=CheckpointId(checkpoint_id))
    damaged = truncate_state(Path(places.checkpoint(CheckpointId(2))))
    chooser = Chooser(tmp_path)

    starts = [chooser.choose(), chooser.choose()]

    refused, passed_over = chooser.events
    assert isinstance(refused, RestorePointRefused)
    assert isinstance(passed_over, RestorePointRefused)
    assert refused.path == passed_over.path == str(places.checkpoint(CheckpointId(2)))
    assert damaged.name in refused.message
    assert passed_over.message == f"Passed over: {refused.message}"
    assert [start.checkpoint_id for start in starts] == [1, 1]


def test_a_run_does_not_start_afresh_if_all_its_points_are_damaged(tmp_path: Path) -> None:
    location = places_in(tmp_path).checkpoint(CheckpointId(1))
    publish(tmp_path, location)
    damaged = truncate_state(Path(location))

    with pytest.raises(CorruptSnapshot, match=damaged.name):
        Chooser(tmp_path).choose()


def test_sinks_rewind_to_the_lineage_and_report_superseded_output(tmp_path: Path) -> None:
    chooser = Chooser(tmp_path)
    start = StartingPoint(
        point=None, lineage=((RunId("run-0"), CheckpointId(6)),), source_records=0
    )

    chooser.chooser.rewind_sinks(start)

    assert chooser.sink.rewound_to == [([("run-0", 6)], "run-1")]
    assert chooser.events == [OutputSuperseded(sink=Uid("out"), files=2, moved_to="aside")]


def test_records_quarantined_after_the_restored_point_are_set_aside(tmp_path: Path) -> None:
    chooser = Chooser(tmp_path)
    quarantine = tmp_path / "quarantine" / "left"
    sink = quarantine_of(quarantine.parent, Uid("left"), spec_of().pipeline)
    rewound(sink, [], RunId("run-0"))
    held(sink, spec_of().run_id)
    for name in ("part-run-0-00000006-0-0.jsonl", "part-run-0-00000007-0-0.jsonl"):
        (quarantine / name).write_text("{}")

    chooser.chooser.rewind_sinks(
        StartingPoint(point=None, lineage=((RunId("run-0"), CheckpointId(6)),), source_records=0)
    )

    assert [path.name for path in quarantine.glob("part-*")] == ["part-run-0-00000006-0-0.jsonl"]
    moved_to = str(quarantine / "_superseded" / "run-1")
    assert OutputSuperseded(sink=Uid("left"), files=1, moved_to=moved_to) in chooser.events


def test_a_driver_that_has_lost_the_run_sets_no_output_aside(tmp_path: Path) -> None:
    chooser = Chooser(tmp_path)

    def lost() -> None:
        raise LeaseLost(RunDirectory(tmp_path), None)

    late = replace(chooser.chooser, check_held=lost)
    with pytest.raises(LeaseLost):
        late.rewind_sinks(StartingPoint(point=None, lineage=(), source_records=0))
    untouched = list(chooser.sink.rewound_to)
    chooser.chooser.rewind_sinks(StartingPoint(point=None, lineage=(), source_records=0))

    assert (untouched, len(chooser.sink.rewound_to)) == ([], 1)


class Chooser:
    """A chooser over the run's own points on disk, and the events that it has reported."""

    def __init__(self, root: Path, restore_from: str | None = None, **asked: bool) -> None:
        self.events: list[Event] = []
        self.sink = MemorySink()
        store, places = store_in(root), places_in(root)
        self.points = RetainedPoints(3, tuple(own_points(places, store)))
        self.chooser = StartingPointChooser(
            spec=spec_of(restore_from=restore_from, **asked),
            pipeline=joining_pipeline(ListSource([]), self.sink),
            store=store,
            emit=self.events.append,
            quarantine=str(root / "quarantine"),
        )

    def choose(self) -> StartingPoint:
        return self.chooser.choose(self.points)


def next_id(root: Path, *, triggered: int = 0, spec: RunSpec | None = None) -> CheckpointId:
    newest = CheckpointId(triggered)
    return next_checkpoint_id(places_in(root), store_in(root), spec or spec_of(), newest)


def publish(root: Path, location: str | Path, **changes: object) -> None:
    """Publishes a complete point with ten records of state."""
    store = store_in(root)
    states = stored_keys(store, str(location), 0, 1, list(range(10)))
    operator = operator_of(states=states, counters={"records_read": 10})
    store.publish(str(location), manifest_of([[operator]], **changes))


def truncate_state(point: Path) -> Path:
    (path,) = point.glob("*.arrow")
    path.write_bytes(path.read_bytes()[:-1])
    return path
