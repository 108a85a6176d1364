"""The run that holds a target: random starts and restarts of several runs, then corner cases."""

import random
from contextlib import suppress

import pytest

from pipelines.domain.errors import TargetTaken
from pipelines.domain.ids import RunId
from pipelines.domain.ownership import Claim, Holder

PLACE = "the directory /out"


@pytest.mark.parametrize("seed", range(200))
def test_a_run_holds_a_target_once_and_without_a_break(seed: int) -> None:
    """Runs look, claim, restart and sleep in any order; a claim survives its driver."""
    rng = random.Random(seed)
    holder: Holder | None = None
    claims: dict[str, Claim] = {}
    past: list[Holder] = []

    for _ in range(40):
        name = rng.choice("abcd")
        if name not in claims:
            claims[name] = Claim.after(holder, run(name), PLACE)
            continue
        with suppress(TargetTaken):
            holder = claims[name].admit(holder, PLACE)
        if holder is not None and holder not in past:
            past.append(holder)

    assert [each.epoch for each in past] == sorted({each.epoch for each in past})
    assert len({each.run_id for each in past}) == len(past)


def test_an_unattended_run_may_follow_only_a_run_of_its_own_installation() -> None:
    found = run("a", started_by="")

    followed = Claim.after(found, run("b", started_by=""), PLACE)
    assert followed.holder.epoch == found.epoch + 1
    with pytest.raises(TargetTaken, match=r"held by run a of installation here; only a person"):
        Claim.after(found, run("b", started_by="", installation="elsewhere"), PLACE)


def test_a_person_takes_over_from_another_installation() -> None:
    claim = Claim.after(run("a"), run("b", installation="elsewhere"), PLACE)

    assert claim.admit(run("a"), PLACE).run_id == "b"


def test_a_target_that_was_emptied_by_hand_can_be_held_again() -> None:
    claim = Claim.after(run("a"), run("b"), PLACE)

    assert claim.admit(None, PLACE) == claim.holder


def test_an_older_claim_does_not_take_a_reset_target_from_its_new_holder() -> None:
    """A person emptied the target, so its epochs start again below the epoch of an older claim."""
    claim = Claim.after(run("a", epoch=7), run("b"), PLACE)

    with pytest.raises(
        TargetTaken,
        match=r"^Run c of installation here, started by ada, has taken over the directory /out, so"
        r" run b ends and is not restarted; to take it back, restore a point of run b\.$",
    ):
        claim.admit(run("c", epoch=1), PLACE)


def test_a_target_of_an_older_version_names_only_its_run() -> None:
    claim = Claim.after(Holder(run_id=RunId("a")), run("b"), PLACE)

    assert claim.holder.epoch == 1
    assert claim.admit(Holder(run_id=RunId("a")), PLACE) == claim.holder


def run(
    name: str, *, epoch: int = 0, installation: str = "here", started_by: str = "ada"
) -> Holder:
    return Holder(run_id=RunId(name), epoch=epoch, installation=installation, started_by=started_by)
