"""Django's admin as a read-only view of the rows, for admins.

Every row has its one writer in the services, which checks, logs and notifies the pages; to change
something, use the actions of the pages. Admins sign in on the normal sign-in page, which counts the
tries.
"""

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.auth import REDIRECT_FIELD_NAME
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.decorators import method_decorator

APPS = ("jobs", "checkpoints", "metrics", "accounts", "lab", "gameday", "alerts", "history")
UNLISTED = {"CacheEntry", "OneTimePassword", "SentForm", "SendingTurn"}
"""Models whose rows only programs need, and only for a moment."""

HIDDEN = {"ApiToken": ("digest",), "Channel": ("address", "key_salt")}
"""Fields that must not leave the database, by model."""

COLUMNS_MAX = 8
LONG = (models.JSONField, models.TextField)


class RowsSite(admin.AdminSite):
    site_header = site_title = "ftdash: rows"
    index_title = "What the database holds. To act, use the pages."

    def has_permission(self, request: HttpRequest) -> bool:
        return may_see(request)

    @method_decorator(login_not_required)
    def login(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Raises PermissionDenied for a person who has signed in but is not an admin."""
        if request.user.is_authenticated:
            raise PermissionDenied
        return redirect_to_login(request.GET.get(REDIRECT_FIELD_NAME) or reverse("admin:index"))

    def password_change(  # type: ignore[override]
        self, request: HttpRequest, extra_context: Any = None
    ) -> HttpResponse:
        return redirect("password")


class RowsAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    actions = None
    ordering = ("-pk",)
    list_per_page = 50
    list_select_related = True
    show_full_result_count = False

    def get_exclude(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return HIDDEN.get(self.model.__name__, ())

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        hidden = self.get_exclude(request)
        short = [each for each in self.model._meta.fields if not isinstance(each, LONG)]
        return [each.name for each in short if each.name not in hidden][:COLUMNS_MAX]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return may_see(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may_see(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def may_see(request: HttpRequest) -> bool:
    return request.user.has_perm("jobs.operate")


rows = RowsSite()
for label in APPS:
    for model in apps.get_app_config(label).get_models():
        if model.__name__ not in UNLISTED:
            rows.register(model, RowsAdmin)
