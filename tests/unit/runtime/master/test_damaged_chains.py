"""A checkpoint that refers to a damaged file fails, and the next one builds on no older file."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.events import (
    CheckpointTriggered,
    DamageRemembered,
    RestorePointRefused,
)
from pipelines.domain.ids import BUILD_ON_NOTHING, CheckpointId, RequestId, Uid
from pipelines.domain.snapshots import FileHandle, OperatorSnapshot, SubtaskSnapshot
from pipelines.domain.status import CheckpointKind, DamageFinder
from pipelines.protocol.retention import RetainedPoint
from pipelines.protocol.triggering import TriggerRequest
from pipelines.runtime.control import Acknowledged, Inject
from pipelines.storage.store import Damage
from tests.unit.runtime.fakes import SCHEMA, batch_of
from tests.unit.runtime.hosted_checkpoints import VERTICES, Master
from tests.unit.runtime.points import places_in, store_in
from tests.unit.runtime.recording_attempt import phases_of
from tests.unit.runtime.shared_points import sharing

TOLERATES_NONE = {"execution.checkpointing.tolerable-failed-checkpoints": "0"}
SUSPENDED = CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND
CONCURRENT = {"execution.checkpointing.max-concurrent-checkpoints": "3"}


def test_a_missing_file_fails_the_checkpoint_that_refers_to_it_and_no_later_one(
    tmp_path: Path,
) -> None:
    """The failure does not count against the tolerance, because no subtask has failed."""
    run = Run(tmp_path, TOLERATES_NONE)
    base = run.complete_with("base")
    (run.shared / base).unlink()

    run.complete_with("delta", refers_to=[base])
    run.complete_with("base again")

    [failed] = run.master.failed
    assert (failed.checkpoint_id, failed.reason) == (2, CheckpointFailureReason.DAMAGED_FILE)
    assert f"{run.shared / base} is missing." in failed.message
    assert run.master.completed == [1, 3]
    assert run.confirmed == [0, 1, BUILD_ON_NOTHING]
    assert run.master.too_many == []
    [found] = run.master.of(DamageRemembered)
    assert (found.files, found.found_by) == ([base], DamageFinder.CHECKPOINT)
    assert [e.path for e in run.master.of(RestorePointRefused)] == [run.place(1)]


def test_a_manifest_refused_while_the_attempt_died_fails_for_the_same_reason(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, TOLERATES_NONE)
    base = run.complete_with("base")
    (run.shared / base).unlink()
    run.master.trigger()
    run.acknowledge(2, [base], deliver=False)

    run.master.host.on_stopped(SUSPENDED, "slot 1 was killed")
    run.master.deliver()

    [failed] = run.master.failed
    assert failed.reason is CheckpointFailureReason.DAMAGED_FILE
    assert f"{run.shared / base} is missing." in failed.message
    assert run.master.too_many == []
    [found] = run.master.of(DamageRemembered)
    assert found.files == [base]


def test_damage_found_during_a_checkpoint_fails_it_before_its_manifest(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, TOLERATES_NONE)
    base = run.complete_with("base")
    run.master.trigger()

    run.find(1, base)
    run.acknowledge(2, [base])
    run.complete_with("base again")

    [failed] = run.master.failed
    assert failed.reason is CheckpointFailureReason.DAMAGED_FILE
    assert base in failed.message
    assert run.master.completed == [1, 3]
    assert run.confirmed[-1] == BUILD_ON_NOTHING
    assert [path for _, path in run.master.listener.publishing] == [run.place(1), run.place(3)]


def test_damage_found_while_the_manifest_is_written_marks_the_point(tmp_path: Path) -> None:
    run = Run(tmp_path, {"execution.checkpointing.num-retained": "1"})
    base = run.complete_with("base")
    run.master.trigger()
    run.acknowledge(2, [base], deliver=False)

    run.find(1, base)
    run.master.deliver()

    assert run.master.completed == [1, 2]
    assert [e.path for e in run.master.of(RestorePointRefused)] == [run.place(1), run.place(2)]
    candidates = run.master.host.points.candidates()
    assert [point.checkpoint_id for point in candidates] == [2, 1]  # neither replaces the other
    run.master.trigger()
    assert run.confirmed[-1] == BUILD_ON_NOTHING


def test_a_file_missing_only_in_an_old_listing_does_not_count_as_damaged(tmp_path: Path) -> None:
    """A network file system may have an old listing, so the host also checks the file itself."""
    run = Run(tmp_path)
    base = run.complete_with("base")
    run.hide(base)

    run.complete_with("delta", refers_to=[base])

    assert run.master.completed == [1, 2]
    assert run.master.of(DamageRemembered) == []


def test_a_savepoint_completes_despite_damaged_files(tmp_path: Path) -> None:
    run = Run(tmp_path)
    base = run.complete_with("base")
    run.find(1, base)

    run.master.host.triggers.on_request(TriggerRequest(CheckpointKind.SAVEPOINT, RequestId("save")))
    run.master.trigger()
    run.acknowledge(2, [])

    assert run.master.completed == [1, 2]


class Run:
    def __init__(self, root: Path, settings: dict[str, str] | None = None) -> None:
        self.master = Master(root, settings)
        self._root = root
        self.shared = Path(places_in(root).checkpoints) / "shared"
        self._handles: dict[str, FileHandle] = {}

    @property
    def confirmed(self) -> list[int]:
        return [order.confirmed_id for order in self.master.attempt.of(Inject)]

    def place(self, checkpoint_id: int) -> str:
        return places_in(self._root).checkpoint(CheckpointId(checkpoint_id))

    def complete_with(self, stem: str, refers_to: Sequence[str] = ()) -> str:
        """Takes a checkpoint that needs files and writes a shared one; returns the new name."""
        self.master.trigger()
        checkpoint_id = self.master.of(CheckpointTriggered)[-1].checkpoint_id
        name = f"c{checkpoint_id}-a1-{stem}"
        rows = [batch_of([(checkpoint_id, 1)])]
        store = store_in(self._root)
        written = store.write_batches(str(self.shared), name, SCHEMA, rows, open_format=False)
        self._handles[written.name] = msgspec.structs.replace(written, is_shared=True)
        self.acknowledge(checkpoint_id, [*refers_to, written.name])
        return written.name

    def acknowledge(
        self, checkpoint_id: int, names: Sequence[str], *, deliver: bool = True
    ) -> None:
        for vertex in VERTICES:
            self._acknowledge(checkpoint_id, vertex, names if vertex == "both" else ())
        if deliver:
            self.master.deliver()

    def _acknowledge(self, checkpoint_id: int, vertex: str, names: Sequence[str]) -> None:
        operator = OperatorSnapshot(uid=Uid(vertex))
        if names:
            handles = [self._handles[name] for name in names]
            operator = sharing(names).subtasks[0].operators[0]
            [state] = operator.states
            parts = [
                msgspec.structs.replace(part, file=handle)
                for part, handle in zip(state.parts, handles[1:], strict=True)
            ]
            state = msgspec.structs.replace(state, file=handles[0], parts=parts)
            operator = msgspec.structs.replace(operator, states=[state])
        snapshot = SubtaskSnapshot(vertex=Uid(vertex), subtask=0, operators=[operator])
        self.master.host.on_acknowledged(
            Acknowledged(
                checkpoint_id=CheckpointId(checkpoint_id),
                snapshot=snapshot,
                phases=phases_of(vertex, 0),
                source_records=10,
                watermark_ms=100,
            )
        )

    def find(self, checkpoint_id: int, name: str) -> None:
        """Reports damage to the file, as verification does."""
        point = RetainedPoint(CheckpointId(checkpoint_id), self.place(checkpoint_id))
        damage = Damage(name, f"{name} was altered.", is_shared=True)
        self.master.host.damage.on_found(point, [damage], DamageFinder.VERIFICATION, "torn")

    def hide(self, name: str) -> None:
        store = self.master.store
        names = store.names
        store.names = lambda root: [n for n in names(root) if n != name]  # type: ignore[method-assign]
