"""Peers run in Pythons of their own; if one is missing or fails, the output says so."""

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.page_views import Work
from bench.peers.peer_runs import PEERS, PROGRAMS, Peer, PeerRuns
from tests.polling import wait_until

EVENTS = 4_000
WORK = Work("app_id", rounds=1, events=EVENTS)
COUNTS_LINES = """
import json, pathlib, sys
directory, key, backend, scratch = sys.argv[1:]
lines = sum(len(p.read_text().splitlines()) for p in pathlib.Path(directory).iterdir())
print("some words of its own")
print(json.dumps({"seconds": lines / 1000, "checkpoints": 4}))
"""

LEAVES_A_CHILD = (
    """
import pathlib, subprocess
child = subprocess.Popen(["sleep", "1000"])
pathlib.Path(__file__).with_name("child").write_text(str(child.pid))
"""
    + COUNTS_LINES
)

RUNS_A_CHILD = """
import sys
from pathlib import Path
from bench.benchmark import Benchmark
from bench.peers.peer_runs import run_program
scratch = Path(sys.argv[1])
Benchmark("speed", "how fast?")
run_program(["sh", "-c", "touch child-$$; exec sleep 1000"], scratch)
"""
PATIENCE_S = 60.0


def test_a_peer_reads_all_records_of_all_files(tmp_path: Path) -> None:
    runs = PeerRuns.installed([fake_peer(tmp_path, COUNTS_LINES)])

    runs.run_all(WORK)

    assert runs.runs["flink"][0].records_per_s == pytest.approx(1_000)
    assert runs.ratios([5_000.0])["flink_ratio"] == 5.0
    assert runs.described()["flink"]["checkpoints"] == 4


@pytest.mark.parametrize(
    ("peer", "package", "wanted"),
    [("flink", "apache-flink", "2.3.*"), ("pathway", "pathway", "0.33.*")],
)
def test_a_peer_that_is_not_installed_is_named_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, peer: str, package: str, wanted: str
) -> None:
    variable = f"FTDASH_BENCH_{peer.upper()}_PYTHON"
    monkeypatch.setenv(variable, "/nowhere/python")

    runs = PeerRuns.installed([each for each in PEERS if each.name == peer])

    assert runs.ratios([1.0])[f"{peer}_ratio"] is None
    assert runs.described()[peer] == (
        f"not measured: {package} is not installed in the Python that {variable} names, or in this"
        f" one; make a virtual environment with {package}=={wanted} and name its Python there."
    )


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_program_of_every_peer_exists(peer: Peer) -> None:
    assert (PROGRAMS / peer.program).is_file()


def test_a_failed_peer_is_reported_with_its_last_output(tmp_path: Path) -> None:
    runs = PeerRuns.installed([fake_peer(tmp_path, "raise SystemExit('no memory left')")])

    runs.run_all(WORK)
    runs.run_all(WORK)  # the second call does not ask for it again

    assert runs.described()["flink"] == "msgspec failed: no memory left"


def test_a_process_that_a_peer_leaves_running_is_ended_without_waiting(tmp_path: Path) -> None:
    runs = PeerRuns.installed([fake_peer(tmp_path, LEAVES_A_CHILD)])

    runs.run_all(WORK)

    assert len(runs.runs["flink"]) == 1
    left = int((tmp_path / "child").read_text())
    try:
        wait_until(lambda: not psutil.pid_exists(left))
    finally:
        with suppress(psutil.NoSuchProcess):  # the process should be gone already
            psutil.Process(left).kill()


def test_a_signal_to_the_benchmark_also_ends_its_peer(tmp_path: Path) -> None:
    words = [sys.executable, "-c", RUNS_A_CHILD, str(tmp_path)]
    benchmark = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(tmp_path.glob("child-*")))
        [child] = (int(path.name.removeprefix("child-")) for path in tmp_path.glob("child-*"))

        benchmark.terminate()

        assert benchmark.wait(PATIENCE_S) == -signal.SIGINT
        wait_until(lambda: not psutil.pid_exists(child))
    finally:
        benchmark.kill()
        benchmark.wait()


def fake_peer(directory: Path, program: str) -> Peer:
    """Makes a program for this Python that replaces Flink, with `msgspec` as its package."""
    path = directory / "peer.py"
    path.write_text(program)
    return Peer("flink", str(path), "msgspec", "", "FTDASH_BENCH_FLINK_PYTHON", {"app_id": 3})
