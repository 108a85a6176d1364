"""Bytes written and recovery times: the textbook's formulas, and ours, whose units agree."""

import pytest

from pipelines.domain.errors import InvariantViolated
from pipelines.domain.planning import (
    Speeds,
    kept_bytes,
    recovery_estimate,
    textbook_recovery,
    textbook_volume_bytes_per_s,
    written_bytes_per_s,
)

GB, MB = 1e9, 1e6


def test_the_textbooks_volume_is_the_whole_state_once_an_interval() -> None:
    assert textbook_volume_bytes_per_s(GB, interval_ms=10_000) == 100 * MB


def test_written_bytes_are_what_checkpoints_upload() -> None:
    assert written_bytes_per_s(10 * MB, interval_ms=10_000) == MB


def test_kept_bytes_are_one_state_and_the_increment_of_each_further_point() -> None:
    assert kept_bytes(GB, 10 * MB, retained=1) == GB
    assert kept_bytes(GB, 10 * MB, retained=3) == GB + 20 * MB


def test_the_textbooks_recovery_time_wrongly_depends_on_the_unit_of_size() -> None:
    in_bytes = textbook_recovery(GB, 100 * MB, 50 * MB)
    in_megabytes = textbook_recovery(GB / MB, 100, 50)

    assert in_bytes == pytest.approx(2e-7)
    assert in_megabytes == pytest.approx(0.2)  # the same data, a million times as long


@pytest.mark.parametrize(("read", "bandwidth"), [(100 * MB, 50 * MB), (50 * MB, 100 * MB)])
def test_reading_state_is_as_fast_as_the_slower_of_storage_and_network(
    read: float, bandwidth: float
) -> None:
    estimate = recovery_estimate(GB, 500.0, 10_000.0, speeds(read, bandwidth))

    assert estimate.read_ms == pytest.approx(20_000)
    assert estimate.to_running_ms == pytest.approx(20_500)


def test_catching_up_works_off_the_backlog_at_the_spare_speed() -> None:
    estimate = recovery_estimate(100 * MB, 1_000.0, 10_000.0, speeds(100 * MB, 200 * MB, 100, 400))

    # behind by 5 s of the interval, 1 s of restart and 1 s of reading, at 100 of 300 records/s
    assert estimate.catch_up_ms == pytest.approx(7_000 / 3)
    assert estimate.to_caught_up_ms == pytest.approx(2_000 + 7_000 / 3)


def test_a_pipeline_without_spare_speed_never_catches_up() -> None:
    estimate = recovery_estimate(MB, 1_000.0, 10_000.0, speeds(MB, MB, 400, 400))

    assert estimate.catch_up_ms is None
    assert estimate.to_caught_up_ms is None


def test_without_arriving_records_there_is_nothing_to_catch_up_with() -> None:
    assert recovery_estimate(MB, 1.0, 10_000.0, speeds(MB, MB, 0, 0)).catch_up_ms == 0


def test_impossible_measurements_are_reported_not_absorbed() -> None:
    with pytest.raises(InvariantViolated):
        textbook_volume_bytes_per_s(GB, 0)
    with pytest.raises(InvariantViolated):
        kept_bytes(GB, MB, 0)
    with pytest.raises(InvariantViolated):
        textbook_recovery(GB, 0, MB)
    with pytest.raises(InvariantViolated):
        recovery_estimate(GB, 1.0, 1.0, speeds(0, MB))


def speeds(
    read: float, bandwidth: float, arriving: float = 100.0, reading: float = 1_000.0
) -> Speeds:
    return Speeds(read, bandwidth, arriving, reading)
