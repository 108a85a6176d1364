"""Deletes a savepoint for good. Whether a run still needs it is for the caller to know."""

from pipelines.domain.errors import Rejected
from pipelines.domain.status import CheckpointKind
from pipelines.storage.store import CheckpointStore


def dispose(location: str, store: CheckpointStore) -> None:
    """Only a whole savepoint: checkpoints belong to their run, and anything else is none of ours.

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
