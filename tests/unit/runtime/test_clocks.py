"""The real clock counts the time during which the machine sleeps."""

import time

import pytest

from pipelines.domain.settings import Heartbeat
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.slot.vigil import Vigil

HEARTBEAT = Heartbeat(interval_ms=1_000, timeout_ms=10_000)
SLEEP_S = 3_600.0


def test_a_slot_notices_that_its_machine_slept(monkeypatch: pytest.MonkeyPatch) -> None:
    vigil = Vigil(SystemClock(), HEARTBEAT)
    assert vigil.objection() is None

    sleep_through(monkeypatch, SLEEP_S)

    assert vigil.objection() == f"this process was stopped for {SLEEP_S:.1f} s"


def test_setting_the_wall_clock_does_not_alarm_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    vigil = Vigil(SystemClock(), HEARTBEAT)
    wall_ns = time.time_ns()

    monkeypatch.setattr(time, "time_ns", lambda: wall_ns + int(SLEEP_S * 1e9))
    monkeypatch.setattr(time, "time", lambda: wall_ns / 1e9 + SLEEP_S)

    assert vigil.objection() is None


def sleep_through(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Suspends the machine: CLOCK_MONOTONIC stops, and the time since the boot continues."""
    read, stood_still = time.clock_gettime, time.monotonic()
    slept = {time.CLOCK_BOOTTIME: seconds, time.CLOCK_REALTIME: seconds}
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + slept.get(clock, 0.0))
    monkeypatch.setattr(time, "monotonic", lambda: stood_still)
