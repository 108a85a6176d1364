"""The pages of game days: the score, those under way, one game day, and the form for a new one.

Everyone may see the results; starting one takes the admin role. A game day under way is a row, so
you can leave and find it again. The page shows its findings so far in sentences.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.formats import count, duration, plural
from ftdash.gameday import queries, services
from ftdash.gameday.models import Fault
from ftdash.gameday.queries import Candidate, GameDays, GameDayView, Score
from ftdash.gameday.scoring import AuditFound, Measures, Seen
from ftdash.jobs.answers import PipelinePage
from ftdash.runs.queries import pipelines as job_queries
from ftdash.runs.queries.freshness import Observation
from ftdash.ui.actions.forms import ConfirmedForm
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.pipelines.page import PHASES
from pipelines.domain.commands import KillSlot
from pipelines.domain.errors import Rejected


class Outcome(StrEnum):
    FINE = "fine"
    NOTE = "note"
    BROKEN = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    outcome: Outcome
    text: str


def findings(seen: Seen) -> list[Finding]:
    return list(_findings(seen))


def _findings(seen: Seen) -> Iterator[Finding]:
    if seen.refusal or seen.failed_at is None:
        return
    measures = seen.measures
    yield Finding(Outcome.FINE, f"It took effect: {seen.cause}")
    if seen.harm:
        yield Finding(Outcome.BROKEN, f"The run failed, which it must not for this: {seen.harm}")
    if measures.detection_ms is not None:
        yield Finding(Outcome.FINE, f"Detected after {duration(measures.detection_ms)}.")
    if measures.watched_again_ms is not None:
        after = duration(measures.watched_again_ms)
        text = f"A worker watches again after {after}; the run went on meanwhile."
        yield Finding(Outcome.FINE, text)
    if measures.recovery_ms is not None:
        yield Finding(Outcome.FINE, _running(measures))
    if seen.committed_checkpoint_id is not None:
        text = f"Checkpoint {seen.committed_checkpoint_id} was completed and committed since."
        yield Finding(Outcome.FINE, text)
    yield from _losses(measures)
    if seen.audit is not None and seen.audit.is_over:
        yield from _audited(seen.audit)


def _running(measures: Measures) -> str:
    since = (
        f"checkpoint {measures.restored_checkpoint_id}"
        if measures.restored_checkpoint_id
        else "the beginning"
    )
    replayed = (
        f", with {plural(measures.records_replayed, 'record')} to read again"
        if measures.records_replayed is not None
        else ""
    )
    after = duration(measures.recovery_ms)
    return f"All subtasks ran again after {after}, from {since}{replayed}."


def _losses(measures: Measures) -> Iterator[Finding]:
    if measures.checkpoints_lost:
        lost = plural(measures.checkpoints_lost, "checkpoint")
        yield Finding(Outcome.NOTE, f"{lost} under way did not complete.")
    if measures.late_refused:
        late = count(measures.late_refused)
        yield Finding(Outcome.FINE, f"The attempt before spoke up late and was refused {late} ×.")
    if measures.further_failures:
        further = plural(measures.further_failures, "further failure")
        yield Finding(Outcome.NOTE, f"{further} in the meantime.")


def _audited(audit: AuditFound) -> Iterator[Finding]:
    if audit.is_as_recorded is None:
        yield Finding(Outcome.NOTE, f"The output could not be audited: {audit.problem}")
        return
    if not audit.is_as_recorded:
        yield Finding(Outcome.BROKEN, f"The output is not as recorded: {audit.first_difference}")
    for proof in audit.proofs:
        if not proof.is_audited:
            yield Finding(Outcome.NOTE, f"{proof.sink} cannot be read again and was not audited.")
        elif proof.checkpoint_id is not None:
            text = f"{proof.sink} is as recorded up to checkpoint {proof.checkpoint_id}."
            yield Finding(Outcome.FINE, text)


HELP = {
    Fault.KILL_SLOT: "kill -9 of its process",
    Fault.KILL_SLOT_ALIGNING: "kill -9 the next time it holds an input back for a checkpoint",
    Fault.KILL_SLOT_CUTTING: "kill -9 when it has forwarded the next barrier, before its cut",
    Fault.KILL_SLOT_UPLOADING: "kill -9 when its next state is cut but not yet written",
    Fault.KILL_SLOT_UPLOADED: "kill -9 when its next state is durable but not yet acknowledged",
    Fault.KILL_SLOT_COMMITTING: "kill -9 when it is next asked to commit, before it commits",
    Fault.KILL_SLOT_COMMITTED: "kill -9 when it has next committed, before it says so",
    Fault.KILL_SLOT_RESTORING: (
        "kill -9 of a slot, and of its replacement when it is given the state to restore"
    ),
    Fault.KILL_SLOT_OPENED: (
        "kill -9 of a slot, and of its replacement once it has the state of its first subtask"
    ),
    Fault.KILL_SLOT_RESTORED: (
        "kill -9 of a slot, and of its replacement once it has restored, before it says so"
    ),
    Fault.KILL_DRIVER: "kill -9 of the driver; another one takes over",
    Fault.KILL_DRIVER_ACKNOWLEDGED: (
        "kill -9 when all have acknowledged, before the manifest is written"
    ),
    Fault.KILL_DRIVER_PUBLISHED: (
        "kill -9 when the next manifest is durable, before anything is committed"
    ),
    Fault.KILL_DRIVER_RESTARTING: (
        "kill -9 of a slot, and of the driver once that attempt has ended, before it chooses a"
        " point"
    ),
    Fault.KILL_DRIVER_REWINDING: (
        "kill -9 of a slot, and of the driver once it has chosen a point, before it rewinds sinks"
    ),
    Fault.KILL_DRIVER_REWOUND: (
        "kill -9 of a slot, and of the driver once it has rewound sinks, before it starts a slot"
    ),
    Fault.KILL_WORKER: (
        "kill -9 of the Celery worker, which restarts the drivers of all pipelines. Its supervisor"
        " has to start another one, and no run may notice"
    ),
    Fault.FREEZE_SLOT: (
        "it stays silent until it has been replaced, and then speaks again: nothing it says may"
        " count"
    ),
    Fault.SLOW_STORAGE: "each of its uploads takes 3 s longer, for half a minute",
    Fault.FULL_DISK: "every write to a file fails, until something has failed or a minute is over",
}


@dataclass(frozen=True, slots=True)
class GameDaysPage:
    seen: Observation
    game_days: GameDays
    pipeline: str | None  # None means all of them
    candidates: list[Candidate]

    @property
    def sentence(self) -> str:
        scores = self.game_days.scores
        if not scores:
            return "No game day has ended yet."
        passed, ran = sum(each.passed for each in scores), sum(each.runs for each in scores)
        slowest = max(scores, key=_slowest)
        rest = (
            f" The slowest recovery took {duration(slowest.slowest_recovery_ms)}:"
            f" {slowest.fault.label}, {slowest.pipeline}."
            if slowest.slowest_recovery_ms is not None
            else ""
        )
        return f"{passed} of {plural(ran, 'game day')} that took effect passed.{rest}"


@dataclass(frozen=True, slots=True)
class GameDayPage:
    seen: Observation
    day: GameDayView
    findings: list[Finding]

    @property
    def phases(self) -> list[tuple[str, float | None]]:
        return [(phase, self.day.measures.phases.get(phase)) for phase in PHASES]


class GameDayForm(ConfirmedForm):
    fault = forms.ChoiceField(label="Fault")
    slot = forms.TypedChoiceField(
        label="Slot", coerce=int, required=False, help_text="Ignored if no slot is hit."
    )

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["fault"].choices = [  # type: ignore[attr-defined]
            (fault.value, f"{fault.label}: {HELP[fault]}") for fault in Fault
        ]
        slots = page.run.slots if page.run else []
        self.fields["slot"].choices = [  # type: ignore[attr-defined]
            (each.slot, f"slot {each.slot}, process {each.pid} on {each.host}") for each in slots
        ]


@require_GET
@never_cache
def game_days(request: HttpRequest, name: str | None = None) -> HttpResponse:
    return render(request, "gameday/page.html", {"page": game_days_page(name)})


@require_GET
@never_cache
def game_days_regions(request: HttpRequest, name: str | None = None) -> HttpResponse:
    context = {"page": game_days_page(name), "is_refresh": True}
    return render(request, "gameday/regions.html", context)


@require_GET
@never_cache
def game_day(request: HttpRequest, key: int) -> HttpResponse:
    return render(request, "gameday/day.html", {"page": game_day_page(key)})


@require_GET
@never_cache
def game_day_regions(request: HttpRequest, key: int) -> HttpResponse:
    context = {"page": game_day_page(key), "is_refresh": True}
    return render(request, "gameday/day_regions.html", context)


def game_days_page(name: str | None) -> GameDaysPage:
    """Raises Http404 if the pipeline does not exist."""
    candidates = [each for each in queries.candidates() if name in (None, each.name)]
    if name is not None and not candidates:
        raise Http404(f"There is no pipeline named {name}.")
    return GameDaysPage(job_queries.observe(), queries.game_days(name), name, candidates)


def game_day_page(key: int) -> GameDayPage:
    """Raises Http404 if the game day does not exist."""
    day = queries.game_day(key)
    if day is None:
        raise Http404(f"There is no game day {key}.")
    return GameDayPage(job_queries.observe(), day, findings(day.seen) if day.seen else [])


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def start_game_day(request: HttpRequest, name: str) -> HttpResponse:
    page = _pipeline(name)
    context = {
        "page": page,
        "offer": page.actions[KillSlot.kind],
        "stakes": stakes(page, queries.game_days(name).scores),
    }
    if request.method == "GET":
        form = GameDayForm(page=page)
        return render(request, "gameday/start.html", context | {"form": form})
    form = GameDayForm(request.POST, page=page)
    if form.is_valid() and (key := _started(request, page, form)) is not None:
        messages.success(request, "Requested. You can leave this page; the result will be here.")
        return redirect("game-day", key)
    return render(request, "gameday/start.html", context | {"form": form}, status=REFUSED)


def stakes(page: PipelinePage, scores: list[Score]) -> str:
    """The cost of a game day, in numbers as far as they are known."""
    run = page.run
    if run is None:
        return ""
    since = f"checkpoint {run.last_checkpoint_id}" if run.last_checkpoint_id else "the start"
    again = (
        f"about {plural(run.records_to_replay, 'record')} read since {since} are read again"
        if run.records_to_replay is not None
        else f"what was read since {since} is read again"
    )
    known = [each.slowest_recovery_ms for each in scores if each.slowest_recovery_ms is not None]
    wait = (
        f"it was {duration(max(known))} at the longest so far"
        if known
        else "how long is not known yet: this is its first"
    )
    return f"Processes of {page.name} are hit: {again}, and readers of its output wait; {wait}."


def _pipeline(name: str) -> PipelinePage:
    page = job_queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    return page


def _started(request: HttpRequest, page: PipelinePage, form: GameDayForm) -> int | None:
    """Returns the game day's key, or None after a refusal, which the form shows."""
    values = form.cleaned_data
    try:
        return services.start_game_day(
            pipeline=page.name,
            fault=Fault(values["fault"]),
            slot=values["slot"] if values["slot"] != "" else None,
            requester=request.user.get_username(),
            reason=values["reason"],
        )
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        return None


def _slowest(score: Score) -> float:
    return score.slowest_recovery_ms or 0.0
