"""The expected output of a dataflow: its plan in plain Python, without any code of the engine."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from tests.simulation.outside import KEYS, Part, event
from tests.simulation.plans import Plan, Step
from tests.simulation.poison import NO_POISON, Poison

WINDOW_S, SLIDE_S = 8, 4
GAP_MS = 8_500
"""The session gap, which never equals the distance of two events, so that an edge does not matter.

Most keys come every five seconds, and filters leave gaps of ten.
"""
PAIR, MODULUS = 100_003, 1_000_000_007
"""Two ids make the id of their pair."""

Event = tuple[int, int, int]  # id, key, milliseconds
Output = Counter[tuple[str, int, int]]
"""Rows of `rows` are (id, key), of `counts` (key, n), of windows (start and key, n).

Points contain `lists`, which are never emitted: a list's (id, 0), and (id and key, n) of a map.
`quarantined` has the contents of the quarantines, (id, 0).
"""


def model(plan: Plan, part: Part, poison: Poison = NO_POISON) -> Output:
    """Returns the output for the first `part[source, split]` records of each split.

    Records that reach the function that fails on them are in the quarantine and nowhere else.
    """
    aside = _arrived(plan, part, poison) if poison.ids else frozenset[int]()
    output: Output = Counter(("quarantined", number, 0) for number in aside)
    for step, inputs, _ in _steps(plan, part, aside):
        if step.is_end:
            output.update(_ended(step.operation, inputs[0]))
    return output


def _arrived(plan: Plan, part: Part, poison: Poison) -> frozenset[int]:
    _, inputs, stream = list(_steps(plan, part, frozenset()))[poison.step]
    given = inputs[0] if inputs else stream
    return poison.ids & {number for number, _, _ in given}


def _steps(
    plan: Plan, part: Part, aside: frozenset[int]
) -> Iterator[tuple[Step, list[list[Event]], list[Event]]]:
    """Yields each step with its inputs and its output."""
    streams: list[list[Event]] = []
    for index, step in enumerate(plan.steps):
        inputs = [streams[i] for i in step.inputs]
        flow = [] if step.is_end else _flow(plan, index, step, inputs, part)
        streams.append([each for each in flow if each[0] not in aside] if not inputs else [*flow])
        yield step, inputs, streams[-1]


def _flow(
    plan: Plan, index: int, step: Step, inputs: list[list[Event]], part: Part
) -> Iterable[Event]:
    match step.operation:
        case "source":
            ends = ((k, n) for (source, k), n in part.items() if source == index)
            return (event(index, k, o, plan.records) for k, n in ends for o in range(n))
        case "map":
            return ((i, (key * step.number + 1) % KEYS, at) for i, key, at in inputs[0])
        case "filter":
            return (each for each in inputs[0] if each[0] % step.number != 0)
        case "rebalance":
            return inputs[0]
        case "union":
            return inputs[0] + inputs[1]
    return _pairs(*inputs)


def _pairs(left: list[Event], right: list[Event]) -> Iterator[Event]:
    by_place: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)
    for each in right:
        by_place[_place(each)].append(each)
    for number, key, at in left:
        for other, _, _ in by_place[_place((number, key, at))]:
            yield (number * PAIR + other) % MODULUS, key, at


def _place(each: Event) -> tuple[int, int]:
    return each[1], each[2] // (WINDOW_S * 1_000)


def _ended(kind: str, events: list[Event]) -> Output:
    if kind == "rows":
        return Counter((kind, number, key) for number, key, _ in events)
    if kind == "counts":
        counts = Counter(key for _, key, _ in events)
        return Counter((kind, key, n + 1) for key, count in counts.items() for n in range(count))
    if kind == "sessions":
        return Counter((kind, start * KEYS + key, n) for key, start, n in _sessions(events))
    if kind == "lists":
        return _listed(events)
    slide_s = SLIDE_S if kind == "sliding" else WINDOW_S
    windows = Counter(
        (key, (at // (slide_s * 1_000) - back) * slide_s)
        for _, key, at in events
        for back in range(WINDOW_S // slide_s)
    )
    return Counter((kind, start_s * 1_000 * KEYS + key, n) for (key, start_s), n in windows.items())


def _listed(events: list[Event]) -> Output:
    listed = Counter((kind, number, 0) for kind in ("split", "union") for number, _, _ in events)
    told = Counter(number * KEYS + key for number, key, _ in events)
    listed.update(("broadcast", entry, n) for entry, n in told.items())
    return listed


def _sessions(events: list[Event]) -> Iterator[tuple[int, int, int]]:
    """Yields key, start and size of each session."""
    by_key: defaultdict[int, list[int]] = defaultdict(list)
    for _, key, at in events:
        by_key[key].append(at)
    for key, times in by_key.items():
        ordered = sorted(times)
        begins = [i for i, at in enumerate(ordered) if i == 0 or at - ordered[i - 1] > GAP_MS]
        for begin, end in zip(begins, [*begins[1:], len(ordered)], strict=True):
            yield key, ordered[begin], end - begin
