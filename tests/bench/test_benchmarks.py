"""Each benchmark, with next to nothing to do, reports what it promises; times are not judged."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench import pairs
from bench.benchmark import missed
from bench.checkpoints import backpressure, coordinator, incremental, overhead, pause
from bench.ends import ends, kafka_end, postgres_end, redis_end
from bench.page_views import MODES, Work, on_processes, run_once
from bench.pairs import Pair
from bench.peers.peer_runs import NO_PEERS
from bench.recovery import recovery, restore, state_memory
from bench.speed import latency, pv, small_batches
from bench.whole_run import Measured
from ftdash.command_line.management.commands.bench import BENCHMARKS, module_of
from pipelines.lab.page_views import COLUMNS, ROW, apps_of, wall_ms
from tests.brokers.kafka_broker import KafkaBroker
from tests.brokers.redis_broker import RedisBroker
from tests.commit_share import share_of
from tests.driven_run import StartedRun
from tests.postgres_server import PostgresServer
from tests.processes.views import SEED

Texts = dict[str, str]
EVENTS = 20_000
STATE_ROW_BYTES = 16  # a key and a number
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries each pair once: with so little work, every run takes a different time."""
    monkeypatch.setattr(pairs, "TRIES_MAX", 1)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_that_the_command_lists_exists(name: str) -> None:
    assert callable(importlib.import_module(module_of(name)).main)


def test_every_benchmark_can_be_imported_in_a_new_process() -> None:
    """The command starts each benchmark in a new process, where Django is not set up."""
    modules = ", ".join(map(module_of, BENCHMARKS))

    began = subprocess.run(
        [sys.executable, "-c", f"import {modules}"], capture_output=True, text=True, timeout=120
    )

    assert began.returncode == 0, began.stderr


@pytest.mark.parametrize("name", ["incremental", "backpressure", "coordinator", "recovery"])
def test_benchmarks_accept_a_million_keys(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [name, "--keys", "1000000", "--nothing-known"])

    with pytest.raises(SystemExit):
        importlib.import_module(module_of(name)).main()

    assert "does not know --nothing-known" in capsys.readouterr().err


def test_pv_measures_each_mode_against_the_limit() -> None:
    """A commit chooses one or two modes; `manage.py bench pv --mode all` runs all of them."""
    modes = share_of(list(MODES), 3)
    work = Work("app_id", "rocksdb", rounds=2, events=EVENTS)
    started: list[dict[str, str]] = []

    def start(root: Path, parameters: Texts, settings: Texts) -> AbstractContextManager[StartedRun]:
        started.append(settings)
        return on_processes(root, parameters, settings)

    found = pv.measure(work, modes, 1, NO_PEERS, start)

    chosen = {"execution.checkpointing.interval": "1 s", "state.backend.type": "rocksdb"}
    assert started == [{**chosen, **MODES[mode]} for mode in (*modes, *reversed(modes))]
    assert found["records"] == 2 * EVENTS
    assert list(found["by_mode"]) == modes
    assert 0 < found["ratio"] == min(fields["ratio"] for fields in found["by_mode"].values())
    assert found["flink_ratio"] is None
    assert found["peers"]["flink"] == "not asked for (--with-peers)"


def test_overhead_compares_every_mode_with_a_run_without_checkpoints() -> None:
    work = Work("user_id", rounds=2, events=EVENTS)

    found = overhead.measure(work, ["aligned", "unaligned"], 1, on_processes)

    slowdowns = {mode: fields["slowdown"] for mode, fields in found["by_mode"].items()}
    assert set(slowdowns) == {"aligned", "unaligned"}
    assert found["slowdown"] == max(slowdowns.values())
    assert found["slowdown_interval"]["low"] == found["slowdown"]
    assert found["more_processor"] > -1.0
    assert len(found["limit_spreads"]) == 1


def test_overhead_shows_more_processor_time_at_equal_speed() -> None:
    def run(processor_s: float) -> Measured:
        return Measured(1_000.0, 10, 10.0, processor_s)

    pair = Pair((run(10.0), run(10.0)), {"aligned": (run(10.5), run(11.5))}, 0.0, 0)

    assert overhead.slowdown("aligned", pair) == 0.0
    assert overhead.more_processor("aligned", pair) == pytest.approx(0.1)


def test_a_run_takes_no_more_processor_time_than_the_machine_has() -> None:
    work = Work("user_id", rounds=20, events=EVENTS)

    measured = run_once(work, "aligned", "1 s", on_processes)

    assert 0 < measured.processor_s <= measured.seconds * (os.cpu_count() or 1) + 0.5


def with_quick_checkpoints(
    root: Path, parameters: Texts, settings: Texts
) -> AbstractContextManager[StartedRun]:
    """Waits less for checkpoints of a run that reads without end, as fast as it can."""
    return on_processes(root, parameters, {**settings, "execution.checkpointing.interval": "200ms"})


def test_pause_reports_the_longest_cut() -> None:
    found = pause.measure(Work("user_id", events=EVENTS), 2, with_quick_checkpoints)

    assert found["cuts"] >= 4
    assert 0 < found["pause_ms_p99"] <= found["pause_ms_max"]


def test_recovery_reports_each_kill() -> None:
    found = recovery.measure(Work("app_id", events=EVENTS), 1, with_quick_checkpoints)

    assert [len(found[name]) for name in ("running_ms", "output_ms")] == [1, 1]
    assert 0 < found["running_ms_median"] <= found["output_ms_median"]


@pytest.mark.parametrize("backend", restore.MEGABYTES)
def test_restore_is_compared_with_reading_and_digesting_the_same_bytes(backend: str) -> None:
    found = restore.measure({**dict.fromkeys(restore.MEGABYTES, 0), backend: 20})

    assert found[f"{backend}_bytes"] >= 20_000_000
    assert 0 < found[f"{backend}_verified_s"] < found["seconds"] == found[f"{backend}_seconds"]
    assert found["ratio"] == found[f"{backend}_ratio"] > 0
    assert {bar.field for bar in restore.BARS} <= set(found)


def test_latency_is_measured_at_half_of_the_full_load() -> None:
    found = latency.measure(20_000, 0.5, warm_up_s=0.2, interval_ms=100)

    assert found["records_per_s"] == pytest.approx(found["full_records_per_s"] / 2, abs=1)
    assert found["records"] == pytest.approx(found["records_per_s"] * 0.5, rel=0.05)
    assert -100 < found["p50_ms"] <= found["p99_ms"]
    assert {bar.field for bar in latency.BARS} <= set(found)


def test_a_record_counts_as_visible_from_the_renaming_of_its_file(tmp_path: Path) -> None:
    columns = {name: pa.array([7], pa.int64()) for name in COLUMNS}
    for name in (".prepared-1", ".prepared-2"):
        pq.write_table(pa.table(columns), tmp_path / name)
        os.utime(tmp_path / name, (0, 0))

    (tmp_path / ".prepared-1").rename(tmp_path / "part-1")
    (row,) = latency.visible_rows(tmp_path)

    assert row["visible_ms"] == pytest.approx(wall_ms(), abs=60_000)
    assert {row[name] for name in COLUMNS} == {7}


def test_latency_leaves_out_the_warm_up_and_the_end_of_the_run() -> None:
    rows = np.zeros(5, ROW)
    rows["happened_ms"] = [10_000, 10_999, 11_000, 12_999, 13_000]

    counted = latency.due_within(rows, 1.0, 3.0)

    assert counted["happened_ms"].tolist() == [11_000, 12_999]


def test_latency_is_the_time_beyond_the_checkpoint_interval() -> None:
    rows = np.zeros(100, ROW)
    rows["view"] = np.arange(100)
    rows["happened_ms"] = 10_000 + 10 * rows["view"]
    rows["visible_ms"] = 11_070

    found = latency.added(rows, 1_000)

    assert found == {"p50_ms": -425, "p99_ms": 60}


@pytest.mark.parametrize("views", [[0, 1], [0, 1, 1, 2]], ids=["lost", "doubled"])
def test_latency_refuses_output_that_is_not_exactly_once(views: list[int]) -> None:
    rows = np.zeros(len(views), ROW)
    rows["view"] = views
    rows["app"] = apps_of(SEED, rows["view"])

    with pytest.raises(RuntimeError, match="not exactly once"):
        latency.check_exactly_once(rows, 3)


def test_coordinator_reports_acknowledgements_by_number_of_subtasks() -> None:
    found = coordinator.measure(largest=200, acknowledgements=400, keys=1_000)

    assert found["keys"] == 1_000
    assert list(found["by_subtasks"]) == ["100", "200"]
    assert found["acks_per_s"] == found["by_subtasks"]["200"] > 0
    fewest = found["by_subtasks"]["100"]
    assert found["flat_ratio"] == round(found["acks_per_s"] / fewest, 3)
    assert {bar.field for bar in coordinator.BARS} <= set(found)


@pytest.mark.parametrize(("keys", "files"), [(0, 0), (150, 150), (1_000_007, 200)])
def test_each_subtask_with_keys_reports_one_file_to_the_coordinator(keys: int, files: int) -> None:
    snapshots = coordinator.snapshots_of(200, keys)

    states = [state for each in snapshots for state in each.operators[0].states]
    assert sum(state.rows for state in states) == keys
    assert len({state.file.name for state in states}) == len(states) == files


def test_backpressure_compares_aligned_with_overtaking_checkpoints() -> None:
    found = backpressure.measure(
        checkpoints=1, keys=2_000, slow_ms=3, full_bytes=1 << 20, slow_us=200
    )

    assert min(found["unaligned_ms"], found["aligned_ms"], found["small_records_ms"]) > 0
    ratio = found["aligned_ms"] / found["unaligned_ms"]
    assert found["aligned_over_unaligned"] == pytest.approx(ratio, rel=0.1)
    assert found["persisted_bytes"] > 0
    assert found["state_bytes"] >= 2_000 * STATE_ROW_BYTES
    assert {bar.field for bar in backpressure.BARS} <= set(found)


@pytest.mark.parametrize("backend", state_memory.BACKENDS)
def test_state_memory_reports_the_memory_of_each_phase(backend: str) -> None:
    found = state_memory.measure(backend, 8 << 20)

    for phase in state_memory.PHASES:
        assert found[f"{backend}_{phase}_ratio"] > 0
    assert found[f"{backend}_snapshot_peak_mb"] >= found[f"{backend}_snapshot_held_mb"] > 0
    assert {bar.field for bar in state_memory.BARS if bar.field.startswith(backend)} <= set(found)


def test_small_batches_reports_the_slowest_operator_for_each_size() -> None:
    sizes = (1, 100)

    found = small_batches.measure(small_batches.OPERATORS, sizes, seconds=0.01, rounds=1)

    assert list(found["by_operator"]) == ["map", "window", "process", "join"]
    rates = [
        flavours[flavour]["100"]
        for flavours in found["by_operator"].values()
        for flavour in ("by_row", "by_batch")
    ]
    assert 0 < min(rates) == found["by_rows"]["100"] == found["at_100"]
    assert list(found["by_rows"]) == ["1", "100"]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_incremental_compares_with_the_full_snapshot(backend: str) -> None:
    found = incremental.measure(backend, keys=5_000, part=0.01, checkpoints=2)

    assert 0 < found[f"{backend}_uploaded_bytes"] < found[f"{backend}_full_bytes"]


@pytest.mark.parametrize("name", ends.ENDS)
def test_ends_compares_a_run_with_a_bare_loop_over_the_same_records(
    name: str,
    kafka_server: KafkaBroker,
    postgres: PostgresServer,
    redis_server: RedisBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(kafka_end.GIVEN, kafka_server.bootstrap_servers)
    monkeypatch.setenv(postgres_end.GIVEN, postgres.url)
    monkeypatch.setenv(redis_end.GIVEN, redis_server.url)

    found = ends.measure([name], pairs=1, records=2_000)

    assert found[f"{name}_ratio"] > 0
    assert found[f"{name}_records"] == 2_000
    assert found[f"{name}_checkpoints"] >= 1
    assert f"{name}_ratio" in {bar.field for bar in ends.BARS}


@dataclass(frozen=True)
class PacedEnd:
    """Takes a second per thousand records, and completes a checkpoint every four seconds."""

    records: int

    def bare(self) -> float:
        return 2_000.0

    def exactly_once(self) -> Measured:
        seconds = self.records / 1_000
        return Measured(1_000.0, int(seconds / 4), seconds, seconds)


def test_too_short_a_run_is_repeated_with_more_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[int] = []

    @contextmanager
    def open_end(directory: Path, records: int) -> Iterator[PacedEnd]:
        opened.append(records)
        yield PacedEnd(records)

    monkeypatch.setitem(ends.ENDS, "redis", open_end)
    monkeypatch.setitem(ends.RECORDS, "redis", 5_000)

    found = ends.measure(["redis"], pairs=3)

    assert len(opened) > 1
    assert found["redis_ratios"] == [0.5, 0.5, 0.5]
    assert found["redis_seconds"] >= ends.LEAST_S
    assert found["redis_checkpoints"] >= ends.LEAST_CHECKPOINTS
    asked = ends.measure(["redis"], pairs=1, records=1_000)
    assert asked["redis_records"] == 1_000
    assert set(missed(asked, ends.BARS)) == {"redis_ratio", "redis_seconds", "redis_checkpoints"}


def test_an_end_that_cannot_run_here_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(kafka_end.GIVEN, raising=False)
    monkeypatch.setenv("PATH", "")

    found = ends.measure(["kafka"], pairs=1)

    assert found["kafka_ratio"] is None
    assert "there is no java on PATH; or set FTDASH_BENCH_KAFKA" in found["kafka_not_measured"]


def test_records_that_did_not_arrive_are_an_error(
    redis_server: RedisBroker,
) -> None:
    end = redis_end.RedisEnd(redis_server.url, 100)

    with pytest.raises(RuntimeError, match="0 of 100 hashes arrived"):
        end._check_arrived("nothing-here")
