"""Random dataflows as plain data: the engine runs them (`assembly`), `model` computes their output.

A plan is a list of steps, drawn from a seed: one or two sources, unions, joins, streams that are
read twice, and a sink behind every stream.
"""

import random
from dataclasses import dataclass

from pipelines.domain.ids import Uid
from tests.simulation.outside import Part

OPERATORS_MIN, OPERATORS_MAX = 3, 10
TWO_INPUTS = ("union", "join")
ENDS = ("rows", "counts", "windows", "sliding", "sessions", "timers", "lists")
NOT_BEHIND_A_JOIN = ("sliding", "sessions")
WITH_ITSELF = 0.05
"""The share of operations on one stream that join or unite it with itself."""


@dataclass(frozen=True)
class Step:
    """`inputs` are indices of earlier steps; `number` is the parameter of the operation."""

    operation: str  # source, map, filter, rebalance, or one of TWO_INPUTS or ENDS
    inputs: tuple[int, ...] = ()
    number: int = 0

    @property
    def is_end(self) -> bool:
        return self.operation in ENDS


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    records: int  # per split
    splits: int
    batch: int  # the most records that a source emits at once

    @property
    def sources(self) -> list[int]:
        return [i for i, step in enumerate(self.steps) if step.operation == "source"]

    def uid_of(self, step: Step) -> Uid:
        return Uid(f"{step.operation}-{self.steps.index(step)}")

    @property
    def has_lists(self) -> bool:
        """Returns True if the plan has `lists`, whose elements only the points show."""
        return any(step.operation == "lists" for step in self.steps)

    def is_behind_a_join(self, index: int) -> bool:
        return _is_behind_a_join(list(self.steps), index)

    def whole(self) -> Part:
        """Returns all records of all splits."""
        return {(s, k): self.records for s in self.sources for k in range(self.splits)}


def draw(rng: random.Random) -> Plan:
    steps = _draw_steps(rng)
    while not OPERATORS_MIN <= len(steps) <= OPERATORS_MAX:
        steps = _draw_steps(rng)
    records, splits = rng.randint(8, 30), rng.randint(1, 3)
    return Plan(steps, records, splits, batch=rng.choice([1, 4, 4, 10]))


def _draw_steps(rng: random.Random) -> tuple[Step, ...]:
    steps = [Step("source") for _ in range(rng.choice([1, 1, 2]))]
    unread = list(range(len(steps)))
    for _ in range(rng.randint(1, 6)):
        step = _draw_step(rng, unread)
        unread = [index for index in unread if index not in step.inputs]
        steps.append(step)
        unread.append(len(steps) - 1)
        if rng.random() < 0.25:  # a diamond: another step reads the stream once more
            unread.append(rng.choice([i for i in range(len(steps)) if not steps[i].is_end]))
    return (*steps, *(_draw_end(rng, steps, index) for index in unread))


def _draw_step(rng: random.Random, unread: list[int]) -> Step:
    if len(set(unread)) > 1 and rng.random() < 0.6:
        pair = tuple(rng.sample(sorted(set(unread)), 2))
        return Step(rng.choice(TWO_INPUTS), pair)
    stream = rng.choice(unread)
    if rng.random() < WITH_ITSELF:
        return Step(rng.choice(TWO_INPUTS), (stream, stream))
    return Step(rng.choice(["map", "filter", "rebalance"]), (stream,), rng.randint(2, 4))


def _draw_end(rng: random.Random, steps: list[Step], index: int) -> Step:
    """Draws no sessions behind a join, nor windows that end before the join's window.

    A join emits its rows when their window ends, each at its own time. By then a session that they
    would have prolonged may be over.
    """
    operation = rng.choice(ENDS)
    while operation in NOT_BEHIND_A_JOIN and _is_behind_a_join(steps, index):
        operation = rng.choice(ENDS)
    return Step(operation, (index,))


def _is_behind_a_join(steps: list[Step], index: int) -> bool:
    step = steps[index]
    return step.operation == "join" or any(_is_behind_a_join(steps, i) for i in step.inputs)
