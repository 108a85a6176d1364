"""A run's claims to the targets of its sinks: made once and kept in the run's directory.

A claim is durable before its target sees it. So a driver that follows a dead one knows whether the
run has ever had a target, and never takes it over a second time (`domain.ownership`).
"""

from collections.abc import Callable, Iterable

import msgspec

from pipelines.bus.lease import Lease
from pipelines.connectors.sink import HoldsTarget, Sink
from pipelines.disk.files import make_durable, replace_atomically
from pipelines.domain.errors import UNDECODABLE, Rejected, Retryable
from pipelines.domain.events import Event, TargetTakenOver
from pipelines.domain.ids import RunId, Uid
from pipelines.domain.ownership import Claim, Holder
from pipelines.domain.run import RunSpec


class TargetClaims:
    """The claims of one run, for one of its drivers."""

    def __init__(self, spec: RunSpec, lease: Lease, emit: Callable[[Event], None]) -> None:
        self._run = Holder(
            run_id=spec.run_id, installation=spec.installation, started_by=spec.started_by
        )
        self._lease = lease
        self._emit = emit
        self._claims: dict[Uid, Claim] | None = None

    def hold(self, sinks: Iterable[tuple[Uid, Sink]]) -> None:
        """Call before an attempt begins. 1. Find the holders of targets not claimed yet. 2. Write
        the claims. 3. Hold all targets. 4. Report those that were taken from a run.

        Raises TargetTaken, Retryable, Rejected, LeaseLost.
        """
        held = {uid: sink for uid, sink in sinks if isinstance(sink, HoldsTarget)}
        claims = self._known()
        new = {
            uid: Claim.after(sink.holder(), self._run, sink.target)
            for uid, sink in held.items()
            if uid not in claims
        }
        if new:
            self._keep(claims | new)
        for uid, sink in held.items():
            sink.hold((claims | new)[uid])
        for uid, claim in new.items():
            self._say(uid, held[uid].target, claim)

    def followed(self, uid: Uid) -> RunId | None:
        """The run that held the target before this one. None: not known, or there was none."""
        claim = self._known().get(uid)
        return None if claim is None or claim.follows is None else claim.follows.run_id

    def _known(self) -> dict[Uid, Claim]:
        if self._claims is None:
            file = self._lease.run_directory.targets_file
            try:
                self._claims = msgspec.json.decode(file.read_bytes(), type=dict[Uid, Claim])
            except FileNotFoundError:
                self._claims = {}
            except UNDECODABLE as error:
                raise Rejected(
                    f"{file} does not say what the run may write to: {error}."
                ) from error
            except OSError as error:
                raise Retryable(f"The claims of the run cannot be read: {error}") from error
        return self._claims

    def _keep(self, claims: dict[Uid, Claim]) -> None:
        self._lease.check_held()
        file = self._lease.run_directory.targets_file
        try:
            replace_atomically(file, msgspec.json.encode(claims))
            make_durable(file.parent)
        except OSError as error:
            raise Retryable(f"The claims of the run cannot be kept: {error}") from error
        self._claims = claims

    def _say(self, uid: Uid, target: str, claim: Claim) -> None:
        """Reports nothing between the runs of one installation."""
        before = claim.follows
        if before is not None and before.installation != self._run.installation:
            event = TargetTakenOver(
                sink=uid,
                target=target,
                from_run=before.run_id,
                from_installation=before.installation,
                epoch=claim.holder.epoch,
            )
            self._emit(event)
