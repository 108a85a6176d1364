"""Windows and joins of every kind, killed and restored at another parallelism: the output is exact.

After failures, each window is emitted once and with the sum that follows from the input. Event-time
tests of other engines ask for the same.
"""

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipelines.domain.status import JobStatus
from tests.processes.event_times import (
    KEYS,
    committed,
    expected_pairs,
    expected_sessions,
    expected_sliding,
)
from tests.processes.host import hosted_run

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 3_600
PACED = {"hours_per_s": "0.05", "total": str(TOTAL)}  # far from its end when it is killed
SOONER = {"execution.checkpointing.interval": "100 ms"}
UNALIGNED = {**SOONER, "execution.checkpointing.unaligned.enabled": "true"}
EVENT_TIMES = {"pipeline": "event_times"}


@pytest.mark.parametrize("settings", [SOONER, UNALIGNED])
def test_windows_and_joins_are_exact_after_a_kill_and_at_another_parallelism(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with hosted_run(tmp_path, PACED, settings=settings, spec_fields=EVENT_TIMES) as run:
        run.wait_for(lambda _: len(run.completed()) >= 2, STEP_S)
        os.kill(run.pid_of(1), signal.SIGKILL)
        run.wait_for_more(2, STEP_S)
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(STEP_S)
        newest = run.completed()[-1]
    with hosted_run(
        tmp_path,
        {"total": str(TOTAL)},
        settings=settings,
        parallelism=3,
        restore_from=newest.path,
        spec_fields={**EVENT_TIMES, "first_checkpoint_id": newest.checkpoint_id + 1},
    ) as restored:
        assert restored.wait_until_over(STEP_S).status is JobStatus.FINISHED

    assert_windows_are_exact(tmp_path / "output")
    assert_joins_are_exact(tmp_path / "output")
    assert_every_number_is_in_its_minute_or_late(tmp_path / "output")


def assert_windows_are_exact(output: Path) -> None:
    slid = committed(output, "sliding")[["window_start", "key", "n", "total"]]
    assert_equal(slid, expected_sliding(TOTAL), ["window_start", "key"])
    sessions = committed(output, "sessions")
    columns = ["visit", "window_start", "n", "total", "window_end"]
    assert_equal(sessions[columns], expected_sessions(TOTAL), ["visit"])


def assert_joins_are_exact(output: Path) -> None:
    pairs = committed(output, "pairs")
    found = list(zip(pairs["number"], pairs["other"], strict=True))
    assert len(found) == len(set(found))
    assert set(found) == expected_pairs(TOTAL)

    table = committed(output, "table")
    table["weight"] = np.where(table["row_kind"] == "+I", 1, -1)
    left = table.groupby(["number", "other"], dropna=False)["weight"].sum()
    assert set(left.unique()) <= {0, 1}
    of_pairs = left[left == 1].reset_index()
    alone = of_pairs[of_pairs["other"].isna()]
    numbers = np.arange(300)
    assert sorted(alone["number"]) == numbers[numbers % KEYS == 0].tolist()
    per_key = np.bincount(numbers % KEYS)
    assert len(of_pairs) - len(alone) == (per_key[1:] ** 2).sum()


def assert_every_number_is_in_its_minute_or_late(output: Path) -> None:
    minutes, late = committed(output, "minutes"), committed(output, "late")
    assert not minutes.duplicated(["window_start", "key"]).any()
    assert 0 < len(late) < TOTAL / 10
    assert not late.duplicated("number").any()
    assert minutes["n"].sum() + len(late) == TOTAL
    assert minutes["total"].sum() + late["number"].sum() == sum(range(TOTAL))


def assert_equal(found: pd.DataFrame, expected: pd.DataFrame, by: list[str]) -> None:
    found = found.sort_values(by).reset_index(drop=True)
    expected = expected.sort_values(by).reset_index(drop=True)[found.columns]
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
