"""The lab on real slots: how each mode treats a small input; the counts are exact."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pipelines.lab.options import LabOptions
from pipelines.lab.report import LabReport

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DEADLINE_S = 240.0
SMALL = LabOptions(
    seed=3,
    records=2_000,
    rate=4_000,
    interval_ms=50,
    faults=1,
    modes=("at-most-once", "at-least-once", "exactly-once", "acked"),
)
CHANNELS = 2 * SMALL.parallelism**2
"""Two exchanges, from each subtask to each."""


def test_every_mode_keeps_exactly_its_promise() -> None:
    report = lab(SMALL)

    modes = {each.mode: each for each in report.modes}
    assert [each.broken for each in report.modes] == [[]] * len(SMALL.modes)
    for name, mode in modes.items():
        run, cost = mode.faulted, mode.cost
        assert (run.lost > 0, run.doubled > 0) == (name == "at-most-once", mode_doubles(name)), name
        assert len(run.recovery_ms) == 1
        assert run.killed_at[0] >= report.kill_places[0]
        assert cost is not None
        assert cost.barriers == cost.barriers_expected == CHANNELS * cost.checkpoints > 0
        assert cost.acker_ids == (3 * SMALL.records if name == "acked" else 0), name
        assert cost.acker_ids == cost.acker_ids_expected
    assert [modes[name].promise for name in SMALL.modes] == [
        "at-most-once",
        "at-least-once",
        "exactly-once",
        "at-least-once",
    ]
    assert modes["exactly-once"].faulted.read_again > 0


def mode_doubles(name: str) -> bool:
    return name in ("at-least-once", "acked")


def lab(options: LabOptions) -> LabReport:
    command = [sys.executable, "-m", "pipelines.lab", "--json", *options.words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return msgspec.json.decode(ran.stdout, type=LabReport)
