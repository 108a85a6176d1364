"""The load of each subtask of a run: a heat map of all, and the busiest in a table. Pure."""

from collections.abc import Callable
from dataclasses import dataclass

from ftdash.jobs.answers import RunView, SubtaskView
from ftdash.ui.figures.heat import Bands, Measure, heat_map, heat_sentence
from ftdash.ui.figures.style import Chart

LISTED_MAX = 20
"""In the table at once; the next page has the next. Up to so many per operator need no map."""

Value = Callable[[SubtaskView], float | None]

_VALUES: dict[Measure, Value] = {
    Measure("Busy", "%"): lambda each: each.busy_ratio,
    Measure("Backpressured", "%"): lambda each: each.backpressured_ratio,
    Measure("Idle", "%"): lambda each: each.idle_ratio,
    Measure("Records queued", "records"): lambda each: each.queued_records,
    Measure("Time to consume them", "ms"): lambda each: each.queued_ms,
    Measure("State", "B"): lambda each: each.state_bytes,
}
LOAD_MEASURES = list(_VALUES)


@dataclass(frozen=True, slots=True)
class SubtaskLoads:
    """`run` None: the pipeline never ran."""

    run: RunView | None

    @property
    def all(self) -> list[SubtaskView]:
        return self.run.subtasks if self.run else []

    @property
    def is_wide(self) -> bool:
        """True if an operator has more subtasks than a table shows at once."""
        run = self.run
        vertices = run.vertices if run else []
        return any(each.subtask_count(run.parallelism) > LISTED_MAX for each in vertices if run)

    @property
    def pages(self) -> int:
        return -(-len(self.all) // LISTED_MAX) if self.is_wide else 1

    def listed(self, page: int) -> list[SubtaskView]:
        """All of them in their order; of a wide run one page, from 1, the busiest first."""
        if not self.is_wide:
            return self.all
        first = LISTED_MAX * (min(page, self.pages) - 1)
        busiest = sorted(self.all, key=lambda each: -each.busy_ratio)
        return busiest[max(0, first) : first + LISTED_MAX]

    def chart(self, measure: Measure) -> Chart:
        bands = self.bands(measure)
        figure = heat_map(bands, measure) if self.is_wide else None
        return Chart("heat", heat_sentence(bands, measure, "in the newest report"), figure)

    def bands(self, measure: Measure) -> Bands:
        of = _VALUES[measure]
        found: dict[str, dict[int, float | None]] = {}
        for each in self.all:
            found.setdefault(each.vertex, {})[each.subtask] = of(each)
        return {
            uid: [values.get(index) for index in range(max(values) + 1)]
            for uid, values in found.items()
        }
