"""A split that falls silent holds no window back, and spoils nothing when it resumes."""

import os
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipelines.domain.status import JobStatus
from tests.driven_run import StartedRun
from tests.processes.host import hosted_run
from tests.processes.numbers import KEYS, STEP_MS, WINDOW_MS
from tests.processes.sleepy import AWAKE_RECORDS, WAKE, committed

pytestmark = pytest.mark.slow

STEP_S = 60.0
TOTAL = 3_000
SILENT_FROM_MS = 2 * AWAKE_RECORDS * STEP_MS
SETTINGS = {"execution.checkpointing.interval": "50 ms"}


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("parallelism", [1, 2], ids=["splits of one subtask", "subtasks"])
def test_windows_fire_despite_an_idle_split_and_each_record_counts_once(
    parallelism: int, unaligned: bool, tmp_path: Path
) -> None:
    settings = SETTINGS | {"execution.checkpointing.unaligned.enabled": str(unaligned).lower()}
    with hosted_run(
        tmp_path,
        {"script": str(tmp_path), "total": str(TOTAL)},
        settings=settings,
        parallelism=parallelism,
        spec_fields={"pipeline": "sleepy"},
    ) as run:
        wait_for_windows(run, tmp_path, SILENT_FROM_MS + 2 * WINDOW_MS)
        os.kill(run.pid_of(parallelism - 1), signal.SIGKILL)
        fired = len(committed(tmp_path / "output", "minutes"))
        run.wait_for(lambda _: len(committed(tmp_path / "output", "minutes")) > fired, STEP_S)
        (tmp_path / WAKE).touch()
        ended = run.wait_until_over(STEP_S)

    minutes = committed(tmp_path / "output", "minutes")
    late = committed(tmp_path / "output", "late")
    assert ended.status is JobStatus.FINISHED, ended.reason
    assert not minutes.duplicated(["key", "window_start"]).any()
    assert_each_number_once(minutes, late)
    assert (late["number"] % 2 == 1).all()
    assert 0 < len(late) < TOTAL / 2


def wait_for_windows(run: StartedRun, root: Path, time_ms: int) -> None:
    """Waits until windows from that time on have fired; the silent split is never that far."""

    def have_fired(_: object) -> bool:
        minutes = committed(root / "output", "minutes")
        return bool(len(minutes)) and bool((starts_of(minutes) >= time_ms).any())

    run.wait_for(have_fired, STEP_S)


def assert_each_number_once(minutes: pd.DataFrame, late: pd.DataFrame) -> None:
    """Checks by count and sum per window that each number is in its window or the late output."""
    numbers = pd.DataFrame({"number": np.arange(TOTAL)})
    numbers = numbers[~numbers["number"].isin(late["number"])]
    assert not late["number"].duplicated().any()
    numbers["key"] = numbers["number"] % KEYS
    numbers["start"] = numbers["number"] * STEP_MS // WINDOW_MS * WINDOW_MS
    grouped = numbers.groupby(["start", "key"], as_index=False)
    expected = grouped.agg(n=("number", "size"), total=("number", "sum"))
    found = minutes.assign(start=starts_of(minutes))[["start", "key", "n", "total"]]
    found = found.sort_values(["start", "key"]).reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)


def starts_of(minutes: pd.DataFrame) -> "pd.Series[int]":
    return minutes["window_start"].astype("datetime64[ms, UTC]").astype("int64")
