"""Labs that people ask for: one at a time, each in its own process, and its end is reported."""

import sys
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from kombu.exceptions import OperationalError

from ftdash import errands, tasks
from ftdash.lab import queries, services
from ftdash.lab.models import Lab, LabState
from ftdash.lab.services import keep
from pipelines.bus.lease import Owner
from pipelines.domain.errors import Rejected
from pipelines.lab.options import LabOptions
from tests.unit.lab.reports import mode, report

pytestmark = pytest.mark.django_db

OPTIONS = LabOptions(seed=7, records=10_000)
REPORT = report(mode("exactly-once"), mode("acked", acker_ids=30_000))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Returns the commands of the keepers that were started; none of these processes exists."""
    commands: list[list[str]] = []

    class NoProcess:
        pid = 0

        def __init__(self, command: list[str], **options: Any) -> None:
            commands.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(services.subprocess, "Popen", NoProcess)
    return commands


def test_a_lab_is_kept_with_its_report(settings: Any) -> None:
    key = asked()
    settings.LAB_COMMAND = program(
        "import sys; print('half way', file=sys.stderr)", said=msgspec.json.encode(REPORT)
    )

    keep(key)

    view = queries.labs().shown
    assert view is not None
    assert (view.state, view.report, view.options) == (LabState.ENDED, REPORT, OPTIONS)
    assert view.progress == "half way"
    assert (view.requested_by, view.reason) == ("ada", "to compare")
    assert view.ended_at is not None


def test_the_options_are_passed_on_as_command_line_arguments(settings: Any) -> None:
    key = asked()
    settings.LAB_COMMAND = program("import sys; print(' '.join(sys.argv[1:]), file=sys.stderr)")

    keep(key)

    assert Lab.objects.get().message == " ".join(OPTIONS.words)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit('The disk is full.')", "The disk is full."),
        ("pass", "It ended without a report and without a word."),
    ],
)
def test_a_lab_without_a_report_says_why(settings: Any, code: str, told: str) -> None:
    key = asked()
    settings.LAB_COMMAND = program(code)

    keep(key)

    failed = queries.labs().newest_failed
    assert failed is not None
    assert failed.message == told


def test_keeping_a_lab_twice_runs_it_once(settings: Any) -> None:
    key = asked()
    settings.LAB_COMMAND = program("pass", said=msgspec.json.encode(REPORT))
    keep(key)
    settings.LAB_COMMAND = program("import sys; sys.exit('again')")

    keep(key)

    assert Lab.objects.get().state == LabState.ENDED


def test_two_labs_may_run_one_after_the_other_but_not_at_once() -> None:
    key = asked()
    with pytest.raises(Rejected, match="A lab is under way"):
        asked()

    Lab.objects.filter(pk=key).update(state=LabState.FAILED)
    asked()

    assert Lab.objects.count() == 2


@pytest.mark.parametrize(
    ("options", "reason", "told"),
    [
        (msgspec.structs.replace(OPTIONS, rate=1), "to compare", "--rate is 1"),
        (OPTIONS, " ", "Say why"),
    ],
)
def test_a_lab_with_invalid_options_or_reason_is_not_stored(
    options: LabOptions, reason: str, told: str
) -> None:
    with pytest.raises(Rejected, match=told):
        services.start_lab(options, requester="ada", reason=reason)

    assert not Lab.objects.exists()


def test_a_lab_is_stored_even_if_the_broker_is_away(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    def away(*_: object, **__: object) -> None:
        raise OperationalError("refused")

    monkeypatch.setattr(errands.current_app, "send_task", away)
    with django_capture_on_commit_callbacks(execute=True) as told:
        asked()

    assert len(told) == 1
    assert Lab.objects.get().state == LabState.ASKED


def test_reconcile_starts_one_keeper_for_a_lab(started: list[list[str]], settings: Any) -> None:
    key = asked()

    tasks.reconcile_labs()
    tasks.reconcile_labs()

    assert started == [[*settings.LAB_KEEPER_COMMAND, str(key)]]
    assert Lab.objects.get().state == LabState.ASKED


def test_a_keeper_that_does_not_start_ends_its_lab_as_failed(started: list[list[str]]) -> None:
    asked()
    Lab.objects.update(started_at=timezone.now() - timedelta(minutes=2))

    services.reconcile()

    assert started == []
    assert_failed(services.NOT_STARTED)


def test_a_dead_keeper_ends_its_lab_as_failed(started: list[list[str]]) -> None:
    dead = msgspec.structs.replace(Owner.this_process(), process_began_s=-1e6)
    asked()
    running(dead)

    shown = queries.labs().labs[0]
    assert shown.state is LabState.FAILED, "the page need not wait for the worker"
    services.reconcile()

    assert started == []
    assert_failed(services.DIED)


def test_a_lab_with_a_living_keeper_continues(started: list[list[str]]) -> None:
    asked()
    running(Owner.this_process())

    services.reconcile()

    assert started == []
    under_way = queries.labs().under_way
    assert under_way is not None
    assert under_way.state is LabState.RUNNING


def asked() -> int:
    return services.start_lab(OPTIONS, requester="ada", reason="to compare")


def running(keeper: Owner) -> None:
    kept = msgspec.to_builtins(keeper)
    Lab.objects.update(state=LabState.RUNNING, started_at=timezone.now(), keeper=kept)


def program(code: str, *, said: bytes = b"") -> list[str]:
    """Returns the command of a lab that runs `code` and then prints its report."""
    return [sys.executable, "-c", f"{code}\nprint({said.decode()!r})"]


def assert_failed(message: str) -> None:
    row = Lab.objects.get()
    assert (row.state, row.message) == (LabState.FAILED, message)
    assert row.ended_at is not None
