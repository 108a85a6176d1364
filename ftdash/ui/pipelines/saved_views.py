"""Saved views of the page of all pipelines: what a person finds, filters, groups and sorts by.

A view is the query of the page's address under a name. Only its person sees and changes it, and it
needs no role. One may be the default, with which the page begins when its address has no choice.
"""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from ftdash.accounts import queries, services
from ftdash.accounts.queries import ViewOfFleet
from pipelines.domain.errors import Rejected

CHOICES = ("q", "label", "state", "group", "sort")
"""What a view keeps; the page of a long list it does not."""


class ViewForm(forms.Form):
    name = forms.CharField(label="Name", required=False)  # the service says what a name needs
    is_default = forms.BooleanField(label="Begin with it", required=False)


def query_of(given: QueryDict) -> str:
    """The choices alone, in one order, so that equal choices are one view."""
    kept = QueryDict(mutable=True)
    for name in CHOICES:
        if value := given.get(name):
            kept[name] = value
    return kept.urlencode()


def begins_with(request: HttpRequest) -> ViewOfFleet | None:
    """The default view of the person, if the address leaves open what to show."""
    if request.GET:
        return None
    own = queries.saved_views(request.user.get_username())
    return next((each for each in own if each.is_default), None)


def context_of(request: HttpRequest) -> dict[str, object]:
    """For the page of all pipelines; not for its regions, which people share."""
    own, now = queries.saved_views(request.user.get_username()), query_of(request.GET)
    return {
        "views": own,
        "view_now": next((each for each in own if each.query == now), None),
        "query_now": now,
    }


@require_GET
@never_cache
def views(request: HttpRequest) -> HttpResponse:
    own = queries.saved_views(request.user.get_username())
    return render(request, "fleet/views.html", {"views": own})


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    query = query_of(QueryDict(request.POST.get("query", "")))
    form = ViewForm(request.POST)
    form.is_valid()
    name, is_default = form.cleaned_data["name"], form.cleaned_data["is_default"]
    try:
        services.save_view(request.user.get_username(), name, query, is_default=is_default)
    except Rejected as refusal:
        messages.error(request, str(refusal))
    else:
        messages.success(request, f"The view {name.strip()} is saved.")
    return redirect(f"{reverse('fleet')}?{query or 'all'}")


@require_POST
def change(request: HttpRequest, key: int) -> HttpResponse:
    form = ViewForm(request.POST)
    form.is_valid()
    person, name = request.user.get_username(), form.cleaned_data["name"]
    try:
        if "delete" in request.POST:
            services.delete_view(person, key)
        else:
            services.change_view(person, key, name, is_default=form.cleaned_data["is_default"])
    except Rejected as refusal:
        messages.error(request, str(refusal))
    return redirect("saved-views")
