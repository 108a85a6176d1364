"""What an admin may change other than pipelines: one table, one view that calls the services.

A new secret is on the answer itself and on no other page, so the answer is no redirect. If a reload
sends the form again, it changes nothing and says so.
"""

from contextlib import nullcontext

from django.contrib import messages
from django.contrib.auth.decorators import permission_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from ftdash.accounts.sent_forms import new_mark, sent_once
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.settings import alert_rules as alert_actions
from ftdash.ui.settings import history as history_actions
from ftdash.ui.settings import people as people_actions
from ftdash.ui.settings.forms import Done, SettingsAction, SettingsForm
from pipelines.domain.errors import Rejected, check

ACTIONS = people_actions.ACTIONS | alert_actions.ACTIONS | history_actions.ACTIONS


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
