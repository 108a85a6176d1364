"""Nexmark as a benchmark: exact under `kill -9`, with meaningful figures and comparisons."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from nexmark.generator import AUCTION, BID, PERSON
from nexmark.queries import QUERIES

from bench.nexmark import check, kills, nexmark, page, speed
from bench.nexmark.check import Printed, difference, printed_changes
from bench.nexmark.kills import DRIVER, SLOTS, Kills
from bench.nexmark.peers import Flink, NotMeasured, PeerMeasured
from bench.nexmark.runs import Begin, Events, kinds_of, known_queries, on_processes
from bench.nexmark.speed import OurRun, Work, of_query
from bench.peers.peer_runs import PROGRAMS
from tests.commit_share import share_of
from tests.unit.nexmark.answers import decided

pytestmark = pytest.mark.slow

KILLED = ("q4", "q5", "q19")
"""A join followed by totals of a changelog, windows over windows, and a ranking. A commit chooses
one of them; `manage.py bench nexmark --kills` runs any."""

KILLS = Kills(Events(90_000, 3_000), rate=10_000, count=3, interval_ms=200, between_s=(0.05, 0.3))
FEW = Events(20_000, 500)
SEEN = speed.Work(FEW, pairs=1, least_s=1.0)
"""Long enough for the benchmark to look at the processes, unlike a run of a tenth of a second."""


@pytest.mark.parametrize("query", share_of(KILLED, len(KILLED)))
def test_a_query_stays_exact_when_its_driver_and_every_slot_are_killed(
    query: str,
) -> None:
    seed = random.randrange(1_000)
    print(f"seed {seed}")

    found = kills.measure([query], replace(KILLS, seed=seed), on_processes)

    fields = found["by_query"][query]
    assert fields["same"], f"seed {seed}"
    assert fields["rows"] > 0
    assert sorted(fields["victims"]) == sorted([DRIVER, *SLOTS]), f"seed {seed}"
    assert found["not_exact"] == 0
    assert min(fields["running_ms"]) > 0


def test_a_seed_fixes_the_victims_and_every_process_is_among_them() -> None:
    victims = [Kills(FEW, 1, 5, seed=9).victims(random.Random(9)) for _ in range(2)]

    assert victims[0] == victims[1]
    assert set(victims[0]) == {DRIVER, *SLOTS}
    assert len(victims[0]) == 5


def test_events_that_end_before_the_last_kill_are_an_error() -> None:
    hurried = Kills(FEW, rate=1_000_000, count=3, interval_ms=100)

    with pytest.raises(RuntimeError, match="The events ended before the last kill"):
        kills.measure(["q2"], hurried, on_processes)


def test_without_peers_the_report_has_all_our_figures_and_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for peer in ("FLINK", "STRUCTURED"):
        monkeypatch.setenv(f"FTDASH_BENCH_{peer}_PYTHON", "/nowhere/python")

    found = speed.measure(["q18"], replace(SEEN, with_peers=True), on_processes)

    fields = found["by_query"]["q18"]
    assert found["geometric_mean"] is None
    assert (fields["ratio"], fields["same"], found["not_same"]) == (None, None, None)
    assert min(fields[name] for name in ("records_per_s", "cpu_s", "checkpoints")) > 0
    assert fields["state_bytes"] > 0
    assert fields["checkpoint_ms_p99"] == found["checkpoint_ms_p99_max"] > 0
    assert "make a virtual environment with apache-flink==2.3.*" in fields["flink"]
    assert "make a virtual environment with pyspark==4.*" in fields["structured"]


@pytest.mark.parametrize("surplus", [[], [["-1", "7"]]], ids=["same", "one-row-more"])
def test_a_comparison_with_flink_says_whether_the_result_is_the_same(
    surplus: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = OurRun(200_000.0, 12.0, 20.0, 12, 10.0, 0, 1, 1)
    theirs = PeerMeasured(100_000.0, 40.0, 24, 20.0, 1, 1)
    rows = check.our_result("q2", FEW.files()).to_pylist()
    printed = [[str(each) for each in row.values()] for row in rows] + surplus
    lines = [json.dumps({"columns": ["auction", "price"]}), *(f"+I{_row(row)}" for row in printed)]
    monkeypatch.setattr(speed, "run_once", lambda query, work, begin: ours)
    monkeypatch.setattr(Flink, "run", lambda self, query, backend, *, mini_batch: theirs)
    monkeypatch.setattr(Flink, "printed", lambda self, query: "\n".join(lines))
    monkeypatch.setenv("FTDASH_BENCH_STRUCTURED_PYTHON", "/nowhere/python")

    found = speed.measure(["q2"], Work(FEW, with_peers=True, checked=FEW), on_processes)

    assert (found["by_query"]["q2"]["same"], found["not_same"]) == (not surplus, len(surplus))
    assert found["geometric_mean"] == found["by_query"]["q2"]["ratio"] == 2.0
    missed = {bar.field for bar in speed.BARS["hashmap"] if bar.is_missed_by(found)}
    assert missed == {"geometric_mean"} | ({"not_same"} if surplus else set())


def _row(row: list[str]) -> str:
    return f"[{json.dumps(row)}]"


@pytest.mark.parametrize("query", ["q2", "q5"])
def test_a_query_that_ends_too_soon_gets_more_events(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first 0.25 s of a run are its start, which does not grow with the number of events."""

    def run_once(query: str, work: Work, begin: Begin) -> OurRun:
        took_s = 0.25 + work.events.read / 160_000
        return OurRun(work.events.read / took_s, took_s, 0.1, 1, 10.0, 0, 1, 1)

    monkeypatch.setattr(speed, "run_once", run_once)

    found = of_query(query, Work(Events(40_000, 500), pairs=1, least_s=2.0), on_processes)

    assert (found["events"], found["seconds"]) == (400_000, 2.8)


def test_a_run_that_ends_before_it_is_measured_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unseen = OurRun(200_000.0, 0.1, 0.0, 1, 10.0, 0, 1, 1)
    monkeypatch.setattr(speed, "run_once", lambda query, work, begin: unseen)

    with pytest.raises(RuntimeError, match="before its processor time could be measured"):
        of_query("q18", Work(FEW, pairs=1, least_s=0), on_processes)


def test_files_for_three_rounds_hold_three_times_the_rows() -> None:
    names = [path / BID.name for path in (FEW.files([BID]), replace(FEW, rounds=3).files([BID]))]

    once, thrice = (pq.read_table(name).num_rows for name in names)

    assert (once, thrice) == (18_400, 3 * 18_400)


def test_only_the_event_kinds_that_a_query_reads_are_written() -> None:
    assert kinds_of("q2") == [BID]
    assert set(kinds_of("q3")) == {AUCTION, PERSON}


def test_flink_without_the_parquet_jar_says_where_to_put_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.nexmark.peers.version_in", lambda python, package: "2.3.0")
    monkeypatch.setenv("FTDASH_BENCH_FLINK_JARS", str(tmp_path))

    with pytest.raises(NotMeasured, match="that FTDASH_BENCH_FLINK_JARS names; get org"):
        Flink(tmp_path, 1).run("q0", "hashmap", mini_batch=False)


def test_each_of_our_queries_has_a_counterpart_in_flink_sql(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    from nexmark_sql import QUERIES as IN_FLINK  # type: ignore[import-not-found]

    assert list(IN_FLINK) == list(QUERIES)


@pytest.mark.parametrize(
    ("changes", "form", "left"),
    [
        (["+I 1 a", "+I 2 b"], "append", [("1", "a"), ("2", "b")]),
        (["+I 1 a", "-U 1 a", "+U 1 b"], "changelog", [("1", "b")]),
        (["+I 1 a", "+U 1 b", "+I 2 c"], "upserts", [("1", "b"), ("2", "c")]),
    ],
)
def test_printed_output_of_flink_is_read_in_every_form(
    changes: list[str], form: str, left: list[tuple[str, str]]
) -> None:
    parts = [change.split() for change in changes]
    lines = [f"{n % 2}> {kind}[{json.dumps(row)}]" for n, (kind, *row) in enumerate(parts)]
    begin, end = (json.dumps(told) for told in ({"columns": ["key", "value"]}, {"seconds": 1.5}))

    printed = printed_changes("\n".join([begin, "a line of a log", *lines, end]))

    assert printed.form == form
    result = decided("q9", printed.table(), ("key",) if form == "upserts" else ())
    assert sorted(zip(*result.to_pydict().values(), strict=True)) == left


@pytest.mark.parametrize("theirs", [["1", "3"], ["1"], ["1", "2", "2"]])
def test_the_comparison_with_flink_sees_each_difference(theirs: list[str]) -> None:
    ours = pa.table({"number": [1, 2]})

    same = difference("q2", ours, pa.table({"number": ["2", "1"]}))
    other = difference("q2", ours, pa.table({"number": theirs}))

    assert (same, bool(other)) == ([], True)


def test_a_flink_result_without_rows_is_an_empty_table() -> None:
    assert Printed(["a", "b"]).table().num_rows == 0


def test_our_result_over_files_has_the_rows_of_the_query() -> None:
    result = check.our_result("q2", FEW.files())

    assert result.column_names == ["auction", "price"]
    assert set(result["auction"].to_numpy() % 123) == {0}


def test_an_unknown_query_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["nexmark", "--query", "q6"])

    with pytest.raises(SystemExit):
        nexmark.main()

    assert "there is no query q6; choose from q0, q1" in capsys.readouterr().err
    assert known_queries(None) == list(QUERIES)


def test_the_table_and_chart_of_the_page_list_each_query_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(name: str, events: int, ratios: dict[str, float]) -> Path:
        fields = {"records_per_s": 1_234_567, "cpu_ratio": 3.0, "checkpoint_ms_p99": 90}
        by_query = {
            query: {**fields, "ratio": ratio, "ratios": [ratio]} for query, ratio in ratios.items()
        }
        by_query["q2"]["structured"] = {"ratio": 11.5}
        file = tmp_path / name
        file.write_text(f"progress\n{json.dumps({'events': events, 'by_query': by_query})}\n")
        return file

    older = printed("older", 10_000_000, {"q10": 1.0, "q2": 4.0})
    newer = printed("newer", 2_000_000, {"q2": 8.0, "q5": 2.0})
    monkeypatch.setattr("sys.argv", ["page", str(older), str(newer)])

    page.main()

    _, _, *rows, summary = capsys.readouterr().out.splitlines()
    assert rows == [
        "| q2 | 2 million | 1 | 1,234,567 | 8.0 | 3.0 | 0.09 s | 11.5 |",
        "| q5 | 2 million | 1 | 1,234,567 | 2.0 | 3.0 | 0.09 s | - |",
        "| q10 | 10 million | 1 | 1,234,567 | 1.0 | 3.0 | 0.09 s | - |",
    ]
    assert "geometric mean 2.52, of the stateful ones 2.00; least 1.00 (q10)" in summary
    (bars,) = page.chart(page.measured_in([older, newer])).data
    assert (list(bars.x), list(bars.y)) == (["q2", "q5", "q10"], [8.0, 2.0, 1.0])
