"""The pages of savepoints: all of a pipeline's, and one with everything known of it.

Everyone may look; having every byte of one read again takes the admin role.
"""

from dataclasses import dataclass
from datetime import datetime

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from ftdash.checkpoints.answers import Savepoint, SavepointPage
from ftdash.checkpoints.queries import savepoints as savepoint_queries
from ftdash.jobs.answers import ActionOffer, PipelinePage
from ftdash.jobs.models import RequestKind
from ftdash.points.services import restore as point_services
from ftdash.runs.queries import pipelines as queries
from ftdash.ui.pipelines.view import data_at, number_or_none
from ftdash.ui.shared_regions import shared
from pipelines.domain.errors import Rejected

PER_PAGE = 25


@dataclass(frozen=True, slots=True)
class SavepointsView:
    page: PipelinePage
    data_at: datetime | None
    found: SavepointPage

    @property
    def can_restore(self) -> bool:
        return self.page.actions[RequestKind.RESTORE].is_possible

    @property
    def take(self) -> ActionOffer:
        return self.page.actions[RequestKind.SAVEPOINT]


@dataclass(frozen=True, slots=True)
class SavepointView:
    page: PipelinePage
    data_at: datetime | None
    point: Savepoint
    others: list[str]  # pipelines on which it may be tried too

    @property
    def restore(self) -> ActionOffer:
        return self.page.actions[RequestKind.RESTORE]


@require_GET
@never_cache
def savepoints(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "savepoints/page.html", {"view": savepoints_view(request, name)})


@require_GET
@never_cache
@shared
def savepoints_regions(request: HttpRequest, name: str) -> HttpResponse:
    context = {"view": savepoints_view(request, name), "is_refresh": True}
    return render(request, "savepoints/regions.html", context)


@require_GET
@never_cache
def savepoint(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    return render(request, "savepoints/one/page.html", {"view": savepoint_view(savepoint_key)})


@require_GET
@never_cache
def savepoint_regions(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    context = {"view": savepoint_view(savepoint_key), "is_refresh": True}
    return render(request, "savepoints/one/regions.html", context)


@require_GET
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def restore_into(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """Redirects to the restore of the chosen pipeline, with its preflight."""
    point = existing(savepoint_key)
    chosen = request.GET.get("into", "")
    if queries.pipeline_page(chosen) is None:
        raise Http404(f"There is no pipeline named {chosen}.")
    address = reverse("act", args=[chosen, "restore"])
    return redirect(f"{address}?{urlencode({'path': point.path})}")


@require_POST
@never_cache
@permission_required("jobs.operate", raise_exception=True)
def verify(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """Have every byte of it read again."""
    point = existing(savepoint_key)
    try:
        point_services.begin_inspection(point.path)
    except Rejected as refusal:
        messages.error(request, str(refusal))
    return redirect("savepoint", savepoint_key)


@require_GET
@never_cache
def verification(request: HttpRequest, savepoint_key: str) -> HttpResponse:
    """The progress of that; asking also wakes a reading that has stopped halfway."""
    point_services.inspection_of(existing(savepoint_key).path)
    return render(request, "savepoints/one/verification.html", {"point": existing(savepoint_key)})


def savepoints_view(request: HttpRequest, name: str) -> SavepointsView:
    """Raises Http404 if the pipeline does not exist."""
    page = queries.pipeline_page(name)
    if page is None:
        raise Http404(f"There is no pipeline named {name}.")
    wanted = number_or_none(request.GET.get("page")) or 1
    found = savepoint_queries.savepoints(name, wanted, PER_PAGE)
    return SavepointsView(page, data_at(page), found)


def savepoint_view(savepoint_key: str) -> SavepointView:
    """Raises Http404 if the savepoint does not exist."""
    point = existing(savepoint_key)
    page = queries.pipeline_page(point.pipeline)
    if page is None:
        raise Http404(f"There is no pipeline named {point.pipeline}.")
    names = [pipeline.name for pipeline, _ in queries.newest_runs()]
    others = [name for name in names if name != point.pipeline]
    return SavepointView(page, data_at(page), point, others)


def existing(savepoint_key: str) -> Savepoint:
    point = savepoint_queries.savepoint(savepoint_key)
    if point is None:
        raise Http404(f"There is no savepoint {savepoint_key}.")
    return point
