"""Totals of totals: each total counts once, or building the pipeline is refused."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipelines.domain.errors import Rejected
from pipelines.stream import (
    Environment,
    Pipeline,
    Stream,
    WindowedStream,
    count,
    count_trigger,
    purging,
    session,
    sliding,
    sum,
    tumbling,
)
from pipelines.testing import run_with_kills

VISITS = pa.schema([("user", pa.int64()), ("page", pa.string())])


@pytest.mark.parametrize("seed", range(6))
def test_a_count_of_counts_uses_the_newest_count_of_each_key(seed: int) -> None:
    rng = random.Random(seed)
    visits = [{"user": rng.randrange(12), "page": rng.choice("abc")} for _ in range(80)]

    run = run_with_kills(users_by_visits(), {"visits": visits}, kills=seed)

    newest = {row["visits"]: row["users"] for row in run.table("out").to_pylist()}
    per_user = Counter(each["user"] for each in visits)
    assert {n: users for n, users in newest.items() if users} == Counter(per_user.values())


@pytest.mark.parametrize(
    "updates",
    [
        lambda s: s.key_by("user").aggregate(n=count(), uid="first"),
        lambda s: s.key_by("user").reduce(lambda old, new: new, uid="first"),
        lambda s: s.key_by("user").max_by("page", uid="first"),
    ],
)
@pytest.mark.parametrize(
    "pass_on",
    [
        lambda s: s,
        lambda s: s.rebalance(),
        lambda s: s.filter(pc.field("user") > 0, uid="next"),
        lambda s: s.filter_rows(lambda row: True, uid="next"),
        lambda s: s.map(lambda row: row, s.schema, uid="next"),
        lambda s: s.flat_map(lambda row: [row], s.schema, uid="next"),
        lambda s: s.map_batches(lambda batch: batch, s.schema, uid="next"),
        lambda s: s.union(s, uid="next"),
    ],
)
def test_an_aggregate_that_would_count_every_update_is_refused_with_the_next_step(
    updates: Callable[[Stream], Stream], pass_on: Callable[[Stream], Stream]
) -> None:
    totals = pass_on(updates(visits_of(Environment())))

    with pytest.raises(Rejected, match=r"'second' .* key_by\('user'\)\.deduplicate\(keep='last'"):
        totals.key_by("user").aggregate(n=count(), uid="second")


def test_a_ranking_that_would_keep_replaced_rows_is_refused_with_the_next_step() -> None:
    totals = visits_of(Environment()).key_by("user", "page").aggregate(n=count(), uid="totals")

    with pytest.raises(Rejected, match=r"'best' cannot .* its rank\. Rank results that are f"):
        totals.key_by("user").top_n(2, order_by="n", uid="best")
    records = totals.as_records(uid="records")
    assert records.key_by("user").top_n(2, order_by="n", uid="best").is_changelog


@pytest.mark.parametrize(
    ("windowed", "keys"),
    [
        (lambda w: w(tumbling(minutes=1)).trigger(count_trigger(1)), "'user', 'window_start'"),
        (
            lambda w: w(tumbling(minutes=1)).allowed_lateness(timedelta(minutes=1)),
            "'user', 'window_start'",
        ),
        (
            lambda w: w(sliding(timedelta(minutes=2), every=timedelta(minutes=1))).trigger(
                count_trigger(1)
            ),
            "'user', 'window_start', 'window_end', 'window_time'",
        ),
    ],
)
def test_results_of_windows_that_fire_again_are_updates(
    windowed: Callable[[Any], WindowedStream], keys: str
) -> None:
    results = windowed(timed().key_by("user").window).aggregate(n=count(), uid="windows")

    with pytest.raises(Rejected, match=rf"key_by\({keys}\)\.deduplicate\(keep='last'"):
        results.key_by("user").aggregate(n=sum("n"), uid="second")
    with pytest.raises(Rejected, match="keep its rank"):
        results.key_by("user").top_n(2, order_by="n", uid="best")


def test_results_of_sessions_with_lateness_have_no_stable_key() -> None:
    sessions = timed().key_by("user").window(session(timedelta(minutes=1)))
    results = sessions.allowed_lateness(timedelta(minutes=1)).aggregate(n=count(), uid="windows")

    with pytest.raises(Rejected, match=r"late rows have made longer.* Leave out allowed_lateness"):
        results.key_by("user").aggregate(n=sum("n"), uid="second")


@pytest.mark.parametrize(
    "final",
    [
        lambda w: w(tumbling(minutes=1)),
        lambda w: w(session(timedelta(minutes=1))),
        lambda w: w(tumbling(minutes=1)).trigger(purging(count_trigger(1))),
    ],
)
def test_final_or_additive_results_of_windows_can_be_aggregated(
    final: Callable[[Any], WindowedStream],
) -> None:
    results = final(timed().key_by("user").window).aggregate(n=count(), uid="windows")

    totals = results.key_by("user").aggregate(n=sum("n"), uid="second")

    assert totals.schema.names == ["user", "n"]


@pytest.mark.parametrize("seed", range(4))
def test_totals_of_windows_that_fire_early_count_each_row_once(seed: int) -> None:
    rng = random.Random(seed)
    visits = [
        {"user": rng.randrange(4), "at": datetime.fromtimestamp(rng.randrange(300), UTC)}
        for _ in range(80)
    ]
    windows = timed(out_of_orderness=timedelta(minutes=5)).key_by("user").window
    early = windows(tumbling(minutes=1)).trigger(count_trigger(2)).aggregate(n=count(), uid="early")
    newest = early.key_by("user", "window_start").deduplicate(keep="last", uid="newest")
    totals = newest.key_by("user").aggregate(n=sum("n"), windows=count(), uid="totals")
    totals.collect(uid="out")

    run = run_with_kills(totals.environment.build(), {"visits": visits}, kills=seed)

    found = {row["user"]: (row["n"], row["windows"]) for row in run.table("out").to_pylist()}
    expected: dict[object, list[int]] = {}
    for each in visits:
        expected.setdefault(each["user"], []).append(int(each["at"].timestamp()) // 60)
    assert found == {user: (len(of), len(set(of))) for user, of in expected.items()}


TIMED = pa.schema([("user", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])


def timed(out_of_orderness: timedelta = timedelta(0)) -> Stream:
    return Environment().from_rows(
        [], TIMED, uid="visits", timestamp_column="at", out_of_orderness=out_of_orderness
    )


def test_updates_can_be_counted_as_records() -> None:
    totals = visits_of(Environment()).key_by("user").aggregate(n=count(), uid="totals")

    counted = totals.as_records(uid="records").key_by("n").aggregate(m=count(), uid="counted")

    assert counted.schema.names == ["n", "m"]


def visits_of(environment: Environment) -> Stream:
    return environment.from_rows([], VISITS, uid="visits")


def users_by_visits() -> Pipeline:
    totals = visits_of(Environment()).key_by("user").aggregate(visits=count(), uid="totals")
    newest = totals.key_by("user").deduplicate(keep="last", uid="newest")
    by_visits = newest.key_by("visits").aggregate(users=count(), each=sum("user"), uid="by-visits")
    by_visits.collect(uid="out")
    return by_visits.environment.build()
