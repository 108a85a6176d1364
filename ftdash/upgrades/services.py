"""Stores requests for upgrades and carries them on: the only writer of their rows.

An upgrade is one request. Its savepoint, its start and its way back are requests too, whose ids
follow from it. So a worker that dies is no loss: the next round finds these requests and continues.
No task waits. The new code is checked in a process of its own, because its import may do anything.
"""

import subprocess
import threading
import uuid
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import msgspec
import psutil
from django.conf import settings as configuration
from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.checkpoints.queries.checkpoints import recovery_points
from ftdash.errands import Errand, isolated, publish_on_commit
from ftdash.formats import age
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import (
    OPEN_PHASES,
    Pipeline,
    Request,
    RequestPhase,
    Run,
    Upgrade,
    UpgradeStep,
)
from ftdash.jobs.validation import check_startable, package_store
from ftdash.points.services import restore as point_services
from ftdash.points.services.restore import Restore
from ftdash.requests import services as requests
from ftdash.requests.storing import (
    Question,
    already_asked,
    check_possible,
    end_request,
    move_request,
    pipeline_named,
    refusals_logged,
    store,
)
from ftdash.upgrades.decision import Checked, Decision, End, Go, Seen, SeenRequest, SeenRun, decide
from pipelines.bus.lease import Owner, began_after_boot_s
from pipelines.domain.commands import Cancel, StopWithSavepoint, UpgradePipeline
from pipelines.domain.errors import BrokenCode, InvariantViolated, Rejected
from pipelines.domain.ids import RequestId
from pipelines.domain.run import ShippedCode
from pipelines.domain.settings import Settings
from pipelines.domain.settings.parsing import parse_settings
from pipelines.domain.status import JobStatus
from pipelines.points.verdict import Check, Finding, Outcome, Verdict

CHECK_TRIES_MAX = 3
CHECK_WITHIN = timedelta(minutes=2)
"""A process that checks code for longer is ended, and counts as one that died."""

STARTED_WITHIN = timedelta(seconds=5)
"""A worker that has started such a process, and has not noted it by then, has died."""

STOP_TRIES_MAX = 3
_OF_UPGRADES = uuid.UUID("5b0d1a3c-6f0e-4b52-9d51-2d7a7c9e2f10")


def upgrade(
    *,
    pipeline: str,
    code: ShippedCode,
    requester: str,
    reason: str,
    allow_non_restored_state: bool = False,
    request_id: str | None = None,
) -> RequestId:
    """Have the pipeline continue with that package of the store.

    Raises Rejected if the pipeline does not run, runs this very package, or has another request
    under way; if the package cannot run here; or if no checkpoint would be watched in time.
    """
    question = Question(pipeline, requester, reason, request_id)
    with refusals_logged(question, UpgradePipeline):
        if known := already_asked(question, UpgradePipeline):
            return known
        question, row = question.with_reason(), pipeline_named(pipeline)
        package_store().wheel(code)
        settings = parse_settings(row.settings)
        _check_watchable(row, settings)
        command = UpgradePipeline(code=code, allow_non_restored_state=allow_non_restored_state)
        try:
            with transaction.atomic():
                run = _upgradable(row, code)
                request = store(question, command, row, None, _about_s(run, settings))
                made = Upgrade.objects.create(
                    request=request,
                    pipeline=row,
                    old_run=run,
                    old_code=run.code,
                    new_code=msgspec.to_builtins(code),
                    checkpoints=settings.upgrade.checkpoint_count,
                    timeout_ms=settings.upgrade.timeout_ms,
                    step_at=timezone.now(),
                )
                publish_on_commit(Errand.CARRY_ON_UPGRADE, made.pk)
        except IntegrityError as taken:
            raise Rejected(f"{pipeline} is being upgraded; wait until that has ended.") from taken
        return RequestId(request.request_id)


def _upgradable(row: Pipeline, code: ShippedCode) -> Run:
    run = check_possible(UpgradePipeline, row)
    if run is None:
        raise InvariantViolated("what is running has a run")
    now = run.shipped_code
    if now is not None and now.sha256 == code.sha256:
        raise Rejected(f"{row.name} runs this very package already: {code.described}.")
    waiting = Request.objects.filter(pipeline=row, phase__in=OPEN_PHASES).first()
    if waiting is not None:
        raise Rejected(
            f"The request {waiting.command.action!r} of {row.name} is under way; upgrade when it"
            " has ended."
        )
    return run


def _check_watchable(row: Pipeline, settings: Settings) -> None:
    count, interval_ms = settings.upgrade.checkpoint_count, settings.checkpointing.interval_ms
    if interval_ms is None:
        raise Rejected(
            f"{row.name} takes no periodic checkpoints, so an upgrade has none to watch; set"
            " execution.checkpointing.interval, or stop and restore it by hand."
        )
    if count * interval_ms > settings.upgrade.timeout_ms:
        raise Rejected(
            f"{row.name} takes a checkpoint every {age(interval_ms)}, and an upgrade waits"
            f" {age(settings.upgrade.timeout_ms)} for {count} of them; set"
            " pipeline.upgrade.timeout to more, or pipeline.upgrade.checkpoints to less."
        )


def _about_s(run: Run, settings: Settings) -> float:
    """Returns how long all steps may take together; no promise, and not a deadline."""
    stop_s = parse_settings(run.settings_now).checkpointing.timeout_ms / 1000
    steps_s = CHECK_WITHIN.total_seconds() + 2.0 * settings.upgrade.timeout_ms / 1000
    return stop_s + steps_s + 2.0 * configuration.START_DEADLINE_S


def carry_on(key: int) -> None:
    """Does what is due now, step by step. May be repeated, or run twice at once."""
    for _ in UpgradeStep:
        row = _row(key)
        if row is None or not _moved(row, decide(_seen(row, _act(row)))):
            return


def reconcile() -> None:
    """One round; an error in one upgrade does not affect the others."""
    for key in Upgrade.objects.filter(ended_at=None).values_list("pk", flat=True):
        with isolated(f"Upgrade {key}"):
            carry_on(key)


def _row(key: int) -> Upgrade | None:
    related = ("request", "pipeline", "old_run__pipeline", "new_run__pipeline", "back_run")
    return Upgrade.objects.select_related(*related).filter(pk=key, ended_at=None).first()


def _act(row: Upgrade) -> str:
    """Does what the step needs, if not done yet. Returns why it could not; empty: it could."""
    try:
        match row.step:
            case UpgradeStep.CHECKING:
                _begin(row)
            case UpgradeStep.STOPPING:
                _stop(row)
            case UpgradeStep.STARTING:
                row.new_run = _started(row, "start", row.new_code)
                row.save(update_fields=["new_run"])
            case UpgradeStep.CANCELING:
                _cancel(row)
            case UpgradeStep.RESTORING:
                row.back_run = _started(row, "back", row.old_code)
                row.save(update_fields=["back_run"])
    except Rejected as refusal:
        return str(refusal)
    return ""


def _begin(row: Upgrade) -> None:
    request = row.request
    if request.phase == RequestPhase.PENDING:
        now = timezone.now()
        move_request(request, RequestPhase.ACCEPTED, delivered_at=now, accepted_at=now)
    if row.checked is not None or row.check_tries >= CHECK_TRIES_MAX or _is_checking(row):
        return
    unchanged = Upgrade.objects.filter(pk=row.pk, checked__isnull=True, check_tries=row.check_tries)
    if unchanged.update(check_tries=F("check_tries") + 1, checker=None, step_at=timezone.now()):
        _start_check(row)


def _is_checking(row: Upgrade) -> bool:
    """Returns True while the check is under way. Ends a process that takes too long."""
    if row.checker is None:
        return row.check_tries > 0 and timezone.now() < row.step_at + STARTED_WITHIN
    checker = msgspec.convert(row.checker, Owner)
    process = checker.process()
    is_late = timezone.now() > row.step_at + CHECK_WITHIN
    if process is None:
        return not checker.is_here and not is_late
    if is_late:
        with suppress(psutil.NoSuchProcess):  # the next round looks again
            for each in (*process.children(), process):  # a child reads the code
                each.kill()
    return not is_late


def _start_check(row: Upgrade) -> None:
    with run_directory(row.old_run).path.joinpath("upgrade.log").open("ab") as log_file:
        process = subprocess.Popen(
            [*configuration.MANAGE_COMMAND, "carry_out", "upgrade-check", str(row.pk)],
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            cwd=configuration.BASE_DIR,
            start_new_session=True,
        )
    # Only a wait removes a dead child from the process table.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    try:
        began_s = began_after_boot_s(process.pid)
    except psutil.NoSuchProcess:
        return  # it is over; the next round reads what it has found
    checker = Owner(pid=process.pid, process_began_s=began_s, host="", acquired_at=0.0)
    Upgrade.objects.filter(pk=row.pk).update(checker=msgspec.to_builtins(checker))


def check(key: int) -> None:
    """Checks the new code; runs in the process of the check.

    It builds the pipeline with the new code, compares it with the newest point, and stores the
    result.
    """
    row = Upgrade.objects.select_related("pipeline", "old_run", "request").get(pk=key)
    try:
        found = _checked(row)
    except Rejected as refusal:
        trace = refusal.traceback if isinstance(refusal, BrokenCode) else ""
        found = Checked("", str(refusal), trace)
    undecided = Upgrade.objects.filter(pk=key, step=UpgradeStep.CHECKING, checked__isnull=True)
    with transaction.atomic():
        undecided.update(checked=msgspec.to_builtins(found))
        publish_on_commit(Errand.CARRY_ON_UPGRADE, key)


def _checked(row: Upgrade) -> Checked:
    run, code = row.old_run, msgspec.convert(row.new_code, ShippedCode)
    check_startable(
        row.pipeline.flow,
        run.parallelism,
        run.max_parallelism,
        run.parameters,
        row.pipeline.settings,
        code,
    )
    verdict = _newest_verdict(row, code)
    if verdict is None:
        return Checked("The new code can be built. There is no checkpoint to hold it against yet.")
    refused = [each.text for each in verdict.findings if each.outcome is Outcome.REFUSED]
    if refused:
        return Checked("", " ".join(refused))
    shown = (Check.CODE, Check.COMPATIBILITY, Check.OUTPUT)
    return Checked(" ".join(each.text for each in verdict.findings if each.check in shown))


def _newest_verdict(row: Upgrade, code: ShippedCode) -> Verdict | None:
    """Judges what counts for a savepoint that is still to be taken.

    So it leaves out the point's own files, which its run may delete meanwhile. None means that
    there is no point.
    """
    for _ in range(CHECK_TRIES_MAX):
        points = [each for each in recovery_points(row.pipeline.name, 3) if each.is_present]
        if not points:
            return None
        verdict = point_services.fit_of(_restore(row, points[0].path, code))
        kept = tuple(each for each in verdict.findings if each.check is not Check.FILES)
        if not any(_is_unreadable(each) for each in kept):
            return replace(verdict, findings=kept)
    return None


def _is_unreadable(found: Finding) -> bool:
    return found.check is Check.MANIFEST and found.outcome is Outcome.REFUSED


def _restore(row: Upgrade, path: str, code: ShippedCode | None) -> Restore:
    run = row.old_run
    command = row.request.command
    return Restore(
        pipeline=row.pipeline.name,
        path=path,
        parallelism=run.parallelism,
        parameters=run.parameters,
        allow_non_restored_state=(
            isinstance(command, UpgradePipeline) and command.allow_non_restored_state
        ),
        reads_files=False,
        code=code,
        is_installed=code is None,
    )


def _stop(row: Upgrade) -> None:
    """Asks for a stop, and again if it has failed: the driver may have died meanwhile."""
    newest = _request_of(row, _stop_name(row.stop_tries))
    has_failed = newest is not None and newest.phase in (RequestPhase.FAILED, RequestPhase.REJECTED)
    if newest is not None and not (has_failed and row.stop_tries < STOP_TRIES_MAX):
        return
    if newest is not None or not row.stop_tries:
        row.stop_tries += 1
        row.save(update_fields=["stop_tries"])
    code = msgspec.convert(row.new_code, ShippedCode)
    requests.ask(
        row.pipeline.name,
        StopWithSavepoint(label=f"before {code.package} {code.version}"),
        who=row.request.requester,
        why=_why(row),
        request_id=_id(row, _stop_name(row.stop_tries)),
        only_run=row.old_run.run_id,
        is_of_upgrade=True,
    )


def _stop_name(number: int) -> str:
    return f"stop {number}"


def _savepoint(row: Upgrade, stop: Request | None) -> str | None:
    """Returns where the run has stopped, even if its driver died before it could say so."""
    if stop is not None and stop.phase == RequestPhase.SUCCEEDED:
        return stop.path
    if not row.old_run.is_terminal:
        return None
    ids = [_id(row, _stop_name(number + 1)) for number in range(row.stop_tries)]
    taken = Checkpoint.objects.filter(
        run=row.old_run,
        request_id__in=ids,
        checkpoint_id=row.old_run.last_checkpoint_id,
        status=CheckpointStatus.COMPLETED,
    )
    return taken.values_list("path", flat=True).first()


def _started(row: Upgrade, name: str, code: object) -> Run:
    """Returns the run from the savepoint with that code. Raises Rejected if it cannot start."""
    request = _request_of(row, name)
    if request is None:
        request = _start(row, name, code)
    if request.run is None:
        raise InvariantViolated("a start has a run")
    return request.run


def _start(row: Upgrade, name: str, code: object) -> Request:
    shipped = None if code is None else msgspec.convert(code, ShippedCode)
    try:
        point_services.restore(
            _restore(row, row.savepoint or "", shipped),
            requester=row.request.requester,
            reason=_why(row),
            master=row.old_run.master,
            request_id=_id(row, name),
            is_of_upgrade=True,
        )
    except Rejected:
        if (known := _request_of(row, name)) is not None:  # another worker was faster
            return known
        raise
    return Request.objects.select_related("run").get(request_id=_id(row, name))


def _cancel(row: Upgrade) -> None:
    if row.new_run is None or row.new_run.is_terminal or _request_of(row, "cancel") is not None:
        return
    requests.ask(
        row.pipeline.name,
        Cancel(),
        who=row.request.requester,
        why=_why(row),
        request_id=_id(row, "cancel"),
        only_run=row.new_run.run_id,
        is_of_upgrade=True,
    )


def _id(row: Upgrade, name: str) -> str:
    return str(uuid.uuid5(_OF_UPGRADES, f"{row.request.request_id}/{name}"))


def _request_of(row: Upgrade, name: str) -> Request | None:
    known = Request.objects.select_related("run")
    return known.filter(request_id=_id(row, name)).first()


def _why(row: Upgrade) -> str:
    code = msgspec.convert(row.new_code, ShippedCode)
    return f"upgrade to {code.package} {code.version}: {row.request.reason}"


def _seen(row: Upgrade, refusal: str) -> Seen:
    now, limit = timezone.now(), timedelta(milliseconds=row.timeout_ms)
    stop, old = _request_of(row, _stop_name(row.stop_tries)), _seen_run(row.old_run)
    if row.savepoint is None and (path := _savepoint(row, stop)):
        row.savepoint = path
        row.save(update_fields=["savepoint"])
    fresh = Upgrade.objects.get(pk=row.pk)
    died = fresh.check_tries >= CHECK_TRIES_MAX and not _is_checking(fresh)
    return Seen(
        step=UpgradeStep(row.step),
        old=old,
        checkpoints=row.checkpoints,
        is_late=now > row.step_at + limit,
        limit=age(row.timeout_ms),
        refusal=refusal,
        checked=None if fresh.checked is None else msgspec.convert(fresh.checked, Checked),
        has_check_died=died,
        stop=_seen_request(stop),
        may_stop_again=row.stop_tries < STOP_TRIES_MAX,
        savepoint=row.savepoint,
        new=None if row.new_run is None else _seen_run(row.new_run),
        why_back=row.why_back,
        back=_seen_request(_request_of(row, "back")),
    )


def _seen_request(request: Request | None) -> SeenRequest | None:
    if request is None:
        return None
    has_succeeded = request.phase == RequestPhase.SUCCEEDED
    return SeenRequest(request.phase in OPEN_PHASES, has_succeeded, request.message)


def _seen_run(run: Run) -> SeenRun:
    run.refresh_from_db()
    status = JobStatus(run.status)
    done = Checkpoint.objects.filter(run=run, attempt=run.attempt, status__in=COMPLETE)
    checkpoints = done.count() if status is JobStatus.RUNNING else 0
    return SeenRun(f"Run {run.number}", status, run.reason, checkpoints)


def _moved(row: Upgrade, decision: Decision) -> bool:
    """Stores the decision, unless another worker has. Returns True if another step is due."""
    match decision:
        case Go(step, text, why_back):
            changes: dict[str, object] = {"step": step}
            changes |= {"why_back": why_back} if why_back else {}
            return _store(row, text, None, changes)
        case End(phase, text, trace):
            changes = {"step": UpgradeStep.ENDED, "ended_at": timezone.now()}
            _store(row, text, phase, changes, trace)
            return False
        case _:
            return False


def _store(
    row: Upgrade,
    text: str,
    phase: RequestPhase | None,
    changes: dict[str, object],
    trace: str = "",
) -> bool:
    now = timezone.now()
    over = {
        "step": row.step,
        "at": row.step_at.isoformat(),
        "ended_at": now.isoformat(),
        "text": text,
        "trace": trace,
    }
    unchanged = Upgrade.objects.filter(pk=row.pk, step=row.step, ended_at=None)
    with transaction.atomic():
        if not unchanged.update(step_at=now, steps=[*row.steps, over], **changes):
            return False
        row.request.refresh_from_db()
        if phase is None:
            move_request(row.request, RequestPhase(row.request.phase), message=text)
        else:
            end_request(row.request, phase, text, now)
    return True
