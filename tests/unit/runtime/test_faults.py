"""Faults on purpose: plans are read strictly, hit once where planned, and need permission."""

import os
import signal
import subprocess
import sys

import pytest

from pipelines.domain.errors import Rejected
from pipelines.domain.faults import PERMISSION, Fault, FaultAction, FaultPoint, parse_faults
from pipelines.domain.ids import Attempt
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import DriverKillMoment, KillMoment
from pipelines.runtime import faults as module
from pipelines.runtime.faults import FaultOnPurpose, Faults, check_permission

FIRST, SECOND = Attempt(1), Attempt(2)


def test_a_plan_names_action_point_slot_attempt_and_occurrence() -> None:
    plan = parse_faults("kill uploading slot=1 nth=2; fail restoring attempt=3;")

    assert plan == (
        Fault(action=FaultAction.KILL, point=FaultPoint.UPLOADING, slot=1, nth=2),
        Fault(action=FaultAction.FAIL, point=FaultPoint.RESTORING, attempt=Attempt(3)),
    )
    assert parse_faults("") == ()


@pytest.mark.parametrize(
    "text", ["kill", "kill nowhere", "hug uploading", "kill uploading slot", "kill uploading x=1"]
)
def test_an_invalid_plan_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(Rejected, match=r"testing\.faults cannot be .*expected faults such as"):
        parse_settings({"testing.faults": text})


def test_a_fault_strikes_only_at_its_point_attempt_and_occurrence() -> None:
    faults = Faults(parse_faults("fail uploading nth=2 attempt=2"), slot=0)
    for attempt, point in [
        (FIRST, FaultPoint.UPLOADING),
        (FIRST, FaultPoint.UPLOADING),
        (SECOND, FaultPoint.CUTTING),
        (SECOND, FaultPoint.UPLOADING),
    ]:
        faults.reach(point, attempt)

    with pytest.raises(FaultOnPurpose, match="while uploading"):
        faults.reach(FaultPoint.UPLOADING, SECOND)
    faults.reach(FaultPoint.UPLOADING, SECOND)


@pytest.mark.parametrize(("slot", "is_hit"), [(0, False), (1, True)])
def test_a_fault_of_one_slot_spares_the_others(slot: int, is_hit: bool) -> None:
    faults = Faults(parse_faults("fail cutting slot=1"), slot=slot)

    if is_hit:
        with pytest.raises(FaultOnPurpose):
            faults.reach(FaultPoint.CUTTING, FIRST)
    else:
        faults.reach(FaultPoint.CUTTING, FIRST)


@pytest.mark.slow
def test_a_kill_sends_sigkill_to_its_own_process() -> None:
    program = (
        "from pipelines.runtime.faults import Faults;"
        "from pipelines.domain.faults import FaultPoint, parse_faults;"
        "Faults(parse_faults('kill cutting')).reach(FaultPoint.CUTTING, 1)"
    )

    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_requested_kill_waits_for_its_point_in_any_attempt() -> None:
    program = (
        "from pipelines.runtime.faults import Faults;"
        "from pipelines.domain.faults import FaultPoint;"
        "faults = Faults();"
        "faults.kill_at(FaultPoint.UPLOADED, 60.0);"
        "faults.reach(FaultPoint.UPLOADING, 1);"
        "print('still here', flush=True);"
        "faults.reach(FaultPoint.UPLOADED, 2)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "still here\n")


def test_a_delay_holds_up_a_process_at_its_point_only_until_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slept = [100.0], list[float]()
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", slept.append)
    faults = Faults()
    faults.slow_at(FaultPoint.UPLOADING, delay_s=3.0, for_s=30.0)

    faults.reach(FaultPoint.UPLOADED, FIRST)
    faults.reach(FaultPoint.UPLOADING, FIRST)
    now[0] = 129.9
    faults.reach(FaultPoint.UPLOADING, SECOND)
    now[0] = 130.0
    faults.reach(FaultPoint.UPLOADING, SECOND)

    assert slept == [3.0, 3.0]


@pytest.mark.parametrize("moment", [*KillMoment, *DriverKillMoment])
def test_every_kill_moment_is_now_or_an_existing_fault_point(moment: str) -> None:
    assert moment == KillMoment.NOW or FaultPoint(str(moment))


@pytest.mark.parametrize("permission", [None, "0"])
def test_without_permission_a_plan_is_refused(
    monkeypatch: pytest.MonkeyPatch, permission: str | None
) -> None:
    monkeypatch.delenv(PERMISSION, raising=False)
    if permission is not None:
        monkeypatch.setitem(os.environ, PERMISSION, permission)

    check_permission(())
    with pytest.raises(Rejected, match=r"testing\.faults .* does not allow faults"):
        check_permission(parse_faults("kill cutting"))


def test_a_kill_that_has_expired_does_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(module.os, "kill", lambda *given: killed.append(given))
    faults = Faults()

    faults.kill_at(FaultPoint.ALIGNING, 0.0)
    faults.reach(FaultPoint.ALIGNING, FIRST)
    assert killed == []
    faults.kill_at(FaultPoint.ALIGNING, 60.0)
    faults.reach(FaultPoint.ALIGNING, FIRST)

    assert killed == [(os.getpid(), signal.SIGKILL)]
