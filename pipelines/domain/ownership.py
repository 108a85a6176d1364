"""Decides which run may write to an output: one at a time, by a lease that counts epochs. Pure.

A target stores its holder. A run takes a target over once, when it first starts. It reads the
present holder, durably records which holder it follows, and replaces it under the next epoch,
provided that the holder is still the same. From then on the run can only find that it holds the
target or has lost it: no restart takes anything over.

Source: Gray and Cheriton, "Leases" (1989); the epoch is that of Kafka's producers.
"""

import msgspec

from pipelines.domain.errors import TargetTaken
from pipelines.domain.ids import RunId


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The run that holds a target. Targets of older versions store only the run."""

    run_id: RunId
    epoch: int = 0  # increases by one with each run that took the target over
    installation: str = ""
    started_by: str = ""  # the person who started the run; empty: no person did

    @property
    def described(self) -> str:
        installation = f" of installation {self.installation}" if self.installation else ""
        person = f", started by {self.started_by}," if self.started_by else ""
        return f"run {self.run_id}{installation}{person}"


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The exclusive right of `holder` to follow `follows`, which is None if the target was free."""

    holder: Holder
    follows: Holder | None = None

    @classmethod
    def after(cls, found: Holder | None, run: Holder, target: str) -> "Claim":
        """The claim of a run that starts for the first time. `target` names it in messages.

        Raises TargetTaken if no person asked for the start and another installation's run holds it.
        """
        if found is None or found.run_id == run.run_id:
            return cls(holder=msgspec.structs.replace(run, epoch=found.epoch if found else 1))
        if not run.started_by and found.installation != run.installation:
            raise TargetTaken(
                f"{target} is held by {found.described}; only a person may take it over for another"
                f" installation, and no person requested it for run {run.run_id}."
            )
        return cls(holder=msgspec.structs.replace(run, epoch=found.epoch + 1), follows=found)

    def admit(self, found: Holder | None, target: str) -> Holder:
        """Returns the holder from now on: the run of this claim.

        Raises TargetTaken if another run has taken the target in between.
        """
        run_id = self.holder.run_id
        if found is not None and found.run_id != run_id and found != self.follows:
            raise taken(target, run_id, found)
        return self.holder


def taken(target: str, loser: RunId, holder: Holder) -> TargetTaken:
    """The error for code that finds that `loser` no longer holds the target."""
    return TargetTaken(
        f"{holder.described[0].upper()}{holder.described[1:]} has taken over {target}, so run"
        f" {loser} ends and is not restarted; to take it back, restore a point of run {loser}."
    )
