"""The page of a pipeline's guarantee: its level and reason, the proof, and the ledger.

Everyone may see the results; asking for an audit takes the admin role.
"""

from dataclasses import dataclass
from datetime import datetime

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from ftdash.audits import services as audits
from ftdash.checkpoints.queries import guarantee as ledger_queries
from ftdash.checkpoints.queries.guarantee import AuditView, Ledger
from ftdash.jobs.answers import PipelinePage
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.events import shared
from ftdash.ui.pipelines.page import data_at
from pipelines.domain.errors import Rejected

LEDGER_LINES = 20
AUDITS_LISTED = 10


@dataclass(frozen=True, slots=True)
class GuaranteeView:
    page: PipelinePage
    data_at: datetime | None  # the time of the data shown
    ledger: Ledger
    audits: list[AuditView]  # newest first

    @property
    def newest_audit(self) -> AuditView | None:
        return self.audits[0] if self.audits else None

    @property
    def last_found(self) -> AuditView | None:
        """The newest audit that has ended with a report."""
        return next((each for each in self.audits if each.report is not None), None)


@require_GET
@never_cache
def page(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "guarantee/page.html", {"view": guarantee_view(name)})


@require_GET
@never_cache
@shared
def regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": guarantee_view(name), "is_refresh": True}
    return render(request, "guarantee/regions.html", context)


@require_POST
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def start_audit(request: HttpRequest, name: str) -> HttpResponse:
    if queries.pipeline_page(name) is None:
        raise Http404(f"There is no pipeline named {name}.")
    try:
        audits.ask(name, request.user.get_username())
    except Rejected as refusal:
        messages.error(request, str(refusal))
    else:
        messages.success(request, "The audit is under way: you may leave, and find it here again.")
    return redirect("guarantee", name)


def guarantee_view(name: str) -> GuaranteeView:
    """Raises Http404 if the pipeline does not exist."""
    shown = queries.pipeline_page(name)
    if shown is None:
        raise Http404(f"There is no pipeline named {name}.")
    run_id = shown.run.run_id if shown.run else ""
    return GuaranteeView(
        page=shown,
        data_at=data_at(shown),
        ledger=ledger_queries.ledger(run_id, LEDGER_LINES),
        audits=ledger_queries.audits(name, AUDITS_LISTED),
    )
