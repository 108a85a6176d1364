"""The page of settings, which everyone sees, the page of your password, and the admins' actions.

The actions are one table, with one view that calls the services. Those on people, tokens and the
history are declared here; each choice about history says what it deletes. A new secret is in the
answer itself and on no other page, so the answer is no redirect. If a reload sends the form again,
the form changes nothing and says so.
"""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import permission_required
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from ftdash.accounts import authentication, queries, second_factor, services
from ftdash.accounts.models import TokenScope
from ftdash.accounts.services import NewPassword, Role, new_mark, sent_once
from ftdash.alerts import queries as alert_queries
from ftdash.formats import count, period, plural, utc
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.retention import queries as history_queries
from ftdash.retention import queries as kept_queries
from ftdash.runs.queries import pipelines as job_queries
from ftdash.ui.actions.page import REFUSED
from ftdash.ui.settings import alert_rules as alert_actions
from ftdash.ui.settings.forms import (
    ConfirmedSettingsForm,
    Done,
    InviteForm,
    OwnPasswordForm,
    RoleForm,
    SettingsAction,
    SettingsForm,
    TokenForm,
    Values,
)
from pipelines.domain.errors import Rejected, check


def invite(_: str, values: Values, who: str) -> Done:
    role = Role(values["role"])
    made = services.invite(name=values["name"], role=role, requester=who, reason=values["reason"])
    return _password(made)


def change_role(of: str, values: Values, who: str) -> Done:
    role = Role(values["role"])
    services.change_role(name=of, role=role, requester=who, reason=values["reason"])
    return Done(f"{of} has the role {role.value} now.")


def deactivate(of: str, values: Values, who: str) -> Done:
    services.deactivate(name=of, requester=who, reason=values["reason"])
    return Done(f"{of} is shut out.")


def reactivate(of: str, values: Values, who: str) -> Done:
    return _password(services.reactivate(name=of, requester=who, reason=values["reason"]))


def reset_password(of: str, values: Values, who: str) -> Done:
    return _password(services.reset_password(name=of, requester=who, reason=values["reason"]))


def make_token(_: str, values: Values, who: str) -> Done:
    days = values["days"]
    token = services.create_token(
        name=values["name"],
        scope=TokenScope(values["scope"]),
        created_by=who,
        reason=values["reason"],
        expires_at=None if days is None else timezone.now() + timedelta(days=days),
    )
    return Done(f"The token {token.name}, for the header 'Authorization: Bearer'", token.secret)


def revoke_token(of: str, values: Values, who: str) -> Done:
    services.revoke_token(name=of, revoked_by=who, reason=values["reason"])
    return Done(f"The token {of} no longer works.")


def reset_factor(of: str, values: Values, who: str) -> Done:
    second_factor.reset(name=of, requester=who, reason=values["reason"])
    return Done(f"{of} has no second factor now, and was signed out.")


def require_factor(_: str, values: Values, who: str) -> Done:
    second_factor.require(requester=who, reason=values["reason"])
    return Done("Everyone with a password needs a second factor from now on.")


def require_no_factor(_: str, values: Values, who: str) -> Done:
    second_factor.require_no_more(requester=who, reason=values["reason"])
    return Done("A second factor is each person's choice now.")


def end_session(of: str, values: Values, who: str) -> Done:
    session = _session(of)
    services.end_session(
        name=session.person, key=session.key, requester=who, reason=values["reason"]
    )
    return Done(f"{session.person} is signed out there.")


def _session(of: str) -> queries.SessionView:
    found = next((each for each in queries.sessions() if str(each.key) == of), None)
    if found is None:
        raise Http404("This session has ended.")
    return found


def _before_ending_session(of: str) -> str:
    session = _session(of)
    return (
        f"{session.person} signed in at {utc(session.opened_at)} from {session.address} with"
        f" {session.browser or 'an unnamed program'}. They are signed out there at the next click."
    )


def _before_reset_factor(of: str) -> str:
    return (
        f"{_of_person(of).name} is signed out, and signs in with the password alone. Make sure that"
        " it is they who ask you."
    )


def _password(made: NewPassword) -> Done:
    if not made.password:
        return Done(f"{made.name} can sign in with the company's account again.")
    return Done(f"The password of {made.name}, to be changed at the first sign-in", made.password)


def _of_person(of: str) -> queries.PersonView:
    found = queries.person(of)
    if found is None:
        raise Http404(f"There is no person named {of!r}.")
    return found


def _before_role(of: str) -> str:
    role = _of_person(of).role.value
    return f"{of} has the role {role} now. The change takes effect at their next click."


def _before_deactivating(of: str) -> str:
    role = _of_person(of).role.value
    return (
        f"{of} ({role}) is signed out everywhere and cannot sign in. Their requests continue and"
        " stay in the log; tokens they made keep working."
    )


def _before_reactivating(of: str) -> str:
    return f"{of} gets a new one-time password, and the role {_of_person(of).role.value} as before."


def _before_reset(of: str) -> str:
    return f"{_of_person(of).name} is signed out everywhere and gets a one-time password."


def _before_revoking(of: str) -> str:
    found = queries.token(of)
    if found is None:
        raise Http404(f"There is no token {of!r}.")
    used = f"last used {utc(found.last_used_at)}" if found.last_used_at else "never used"
    return f"Requests with {of} are refused from now on; it was {used}. Its name stays taken."


PEOPLE_ACTIONS = {
    "invite": SettingsAction(
        title="Invite a person",
        button="Invite",
        form=InviteForm,
        consequence=lambda _: (
            "You get a random password to hand over; it has to be changed at first use."
        ),
        carry_out=invite,
        shows_secret=True,
    ),
    "role": SettingsAction(
        title="Change the role",
        button="Change role",
        form=RoleForm,
        consequence=_before_role,
        carry_out=change_role,
    ),
    "reset-password": SettingsAction(
        title="Give a new one-time password",
        button="Give a new password",
        form=SettingsForm,
        consequence=_before_reset,
        carry_out=reset_password,
        shows_secret=True,
    ),
    "deactivate": SettingsAction(
        title="Deactivate a person",
        button="Deactivate",
        form=ConfirmedSettingsForm,
        consequence=_before_deactivating,
        carry_out=deactivate,
    ),
    "reactivate": SettingsAction(
        title="Let a person in again",
        button="Reactivate",
        form=SettingsForm,
        consequence=_before_reactivating,
        carry_out=reactivate,
        shows_secret=True,
    ),
    "reset-factor": SettingsAction(
        title="Reset the second factor",
        button="Reset",
        form=ConfirmedSettingsForm,
        consequence=_before_reset_factor,
        carry_out=reset_factor,
    ),
    "require-factor": SettingsAction(
        title="Require a second factor",
        button="Require it",
        form=SettingsForm,
        consequence=lambda _: (
            "People with a password and without a second factor are signed out. After the next"
            " sign-in they add one before they see anything else. Tokens keep working."
        ),
        carry_out=require_factor,
    ),
    "require-no-factor": SettingsAction(
        title="Require no second factor",
        button="Require none",
        form=SettingsForm,
        consequence=lambda _: "People who have one keep it, and may remove it.",
        carry_out=require_no_factor,
    ),
    "end-session": SettingsAction(
        title="End a session",
        button="End session",
        form=SettingsForm,
        consequence=_before_ending_session,
        carry_out=end_session,
        subject=lambda of: _session(of).person,
    ),
    "make-token": SettingsAction(
        title="Make an API token",
        button="Make token",
        form=TokenForm,
        consequence=lambda _: "The secret is shown once, and kept as a digest only.",
        carry_out=make_token,
        shows_secret=True,
    ),
    "revoke-token": SettingsAction(
        title="Revoke an API token",
        button="Revoke",
        form=ConfirmedSettingsForm,
        consequence=_before_revoking,
        carry_out=revoke_token,
    ),
}


class KeepForm(ConfirmedSettingsForm):
    keep = forms.TypedChoiceField(label="Keep for", coerce=int)

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        if of not in Kind.values:
            return
        offered = kept_queries.choices_of(Kind(of))
        self.fields["keep"].choices = [(_seconds(each), _words(each)) for each in offered]  # type: ignore[attr-defined]
        self.fields["keep"].initial = next(
            (_seconds(each) for each in offered if each.is_chosen), None
        )
        self.order_fields(["keep", "reason", "confirmation"])


def change(of: str, values: Values, who: str) -> Done:
    keep = timedelta(seconds=values["keep"])
    limits.change(kind=_kind(of), keep=keep, requester=who, reason=values["reason"])
    return Done(f"History of {_kind(of).label} is kept for {period(keep)}.")


def _before_change(of: str) -> str:
    found = kept_queries.kept_of(_kind(of))
    return (
        f"{plural(found.rows, 'row')} of {found.kind.label} are there, kept for"
        f" {period(found.keep)}. Rows deleted by a shorter time cannot be restored. Rows of"
        " existing recovery points and savepoints are never deleted."
    )


def _kind(of: str) -> Kind:
    if of not in Kind.values:
        raise Http404(f"There is no history {of!r}.")
    return Kind(of)


def _seconds(choice: kept_queries.Choice) -> int:
    return int(choice.keep.total_seconds())


def _words(choice: kept_queries.Choice) -> str:
    now = " (as now)" if choice.is_chosen else ""
    return f"{period(choice.keep)}{now}: deletes {count(choice.deletes)} rows within minutes"


HISTORY_ACTIONS = {
    "keep-history": SettingsAction(
        title="How long history is kept",
        button="Keep for so long",
        form=KeepForm,
        consequence=_before_change,
        carry_out=change,
    )
}


LOG_MAX = 50


@require_GET
@never_cache
def settings(request: HttpRequest) -> HttpResponse:
    """Counts all rows once, and not again with every refresh."""
    context = settings_context(request) | {"history": history_queries.kept()}
    return render(request, "settings/page.html", context)


@require_GET
@never_cache
def settings_regions(request: HttpRequest) -> HttpResponse:
    context = settings_context(request) | {"is_refresh": True}
    return render(request, "settings/regions.html", context)


def settings_context(request: HttpRequest) -> dict[str, object]:
    """An operator sees only their own sessions."""
    is_admin = request.user.has_perm("jobs.operate")
    whose = None if is_admin else request.user.get_username()
    return {
        "sessions": queries.sessions(whose, request.session.session_key),
        "with_factor": second_factor.people_with_one(),
        "is_factor_required": second_factor.is_required(),
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
    """Changes your own password; a person with a one-time password sees no other page before."""
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
        services.note_own_password(user, request.session.session_key)
    update_session_auth_hash(request, user)
    authentication.has_chosen(request)
    authentication.note_session(request)


@require_POST
def end_own_session(request: HttpRequest, key: int) -> HttpResponse:
    """Needs no reason and no role, because the session is the person's own."""
    name = request.user.get_username()
    try:
        services.end_session(name=name, key=key, requester=name, reason="their own")
    except Rejected as refusal:
        messages.error(request, str(refusal))
    else:
        messages.success(request, "The session has ended.")
    return redirect("settings")


ACTIONS = PEOPLE_ACTIONS | alert_actions.ACTIONS | HISTORY_ACTIONS


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
    """Returns None if the service refused it; the form then says why."""
    if not form.is_valid():
        return None
    is_once, mark = chosen.shows_secret, request.POST.get("mark", "")
    try:
        with sent_once(mark) if is_once else nullcontext():
            return chosen.carry_out(form.of, form.cleaned_data, request.user.get_username())
    except Rejected as refusal:
        form.add_error(None, str(refusal))
        return None
