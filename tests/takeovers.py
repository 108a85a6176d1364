"""Starts runs as a driver does: hold the target first, then make it fit the point."""

from pipelines.connectors.contract import HoldsTarget, Sink, Superseded
from pipelines.domain.ids import CheckpointId, RunId
from pipelines.domain.ownership import Claim, Holder


def claim_of(
    sink: HoldsTarget, run_id: RunId, *, started_by: str = "ada", installation: str = "here"
) -> Claim:
    run = Holder(run_id=run_id, installation=installation, started_by=started_by)
    return Claim.after(sink.holder(), run, sink.target)


def held(sink: Sink, run_id: RunId, *, started_by: str = "ada", installation: str = "here") -> None:
    """Holds the target for the run, which a person starts or which holds the target already."""
    if isinstance(sink, HoldsTarget):
        claim = claim_of(sink, run_id, started_by=started_by, installation=installation)
        sink.hold(claim)


def rewound(
    sink: Sink, ancestors: list[tuple[RunId, CheckpointId]], run_id: RunId
) -> Superseded | None:
    held(sink, run_id)
    return sink.rewind(ancestors, run_id)
