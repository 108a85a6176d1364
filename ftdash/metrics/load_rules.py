"""Finds what is wrong with a run from its loads, before anything fails. Pure.

A healthy pipeline has none of the six problems, even under full load: the system of a source is
away; an author's function does not return; one subtask works while its neighbours wait; a queue
grows faster than it is consumed; event time stands still while records come; checkpoints take many
times as long as they did. Each must last for a while before it counts.

Sources: Flink, "Monitoring Back Pressure"; Nasir et al., "The Power of Both Choices", ICDE 2015.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from statistics import fmean, median

from ftdash.formats import count, duration, percent, plural
from ftdash.metrics.queries.loads import HotKeys, SubtaskLoad, by_vertex


class LoadProblem(StrEnum):
    """The most pressing first: each one explains those after it."""

    SOURCE_AWAY = "source away"
    STUCK_CODE = "stuck code"
    SKEWED = "skewed"
    BEHIND = "behind"
    SLOW_CHECKPOINTS = "slow checkpoints"
    WATERMARK_STILL = "watermark stands still"


@dataclass(frozen=True, slots=True)
class Finding:
    problem: LoadProblem
    text: str  # one sentence or two


@dataclass(frozen=True, slots=True)
class LoadMoment:
    at_s: float
    loads: Sequence[SubtaskLoad]


BUSY_FROM = 0.8
OTHERS_UP_TO = 0.5
"""As a ratio of the busiest: neighbours that work more than this have a share of the work."""

STANDS_FROM_MS = 5_000
"""A function that takes longer for one batch holds up every barrier behind it."""

SKEW_FOR_S = 4.0
TREND_FOR_S = 55.0
"""Samples come once a second, so a minute of them spans a little less."""

BEHIND_FROM_S = 30.0
"""The waiting work, in seconds at the present speed."""

SLOW_FACTOR = 5.0
SLOW_MORE_MS = 3_000.0
"""A checkpoint of 20 ms may take 200 ms on a busy machine, and nothing is wrong."""

USUAL_MIN = 8
NEWEST = 2


def source_away(loads: Sequence[SubtaskLoad]) -> Finding | None:
    """Names a source that waits for its system, and has not given up yet."""
    waiting = next((load for load in loads if load.source_problem), None)
    if waiting is None:
        return None
    text = f"{waiting.vertex}[{waiting.subtask}] reads nothing: {waiting.source_problem}."
    return Finding(LoadProblem.SOURCE_AWAY, text)


def stuck_code(loads: Sequence[SubtaskLoad]) -> Finding | None:
    """Names the subtask that has stood longest, and the line where it stands."""
    stuck = [load for load in loads if (load.stands_ms or 0) >= STANDS_FROM_MS]
    if not stuck:
        return None
    worst = max(stuck, key=lambda load: load.stands_ms or 0)
    text = (
        f"{worst.vertex}[{worst.subtask}] has stood for {duration(worst.stands_ms or 0)} at"
        f" {worst.stands_at}."
    )
    return Finding(LoadProblem.STUCK_CODE, text)


def skew(moments: Sequence[LoadMoment]) -> Finding | None:
    """`moments` are successive samples, oldest first. Names the most uneven operator."""
    if len(moments) < 2 or moments[-1].at_s - moments[0].at_s < SKEW_FOR_S:
        return None
    text = _skew_text(moments)
    return Finding(LoadProblem.SKEWED, text) if text else None


def skewed_now(loads: Sequence[SubtaskLoad]) -> str:
    """Judges one sample, for the page that shows it; empty if all subtasks have their share."""
    return _skew_text([LoadMoment(0.0, loads)])


def _skew_text(moments: Sequence[LoadMoment]) -> str:
    uneven = [
        (found, vertex)
        for vertex in by_vertex(list(moments[-1].loads))
        if (found := _skew_of(vertex, moments)) is not None
    ]
    if not uneven:
        return ""
    (apart, worst, others), vertex = max(uneven, key=lambda each: each[0][0])
    del apart
    newest = next(load for load in moments[-1].loads if _is(load, vertex, worst))
    neighbours = sum(load.vertex == vertex for load in moments[-1].loads) - 1
    text = (
        f"{vertex}[{worst}] does most of the work of {vertex}: it is busy"
        f" {percent(newest.busy_ratio)} of the time with"
        f" {plural(newest.queued_records, 'record')} queued, and its"
        f" {plural(neighbours, 'neighbour')} {percent(others)}."
    )
    hot = hot_sentence(hottest(moments[-1].loads, vertex))
    return f"{text} {hot}".rstrip()


def _skew_of(vertex: str, moments: Sequence[LoadMoment]) -> tuple[float, int, float] | None:
    """Returns how far apart they are, the busiest subtask, and the others' mean busy ratio."""
    busy: dict[int, list[float]] = {}
    queued: dict[int, list[int]] = {}
    for moment in moments:
        for load in moment.loads:
            if load.vertex == vertex and load.window_bytes is not None:  # it has a queue
                busy.setdefault(load.subtask, []).append(load.busy_ratio)
                queued.setdefault(load.subtask, []).append(load.queued_records)
    if len(busy) < 2:
        return None
    means = {subtask: fmean(ratios) for subtask, ratios in busy.items()}
    worst = max(means, key=lambda subtask: means[subtask])
    others = fmean(mean for subtask, mean in means.items() if subtask != worst)
    waits = min(queued[worst]) > 0
    if means[worst] < BUSY_FROM or others > OTHERS_UP_TO * means[worst] or not waits:
        return None
    return means[worst] - others, worst, others


def hottest(loads: Sequence[SubtaskLoad], vertex: str) -> list[HotKeys]:
    """Returns what the subtasks that feed `vertex` report on its keys, the most certain first."""
    found = [hot for load in loads for hot in load.hot_keys if hot.vertex == vertex]
    return sorted(found, key=lambda hot: -hot.sampled)


def hot_sentence(found: Sequence[HotKeys]) -> str:
    """Returns an empty string if nothing is known."""
    if not found:
        return ""
    hot = found[0]
    group, share = hot.groups[0]
    of = "/".join(hot.columns)
    text = f"Key group {group} gets about {percent(share)} of the records"
    if not hot.keys:
        return f"{text} (by {of})."
    key, key_share = hot.keys[0]
    return f"{text}; the hottest key is {of} = {key} with {percent(key_share)}."


def behind(moments: Sequence[LoadMoment]) -> Finding | None:
    """`moments` span about a minute, oldest first, with at least one between first and last."""
    if not _spans(moments):
        return None
    for vertex in by_vertex(list(moments[-1].loads)):
        for waiting, passed in ((_pending, _out), (_queued, _in)):
            sums = [_sum(moment, vertex, waiting) for moment in moments]
            done = [_sum(moment, vertex, passed) for moment in moments]
            known = [each for each in sums if each is not None]
            if len(known) < len(sums) or None in done:
                continue
            grows = all(later > 1.05 * before for before, later in pairwise(known))
            took = (done[-1] or 0) - (done[0] or 0)
            elapsed_s = moments[-1].at_s - moments[0].at_s
            if grows and known[-1] * elapsed_s > BEHIND_FROM_S * took:
                return Finding(LoadProblem.BEHIND, _behind_text(vertex, known[-1], took, elapsed_s))
    return None


def _behind_text(vertex: str, waiting: int, took: int, elapsed_s: float) -> str:
    if took <= 0:
        return f"{vertex} has taken no record for a minute, and {plural(waiting, 'record')} wait."
    work = duration(1000 * waiting * elapsed_s / took)
    return (
        f"{vertex} falls behind: {plural(waiting, 'record')} wait, {work} of work at its present"
        " speed, and they become more."
    )


def watermark_still(moments: Sequence[LoadMoment]) -> Finding | None:
    """`moments` are as in `behind`. Names the subtask with the least event time."""
    if not _spans(moments):
        return None
    for vertex in by_vertex(list(moments[-1].loads)):
        marks = [_watermark(moment, vertex) for moment in moments]
        came = [_sum(moment, vertex, _in) for moment in moments]
        still = marks[0] is not None and len(set(marks)) == 1
        known = [each for each in came if each is not None]
        if still and len(known) == len(came) and _rises(known):
            least = min(
                (load for load in moments[-1].loads if load.watermark_ms is not None),
                key=lambda load: (load.watermark_ms or 0, load.window_bytes is not None),
            )
            return Finding(
                LoadProblem.WATERMARK_STILL,
                f"The watermark of {vertex} has stood still for a minute, although"
                f" {count(known[-1] - known[0])} records came: no window of it ends. It waits for"
                f" {least.vertex}[{least.subtask}].",
            )
    return None


def slow_checkpoints(durations_ms: Sequence[float], under_way_ms: float | None) -> Finding | None:
    """Compares the newest checkpoints with the run's own median before them.

    `durations_ms` are those of completed ones, oldest first. `under_way_ms` is the age of the
    oldest that is still under way.
    """
    earlier, newest = durations_ms[:-NEWEST], durations_ms[-NEWEST:]
    if len(earlier) < USUAL_MIN:
        return None
    usual_ms = median(earlier)
    limit_ms = max(SLOW_FACTOR * usual_ms, usual_ms + SLOW_MORE_MS)
    long_ms = min(newest)
    if under_way_ms is not None and under_way_ms > 2 * limit_ms:
        took = f"The checkpoint under way has taken {duration(under_way_ms)} so far"
    elif long_ms > limit_ms:
        took = f"The last {NEWEST} checkpoints took {duration(long_ms)} and more"
    else:
        return None
    return Finding(LoadProblem.SLOW_CHECKPOINTS, f"{took}; usually they take {duration(usual_ms)}.")


def _spans(moments: Sequence[LoadMoment]) -> bool:
    return len(moments) > 2 and moments[-1].at_s - moments[0].at_s >= TREND_FOR_S


def _rises(values: Sequence[int]) -> bool:
    return all(later > before for before, later in pairwise(values))


def _is(load: SubtaskLoad, vertex: str, subtask: int) -> bool:
    return (load.vertex, load.subtask) == (vertex, subtask)


def _sum(moment: LoadMoment, vertex: str, of: Callable[[SubtaskLoad], int | None]) -> int | None:
    values = [of(load) for load in moment.loads if load.vertex == vertex]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _watermark(moment: LoadMoment, vertex: str) -> int | None:
    marks = [load.watermark_ms for load in moment.loads if load.vertex == vertex]
    return min((mark for mark in marks if mark is not None), default=None)


def _pending(load: SubtaskLoad) -> int | None:
    return load.pending_records


def _queued(load: SubtaskLoad) -> int | None:
    return None if load.window_bytes is None else load.queued_records


def _in(load: SubtaskLoad) -> int | None:
    return load.records_in


def _out(load: SubtaskLoad) -> int | None:
    return load.records_out
