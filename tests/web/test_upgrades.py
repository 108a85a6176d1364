"""An upgrade from the request to its end, with the rows that drivers and workers would leave."""

import json
import sys
from datetime import timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from ftdash.jobs.models import Pipeline, Request, RequestPhase, Run, Upgrade, UpgradeStep
from ftdash.points.services import disposal, restore
from ftdash.projection.projector import Projector
from ftdash.requests.services import ask
from ftdash.requests.storing import check_possible, offers
from ftdash.supervision import drivers
from ftdash.upgrades import services
from pipelines.domain.commands import (
    Cancel,
    Command,
    RequestKind,
    RestorePipeline,
    StopWithSavepoint,
    TakeSavepoint,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.events import FailureOccurred, JobStatusChanged
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import CheckpointKind, JobStatus
from pipelines.packages.store import CodeStore
from pipelines.points.verdict import Verdict
from tests.shipped_packages import shop_wheel, wheel
from tests.web.journals import Story
from tests.web.sent_errands import catch_errands

pytestmark = pytest.mark.django_db

WHO = {"requester": "ann", "reason": "a new rule"}
WAITS = (RestorePipeline, StopWithSavepoint)


@pytest.fixture(autouse=True)
def sent(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    settings.JOBS_ROOT = tmp_path / "jobs"
    return catch_errands(monkeypatch)


@pytest.fixture
def old(tmp_path: Path) -> ShippedCode:
    return added(tmp_path, "1.0")


@pytest.fixture
def new(tmp_path: Path) -> ShippedCode:
    return added(tmp_path, "1.1")


@pytest.fixture
def story(old: ShippedCode) -> Story:
    """The story of a run that runs the old code."""
    given = str(CodeStore(jobs_root()).file_of(old))
    call_command("pipeline", "submit", "shop", "--code", given, stdout=StringIO())
    story = Story(Run.objects.get())
    fold(story.started().completed())
    return story


@pytest.fixture
def stopped(story: Story, new: ShippedCode, monkeypatch: pytest.MonkeyPatch) -> Upgrade:
    """An upgrade whose new code has just started."""
    row = begun(new)
    checked(row)
    carry_on(row)
    starts(monkeypatch)
    stop(story)
    return carry_on(row)


def test_the_new_code_continues_from_the_savepoint_and_is_watched(
    stopped: Upgrade, new: ShippedCode
) -> None:
    row, run = stopped, Run.objects.get(number=2)
    assert (row.step, row.new_run) == (UpgradeStep.WATCHING, run)
    assert (run.shipped_code, run.restored_from) == (new, row.savepoint)
    story = Story(run)
    fold(story.started().completed().completed())
    assert carry_on(row).step == UpgradeStep.WATCHING

    fold(story.completed())
    row = carry_on(row)

    request = row.request
    assert (row.step, request.phase) == (UpgradeStep.ENDED, RequestPhase.SUCCEEDED)
    assert request.message == "Run 2 runs the new code and has completed 3 checkpoints."
    assert [each["step"] for each in row.steps] == ["CHECKING", "STOPPING", "STARTING", "WATCHING"]
    assert Pipeline.objects.get().shipped_code == new
    asked = Request.objects.exclude(pk=request.pk).filter(requester="ann")
    assert {each.reason for each in asked} == {"upgrade to shipped-shop 1.1: a new rule"}


def test_checkpoints_of_an_attempt_that_has_failed_do_not_count(stopped: Upgrade) -> None:
    story = Story(Run.objects.get(number=2))
    fold(story.started().completed().completed().slot_killed().completed())

    assert carry_on(stopped).step == UpgradeStep.WATCHING

    fold(story.completed().completed())
    assert carry_on(stopped).step == UpgradeStep.ENDED


def test_a_restarting_attempt_does_not_count_as_running(stopped: Upgrade) -> None:
    story = Story(Run.objects.get(number=2))
    fold(story.started().completed().completed().completed())
    fold(story.tell(JobStatusChanged(status=JobStatus.RESTARTING, reason="Slot 1 was killed.")))

    assert carry_on(stopped).step == UpgradeStep.WATCHING


def test_an_upgrade_goes_back_to_the_previous_code_when_the_new_run_fails(
    stopped: Upgrade, old: ShippedCode, new: ShippedCode
) -> None:
    failed(Run.objects.get(number=2))

    row = carry_on(stopped)

    back = Run.objects.get(number=3)
    assert (row.step, row.back_run) == (UpgradeStep.RESTORING, back)
    assert (back.shipped_code, back.restored_from) == (old, row.savepoint)
    assert Pipeline.objects.get().shipped_code == old
    fold(Story(back).started())
    row = carry_on(row)
    assert (row.step, row.request.phase) == (UpgradeStep.ENDED, RequestPhase.FAILED)
    assert row.request.message == (
        f"It went back: the previous code continues from {row.savepoint}."
        " Run 2 failed: It is broken."
    )


def test_an_upgrade_can_go_back_to_an_installed_package(
    stopped: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    Upgrade.objects.update(old_code=None)
    monkeypatch.setattr(restore, "check_startable", lambda *_: SimpleNamespace(sentence=""))
    failed(Run.objects.get(number=2))

    carry_on(stopped)

    assert Pipeline.objects.get().code is Run.objects.get(number=3).code is None


def test_an_upgrade_cancels_a_new_run_with_too_few_checkpoints_in_time(stopped: Upgrade) -> None:
    run = Run.objects.get(number=2)
    story = Story(run)
    fold(story.started().completed())
    time_passes(minutes=11)

    row = carry_on(stopped)

    cancel = Request.objects.get(kind=RequestKind.CANCEL)
    assert (row.step, cancel.run) == (UpgradeStep.CANCELING, run)
    assert carry_on(row).step == UpgradeStep.CANCELING, "it waits for the end of that run"
    fold(story.ended(JobStatus.CANCELED, "As asked."))
    row = carry_on(row)
    assert row.step == UpgradeStep.RESTORING
    assert row.why_back.startswith("Run 2 completed 1 of 3 checkpoints in one attempt within 10")


def test_a_run_that_a_person_cancels_is_not_started_again(stopped: Upgrade) -> None:
    run = Run.objects.get(number=2)
    story = Story(run)
    fold(story.started())
    ask("shop", Cancel(), who="bob", why="not now")
    fold(story.ended(JobStatus.CANCELED, "Canceled by bob."))

    row = carry_on(stopped)

    assert (row.step, row.request.phase) == (UpgradeStep.ENDED, RequestPhase.FAILED)
    assert "was cancelled while it was watched, so nothing runs now" in row.request.message
    assert Run.objects.count() == 2


def test_code_that_cannot_start_is_replaced_by_the_previous_code(
    story: Story, new: ShippedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = begun(new)
    checked(row)
    carry_on(row)
    starts(monkeypatch)
    stop(story)
    CodeStore(jobs_root()).file_of(new).write_bytes(b"altered")

    row = carry_on(row)

    assert row.step == UpgradeStep.RESTORING
    assert "The new code could not be started" in row.why_back
    assert Run.objects.get(number=2).code["version"] == "1.0"


def test_code_that_does_not_fit_is_refused_and_nothing_changes(
    story: Story, new: ShippedCode
) -> None:
    row = begun(new)
    checked(row, refusal="The state of 'a' is gone.")

    row = carry_on(row)

    assert (row.step, row.request.phase) == (UpgradeStep.ENDED, RequestPhase.REJECTED)
    assert row.request.message.endswith("nothing was changed: The state of 'a' is gone.")
    assert not Request.objects.filter(kind=RequestKind.STOP_WITH_SAVEPOINT).exists()


def test_the_check_accepts_code_that_fits_and_can_be_repeated(
    story: Story, new: ShippedCode
) -> None:
    row = begun(new)

    services.check(row.pk)

    row.refresh_from_db()
    found = row.checked
    assert found["refusal"] == ""
    assert found["text"].startswith("The new code can be built.")
    services.check(row.pk)
    row.refresh_from_db()
    assert row.checked == found


def test_the_check_shows_the_authors_traceback(tmp_path: Path, story: Story) -> None:
    broken = shop_wheel(tmp_path / "broken", "2.0", "raise ZeroDivisionError('no')\n")
    row = begun(CodeStore(jobs_root()).add(broken))

    services.check(row.pk)

    row = carry_on(row)
    assert row.request.phase == RequestPhase.REJECTED
    assert "ZeroDivisionError" in row.request.message
    assert "raise ZeroDivisionError('no')" in row.steps[0]["trace"]


def test_a_check_that_dies_is_started_again_and_then_refused(
    story: Story, new: ShippedCode, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "STARTED_WITHIN", timedelta(0))
    settings.MANAGE_COMMAND = [sys.executable, "-c", "raise SystemExit(1)"]
    row = Upgrade.objects.get(request__request_id=asked(new))

    for _ in range(services.CHECK_TRIES_MAX):
        Upgrade.objects.update(checker=None)
        row = carry_on(row)
    Upgrade.objects.update(checker=None)
    row = carry_on(row)

    assert row.request.phase == RequestPhase.REJECTED
    assert "upgrade.log in the directory of Run 1" in row.request.message


def test_a_failed_stop_is_retried_and_then_given_up(story: Story, new: ShippedCode) -> None:
    row = begun(new)
    checked(row)

    for number in range(1, services.STOP_TRIES_MAX + 1):
        row = carry_on(row)
        assert (row.step, row.stop_tries) == (UpgradeStep.STOPPING, number)
        stops = Request.objects.filter(kind=RequestKind.STOP_WITH_SAVEPOINT)
        assert stops.count() == number
        stops.update(phase=RequestPhase.FAILED, message="It was too slow.")
    row = carry_on(row)

    assert (row.step, row.request.phase) == (UpgradeStep.ENDED, RequestPhase.FAILED)
    assert row.request.message == (
        "No savepoint could be taken, so Run 1 continues with the previous code. It was too slow."
    )


def test_an_upgrade_finds_a_savepoint_whose_driver_died_before_reporting_it(
    story: Story, new: ShippedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = begun(new)
    checked(row)
    carry_on(row)
    starts(monkeypatch)
    asked_to_stop = Request.objects.get(kind=RequestKind.STOP_WITH_SAVEPOINT)
    fold(story.completed(CheckpointKind.SAVEPOINT, asked_to_stop.request_id, path="/savepoint"))

    fold(story.ended())
    row = carry_on(row)

    assert (row.step, row.savepoint) == (UpgradeStep.WATCHING, "/savepoint")


def test_each_step_is_repeated_without_effect(
    story: Story, new: ShippedCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeats each step as after the death of a worker that acted but recorded nothing."""
    row = begun(new)
    checked(row)
    carry_on(row)
    Upgrade.objects.update(stop_tries=0)
    carry_on(row)
    assert Request.objects.filter(kind=RequestKind.STOP_WITH_SAVEPOINT).count() == 1
    starts(monkeypatch)
    stop(story)
    carry_on(row)
    Upgrade.objects.update(step=UpgradeStep.STARTING, new_run=None)
    row = carry_on(row)
    assert Run.objects.count() == 2
    failed(Run.objects.get(number=2))
    carry_on(row)
    Upgrade.objects.update(back_run=None)

    carry_on(row)

    assert Run.objects.count() == 3


@pytest.mark.parametrize("command", WAITS, ids=lambda each: each.__name__)
def test_other_starts_and_stops_are_refused_during_an_upgrade(
    command: type[Command], story: Story, new: ShippedCode
) -> None:
    row = begun(new)
    if command is RestorePipeline:
        fold(story.ended())

    with pytest.raises(Rejected, match="shop is being upgraded"):
        check_possible(command, row.pipeline)
    run = Run.objects.get()
    assert "being upgraded" in offers(row.pipeline, run, None)[command.kind].why_not
    check_possible(command, row.pipeline, is_of_upgrade=True)


def test_a_second_upgrade_and_one_beside_another_request_are_refused(
    story: Story, new: ShippedCode, tmp_path: Path
) -> None:
    savepoint = ask("shop", TakeSavepoint(), who="bob", why="to keep")
    with pytest.raises(Rejected, match="'savepoint' of shop is under way"):
        asked(new)
    Request.objects.filter(request_id=savepoint).update(phase=RequestPhase.SUCCEEDED)
    first = asked(new, request_id="one")

    assert asked(new, request_id="one") == first, "the same question"
    with pytest.raises(Rejected, match="being upgraded"):
        asked(added(tmp_path, "1.2"))
    assert Upgrade.objects.count() == 1


def test_the_package_that_runs_already_is_refused(story: Story, old: ShippedCode) -> None:
    with pytest.raises(Rejected, match="runs this very package already: shipped-shop"):
        asked(old)


def test_a_package_for_another_python_is_refused(story: Story, tmp_path: Path) -> None:
    other = wheel(tmp_path, {"shipped_shop/flow.py": ""}, tag="cp27-cp27m-win32")

    with pytest.raises(CommandError, match="was built for cp27-cp27m-win32") as refusal:
        upgrade("--to", str(other))

    assert refusal.value.returncode == 2


def test_an_upgrade_is_refused_if_checkpoints_are_too_rare_to_watch(
    story: Story, new: ShippedCode
) -> None:
    Pipeline.objects.update(settings={"execution.checkpointing.interval": "5 min"})
    with pytest.raises(
        Rejected, match="a checkpoint every 5 min 00 s, and an upgrade waits 10 min"
    ):
        asked(new)

    Pipeline.objects.update(settings={"execution.checkpointing.interval": "off"})
    with pytest.raises(Rejected, match="no periodic checkpoints"):
        asked(new)


def test_the_savepoint_of_an_open_upgrade_cannot_be_disposed_of(
    stopped: Upgrade, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stopped.savepoint or ""
    monkeypatch.setattr(
        disposal, "read_manifest", lambda path: SimpleNamespace(kind=CheckpointKind.SAVEPOINT)
    )

    with pytest.raises(Rejected, match="is what the upgrade of 'shop' goes back to"):
        disposal.check_disposable(path)


def test_an_overdue_upgrade_is_not_ended(story: Story, new: ShippedCode) -> None:
    row = begun(new)
    Request.objects.filter(pk=row.request_id).update(deadline_at=timezone.now())

    drivers.end_overdue()
    drivers.deliver_forgotten()

    row.request.refresh_from_db()
    assert row.request.phase == RequestPhase.PENDING


def test_the_command_asks_for_a_package_and_names_the_request(story: Story, tmp_path: Path) -> None:
    (said,) = json.loads(upgrade("--to", str(shop_wheel(tmp_path, "1.1")), "--json"))

    assert (said["kind"], said["is_open"]) == ("UPGRADE", True)
    assert said["parameters"]["to"].startswith("shipped-shop 1.1 (sha256 ")


def jobs_root() -> Path:
    from django.conf import settings

    return Path(settings.JOBS_ROOT)


def added(directory: Path, version: str) -> ShippedCode:
    return CodeStore(jobs_root()).add(shop_wheel(directory / version, version))


def upgrade(*words: str) -> str:
    out = StringIO()
    call_command("upgrade", "shop", *words, stdout=out)
    return out.getvalue()


def asked(code: ShippedCode, request_id: str | None = None) -> str:
    return services.upgrade(pipeline="shop", code=code, request_id=request_id, **WHO)


def begun(code: ShippedCode) -> Upgrade:
    """Returns an upgrade whose check is under way, in a process that this test plays."""
    row = Upgrade.objects.get(request__request_id=asked(code))
    Upgrade.objects.update(check_tries=1)
    return row


def checked(row: Upgrade, refusal: str = "") -> None:
    found = services.Checked("It fits.", refusal)
    Upgrade.objects.filter(pk=row.pk).update(checked=msgspec.to_builtins(found))


def carry_on(row: Upgrade) -> Upgrade:
    services.carry_on(row.pk)
    return Upgrade.objects.select_related("request", "new_run", "back_run", "pipeline").get(
        pk=row.pk
    )


def stop(story: Story) -> None:
    """Stops the run as its driver would."""
    request = Request.objects.get(kind=RequestKind.STOP_WITH_SAVEPOINT)
    path = str(jobs_root() / "shop" / "savepoint")
    story.completed(CheckpointKind.SAVEPOINT, request.request_id, path=path)
    fold(story.answered(request, path).ended())


def starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a start from the savepoint find its files; the stories write none."""
    written = SimpleNamespace(checkpoint_id=2, run_id=Run.objects.get(number=1).run_id)
    monkeypatch.setattr(restore, "read_manifest", lambda path: written)
    monkeypatch.setattr(
        restore, "_verdict", lambda row, path, asked: Verdict(path=path, findings=())
    )
    monkeypatch.setattr(restore, "check_place", lambda path: None)


def failed(run: Run) -> None:
    cause = FailureOccurred(cause="It is broken.")
    fold(Story(run).started().tell(cause).ended(JobStatus.FAILED, "It is broken."))


def time_passes(minutes: int) -> None:
    Upgrade.objects.update(step_at=timezone.now() - timedelta(minutes=minutes))


def fold(story: Story) -> None:
    del story  # the story is already in the journal
    Projector().run_once()
