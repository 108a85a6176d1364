"""A run's shared directory as a map: which checkpoint needs which files."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from pipelines.domain.ids import CheckpointId
from pipelines.domain.snapshots import FileHandle, Manifest, StateFormat, StateHandle, StatePart
from pipelines.protocol.retention import RetainedPoint
from pipelines.runtime.master.checkpoints.shared_file_deletion import SharedFilesHost
from tests.unit.runtime.hosted import InlineExecutor
from tests.unit.runtime.points import manifest_of, operator_of

if TYPE_CHECKING:
    from pipelines.storage.store import CheckpointStore


def shared_host(files: Mapping[CheckpointId, Sequence[str]]) -> SharedFilesHost:
    """Returns the shared files' host of a driver that finds those checkpoints."""
    points = [RetainedPoint(checkpoint_id, f"/chk-{checkpoint_id}") for checkpoint_id in files]
    store = cast(
        "CheckpointStore", _Manifests({p.location: files[p.checkpoint_id] for p in points})
    )
    return SharedFilesHost(store, "/checkpoints", InlineExecutor(), lambda _: True, points)


def sharing(names: Sequence[str], **changes: object) -> Manifest:
    """Returns a manifest that refers to shared files with those names."""
    files = [FileHandle(name=name, length=1, digest="", is_shared=True) for name in names]
    state = StateHandle(
        state="total",
        kind="table",
        file=files[0],
        key_groups=(0, 127),
        rows=1,
        schema={},
        format=StateFormat.DELTAS,
        parts=[StatePart(name="delta", file=file) for file in files[1:]],
    )
    return manifest_of([[operator_of(states=[state])]], **changes)


class _Manifests:
    def __init__(self, files: Mapping[str, Sequence[str]]) -> None:
        self._files = files

    def manifest(self, location: str) -> Manifest:
        return sharing(self._files[location])

    def delete(self, location: str, names: Sequence[str]) -> None:
        pass
