"""The only writers of people's requests. Each stores a Request row; Celery delivers it.

`ask` takes every command that only a run or its pipeline has to allow. A start also stores a
pipeline and a run, so it has its own service, and `ftdash.points.services` has those that look at a
recovery point first. Every service returns the request's id and raises Rejected with one sentence
for the person. What is stored survives an outage of the broker: reconcile delivers it later.
"""

import msgspec
from django.conf import settings as configuration
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from ftdash.checkpoints.queries.checkpoints import recovery_points
from ftdash.errands import Errand, publish_on_commit
from ftdash.jobs.models import DesiredState, Pipeline, PointLabel, Request, RequestPhase, Run
from ftdash.jobs.validation import (
    check_name,
    check_slot,
    check_sources,
    check_startable,
    output_notes,
)
from ftdash.requests.storing import (
    Question,
    already_asked,
    check_possible,
    end_request,
    new_run,
    pipeline_named,
    refusals_logged,
    store,
    store_start,
)
from pipelines.domain.commands import (
    AllowFaults,
    Cancel,
    ChangeSettings,
    KillSlot,
    RetryNow,
    RunCommand,
    SavepointCommand,
    StartPipeline,
    UndoStart,
)
from pipelines.domain.errors import InvariantViolated, Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.run import ShippedCode
from pipelines.domain.settings.parsing import changed_settings, parse_settings
from pipelines.domain.texts import check_no_secrets, checked_label


def ask(
    pipeline: str,
    command: RunCommand | AllowFaults,
    *,
    who: str,
    why: str,
    request_id: str | None = None,
    only_run: str | None = None,
    is_of_upgrade: bool = False,
) -> RequestId:
    """Asks the pipeline's newest run, or with `only_run` that run and no later one.

    `is_of_upgrade`: see `check_possible`.
    """
    question = Question(pipeline, who, why, request_id)
    with refusals_logged(question, type(command), is_of_upgrade=is_of_upgrade):
        if known := already_asked(question, type(command)):
            return known
        question, row = question.with_reason(), pipeline_named(pipeline)
        if isinstance(command, AllowFaults):
            return _allow_faults(question, command, row)
        return _ask_run(question, command, row, only_run=only_run, is_of_upgrade=is_of_upgrade)


def _ask_run(
    question: Question,
    command: RunCommand,
    row: Pipeline,
    *,
    only_run: str | None,
    is_of_upgrade: bool,
) -> RequestId:
    with transaction.atomic():
        run = check_possible(type(command), row, is_of_upgrade=is_of_upgrade)
        if run is None:
            raise InvariantViolated("what is running has a run")
        if isinstance(command, UndoStart) and run.is_terminal:
            return _undo_ended_start(question, command, row, run)
        if isinstance(command, RetryNow) and run.driver_due_at is not None:
            return _start_driver_now(question, command, row, run)
        if only_run not in (None, run.run_id):
            raise Rejected(f"Run {only_run} of {row.name} is over; a newer one has followed it.")
        checked = _checked(command, run)
        request = store(question, checked, row, run, _deadline_s(checked, run))
        _note(checked, request, run)
        publish_on_commit(Errand.DELIVER_REQUEST, request.pk)
    return RequestId(request.request_id)


def _checked(command: RunCommand, run: Run) -> RunCommand:
    """Raises Rejected for a command that the driver would refuse."""
    if isinstance(command, SavepointCommand):
        return msgspec.structs.replace(command, label=checked_label(command.label))
    if isinstance(command, ChangeSettings):
        check_no_secrets("setting", command.settings)  # the request is stored, and people read it
        changed_settings(run.settings_now, command.settings)
    if isinstance(command, KillSlot):
        check_slot(command.slot, run.slot_count)
    return command


def _undo_ended_start(
    question: Question, command: UndoStart, row: Pipeline, ended: Run
) -> RequestId:
    """No driver of the run is left to ask, so a run of its own puts the output back."""
    run = new_run(
        row,
        parallelism=ended.parallelism,
        parameters=ended.parameters,
        master=ended.master,
        puts_back=True,
    )
    said = f"Run {run.number} puts back the output that run {ended.number} set aside."
    return store_start(question, command, run, said)


def _start_driver_now(question: Question, command: RetryNow, row: Pipeline, run: Run) -> RequestId:
    """Starts a driver now: the supervision waits, and no driver lives that could be asked."""
    now = timezone.now()
    waiting = Run.objects.filter(pk=run.pk, driver_due_at__isnull=False)
    if not waiting.update(driver_due_at=now, version=F("version") + 1):
        raise Rejected(f"{row.name} has another driver by now; look at its page.")
    request = store(question, command, row, run, deadline_s=0.0)
    end_request(request, RequestPhase.SUCCEEDED, "Another driver starts now.", now)
    publish_on_commit(Errand.START_RUN, run.pk)
    return RequestId(request.request_id)


def _deadline_s(command: RunCommand, run: Run) -> float:
    """A savepoint may take as long as the run's checkpoints may."""
    longest_ms = parse_settings(run.settings_now).checkpointing.timeout_ms
    return max(configuration.REQUEST_DEADLINE_S, longest_ms / 1000) + command.waits_s


def _note(command: RunCommand, request: Request, run: Run) -> None:
    """Stores what the control plane must know about a command from now on."""
    now = timezone.now()
    if isinstance(command, Cancel):
        # From here on the supervision starts no driver for this run any more.
        going_on = Run.objects.filter(pk=run.pk, stop_requested_at=None)
        going_on.update(desired=DesiredState.STOPPED, stop_requested_at=now)
    if isinstance(command, SavepointCommand) and command.label:
        PointLabel.objects.create(
            request_id=request.request_id,
            label=command.label,
            labelled_by=request.requester,
            labelled_at=now,
        )


def _allow_faults(question: Question, command: AllowFaults, row: Pipeline) -> RequestId:
    verb = "allows" if command.allowed else "does not allow"
    with transaction.atomic():
        Pipeline.objects.filter(pk=row.pk).update(allows_faults=command.allowed)
        request = store(question, command, row, None, deadline_s=0.0)
        done = f"{row.name} {verb} faults on purpose from now on."
        end_request(request, RequestPhase.SUCCEEDED, done, timezone.now())
    return RequestId(request.request_id)


def submit_pipeline(
    *,
    name: str,
    flow: str,
    requester: str,
    reason: str = "",
    parallelism: int = 1,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    parameters: dict[str, str] | None = None,
    settings: dict[str, str] | None = None,
    master: str | None = None,
    allows_faults: bool = False,
    request_id: str | None = None,
    code: ShippedCode | None = None,
) -> RequestId:
    """Create or change the pipeline and start a run of it from the beginning.

    `code` is the package that holds the flow. None means the one that the pipeline has had for the
    same flow, or an installed one.
    """
    question = Question(name, requester, reason, request_id)
    with refusals_logged(question, StartPipeline):
        if known := already_asked(question, StartPipeline):
            return known
        check_name(name)
        parameters, settings = parameters or {}, settings or {}
        code = code or _code_so_far(name, flow)
        found = check_startable(flow, parallelism, max_parallelism, parameters, settings, code)
        check_sources(flow, parameters, settings, code)
        newest = Run.objects.filter(pipeline__name=name).order_by("-number").first()
        said = [found.sentence, *output_notes(flow, parameters, newest, code)]
        given = {
            "flow": flow,
            "parallelism": parallelism,
            "max_parallelism": max_parallelism,
            "parameters": parameters,
            "settings": settings,
            "allows_faults": allows_faults,
            "code": None if code is None else msgspec.to_builtins(code),
        }
        with transaction.atomic():
            existing = Pipeline.objects.filter(name=name).first()
            if existing is not None:
                check_possible(StartPipeline, existing)
            pipeline, _ = Pipeline.objects.update_or_create(
                name=name,
                defaults=given,
                create_defaults={**given, "created_at": timezone.now()},
            )
            run = new_run(pipeline, parallelism=parallelism, parameters=parameters, master=master)
            command = StartPipeline(parallelism=parallelism)
            return store_start(question, command, run, " ".join(said))


def check_start_over(name: str, *, is_confirmed: bool, request_id: str | None) -> None:
    """Raises Rejected if a start from the beginning has to be confirmed first.

    Such a start leaves the state of a pipeline behind and sets its output aside, so it has to be
    confirmed if the pipeline can continue from a point. The error names that point. A repeated
    request starts nothing.
    """
    if is_confirmed or Request.objects.filter(request_id=request_id or "").exists():
        return
    newest = next((each for each in recovery_points(name) if each.is_present), None)
    if newest is not None:
        raise Rejected(
            f"A start of {name} leaves its state behind and sets its output aside: restore"
            f" {newest.path} to continue, or confirm the start with the name {name!r} (confirm;"
            " --yes on the command line)."
        )


def _code_so_far(name: str, flow: str) -> ShippedCode | None:
    known = Pipeline.objects.filter(name=name, flow=flow).first()
    return None if known is None else known.shipped_code


def label_pipeline(name: str, labels: list[str]) -> None:
    """Replaces the labels by which people group the pipeline."""
    changed = {"labels": sorted(labels), "version": F("version") + 1}
    Pipeline.objects.filter(name=name).update(**changed)
