"""The page of settings, which everyone sees, the page of your password, and what admins may change.

The actions are one table, with one view that calls the services. A new secret is on the answer
itself and on no other page, so the answer is no redirect. If a reload sends the form again, it
changes nothing and says so.
"""

from contextlib import nullcontext

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import permission_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods

from ftdash.accounts import authentication, queries, services
from ftdash.accounts.services import new_mark, sent_once
from ftdash.alerts import queries as alert_queries
from ftdash.retention import queries as history_queries
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.settings import alert_rules as alert_actions
from ftdash.ui.settings import people as people_actions
from ftdash.ui.settings.forms import Done, OwnPasswordForm, SettingsAction, SettingsForm
from pipelines.domain.errors import Rejected, check

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
    is_first = authentication.MUST_CHOOSE in request.session
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
        services.note_own_password(user)
    update_session_auth_hash(request, user)
    authentication.has_chosen(request)


ACTIONS = people_actions.PEOPLE_ACTIONS | alert_actions.ACTIONS | people_actions.HISTORY_ACTIONS


@never_cache
@require_http_methods(["GET", "POST"])
@permission_required("jobs.operate", raise_exception=True)
def act(request: HttpRequest, action: str) -> HttpResponse:
    if action not in ACTIONS:
        raise Http404("There is no such action.")
    chosen, of = ACTIONS[action], request.GET.get("of", "")
    form = chosen.form(request.POST if request.method == "POST" else None, of=of)
    context = {
        "action": chosen,
        "subject": chosen.subject(of),
        "form": form,
        "consequence": chosen.consequence(of),
        "mark": new_mark() if chosen.shows_secret else "",
    }
    if request.method == "GET":
        return render(request, "settings/action.html", context)
    done = _carried_out(request, chosen, form)
    if done is None:
        return render(request, "settings/action.html", context, status=REFUSED)
    if done.secret:
        check(chosen.shows_secret, "what shows a secret says so", action=action)
        return render(request, "settings/secret.html", {"action": chosen, "done": done})
    messages.success(request, done.note)
    return redirect(chosen.back)


def _carried_out(request: HttpRequest, chosen: SettingsAction, form: SettingsForm) -> Done | None:
    """None: it was refused, and the form says why."""
    if not form.is_valid():
        return None
    is_once, mark = chosen.shows_secret, request.POST.get("mark", "")
    try:
        with sent_once(mark) if is_once else nullcontext():
            return chosen.carry_out(form.of, form.cleaned_data, request.user.get_username())
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        return None
