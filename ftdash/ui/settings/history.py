"""What an admin may change about how long history is kept; each choice says what it deletes."""

from datetime import timedelta
from typing import Any

from django import forms
from django.http import Http404

from ftdash.formats import count, period, plural
from ftdash.history import limits
from ftdash.history.models import Kind
from ftdash.retention import queries
from ftdash.ui.settings.forms import ConfirmedSettingsForm, Done, SettingsAction, Values


class KeepForm(ConfirmedSettingsForm):
    keep = forms.TypedChoiceField(label="Keep for", coerce=int)

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        if of not in Kind.values:
            return
        offered = queries.choices_of(Kind(of))
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
    found = queries.kept_of(_kind(of))
    return (
        f"{plural(found.rows, 'row')} of {found.kind.label} are there, kept for"
        f" {period(found.keep)}. What a shorter time deletes is gone for good; rows of recovery"
        " points and savepoints that are still there are never deleted."
    )


def _kind(of: str) -> Kind:
    if of not in Kind.values:
        raise Http404(f"There is no history {of!r}.")
    return Kind(of)


def _seconds(choice: queries.Choice) -> int:
    return int(choice.keep.total_seconds())


def _words(choice: queries.Choice) -> str:
    now = " (as now)" if choice.is_chosen else ""
    return f"{period(choice.keep)}{now}: deletes {count(choice.deletes)} rows within minutes"


ACTIONS = {
    "keep-history": SettingsAction(
        "How long history is kept", "Keep for so long", KeepForm, _before_change, change
    )
}
