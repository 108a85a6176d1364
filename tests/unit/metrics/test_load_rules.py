"""Rules on loads: each names its problem, and a healthy pipeline under load has none."""

import random
from dataclasses import replace

import pytest

from ftdash.metrics.load_rules import (
    Finding,
    LoadMoment,
    LoadProblem,
    behind,
    skew,
    skewed_now,
    slow_checkpoints,
    source_away,
    stuck_code,
    watermark_still,
)
from ftdash.metrics.queries.loads import HotKeys, SubtaskLoad


@pytest.mark.parametrize("seed", range(200))
def test_a_healthy_pipeline_under_load_has_no_finding(seed: int) -> None:
    """All subtasks of an operator do about the same work, even at full load.

    Queues fill and empty, event time advances, and some checkpoints take several times as long as
    others.
    """
    rng = random.Random(seed)
    parallelism, level = rng.choice((1, 2, 4, 16)), rng.uniform(0.05, 1.0)
    seconds = [LoadMoment(float(s), healthy(rng, parallelism, level, s)) for s in range(61)]
    usual_ms = rng.uniform(10, 4_000)
    durations = [usual_ms * rng.uniform(0.5, 3.0) for _ in range(rng.randint(0, 30))]

    minute = [seconds[0], seconds[30], seconds[60]]

    assert skew(seconds[-5:]) is None
    assert behind(minute) is None
    assert watermark_still(minute) is None
    assert slow_checkpoints(durations, usual_ms * rng.uniform(0, 3.0)) is None


def test_a_source_waiting_for_its_system_is_named_with_the_reason() -> None:
    away = replace(load("orders", 1, busy=0.0), source_problem="the server does not answer")

    found = source_away([load("orders", 0, busy=0.0), away])

    assert found is not None
    assert found.text == "orders[1] reads nothing: the server does not answer."
    assert source_away([load("orders", 0, busy=0.0)]) is None


def test_a_function_that_does_not_return_is_named_with_its_line() -> None:
    def standing(subtask: int, stands_ms: int | None) -> SubtaskLoad:
        of_code = {"stands_ms": stands_ms, "stands_at": "flow.py:7, in rate"}
        return replace(load("rates", subtask, busy=1.0), **of_code)  # type: ignore[arg-type]

    found = stuck_code([standing(0, 6_000), standing(1, 65_000), standing(2, None)])

    assert found is not None
    assert found.problem is LoadProblem.STUCK_CODE
    assert found.text == "rates[1] has stood for 1 min 05 s at flow.py:7, in rate."
    assert stuck_code([standing(0, 4_999), standing(1, None)]) is None


@pytest.mark.parametrize("seed", range(50))
def test_a_busy_subtask_with_idle_neighbours_is_named_with_its_key_group(seed: int) -> None:
    rng = random.Random(seed)
    parallelism = rng.choice((2, 3, 8, 64))
    worst = rng.randrange(parallelism)
    hot = HotKeys(vertex="sums", columns=["carrier"], sampled=900, groups=[(17, 0.81)], keys=[])

    def loads(second: int) -> list[SubtaskLoad]:
        source = load("orders", 0, busy=0.3, window=None, hot_keys=[hot])
        return [
            source,
            *(
                load("sums", n, busy=rng.uniform(0.9, 1.0), queued=rng.randint(1, 900))
                if n == worst
                else load("sums", n, busy=rng.uniform(0.0, 0.2))
                for n in range(parallelism)
            ),
        ]

    moments = [LoadMoment(float(s), loads(s)) for s in range(5)]
    found = skew(moments)

    assert found is not None
    assert found.problem is LoadProblem.SKEWED
    assert found.text.startswith(f"sums[{worst}] does most of the work of sums: it is busy")
    assert found.text.endswith("Key group 17 gets about 81 % of the records (by carrier).")
    assert skewed_now(moments[-1].loads).startswith(found.text[:40])


def test_a_hot_key_is_named_where_records_may_be_shown() -> None:
    hot = HotKeys(
        vertex="sums",
        columns=["carrier"],
        sampled=900,
        groups=[(17, 0.81)],
        keys=[("AA", 0.8)],
    )
    loads = [
        load("orders", 0, busy=0.3, window=None, hot_keys=[hot]),
        load("sums", 0, busy=1.0, queued=5),
        load("sums", 1, busy=0.0),
    ]

    found = skew([LoadMoment(float(s), loads) for s in range(5)])

    assert found is not None
    assert found.text == (
        "sums[0] does most of the work of sums: it is busy 100 % of the time with 5 records queued,"
        " and its 1 neighbour 0 %. Key group 17 gets about 81 % of the records; the hottest key is"
        " carrier = AA with 80 %."
    )


@pytest.mark.parametrize(
    "loads",
    [
        [],
        [("sums", 0, 1.0, 500)],  # it has no neighbour
        [("sums", 0, 0.79, 500), ("sums", 1, 0.0, 0)],  # it is not busy
        [("sums", 0, 1.0, 500), ("sums", 1, 0.51, 0)],  # its neighbour works, too
        [("sums", 0, 1.0, 0), ("sums", 1, 0.0, 0)],  # nothing waits for it
    ],
)
def test_one_busy_subtask_alone_is_no_skew(loads: list[tuple[str, int, float, int]]) -> None:
    found = [load(vertex, n, busy=busy, queued=queued) for vertex, n, busy, queued in loads]

    assert skew([LoadMoment(float(s), found) for s in range(5)]) is None
    assert skewed_now(found) == ""


def test_a_moment_of_skew_does_not_count() -> None:
    uneven = [load("sums", 0, busy=1.0, queued=5), load("sums", 1, busy=0.0)]

    assert skew([LoadMoment(float(s), uneven) for s in range(4)]) is None


def test_a_source_that_falls_behind_is_named_with_its_waiting_work() -> None:
    def at(second: int, pending: int, read: int) -> LoadMoment:
        source = load("orders", 0, busy=1.0, window=None, pending=pending, out=read)
        return LoadMoment(float(second), [source])

    growing = [at(0, 1_000, 0), at(30, 3_000, 3_000), at(60, 6_000, 6_000)]
    catching_up = [at(0, 90_000, 0), at(30, 60_000, 3_000), at(60, 30_000, 6_000)]
    soon_done = [at(0, 1_000, 0), at(30, 2_000, 30_000), at(60, 3_000, 60_000)]

    assert behind(growing) == Finding(
        LoadProblem.BEHIND,
        "orders falls behind: 6,000 records wait, 1 min 00 s of work at its present speed, and they"
        " become more.",
    )
    assert behind(catching_up) is None
    assert behind(soon_done) is None
    assert behind(growing[:2]) is None


def test_an_operator_that_reads_nothing_while_its_queue_grows_is_named() -> None:
    def at(second: int, queued: int) -> LoadMoment:
        return LoadMoment(float(second), [load("lookup", 0, busy=1.0, queued=queued, came=77)])

    found = behind([at(0, 10), at(30, 200), at(60, 900)])

    assert found is not None
    assert found.text == "lookup has taken no record for a minute, and 900 records wait."


def test_a_watermark_stalled_despite_input_is_traced_to_the_oldest_source() -> None:
    def at(second: int, *, mark: int = 5_000, came: int | None = None) -> LoadMoment:
        rows = 100 * second if came is None else came
        return LoadMoment(
            float(second),
            [
                load("orders", 0, busy=0.1, window=None, mark=9_000 + second),
                load("orders", 1, busy=0.0, window=None, mark=5_000),
                load("hourly", 0, busy=0.1, mark=mark, came=rows),
            ],
        )

    assert watermark_still([at(0), at(30), at(60)]) == Finding(
        LoadProblem.WATERMARK_STILL,
        "The watermark of hourly has stood still for a minute, although 6,000 records came: no"
        " window of it ends. It waits for orders[1].",
    )
    assert watermark_still([at(0), at(30, mark=5_001), at(60, mark=5_001)]) is None
    assert watermark_still([at(0, came=7), at(30, came=7), at(60, came=7)]) is None
    assert watermark_still([at(0), at(60)]) is None


def test_checkpoints_are_slow_compared_with_their_own_median() -> None:
    usual = [150.0] * 20

    found = slow_checkpoints([*usual, 22_000.0, 21_000.0], None)
    under_way = slow_checkpoints([*usual, 150.0, 150.0], 7_000.0)

    assert found == Finding(
        LoadProblem.SLOW_CHECKPOINTS,
        "The last 2 checkpoints took 21.0 s and more; usually they take 150 ms.",
    )
    assert under_way is not None
    assert under_way.text.startswith("The checkpoint under way has taken 7.00 s so far")
    assert slow_checkpoints([*usual, 22_000.0, 150.0], None) is None
    assert slow_checkpoints([*usual, 900.0, 900.0], None) is None
    assert slow_checkpoints([150.0] * 7 + [22_000.0] * 2, None) is None


def healthy(rng: random.Random, parallelism: int, level: float, second: int) -> list[SubtaskLoad]:
    def share() -> float:
        return min(1.0, max(0.0, rng.gauss(level, 0.15 * level)))

    mark, came = 10_000 + 500 * second, 1_000 * second
    sources = [
        load(
            "orders", n, busy=share(), window=None, mark=mark, out=came, pending=rng.randint(0, 50)
        )
        for n in range(parallelism)
    ]
    keyed = [
        load("sums", n, busy=share(), queued=rng.randint(0, 900), mark=mark, came=came)
        for n in range(parallelism)
    ]
    return [*sources, *keyed]


def load(
    vertex: str,
    subtask: int,
    *,
    busy: float,
    queued: int = 0,
    window: int | None = 65_536,
    pending: int | None = None,
    mark: int | None = None,
    came: int = 0,
    out: int = 0,
    hot_keys: list[HotKeys] | None = None,
) -> SubtaskLoad:
    return SubtaskLoad(
        vertex=vertex,
        subtask=subtask,
        busy_ratio=busy,
        backpressured_ratio=0.0,
        idle_ratio=1.0 - busy,
        busy_ms=None,
        backpressured_ms=None,
        idle_ms=None,
        records_in=came,
        records_out=out,
        records_in_per_s=None,
        records_out_per_s=None,
        watermark_ms=mark,
        queued_records=queued,
        queued_bytes=64 * queued,
        state_bytes=0,
        pending_records=pending,
        window_bytes=window,
        hot_keys=hot_keys or [],
    )
