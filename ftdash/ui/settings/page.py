"""The page of settings, which everyone sees, and the page to change your own password."""

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.accounts import first_sign_in, people, queries
from ftdash.alerts import queries as alert_queries
from ftdash.retention import queries as history_queries
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.settings.forms import OwnPasswordForm

LOG_MAX = 50


@require_GET
@never_cache
def settings(request: HttpRequest) -> HttpResponse:
    """Reads counts over all rows once, and not again with every refresh."""
    context = settings_context() | {"history": history_queries.kept()}
    return render(request, "settings/page.html", context)


@require_GET
@never_cache
def settings_regions(request: HttpRequest) -> HttpResponse:
    return render(request, "settings/regions.html", settings_context() | {"is_refresh": True})


def settings_context() -> dict[str, object]:
    return {
        "seen": job_queries.observe(),
        "people": queries.people(),
        "tokens": queries.tokens(),
        "rules": alert_queries.rules(),
        "channels": alert_queries.channels(),
        "log": queries.admin_actions(LOG_MAX),
    }


@sensitive_post_parameters()
@never_cache
@require_http_methods(["GET", "POST"])
def password(request: HttpRequest) -> HttpResponse:
    """For everyone; a person with a one-time password sees nothing else before."""
    form = OwnPasswordForm(request.user, request.POST if request.method == "POST" else None)
    is_first = first_sign_in.MUST_CHOOSE in request.session
    context = {"form": form, "is_first": is_first}
    if request.method == "GET":
        return render(request, "settings/password.html", context)
    if not form.is_valid():
        return render(request, "settings/password.html", context, status=REFUSED)
    _keep(request, form)
    messages.success(request, "Your password is changed; other sessions of yours have ended.")
    return redirect("fleet")


def _keep(request: HttpRequest, form: OwnPasswordForm) -> None:
    with transaction.atomic():
        user = form.save()
        people.note_own_password(user)
    update_session_auth_hash(request, user)
    first_sign_in.has_chosen(request)
