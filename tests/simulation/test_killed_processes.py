"""A simulated kill ends a process as a real one does: it sends nothing more, not even a reason."""

import random
from collections import Counter
from pathlib import Path

import pytest

from pipelines.domain.events import FailureOccurred
from pipelines.domain.ids import Attempt
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import Beat, Running
from pipelines.runtime.master.job_events import JobEvent, SlotGone, SlotSpoke
from tests.simulation.circumstances import GATES_BYTES, MODES, Circumstances, Dice
from tests.simulation.clock import SimulatedClock
from tests.simulation.simulated_run import Simulation
from tests.simulation.slots import ProcessEnded, Surroundings
from tests.simulation.stages import Door, Stages

KILLED = Circumstances(
    "aligned",
    MODES["aligned"]
    | {
        "execution.checkpointing.interval": "40 ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1000",
        "restart-strategy.fixed-delay.delay": "10 ms",
    },
    {"kill at a point": 0.1},
    GATES_BYTES[-1],
    slow_vertex=None,
    has_short_timeout=False,
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_process_killed_at_a_fault_point_is_gone_and_reports_no_failure(
    seed: int, tmp_path: Path
) -> None:
    outcome = Simulation(seed, tmp_path, circumstances=KILLED).run()

    causes = [failure.cause for failure in outcome.of(FailureOccurred)]
    print(f"seed {seed}: {dict(outcome.seen)}")
    assert outcome.seen["kill at a point"] >= 3
    assert any("is gone" in cause for cause in causes)
    assert [cause for cause in causes if ProcessEnded.__name__ in cause] == []


def test_messages_of_a_dying_slot_may_arrive_but_never_after_its_death() -> None:
    heard = {seed: _heard_of_a_slot_that_dies(random.Random(seed)) for seed in range(20)}

    ends: Counter[int] = Counter()
    for seed, events in heard.items():
        said = [event.message for event in events if isinstance(event, SlotSpoke)]
        gone = [index for index, event in enumerate(events) if isinstance(event, SlotGone)]
        assert said in ([], [Running()]), f"seed {seed}"
        assert not any(isinstance(event, SlotSpoke) for event in events[gone[0] :])
        ends[len(said)] += 1
    assert min(ends[0], ends[1]) > 0


def _heard_of_a_slot_that_dies(rng: random.Random) -> list[JobEvent]:
    heard: list[JobEvent] = []
    dice = Dice(rng, {}, Counter())
    stages = Stages(Surroundings(SimulatedClock(), rng, dice, KILLED), heard.append)
    stages.start(Door(Heartbeat(interval_ms=1_000, timeout_ms=10_000)).open_for(Attempt(1)), 1)
    (slot,) = stages.slots
    slot.has_dialled = True

    slot.say(Running())
    slot.die()
    slot.say(Beat())
    while turns := stages.turns():
        rng.choice(turns)()
    return heard
