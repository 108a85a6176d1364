"""Services: each refusal is one sentence, and each accepted request is stored."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from ftdash import errands
from ftdash.jobs.models import (
    DesiredState,
    Pipeline,
    Request,
    RequestPhase,
    Run,
)
from ftdash.jobs.validation import check_sources, check_startable, output_notes
from ftdash.projection.projector import Projector
from ftdash.requests import services
from ftdash.supervision import drivers
from pipelines.domain.commands import (
    Cancel,
    CancelWithSavepoint,
    ChangeSettings,
    KillDriver,
    KillSlot,
    RequestKind,
    RunCommand,
    SavepointCommand,
    StopWithSavepoint,
    TakeSavepoint,
    TriggerCheckpoint,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.guarantees import EndToEnd
from pipelines.domain.ids import RequestId, RunId, Uid
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import DriverKillMoment, KillMoment, SavepointFormat
from pipelines.flows.finding import VARIABLE, find_flow
from tests.takeovers import held
from tests.web.journals import Story, new_run
from tests.web.sent_errands import catch_errands

pytestmark = pytest.mark.django_db

WHO = {"requester": "ann", "reason": "upgrade"}
HEARTBEAT_TIMEOUT = timedelta(milliseconds=parse_settings({}).heartbeat.timeout_ms)


@pytest.fixture(autouse=True)
def published(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Returns the messages that went to the broker; any flow may be submitted."""
    settings.JOBS_ROOT = tmp_path
    monkeypatch.setattr(services, "check_startable", accept)
    monkeypatch.setattr(services, "check_sources", accept)
    monkeypatch.setattr(services, "output_notes", lambda *_: [])
    return catch_errands(monkeypatch)


def test_a_submitted_pipeline_has_a_run_and_a_request(
    published: list, django_capture_on_commit_callbacks: Callable
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        request_id = submit(parallelism=2, parameters={"speed": "24"})

    run = Run.objects.get()
    request = Request.objects.get(request_id=request_id)
    assert (run.number, run.parallelism, run.master) == (1, 2, "local[2]")
    assert run.parameters == {"speed": "24"}
    assert (request.kind, request.phase, request.run) == ("SUBMIT", RequestPhase.PENDING, run)
    assert (request.requester, request.reason) == ("ann", "upgrade")
    assert published == [("ftdash.tasks.start_run", run.pk)]


def test_the_next_submission_changes_the_pipeline_and_numbers_its_runs() -> None:
    submit(parallelism=2)
    finish(Run.objects.get())

    submit(parallelism=3)

    pipeline = Pipeline.objects.get()
    assert pipeline.parallelism == 3
    assert sorted(pipeline.runs.values_list("number", flat=True)) == [1, 2]
    assert len(set(pipeline.runs.values_list("run_id", flat=True))) == 2


def test_a_pipeline_under_way_is_not_submitted_again() -> None:
    submit()

    with pytest.raises(Rejected, match="flights has a run under way; stop or cancel it first"):
        submit()


@pytest.mark.parametrize("name", ["", "Flights", "a b", "../a", "-a", "a" * 81])
def test_an_invalid_pipeline_name_is_refused(name: str) -> None:
    with pytest.raises(Rejected, match="cannot be used"):
        submit(name=name)


@pytest.mark.parametrize(
    "command", [TriggerCheckpoint(), TakeSavepoint(), StopWithSavepoint(), Cancel()]
)
def test_a_request_is_kept_and_its_delivery_is_published(
    published: list,
    django_capture_on_commit_callbacks: Callable,
    command: RunCommand,
) -> None:
    running()

    with django_capture_on_commit_callbacks(execute=True):
        request_id = ask(command)

    request = Request.objects.get(request_id=request_id)
    assert (request.kind, request.phase) == (command.kind, RequestPhase.PENDING)
    assert request.deadline_at > request.created_at
    assert published == [("ftdash.tasks.deliver_request", request.pk)]


def test_a_request_is_kept_while_the_broker_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Callable
) -> None:
    running()

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(errands.current_app, "send_task", refuse)

    with django_capture_on_commit_callbacks(execute=True):
        request_id = ask(TakeSavepoint())

    assert Request.objects.get(request_id=request_id).phase == RequestPhase.PENDING


def test_the_deadline_of_a_savepoint_is_the_checkpoint_timeout_of_its_run() -> None:
    run = running()
    Run.objects.filter(pk=run.pk).update(settings={"execution.checkpointing.timeout": "1 h"})

    request_id = ask(TakeSavepoint())

    request = Request.objects.get(request_id=request_id)
    assert (request.deadline_at - request.created_at).total_seconds() == 3600


def test_a_cancelled_run_is_desired_to_be_stopped() -> None:
    run = running()

    ask(Cancel())

    run.refresh_from_db()
    assert run.desired == DesiredState.STOPPED
    assert run.stop_requested_at is not None
    with pytest.raises(Rejected, match="flights is being stopped"):
        ask(TakeSavepoint())


def test_an_action_on_a_pipeline_that_does_not_run_is_refused() -> None:
    with pytest.raises(Rejected, match="There is no pipeline 'flights'; none was submitted yet"):
        ask(Cancel())

    run = new_run()

    with pytest.raises(Rejected, match="flights is CREATED; this needs it to be RUNNING"):
        ask(TakeSavepoint())

    finish(run)

    with pytest.raises(Rejected, match="flights is not running"):
        ask(Cancel())


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_an_action_needs_a_reason(reason: str) -> None:
    running()

    with pytest.raises(Rejected, match="Say why"):
        ask(Cancel(), why=reason)


def test_a_kill_request_names_the_slot_and_the_moment() -> None:
    running()

    ask(KillSlot(slot=1, moment=KillMoment.ALIGNING))

    request = Request.objects.get()
    assert request.command.parameters == {"slot": "1", "moment": "aligning", "within_s": "600"}


@pytest.mark.parametrize("within_s", [20.0, 7_200.0])
def test_the_driver_gives_up_a_waiting_kill_before_its_request_expires(within_s: float) -> None:
    running()
    within = timedelta(seconds=within_s)

    ask(KillSlot(slot=1, moment=KillMoment.ALIGNING, within_s=within_s))
    ask(KillDriver(moment=DriverKillMoment.PUBLISHED, within_s=within_s))

    for request in Request.objects.all():
        command = request.command
        assert isinstance(command, KillSlot | KillDriver)
        assert command.within_s == within_s
        assert request.deadline_at - request.created_at >= within + HEARTBEAT_TIMEOUT


@pytest.mark.parametrize("slot", [-1, 2])
def test_a_slot_that_does_not_exist_is_refused(slot: int) -> None:
    running()

    with pytest.raises(Rejected, match=f"There is no slot {slot}; choose 0 to 1"):
        ask(KillSlot(slot=slot))


def test_a_pipeline_may_forbid_injected_faults() -> None:
    running()
    Pipeline.objects.update(allows_faults=False)

    with pytest.raises(Rejected, match="does not allow faults"):
        ask(KillSlot(slot=0))


@pytest.mark.parametrize("taken_as", SavepointFormat)
@pytest.mark.parametrize("command", [TakeSavepoint, StopWithSavepoint, CancelWithSavepoint])
def test_a_savepoint_request_states_its_format(
    command: type[SavepointCommand], taken_as: SavepointFormat
) -> None:
    running()

    request_id = ask(command(format=taken_as))

    request = Request.objects.get(request_id=request_id)
    assert (request.kind, request.command.parameters) == (command.kind, {"type": taken_as.value})
    assert request.command.format is taken_as  # type: ignore[union-attr]


def test_settings_of_the_running_run_are_changed_by_a_command() -> None:
    running()
    change = {"execution.checkpointing.interval": "5 s"}

    request_id = ask(ChangeSettings(settings=change))

    request = Request.objects.get(request_id=request_id)
    assert request.kind == RequestKind.CHANGE_SETTINGS
    command = request.command
    assert isinstance(command, ChangeSettings)
    assert command.settings == change


def test_a_change_that_the_driver_would_refuse_is_not_stored() -> None:
    running()

    with pytest.raises(Rejected, match=r"heartbeat\.timeout cannot change during a run"):
        ask(ChangeSettings(settings={"heartbeat.timeout": "1 s"}))

    assert not Request.objects.filter(kind=RequestKind.CHANGE_SETTINGS).exists()


def test_a_change_that_holds_a_password_is_refused_without_repeating_it() -> None:
    running()
    change = {"execution.checkpointing.interval": "redis://ada:hunter2@db/0"}

    with pytest.raises(Rejected, match="holds a password") as refused:
        ask(ChangeSettings(settings=change))

    assert "hunter2" not in str(refused.value)
    assert not Request.objects.filter(kind=RequestKind.CHANGE_SETTINGS).exists()


def test_asking_again_under_the_same_id_returns_the_same_request(
    published: list, django_capture_on_commit_callbacks: Callable
) -> None:
    run = running()
    asked = "nightly-2026-11-21"

    with django_capture_on_commit_callbacks(execute=True):
        first = ask(TakeSavepoint(), request_id=asked)
        finish(run)
        again = ask(TakeSavepoint(), request_id=asked)

    assert first == again == asked
    assert Request.objects.count() == 1
    assert len(published) == 1


@pytest.mark.parametrize("request_id", ["a", "v1.2_final-3", "x" * 80])
def test_every_accepted_request_id_can_be_delivered(request_id: str) -> None:
    running()

    ask(TakeSavepoint(), request_id=request_id)
    drivers.deliver(Request.objects.get().pk)

    assert Request.objects.get(request_id=request_id).phase == RequestPhase.DELIVERED


def test_submitting_again_under_the_same_id_starts_no_second_run() -> None:
    first = submit(request_id="start-1")
    finish(Run.objects.get())

    assert submit(request_id="start-1") == first
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("request_id", "sentence"),
    [
        ("../x", "cannot be used"),
        ("", "cannot be used"),
        ("x" * 81, "cannot be used"),
        ("used", "was used to ask 'flights' for 'savepoint'"),
    ],
)
def test_an_invalid_id_or_one_used_by_another_request_is_refused(
    request_id: str, sentence: str
) -> None:
    running()
    ask(TakeSavepoint(), request_id="used")

    with pytest.raises(Rejected, match=sentence):
        ask(StopWithSavepoint(), request_id=request_id)
    assert Request.objects.count() == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parallelism": 0}, "parallelism cannot be 0"),
        ({"parallelism": 129}, "parallelism cannot be 129"),
        ({"settings": {"execution.checkpointing.intervall": "1 s"}}, "did you mean"),
        ({"settings": {"execution.checkpointing.dir": "s3://b/x"}}, "dir cannot be used: s3://b/x"),
        ({"settings": {"execution.checkpointing.savepoint-dir": "/etc"}}, "add a root to"),
        ({"flow": "flight_delay"}, "flight_delay"),
        ({"parameters": {"sped": "max"}}, "sped"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_before_it_is_stored(
    monkeypatch: pytest.MonkeyPatch, changes: dict, sentence: str
) -> None:
    monkeypatch.setattr(services, "check_startable", check_startable)

    with pytest.raises(Rejected, match=sentence):
        submit(**{"flow": "flight_delays", **changes})
    assert not Pipeline.objects.exists()


@pytest.mark.parametrize("where", ["parameters", "settings"])
def test_a_password_is_refused_before_it_is_stored_and_not_repeated(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(services, "check_startable", check_startable)

    with pytest.raises(Rejected, match=f"The {where[:-1]} 'data' holds a password") as refused:
        submit(flow="flight_delays", **{where: {"data": "redis://:hunter2@host/0"}})

    assert "hunter2" not in str(refused.value)
    assert not Pipeline.objects.exists()
    assert not Request.objects.exists()


def test_a_required_guarantee_that_the_pipeline_cannot_give_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(services, "check_startable", check_startable)
    (tmp_path / "0.csv").write_text("1,1,1\n")
    settings = {"ftdash.guarantee.required": "exactly-once"}
    views = {"flow": "page_view_count", "parameters": {"data": str(tmp_path)}}

    mode = {"execution.checkpointing.mode": "at-least-once"}
    with pytest.raises(Rejected, match=r"is EXACTLY_ONCE, and this pipeline .* 'at-least-once'"):
        submit(**views, settings={**settings, **mode})
    assert not Pipeline.objects.exists()

    submit(**views, settings=settings)
    assert Request.objects.get().message.startswith("From end to end exactly-once, because")


def test_a_submission_names_the_run_whose_output_it_takes_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "numbers=tests.processes.numbers:FLOW")
    monkeypatch.setattr(services, "output_notes", output_notes)
    parameters = {"output": str(tmp_path / "out")}
    sink = find_flow("numbers").build(parameters).sinks[Uid("files")]
    held(sink, RunId("0003-abc"), installation="elsewhere")

    submit(flow="numbers", parameters=parameters)

    assert Request.objects.get().message.endswith(
        f"The output of 'files', the directory {tmp_path}/out, is held by run 0003-abc of"
        " installation elsewhere, started by ada: the new run takes it over, and run 0003-abc ends"
        " as FAILED if it still runs."
    )


def test_a_malformed_input_file_is_refused_at_submission(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(services, "check_sources", check_sources)
    for side in ("flights", "weather"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "2013-01.parquet").write_bytes(b"no Parquet")
    output, sql = str(tmp_path / "output"), f"sqlite:///{tmp_path / 'output.sqlite3'}"

    with pytest.raises(Rejected, match=r"2013-01\.parquet"):
        submit(
            flow="flight_delays",
            parameters={"data": str(tmp_path), "output": output, "sql": sql},
        )
    assert not Pipeline.objects.exists()


def test_a_version_grows_with_every_request() -> None:
    running()
    before = Pipeline.objects.get().version

    ask(TakeSavepoint())

    assert Pipeline.objects.get().version > before


def accept(*_: object) -> EndToEnd:
    """Replaces the check of the flow, which has tests of its own."""
    return EndToEnd("exactly-once", "it is a test")


def submit(**changes: object) -> RequestId:
    values: dict = {"name": "flights", "flow": "flight_delays", **WHO, **changes}
    return services.submit_pipeline(**values)


def ask(command: RunCommand, why: str = "upgrade", request_id: str | None = None) -> RequestId:
    return services.ask("flights", command, who="ann", why=why, request_id=request_id)


def running() -> Run:
    run = new_run()
    Story(run).started()
    Projector().run_once()
    return run


def finish(run: Run) -> None:
    Story(run).ended()
    Projector().run_once()
