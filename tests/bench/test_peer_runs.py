"""Peers run in Pythons of their own; where one is missing or fails, the output says so."""

from pathlib import Path

import pytest

from tests.bench.page_views import Work
from tests.bench.peer_runs import PEERS, Peer, PeerRuns

EVENTS = 4_000
WORK = Work("app_id", rounds=1, events=EVENTS)
COUNTS_LINES = """
import json, pathlib, sys
directory, key, backend, scratch = sys.argv[1:]
lines = sum(len(p.read_text().splitlines()) for p in pathlib.Path(directory).iterdir())
print("some words of its own")
print(json.dumps({"seconds": lines / 1000, "checkpoints": 4}))
"""


def test_a_peer_reads_all_files_as_often_as_it_should(tmp_path: Path) -> None:
    runs = PeerRuns.installed([fake_peer(tmp_path, COUNTS_LINES)])

    runs.run_all(WORK)

    assert runs.runs["flink"][0].records_per_s == pytest.approx(1_000)
    assert runs.ratios([5_000.0])["flink_ratio"] == 5.0
    assert runs.described()["flink"]["checkpoints"] == 4


def test_a_peer_that_is_not_installed_is_named_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FTDASH_BENCH_FLINK_PYTHON", "/nowhere/python")

    runs = PeerRuns.installed(PEERS[:1])

    assert runs.ratios([1.0])["flink_ratio"] is None
    assert runs.described()["flink"] == (
        "not measured: apache-flink is not installed in the Python that FTDASH_BENCH_FLINK_PYTHON"
        " names, or in this one; make a virtual environment with apache-flink==2.3.* and name its"
        " Python there."
    )


def test_a_peer_that_fails_says_its_last_words(tmp_path: Path) -> None:
    runs = PeerRuns.installed([fake_peer(tmp_path, "raise SystemExit('no memory left')")])

    runs.run_all(WORK)
    runs.run_all(WORK)  # it is not asked again

    assert runs.described()["flink"] == "msgspec failed: no memory left"


def fake_peer(directory: Path, program: str) -> Peer:
    """A program for this Python, in the place of Flink; `msgspec` stands for the package."""
    path = directory / "peer.py"
    path.write_text(program)
    return Peer("flink", str(path), "msgspec", "", "FTDASH_BENCH_FLINK_PYTHON", {"app_id": 3})
