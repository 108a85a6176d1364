"""The lab as a program: what it prints, and what its exit status says."""

import sys

import msgspec
import pytest

from pipelines.domain.errors import Rejected
from pipelines.lab import __main__ as program
from pipelines.lab import lab
from pipelines.lab.report import LabReport, TrialFailed
from tests.unit.lab.reports import mode, report

BROKEN = report(mode("exactly-once", broken=["It lost 3."]))


def test_a_lab_that_keeps_its_promises_exits_with_status_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = report(mode("exactly-once"))

    assert status(monkeypatch, kept, "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=LabReport) == kept


def test_a_broken_promise_is_printed_and_exits_with_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(monkeypatch, BROKEN) == 1
    assert "It lost 3." in capsys.readouterr().out


@pytest.mark.parametrize("problem", [TrialFailed("Of 2 faults only 1"), Rejected("No such thing")])
def test_an_expected_problem_is_printed_as_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: Exception
) -> None:
    assert status(monkeypatch, problem) == 2

    told = capsys.readouterr()
    assert told.err == f"{problem}\n"
    assert told.out == ""


def test_an_unexpected_error_blames_no_mode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(monkeypatch, OSError("The disk is full")) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "OSError: The disk is full"


def test_a_wrong_option_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status(monkeypatch, BROKEN, "--rate", "1") == 2
    assert "--rate is 1; give a number" in capsys.readouterr().err


def status(monkeypatch: pytest.MonkeyPatch, outcome: LabReport | Exception, *words: str) -> int:
    """Runs the program with a lab of this outcome, and returns the exit status."""

    def run_lab(*_: object) -> LabReport:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(lab, "run_lab", run_lab)
    monkeypatch.setattr(sys, "argv", ["lab", *words])
    return program.main()
