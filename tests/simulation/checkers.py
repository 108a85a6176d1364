"""The properties of every simulated run, one checker each. Expected rows come from the model alone.

A checker returns the problems as sentences; an empty list is good. The modes promise different rows
after a failure: exactly once, the rows of the model; at least once, all of them and some again; at
most once, none again.
"""

from collections import Counter
from collections.abc import Callable

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    CheckpointTriggered,
    Event,
    FailureOccurred,
    RequestAccepted,
    RequestEnded,
    RunEnded,
    RunStarted,
)
from pipelines.domain.status import JobStatus
from tests.simulation.circumstances import AT_LEAST_ONCE, AT_MOST_ONCE
from tests.simulation.model import Output
from tests.simulation.outcome import Outcome, read_at
from tests.simulation.outside import KEYS
from tests.simulation.simulated_run import continued

POINTS_MAX = 2
"""Points per seed to test the cut equation on; each costs a run of its own."""

Checker = Callable[[Outcome], list[str]]


def nothing_is_lost(outcome: Outcome) -> list[str]:
    expected, output = outcome.wanted, outcome.output
    if outcome.mode == AT_LEAST_ONCE:
        return _too_small(expected, output)
    if outcome.mode == AT_MOST_ONCE and _was_disturbed(outcome):
        return []
    return _named("lost", expected - output)


def nothing_comes_twice(outcome: Outcome) -> list[str]:
    expected, output = outcome.wanted, outcome.output
    if outcome.mode == AT_LEAST_ONCE:
        return []
    if outcome.mode == AT_MOST_ONCE:
        return _named("too many", _sums(output) - _sums(expected))
    return _named("too many", output - expected)


def poison_is_set_aside_once(outcome: Outcome) -> list[str]:
    """Holds in every mode: only its source decides about a record's place in the quarantine."""
    expected, found = outcome.wanted, outcome.quarantined
    wanted = Counter({row: n for row, n in expected.items() if row[0] == "quarantined"})
    return _named("not set aside", wanted - found) + _named("set aside", found - wanted)


def every_cut_is_exact(outcome: Outcome) -> list[str]:
    """The cut equation: the state in a checkpoint is what its offsets imply.

    A point is restored at another parallelism, with sources that end exactly at its offsets. It
    must give the output for exactly those records. If subtasks do not wait for barriers, a point
    may contain more; if they give state up, less.
    """
    problems: list[str] = []
    if outcome.mode == AT_MOST_ONCE and _was_disturbed(outcome):
        return problems
    for number, point in enumerate(_judged(outcome)):
        expected = outcome.expected(read_at(outcome, point))
        output = continued(outcome, point, number)
        name = point.rpartition("/")[2]
        if outcome.mode in (AT_LEAST_ONCE, AT_MOST_ONCE):
            problems += _too_small(expected, output)
        else:
            problems += _named(f"{name} lost", expected - output)
            problems += _named(f"{name} has too many", output - expected)
    return problems


def nothing_is_seen_early(outcome: Outcome) -> list[str]:
    """Committed output belongs to a point that was complete by then."""
    return [f"{name} was committed before it was complete" for name in outcome.world.early]


def every_point_stays_whole(outcome: Outcome) -> list[str]:
    """Every complete point always has its files, and after the first one there always is one."""
    return outcome.disk.problems


def every_point_can_be_restored(outcome: Outcome) -> list[str]:
    """No output named by a point is rolled back as long as the point exists."""
    return outcome.disk.useless


def nothing_is_left_open(outcome: Outcome) -> list[str]:
    """No transaction waits, every checkpoint and request has one end, every file has a point."""
    problems = [f"{name} is still prepared" for name in _prepared(outcome)]
    problems += [f"checkpoint {number} has no end" for number in _without_end(outcome)]
    for history in outcome.histories:
        answers = _wrongly_answered(history)
        problems += [f"{request} has {n} answers" for request, n in answers]
    return problems + [f"{path} belongs to no point" for path in _stray_files(outcome)]


def every_run_has_ended(outcome: Outcome) -> list[str]:
    """Progress after the faults have stopped; a run that never ends raises NoProgress."""
    ends = [e for e in outcome.of(RunEnded) if isinstance(e, RunEnded)]
    problems = [f"a run has failed: {e.reason}" for e in ends if e.status is JobStatus.FAILED]
    if len(ends) != len(outcome.directories):
        problems.append(f"{len(ends)} runs of {len(outcome.directories)} have ended")
    return problems


CHECKERS: tuple[Checker, ...] = (
    every_run_has_ended,
    nothing_is_lost,
    nothing_comes_twice,
    poison_is_set_aside_once,
    every_cut_is_exact,
    nothing_is_seen_early,
    every_point_can_be_restored,
    every_point_stays_whole,
    nothing_is_left_open,
)


def _was_disturbed(outcome: Outcome) -> bool:
    return bool(outcome.of(FailureOccurred)) or len(outcome.of(RunStarted)) > 1


def _judged(outcome: Outcome) -> list[str]:
    """Returns points with records in flight first, as they have more to lose."""

    def has_none_in_flight(point: str) -> bool:
        return not any(subtask.in_flight for subtask in outcome.store.manifest(point).subtasks)

    return sorted(outcome.disk.kept, key=has_none_in_flight)[:POINTS_MAX]


def _named(what: str, rows: Output) -> list[str]:
    return [f"{what}: {count} of {row}" for row, count in sorted(rows.items())[:5]]


def _too_small(expected: Output, output: Output) -> list[str]:
    """Counts must reach their maximum, and every row must be there.

    Records beyond the cut may unite sessions, so for the sessions of a key the sum must match.
    """
    return _named("lost", _highest(expected) - _highest(output))


def _highest(output: Output) -> Output:
    rows: Output = Counter()
    for (kind, first, second), times in output.items():
        match kind:
            case "rows" | "split" | "union" | "quarantined":
                rows[kind, first, second] += times
            case "sessions":
                rows[kind, first % KEYS, 0] += times * second
            case _:
                rows[kind, first, 0] = max(rows[kind, first, 0], second)
    return rows


def _sums(output: Output) -> Output:
    """Counts the records behind the rows, since lost state makes counts start again."""
    sums: Output = Counter()
    for (kind, first, second), times in output.items():
        match kind:
            case "rows" | "split" | "union" | "quarantined":
                sums[kind, first, second] += times
            case "counts":
                sums[kind, first, 0] += times
            case "windows" | "sliding" | "timers" | "broadcast":
                sums[kind, first, 0] += times * second
            case "sessions":  # lost records decide where sessions begin and how many there are
                sums[kind, first % KEYS, 0] += times * second
    return sums


def _prepared(outcome: Outcome) -> list[str]:
    """Returns the prepared transactions of the last attempt only.

    A replaced slot may prepare once more before its successor's writers shut it out, but no reader
    ever sees that. A restore of an earlier run's point may still commit what that run prepared.
    """
    last = outcome.directories[-1].run_id
    newest = outcome.world.newest_writer.get(last)
    prepared = outcome.world.prepared.items()
    return [name for name, t in prepared if (t.run_id, t.attempt) == (last, newest)]


def _without_end(outcome: Outcome) -> list[int]:
    """A new driver's start ends its predecessor's open checkpoints, as the pages show it."""
    return [number for history in outcome.histories for number in _open(history)]


def _open(events: list[Event]) -> list[int]:
    underway: set[int] = set()
    for event in events:
        match event:
            case RunStarted():
                underway.clear()
            case CheckpointTriggered(checkpoint_id=number):
                underway.add(number)
            case CheckpointCompleted(checkpoint_id=number) | CheckpointFailed(checkpoint_id=number):
                underway.discard(number or 0)
    return sorted(underway)


def _wrongly_answered(events: list[Event]) -> list[tuple[str, int]]:
    """The end of the run answers requests that came too late for the driver, as the pages show."""
    accepted, answers = set[str](), Counter[str]()
    for event in events:
        match event:
            case RunStarted():
                accepted.clear()
            case RequestAccepted(request_id=request_id):
                accepted.add(request_id)
            case RequestEnded(request_id=request_id):
                answers[request_id] += 1
    silent = [(request, 0) for request in sorted(accepted) if not answers[request]]
    return silent + [(request, n) for request, n in answers.items() if n > 1]


def _stray_files(outcome: Outcome) -> list[str]:
    points = set(outcome.points())
    places = [d.path / "checkpoints" for d in outcome.directories]
    places.append(outcome.directories[0].path.parent.parent / "savepoints")
    found = [place for root in places if root.is_dir() for place in root.iterdir()]
    strays = [str(place) for place in found if str(place) not in points and place.name != "shared"]
    needed = {file for files in outcome.disk.complete.values() for file in files}
    shared = [f for root in places for f in (root / "shared").glob("*") if str(f) not in needed]
    return strays + [str(file) for file in shared]
