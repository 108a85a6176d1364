"""Logs of runs stay short, even while a process has them open, and keep their last lines."""

from pathlib import Path

import pytest

from ftdash.jobs.directories import run_directory
from ftdash.retention.pruning import shorten_logs
from ftdash.supervision.launcher import last_log_line
from pipelines.domain.run import RunDirectory
from tests.web.journals import new_run

pytestmark = pytest.mark.usefixtures("site")


@pytest.fixture
def log(settings) -> Path:
    settings.RUN_LOG_BYTES_MAX = 1_000
    path = run_directory(new_run()).driver_log
    path.parent.mkdir(parents=True)
    return path


def test_a_log_that_is_too_long_starts_over_and_its_end_is_kept(log: Path) -> None:
    with log.open("ab", buffering=0) as driver:
        for number in range(200):
            driver.write(b"line %d\n" % number)

        shorten_logs()
        driver.write(b"it goes on\n")

    kept = log.with_name("driver.log.1").read_text().splitlines()
    assert kept == [f"line {number}" for number in range(200 - len(kept), 200)]
    assert len(kept) > 100
    assert log.read_text() == "it goes on\n"


def test_a_new_cut_replaces_the_kept_lines_and_a_short_log_stays(log: Path) -> None:
    for word in ("first ", "second "):
        log.write_text(f"{word}\n" * 500)
        shorten_logs()
    log.write_text("short")
    shorten_logs()

    assert log.read_text() == "short"
    kept = log.with_name("driver.log.1").read_text()
    assert "first" not in kept
    assert len(kept) <= 1_000


def test_the_last_line_of_a_driver_is_found_after_its_log_started_over(log: Path) -> None:
    log.write_text("so much\n" * 500 + "killed by somebody\n")

    shorten_logs()

    assert last_log_line(RunDirectory(log.parent)) == "killed by somebody"
