"""The page where people sign in, the addresses of OpenID Connect, the second factor and sessions.

allauth carries a sign-in through its steps, however it begins; its pages use our templates. Of
its addresses, only those listed here exist.
"""

from collections.abc import Callable
from typing import Any

import requests
from allauth.account.utils import perform_login
from allauth.account.views import reauthenticate
from allauth.mfa.base import views as factor_views
from allauth.mfa.recovery_codes import views as recovery_views
from allauth.mfa.totp import views as app_views
from allauth.mfa.webauthn import views as key_views
from allauth.socialaccount.providers.openid_connect import views as openid_views
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path, reverse_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from ftdash.accounts import company, second_factor
from ftdash.accounts.services import is_of_company


class SignIn(LoginView):
    redirect_authenticated_user = True

    def get_context_data(self, **given: Any) -> dict[str, Any]:
        is_offered = company.is_configured()
        offered = {"provider": company.PROVIDER, "label": settings.OIDC_LABEL}
        return super().get_context_data(**given) | {"company": offered if is_offered else None}

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Hands over to allauth, which asks for the second factor or opens the session."""
        answer: HttpResponse = perform_login(
            self.request, form.get_user(), redirect_url=self.get_success_url()
        )
        return answer


def _with_sentence(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Shows a sentence instead of an error if the provider is away or is no provider."""

    @require_GET
    @never_cache
    @login_not_required
    def answer(request: HttpRequest, provider_id: str) -> HttpResponse:
        try:
            problem = company.configuration_problem() if company.is_configured() else ""
            return company.refusal(request, problem) if problem else view(request, provider_id)
        except (requests.RequestException, KeyError) as error:
            return company.refusal(request, company.sentence_for(error))

    return answer


@require_GET
@never_cache
def factors(request: HttpRequest) -> HttpResponse:
    """The factors that a person adds to the password."""
    user: Any = request.user
    context = {
        "factors": second_factor.factors_of(user),
        "is_of_company": is_of_company(user),
        "is_missing": second_factor.MUST_ADD in request.session,
    }
    return render(request, "mfa/index.html", context)


def _of_local(view: Callable[..., Any]) -> Callable[..., Any]:
    """Refuses accounts of the company, which asks for the second factor itself."""

    @never_cache
    def answer(request: HttpRequest, **named: Any) -> Any:
        if is_of_company(request.user):  # type: ignore[arg-type]  # the sign-in is required
            raise PermissionDenied
        return view(request, **named)

    return answer


class RemoveKey(key_views.RemoveWebAuthnView):  # type: ignore[misc]
    success_url = reverse_lazy("mfa_index")


FACTOR = "second-factor/"

urlpatterns = [
    path(
        "oidc/<slug:provider_id>/login/",
        _with_sentence(openid_views.login),
        name="openid_connect_login",
    ),
    path(
        "oidc/<slug:provider_id>/login/callback/",
        _with_sentence(openid_views.callback),
        name="openid_connect_callback",
    ),
    path("login/", SignIn.as_view(), name="account_login"),
    path("password/again/", reauthenticate, name="account_reauthenticate"),
    path(FACTOR, factors, name="mfa_index"),
    path(f"{FACTOR}ask/", never_cache(factor_views.authenticate), name="mfa_authenticate"),
    path(f"{FACTOR}again/", factor_views.reauthenticate, name="mfa_reauthenticate"),
    path(f"{FACTOR}app/", _of_local(app_views.activate_totp), name="mfa_activate_totp"),
    path(f"{FACTOR}app/remove/", _of_local(app_views.deactivate_totp), name="mfa_deactivate_totp"),
    path(f"{FACTOR}key/", _of_local(key_views.add_webauthn), name="mfa_add_webauthn"),
    path(
        f"{FACTOR}key/again/",
        key_views.reauthenticate_webauthn,
        name="mfa_reauthenticate_webauthn",
    ),
    path(
        f"{FACTOR}key/<int:pk>/remove/",
        _of_local(RemoveKey.as_view()),
        name="mfa_remove_webauthn",
    ),
    path(
        f"{FACTOR}codes/",
        _of_local(recovery_views.view_recovery_codes),
        name="mfa_view_recovery_codes",
    ),
    path(
        f"{FACTOR}codes/new/",
        _of_local(recovery_views.generate_recovery_codes),
        name="mfa_generate_recovery_codes",
    ),
]
