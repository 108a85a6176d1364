"""The only writers of what people ask for. Each stores a Request row; Celery delivers it.

Every function returns the request's id and raises Rejected with one sentence for the person.
What is stored survives a broker that is away: reconcile delivers it later.
"""

import logging
import os
import secrets
import uuid
from datetime import timedelta
from functools import partial

from celery import Task
from django.conf import settings as configuration
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone
from kombu.exceptions import OperationalError

from ftdash.checkpoints.points import read_head
from ftdash.jobs import tasks
from ftdash.jobs.actions import problem_with
from ftdash.jobs.models import DesiredState, Pipeline, Request, RequestKind, Run
from ftdash.jobs.validation import (
    check_name,
    check_place,
    check_point,
    check_reason,
    check_slot,
    check_sources,
    check_startable,
)
from pipelines.domain.errors import Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.places import scheme_of
from pipelines.domain.setting_parsing import parse_settings
from pipelines.domain.status import KillMoment

log = logging.getLogger("ftdash.services")


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
    allows_faults: bool = True,
) -> RequestId:
    """Create or change the pipeline and start a run of it from the beginning."""
    check_name(name)
    parameters, settings = parameters or {}, settings or {}
    check_startable(flow, parallelism, max_parallelism, parameters, settings)
    check_sources(flow, parameters)
    with transaction.atomic():
        existing = Pipeline.objects.filter(name=name).first()
        if existing is not None:
            _check_possible(RequestKind.SUBMIT, existing)
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
        run = _new_run(pipeline, parallelism=parallelism, parameters=parameters, master=master)
        return _store_start(RequestKind.SUBMIT, run, requester, reason)


def restore(
    *,
    pipeline: str,
    path: str,
    requester: str,
    reason: str,
    parallelism: int | None = None,
    parameters: dict[str, str] | None = None,
    master: str | None = None,
) -> RequestId:
    """Start a new run from a recovery point, at another parallelism if given.

    `parameters` replace those of the same name for this run.
    """
    reason = check_reason(reason)
    row = _pipeline(pipeline)
    _check_possible(RequestKind.RESTORE, row)
    path = path if scheme_of(path) else os.path.abspath(path)
    check_place(path, row)
    head = read_head(path)
    check_point(head, path, row)
    parallelism = row.parallelism if parallelism is None else parallelism
    parameters = {**row.parameters, **(parameters or {})}
    check_startable(row.flow, parallelism, row.max_parallelism, parameters, row.settings)
    with transaction.atomic():
        _check_possible(RequestKind.RESTORE, row)
        run = _new_run(
            row,
            parallelism=parallelism,
            parameters=parameters,
            master=master,
            restored_from=path,
            first_checkpoint_id=head.checkpoint_id + 1,
            parent=Run.objects.filter(run_id=head.run_id).first(),
        )
        given = {"path": path, "parallelism": str(parallelism)}
        return _store_start(RequestKind.RESTORE, run, requester, reason, given)


def request_checkpoint(*, pipeline: str, requester: str, reason: str) -> RequestId:
    return _ask_driver(RequestKind.CHECKPOINT, pipeline, requester, reason)


def request_savepoint(*, pipeline: str, requester: str, reason: str) -> RequestId:
    return _ask_driver(RequestKind.SAVEPOINT, pipeline, requester, reason)


def stop_with_savepoint(*, pipeline: str, requester: str, reason: str) -> RequestId:
    return _ask_driver(RequestKind.STOP_WITH_SAVEPOINT, pipeline, requester, reason)


def cancel(*, pipeline: str, requester: str, reason: str) -> RequestId:
    """From here on no driver is started for this run any more."""
    with transaction.atomic():
        request_id = _ask_driver(RequestKind.CANCEL, pipeline, requester, reason)
        run = Run.objects.filter(requests__request_id=request_id, stop_requested_at=None)
        run.update(desired=DesiredState.STOPPED, stop_requested_at=timezone.now())
    return request_id


def kill_slot(
    *,
    pipeline: str,
    slot: int,
    requester: str,
    reason: str,
    moment: KillMoment = KillMoment.NOW,
) -> RequestId:
    row = _pipeline(pipeline)
    newest = _check_possible(RequestKind.KILL_SLOT, row)
    check_slot(slot, newest.parallelism if newest else 0)
    given = {"slot": str(slot), "moment": moment.value}
    return _ask_driver(RequestKind.KILL_SLOT, pipeline, requester, reason, given)


def _ask_driver(
    kind: RequestKind,
    pipeline: str,
    requester: str,
    reason: str,
    parameters: dict[str, str] | None = None,
) -> RequestId:
    reason = check_reason(reason)
    row = _pipeline(pipeline)
    with transaction.atomic():
        run = _check_possible(kind, row)
        request = _store(kind, row, run, requester, reason, parameters or {}, _deadline_s(run))
        _publish_on_commit(tasks.deliver_request, request.pk)
    return RequestId(request.request_id)


def _store_start(
    kind: RequestKind,
    run: Run,
    requester: str,
    reason: str,
    parameters: dict[str, str] | None = None,
) -> RequestId:
    given = parameters or {"parallelism": str(run.parallelism)}
    deadline_s = float(configuration.START_DEADLINE_S)
    request = _store(kind, run.pipeline, run, requester, reason, given, deadline_s)
    _publish_on_commit(tasks.start_run, run.pk)
    return RequestId(request.request_id)


def _store(
    kind: RequestKind,
    pipeline: Pipeline,
    run: Run | None,
    requester: str,
    reason: str,
    parameters: dict[str, str],
    deadline_s: float,
) -> Request:
    now = timezone.now()
    Pipeline.objects.filter(pk=pipeline.pk).update(version=F("version") + 1)
    return Request.objects.create(
        request_id=str(uuid.uuid4()),
        kind=kind,
        pipeline=pipeline,
        run=run,
        parameters=parameters,
        requester=requester,
        reason=reason,
        created_at=now,
        deadline_at=now + timedelta(seconds=deadline_s),
    )


def _deadline_s(run: Run | None) -> float:
    """A savepoint may take as long as the run's checkpoints may."""
    longest_ms = parse_settings(run.settings).checkpoint_timeout_ms if run else 0
    return max(configuration.REQUEST_DEADLINE_S, longest_ms / 1000)


def _new_run(
    pipeline: Pipeline,
    *,
    parallelism: int,
    parameters: dict[str, str],
    master: str | None,
    restored_from: str | None = None,
    first_checkpoint_id: int = 1,
    parent: Run | None = None,
) -> Run:
    newest = pipeline.runs.order_by("-number").first()
    number = newest.number + 1 if newest else 1
    try:
        return Run.objects.create(
            pipeline=pipeline,
            # The number is for people; the rest keeps a new database off the files of an old one.
            run_id=f"{number:04d}-{secrets.token_hex(3)}",
            number=number,
            parallelism=parallelism,
            max_parallelism=pipeline.max_parallelism,
            master=master or f"local[{parallelism}]",
            parameters=parameters,
            settings=pipeline.settings,
            restored_from=restored_from,
            first_checkpoint_id=first_checkpoint_id,
            parent=parent,
            created_at=timezone.now(),
        )
    except IntegrityError as error:
        raise Rejected(
            f"{pipeline.name} has just been started by somebody else; look at its page."
        ) from error


def _pipeline(name: str) -> Pipeline:
    row = Pipeline.objects.filter(name=name).first()
    if row is None:
        known = ", ".join(Pipeline.objects.values_list("name", flat=True))
        hint = f"there is {known}" if known else "none was submitted yet"
        raise Rejected(f"There is no pipeline {name!r}; {hint}.")
    return row


def _check_possible(kind: RequestKind, pipeline: Pipeline) -> Run | None:
    """The newest run. Raises Rejected when this cannot be asked for now."""
    run = pipeline.runs.order_by("-number").first()
    if problem := problem_with(kind, pipeline, run):
        raise Rejected(problem)
    return run


def _publish_on_commit(task: "Task[[int], None]", key: int) -> None:
    transaction.on_commit(partial(_publish, task, key))


def _publish(task: "Task[[int], None]", key: int) -> None:
    try:
        task.delay(key)
    except OperationalError as error:
        log.warning("The broker is away, the request waits for reconcile: %s", error)
