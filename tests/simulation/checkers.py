"""What must hold of every simulated run, each said by itself. Rows come from the model alone.

A checker returns what is wrong, in words; an empty list is good.
"""

from collections import Counter
from collections.abc import Callable

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    RunEnded,
)
from tests.simulation.graphs import Output, model
from tests.simulation.simulated_run import Outcome, continued, read_at

POINTS_MAX = 2
"""Points per seed that the cut equation is tried on; each costs a run of its own."""

Checker = Callable[[Outcome], list[str]]


def nothing_is_lost(outcome: Outcome) -> list[str]:
    expected = model(outcome.plan, outcome.plan.whole())
    if outcome.mode == "at least once":
        return _too_small(expected, outcome.world.output())
    return _named("lost", expected - outcome.world.output())


def nothing_comes_twice(outcome: Outcome) -> list[str]:
    """At least once allows it."""
    expected = model(outcome.plan, outcome.plan.whole())
    if outcome.mode == "at least once":
        return []
    return _named("too many", outcome.world.output() - expected)


def every_cut_is_exact(outcome: Outcome) -> list[str]:
    """The cut equation: what a checkpoint holds is what the offsets in it imply.

    Restored, at another parallelism, with sources that end exactly where it says that they stood,
    a point gives the output for exactly those records. At least once, a point may hold more.
    """
    problems = []
    for number, point in enumerate(_judged(outcome)):
        expected = model(outcome.plan, read_at(outcome, point))
        output = continued(outcome, point, number).output()
        name = point.rpartition("/")[2]
        if outcome.mode == "at least once":
            problems += _too_small(expected, output)
        else:
            problems += _named(f"{name} lost", expected - output)
            problems += _named(f"{name} has too many", output - expected)
    return problems


def _judged(outcome: Outcome) -> list[str]:
    """Those with records in flight first, as they have more to lose."""

    def has_none_in_flight(point: str) -> bool:
        return not any(subtask.in_flight for subtask in outcome.store.manifest(point).subtasks)

    return sorted(outcome.kept, key=has_none_in_flight)[:POINTS_MAX]


def nothing_is_left_open(outcome: Outcome) -> list[str]:
    """No transaction waits, every checkpoint has one end, and every file belongs to a point."""
    problems = [f"{name} is still prepared" for name in _prepared(outcome)]
    problems += [f"checkpoint {number} has no end" for number in _without_end(outcome)]
    return problems + [f"{path} belongs to no point" for path in _stray_files(outcome)]


def every_run_has_ended(outcome: Outcome) -> list[str]:
    """Progress after the faults have stopped; a run that goes on for ever raises NoProgress."""
    ends = outcome.of(RunEnded)
    return [] if len(ends) == len(outcome.directories) else [f"{len(ends)} runs have ended"]


CHECKERS: tuple[Checker, ...] = (
    every_run_has_ended,
    nothing_is_lost,
    nothing_comes_twice,
    every_cut_is_exact,
    nothing_is_left_open,
)


def _named(what: str, rows: Output) -> list[str]:
    return [f"{what}: {count} of {row}" for row, count in sorted(rows.items())[:5]]


def _too_small(expected: Output, output: Output) -> list[str]:
    """Of counts, the highest has to be reached; of rows, each has to be there."""
    return _named("lost", _highest(expected) - _highest(output))


def _highest(output: Output) -> Output:
    rows: Output = Counter()
    for kind, first, second in output:
        place = (kind, first, second if kind == "rows" else 0)
        rows[place] = max(rows[place], output[kind, first, second] if kind == "rows" else second)
    return rows


def _prepared(outcome: Outcome) -> list[str]:
    """Of the last attempt: a slot that is replaced may prepare once more before its successor's
    writers shut it out, which nobody ever sees; and a restore of an earlier run's point may still
    commit what that run prepared."""
    last = outcome.directories[-1].run_id
    newest = outcome.world.newest_writer.get(last)
    prepared = outcome.world.prepared.items()
    return [name for name, t in prepared if (t.run_id, t.attempt) == (last, newest)]


def _without_end(outcome: Outcome) -> list[int]:
    """A driver that was killed could not say how its newest checkpoints ended."""
    ended = {e.checkpoint_id for e in outcome.of(CheckpointCompleted, CheckpointFailed)}
    triggered = {e.checkpoint_id for e in outcome.of(CheckpointTriggered)}
    if outcome.seen["driver killed"]:
        return []
    return sorted(triggered - ended)


def _stray_files(outcome: Outcome) -> list[str]:
    points = set(outcome.points())
    places = [d.path / "checkpoints" for d in outcome.directories]
    places.append(outcome.directories[0].jobs_root / "savepoints")
    found = [place for root in places if root.is_dir() for place in root.iterdir()]
    return [str(place) for place in found if str(place) not in points]
