"""The ledger of a sink's rows: each row is in one share, each share in a completed checkpoint."""

import random

import pytest

from pipelines.domain.ids import CheckpointId
from pipelines.domain.ledger import OutputShare
from pipelines.protocol.commit import DIGEST_MODULUS, OutputLedger


@pytest.mark.parametrize("seed", range(100))
def test_completed_snapshots_cover_exactly_the_rows_given_to_the_sink(seed: int) -> None:
    """Checkpoints complete, abort, or complete without this subtask hearing of it."""
    rng = random.Random(seed)
    ledger, given, rows, found = OutputLedger(), 0, 0, dict[CheckpointId, OutputShare]()

    for number in range(1, 12):
        for _ in range(rng.randint(0, 3)):
            digest = rng.randrange(DIGEST_MODULUS)
            ledger.on_given(1, digest)
            given, rows = given + digest, rows + 1
        shares = ledger.on_prepared(CheckpointId(number), [])
        if number < 11 and rng.random() < 0.4:
            continue  # aborted
        for share in shares:
            assert found.setdefault(share.checkpoint_id, share) == share
        if rng.random() < 0.7:
            ledger.on_completed(CheckpointId(number))

    assert sum(share.rows for share in found.values()) == rows
    digests = [int(share.digest or "", 16) for share in found.values()]
    assert sum(digests) % DIGEST_MODULUS == given % DIGEST_MODULUS


def test_the_next_checkpoint_includes_the_share_of_an_aborted_one() -> None:
    ledger = OutputLedger()
    ledger.on_given(2, 7)
    aborted = ledger.on_prepared(CheckpointId(1), ["file-1"])

    ledger.on_given(1, 5)
    completed = ledger.on_prepared(CheckpointId(2), ["file-2"])

    assert completed == (*aborted, share(2, 1, 5, "file-2"))
    assert aborted == (share(1, 2, 7, "file-1"),)


def test_the_share_of_a_completed_checkpoint_is_not_reported_again() -> None:
    ledger = OutputLedger()
    ledger.on_given(2, 7)
    ledger.on_prepared(CheckpointId(1), [])

    ledger.on_completed(CheckpointId(1))
    ledger.on_completed(CheckpointId(1))

    assert ledger.on_prepared(CheckpointId(2), []) == ()


def test_rows_without_a_digest_are_counted_and_affect_only_their_share() -> None:
    ledger = OutputLedger()
    ledger.on_given(2, None)
    ledger.on_given(1, 5)
    (first,) = ledger.on_prepared(CheckpointId(1), [])
    ledger.on_completed(CheckpointId(1))

    ledger.on_given(1, 5)
    (second,) = ledger.on_prepared(CheckpointId(2), [])

    assert (first.rows, first.digest) == (3, None)
    assert (second.rows, second.digest) == (1, f"{5:016x}")


def share(checkpoint_id: int, rows: int, digest: int, token: str) -> OutputShare:
    return OutputShare(
        checkpoint_id=CheckpointId(checkpoint_id),
        rows=rows,
        digest=f"{digest:016x}",
        tokens=[token],
    )
