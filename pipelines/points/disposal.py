"""Deletes a savepoint for good. The caller must know that no run still needs it."""

from pipelines.domain.errors import Rejected
from pipelines.domain.status import CheckpointKind
from pipelines.storage.store import CheckpointStore


def dispose(location: str, store: CheckpointStore) -> None:
    """Deletes only whole savepoints: checkpoints belong to their run, and other files are not ours.

    Raises:
        Rejected: `location` lies outside the storage or holds no savepoint.
        Retryable: the storage failed; then the savepoint is whole, or its manifest is gone.
    """
    manifest = store.manifest(location)
    if manifest.kind is not CheckpointKind.SAVEPOINT:
        raise Rejected(
            f"{location} is a {manifest.kind.lower()} and no savepoint; its run deletes it when"
            " newer ones replace it."
        )
    store.discard(location)
