"""The soak for five minutes, with all its processes.

Its output is complete, and the report says so.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from bench.soak.answers import AMOUNTS, Checker
from bench.soak.disks import slow_flushes
from bench.soak.ends import Line
from bench.soak.report import fields_of, is_good, table
from bench.soak.running import DATABASES, Length, Soaked, directories_left, processes_left
from bench.soak.schedule import Fault
from bench.soak.slopes import JUDGED_FROM_S, Sample
from ftdash.embedded.supervisor import LEDGER_NAME, Ledger, new_mark
from pipelines.domain.errors import Rejected
from pipelines.state.on_disk.sorted_files import LOCK, PREFIX
from tests import conftest
from tests.polling import wait_until

ROOT = Path(__file__).parents[2]
SEED = 5
"""Its schedule has kills at moments of a checkpoint, of a recovery and of the driver early on."""

CHOSEN = ("redis-postgres", "windows-files", "counts-postgres")
"""Pipelines without Kafka; one has a window and one uses RocksDB."""

KINDS_MIN = 10
MOMENTS_MIN = 3
UNUSED = {
    "kafka-away",
    "kafka-away-long",
    "kafka-hung",
    "kafka-refusing",
    "partition-added",
}
NOT_POSSIBLE = {"clocks of C", "Spark", "executor-killed", *UNUSED}
"""What the soak leaves out where every program is there, and the account is root."""
SLOW_FLUSH_S = 2.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_minutes_of_faults_lose_double_and_change_nothing() -> None:
    """Takes longer on a machine too busy for that many faults in that time."""
    command = [sys.executable, "manage.py", "soak", "--json", "--minutes", "5"]
    command += ["--least-kinds", str(KINDS_MIN)]
    only = [word for name in CHOSEN for word in ("--only", name)]
    print(f"seed {SEED}")

    done = subprocess.run(
        [*command, *only, "--seed", str(SEED)], cwd=ROOT, capture_output=True, text=True
    )

    assert done.stdout, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["lost"], found["doubled"], found["different"]) == (0, 0, 0), done.stderr
    assert found["ended_runs"] == found["unfinished"] == [], done.stderr
    assert found["left_processes"] == found["left_directories"] == []
    assert done.returncode == 0
    assert len(found["faults"]) >= KINDS_MIN, found["not_done"]
    assert {*found["faults"], *found["not_come"], *found["left_out"]} >= set(Fault)
    assert found["seed"] == SEED
    assert found["seconds"] >= 300
    assert found["flat"] is None  # the run is too short to judge
    assert found["recoveries"] >= 5
    assert 0 < found["recovery_ms"]["p50"] <= found["recovery_ms"]["max"]
    assert all(found["rows"][name] > 500 for name in CHOSEN[::2])
    assert found["rows"]["windows-files"] > 100
    assert found["looks"] >= 3 * len(CHOSEN)
    assert found["slopes"]["web.memory_mb"]["bound"] is None
    moments = [kind for kind in found["faults"] if re.match("(slot|driver)-killed-", kind)]
    assert len(moments) >= MOMENTS_MIN, found["faults"]
    assert found["left_out"].keys() >= NOT_POSSIBLE
    if conftest.REQUIRE_ALL:  # or else a missing program would pass unseen
        assert found["left_out"].keys() == NOT_POSSIBLE


FLUSHING = """
import os, sys, tempfile, time
with tempfile.TemporaryFile() as file:
    for line in sys.stdin:
        file.write(line.encode())
        file.flush()
        began = time.monotonic()
        os.fsync(file.fileno())
        print(time.monotonic() - began, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="no strace on PATH")
def test_a_disk_is_slow_only_during_the_fault() -> None:
    command = [sys.executable, "-c", FLUSHING]
    with subprocess.Popen(
        command, text=True, bufsize=1, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as flushing:

        def takes_s() -> float:
            assert flushing.stdin is not None
            assert flushing.stdout is not None
            flushing.stdin.write("a line\n")
            return float(flushing.stdout.readline())

        with slow_flushes([flushing.pid], SLOW_FLUSH_S):
            wait_until(lambda: takes_s() >= SLOW_FLUSH_S)
        wait_until(lambda: takes_s() < SLOW_FLUSH_S)
        assert flushing.stdin is not None
        flushing.stdin.close()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("strace"), reason="no strace on PATH")
def test_slowing_the_disk_of_an_ended_process_is_refused() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()

    with pytest.raises(Rejected, match="status 1"), slow_flushes([ended.pid], SLOW_FLUSH_S):
        wait_until(lambda: not has_a_tracer())


def test_a_tracer_that_does_not_let_go_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, started = tmp_path / "strace", tmp_path / "started"
    program.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(started)!r}).touch()\n"
        "signal.pause()\n"
    )
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("bench.soak.disks.LETS_GO_WITHIN_S", 0.1)

    with slow_flushes([os.getpid()], SLOW_FLUSH_S):
        wait_until(started.exists)
        assert has_a_tracer()

    assert not has_a_tracer()


def has_a_tracer() -> bool:
    children = psutil.Process().children()
    return any(each.name() == "strace" and each.status() != "zombie" for each in children)


def soaked(per_hour: float = 0.0, seconds: float = JUDGED_FROM_S) -> Soaked:
    """Returns a sound soak; the web server's memory grows by `per_hour` megabytes an hour."""
    checker = Checker(AMOUNTS)
    checker.look([AMOUNTS.row_of((number,)) for number in range(10)], 10)
    line = Line("orders", "orders", Path(), checker, lambda first, end: None, list)
    figures = [(at_s, 100 + per_hour * at_s / 3600) for at_s in range(0, 600, 5)]
    samples = [Sample(at_s, {"web.memory_mb": mb, "checkpoints": at_s}) for at_s, mb in figures]
    return Soaked(lines=[line], samples=samples, seconds=seconds, recoveries_ms=[100.0, 300.0])


def lose(found: Soaked) -> None:
    found.lines[0].checker.end(11)


def end_a_run(found: Soaked) -> None:
    found.ended.append("orders ended as FAILED: no reason")


def leave_unfinished(found: Soaked) -> None:
    found.unfinished.append("orders: not all of 20 numbers came out in time")


def leave_a_directory(found: Soaked) -> None:
    found.left_directories.append("ftdash-state-0002-24c8c9-a1-0-hyoutck5")


def leave_a_process(found: Soaked) -> None:
    found.left_processes.append("19676 /tmp/soak/jobs/orders/runs/0003-bd96f5")


@pytest.mark.parametrize(
    "spoil", [lose, end_a_run, leave_unfinished, leave_a_directory, leave_a_process]
)
def test_a_soak_that_found_something_is_not_good(spoil: Callable[[Soaked], None]) -> None:
    found = soaked()
    assert is_good(fields_of(found, SEED))

    spoil(found)

    assert not is_good(fields_of(found, SEED))


def test_a_process_that_outlives_its_run_is_left_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.soak.running.ENDS_WITHIN_S", 0.0)
    run = f"{tmp_path}/jobs/orders/runs/0003-bd96f5"
    ledger = Ledger(tmp_path / LEDGER_NAME, new_mark())
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        closing(ledger),
        subprocess.Popen([*wait, run], stdin=subprocess.PIPE) as slot,
        subprocess.Popen([*wait, "worker"], stdin=subprocess.PIPE) as worker,
    ):
        for each in (slot, worker):
            ledger.record(each.pid)

        left = processes_left(tmp_path)

    assert left == [f"{slot.pid} {run}"]
    assert processes_left(tmp_path) == []


def test_only_a_directory_that_no_neighbour_removes_is_left(tmp_path: Path) -> None:
    (tmp_path / DATABASES).mkdir()
    locked, unlocked = (tmp_path / DATABASES / f"{PREFIX}{name}" for name in ("a", "b"))
    locked.mkdir()
    (locked / LOCK).touch()
    unlocked.mkdir()

    assert directories_left(tmp_path) == [unlocked.name]


def test_a_growing_figure_is_not_good_and_the_table_names_it() -> None:
    fields = fields_of(soaked(per_hour=100.0), SEED)

    assert fields["flat"] is False
    assert not is_good(fields)
    assert [line.split()[0] for line in table(fields).splitlines() if "NOT FLAT" in line] == [
        "web.memory_mb"
    ]


def test_the_report_names_each_kind_of_fault_that_did_not_come() -> None:
    found = soaked()
    found.done[Fault.CODE] += 1
    found.left_out[Fault.EXECUTOR_KILLED] = "no Spark"

    not_come = fields_of(found, SEED)["not_come"]

    assert not_come == sorted(set(Fault) - {Fault.CODE, Fault.EXECUTOR_KILLED})


def test_a_short_soak_does_not_judge_growth() -> None:
    fields = fields_of(soaked(per_hour=100.0, seconds=60.0), SEED)

    assert fields["flat"] is None
    assert is_good(fields)
    assert "too short a run to judge them" in table(fields)


def test_a_soak_lasts_for_its_time_and_until_enough_kinds_of_fault_came() -> None:
    assert Length(seconds=60).is_over(60, kinds=0)
    assert not Length(seconds=60).is_over(59, kinds=9)
    assert not Length(seconds=60, kinds_least=5).is_over(99, kinds=4)
    assert Length(seconds=60, kinds_least=5).is_over(60, kinds=5)


def test_a_soak_that_judges_growth_measures_more_often() -> None:
    judging, short = (Length(seconds=each) for each in (JUDGED_FROM_S, JUDGED_FROM_S - 1))

    assert judging.measure_every_s < short.measure_every_s
