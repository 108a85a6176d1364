"""Records that one function of a dataflow fails on each time it gets them, and where they go.

The function follows a source or an exchange, and may have changed its state before it fails. Or the
source itself cannot read the records. The function never follows a join, because no single record
of a pair is to blame.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.outside import event
from tests.simulation.plans import Plan

FAILING = ("source", "map", "filter", "rebalance", "counts")
RECORDS_MAX = 3


@dataclass(frozen=True)
class Poison:
    step: int  # the step with the function that fails
    ids: frozenset[int]  # the records it fails on, if they reach it

    def to_json(self) -> str:
        return json.dumps({"step": self.step, "ids": sorted(self.ids)})

    @classmethod
    def from_json(cls, text: str) -> "Poison":
        stored = json.loads(text)
        return cls(stored["step"], frozenset(stored["ids"]))

    def of(self, step: int) -> frozenset[int]:
        return self.ids if step == self.step else frozenset()


NO_POISON = Poison(-1, frozenset())


def draw_poison(rng: random.Random, plan: Plan) -> Poison:
    failing = [i for i, step in enumerate(plan.steps) if step.operation in FAILING]
    step = rng.choice([i for i in failing if not plan.is_behind_a_join(i)])
    sources = sorted(set(_sources_of(plan, step)))
    places = [
        (rng.choice(sources), rng.randrange(plan.splits), rng.randrange(plan.records))
        for _ in range(rng.randint(1, RECORDS_MAX))
    ]
    return Poison(step, frozenset(event(*place, plan.records)[0] for place in places))


def quarantined_in(home: Path, plan: Plan) -> Counter[tuple[str, int, int]]:
    """Returns the rows that a reader of the quarantines sees, as rows of `model`."""
    found: Counter[tuple[str, int, int]] = Counter()
    for source in plan.sources:
        for file in sorted((home / f"source-{source}").glob("part-*.jsonl")):
            for line in map(json.loads, file.read_text().splitlines()):
                split = int(line["split"].removeprefix("split-"))
                found["quarantined", event(source, split, line["offset"], plan.records)[0], 0] += 1
    return found


def _sources_of(plan: Plan, step: int) -> Iterator[int]:
    if not plan.steps[step].inputs:
        yield step
    for each in plan.steps[step].inputs:
        yield from _sources_of(plan, each)
