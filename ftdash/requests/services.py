"""The only writers of what people ask for. Each stores a Request row; Celery delivers it.

Every function returns the request's id and raises Rejected with one sentence for the person. What
is asked of a pipeline is asked of its newest run, or, with `only_run`, of that one or of none.
What is stored survives a broker that is away: reconcile delivers it later.
"""

from dataclasses import replace
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from ftdash.jobs.models import DesiredState, Pipeline, PointLabel, RequestKind, RequestPhase, Run
from ftdash.jobs.validation import (
    check_name,
    check_reason,
    check_slot,
    check_sources,
    check_startable,
    output_notes,
)
from ftdash.requests.asking import (
    Question,
    already_asked,
    ask_driver,
    check_possible,
    end_request,
    new_run,
    pipeline_named,
    store,
    store_start,
)
from pipelines.domain.accepted_text import check_no_secrets, checked_label
from pipelines.domain.commands import KILL_WITHIN_S
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.settings.parsing import changed_settings
from pipelines.domain.status import DriverKillMoment, KillMoment, SavepointFormat

KILL_WITHIN = timedelta(seconds=KILL_WITHIN_S)


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
) -> RequestId:
    """Create or change the pipeline and start a run of it from the beginning."""
    given = {"parallelism": str(parallelism)}
    question = Question(RequestKind.SUBMIT, name, requester, reason, request_id, given)
    if known := already_asked(question):
        return known
    check_name(name)
    parameters, settings = parameters or {}, settings or {}
    found = check_startable(flow, parallelism, max_parallelism, parameters, settings)
    check_sources(flow, parameters, settings)
    newest = Run.objects.filter(pipeline__name=name).order_by("-number").first()
    said = [found.sentence, *output_notes(flow, parameters, newest)]
    with transaction.atomic():
        existing = Pipeline.objects.filter(name=name).first()
        if existing is not None:
            check_possible(RequestKind.SUBMIT, existing)
        pipeline, _ = Pipeline.objects.update_or_create(
            name=name,
            defaults={
                "flow": flow,
                "parallelism": parallelism,
                "max_parallelism": max_parallelism,
                "parameters": parameters,
                "settings": settings,
                "allows_faults": allows_faults,
            },
            create_defaults={
                "flow": flow,
                "parallelism": parallelism,
                "max_parallelism": max_parallelism,
                "parameters": parameters,
                "settings": settings,
                "allows_faults": allows_faults,
                "created_at": timezone.now(),
            },
        )
        run = new_run(pipeline, parallelism=parallelism, parameters=parameters, master=master)
        return store_start(question, run, " ".join(said))


def request_checkpoint(
    *,
    pipeline: str,
    requester: str,
    reason: str,
    request_id: str | None = None,
    only_run: str | None = None,
) -> RequestId:
    kind = RequestKind.CHECKPOINT
    return ask_driver(Question(kind, pipeline, requester, reason, request_id, only_run=only_run))


def request_savepoint(
    *,
    pipeline: str,
    requester: str,
    reason: str,
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    label: str = "",
    request_id: str | None = None,
    only_run: str | None = None,
) -> RequestId:
    given = {"type": savepoint_format.value}
    kind = RequestKind.SAVEPOINT
    question = Question(kind, pipeline, requester, reason, request_id, given, only_run)
    return _ask_for_savepoint(question, label)


def stop_with_savepoint(
    *,
    pipeline: str,
    requester: str,
    reason: str,
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    drain: bool = False,
    label: str = "",
    request_id: str | None = None,
    only_run: str | None = None,
) -> RequestId:
    """`drain`: every window fires before the savepoint; for a pipeline that will not go on."""
    given = {"type": savepoint_format.value, **({"drain": "true"} if drain else {})}
    kind = RequestKind.STOP_WITH_SAVEPOINT
    question = Question(kind, pipeline, requester, reason, request_id, given, only_run)
    return _ask_for_savepoint(question, label)


def cancel_with_savepoint(
    *,
    pipeline: str,
    requester: str,
    reason: str,
    savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    label: str = "",
    request_id: str | None = None,
    only_run: str | None = None,
) -> RequestId:
    """If the savepoint fails, nothing is cancelled."""
    given = {"type": savepoint_format.value}
    kind = RequestKind.CANCEL_WITH_SAVEPOINT
    question = Question(kind, pipeline, requester, reason, request_id, given, only_run)
    return _ask_for_savepoint(question, label)


def _ask_for_savepoint(question: Question, label: str) -> RequestId:
    """Of the newest run; the savepoint that is taken for it bears the label from its beginning."""
    if known := already_asked(question):
        return known
    label = checked_label(label)
    with transaction.atomic():
        request_id = ask_driver(_with_label(question, label))
        if label:
            PointLabel.objects.create(
                request_id=request_id,
                label=label,
                labelled_by=question.requester,
                labelled_at=timezone.now(),
            )
    return request_id


def _with_label(question: Question, label: str) -> Question:
    if not label:
        return question
    return replace(question, parameters={**question.parameters, "label": label})


def cancel(
    *,
    pipeline: str,
    requester: str,
    reason: str,
    request_id: str | None = None,
    only_run: str | None = None,
) -> RequestId:
    """From here on no driver is started for this run any more."""
    kind = RequestKind.CANCEL
    question = Question(kind, pipeline, requester, reason, request_id, only_run=only_run)
    with transaction.atomic():
        stored = ask_driver(question)
        run = Run.objects.filter(requests__request_id=stored, stop_requested_at=None)
        run.update(desired=DesiredState.STOPPED, stop_requested_at=timezone.now())
    return stored


def change_settings(
    *,
    pipeline: str,
    settings: dict[str, str],
    requester: str,
    reason: str,
    request_id: str | None = None,
) -> RequestId:
    """Of the newest run only; the pipeline's next one starts with the pipeline's own settings."""
    kind = RequestKind.CHANGE_SETTINGS
    check_no_secrets("setting", settings)  # the request is stored, and shown to everybody
    question = Question(kind, pipeline, requester, reason, request_id, settings)
    if not already_asked(question):
        newest = check_possible(kind, pipeline_named(pipeline))
        changed_settings(newest.settings_now if newest else {}, settings)
    return ask_driver(question)


def allow_faults(
    *,
    pipeline: str,
    is_allowed: bool,
    requester: str,
    reason: str,
    request_id: str | None = None,
) -> RequestId:
    """From now on. The setting testing.faults of a run under way is as it was at its start."""
    given = {"allowed": "true" if is_allowed else "false"}
    kind = RequestKind.ALLOW_FAULTS
    question = Question(kind, pipeline, requester, reason, request_id, given)
    if known := already_asked(question):
        return known
    asked = replace(question, reason=check_reason(reason))
    row = pipeline_named(pipeline)
    verb = "allows" if is_allowed else "does not allow"
    with transaction.atomic():
        Pipeline.objects.filter(pk=row.pk).update(allows_faults=is_allowed)
        request = store(asked, row, None, deadline_s=0.0)
        done = f"{pipeline} {verb} faults on purpose from now on."
        end_request(request, RequestPhase.SUCCEEDED, done, timezone.now())
    return RequestId(request.request_id)


def kill_slot(
    *,
    pipeline: str,
    slot: int,
    requester: str,
    reason: str,
    moment: KillMoment = KillMoment.NOW,
    within: timedelta = KILL_WITHIN,
    request_id: str | None = None,
) -> RequestId:
    """Its `moment` is waited for no longer than `within`."""
    waits = timedelta() if moment is KillMoment.NOW else within
    given = {"slot": str(slot), "moment": moment.value} | _within(waits)
    kind = RequestKind.KILL_SLOT
    question = Question(kind, pipeline, requester, reason, request_id, given)
    if known := already_asked(question):
        return known
    newest = check_possible(RequestKind.KILL_SLOT, pipeline_named(pipeline))
    check_slot(slot, newest.parallelism if newest else 0)
    return ask_driver(question, waits)


def kill_driver(
    *,
    pipeline: str,
    moment: DriverKillMoment,
    requester: str,
    reason: str,
    within: timedelta = KILL_WITHIN,
    slot: int | None = None,
) -> RequestId:
    """The next time it comes there `within` that time; another one takes over. `slot` is killed
    at once, for the moments of a recovery."""
    given = {"moment": moment.value} | _within(within)
    if slot is not None:
        given["slot"] = str(slot)
    question = Question(RequestKind.KILL_DRIVER, pipeline, requester, reason, parameters=given)
    return ask_driver(question, within)


def _within(waits: timedelta) -> dict[str, str]:
    """What is done at once has no such parameter."""
    return {"within_s": f"{waits.total_seconds():g}"} if waits else {}


def slow_slot(
    *, pipeline: str, slot: int, delay: timedelta, lasts: timedelta, requester: str, reason: str
) -> RequestId:
    """Each of its uploads takes `delay` longer, for as long as that `lasts`."""
    milliseconds = timedelta(milliseconds=1)
    given = {
        "slot": str(slot),
        "delay_ms": str(delay // milliseconds),
        "for_ms": str(lasts // milliseconds),
    }
    return ask_driver(
        Question(RequestKind.SLOW_SLOT, pipeline, requester, reason, parameters=given)
    )
