"""The form to change the settings of a run that goes on: only the settings to change.

The settings table decides which ones may change and which values are valid; the engine checks for
contradictions.
"""

from typing import Any

from django import forms

from ftdash.jobs.answers import PipelinePage
from ftdash.jobs.models import RequestKind
from ftdash.ui.actions.forms import PLAIN_TEXT, ActionForm
from pipelines.domain.errors import Rejected
from pipelines.domain.settings.readers import Definition
from pipelines.domain.settings.table import DEFINITIONS

CHANGE_LIVE = [definition for definition in DEFINITIONS if definition.changes_live]


class ChangeForm(ActionForm):
    """One empty field per setting, so that another person's change in the meantime stays.

    The reason comes first, where a dialog opens: after so many fields, a phone would not show what
    the change does.
    """

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        given = page.run.settings if page.run else {}
        for definition in CHANGE_LIVE:
            self.fields[definition.field] = forms.CharField(
                label=_label(definition, given.get(definition.key)),
                help_text=definition.help,
                required=False,
                widget=forms.TextInput(attrs=PLAIN_TEXT),
            )

    @property
    def consequence(self) -> str:
        offered = self.page.actions[RequestKind.CHANGE_SETTINGS].consequence
        return f"{offered} What is left empty stays as it is."

    def clean(self) -> dict[str, Any]:
        """`changes` holds the filled-in fields, by key."""
        typed = {d: self.cleaned_data.get(d.field) for d in CHANGE_LIVE}
        changes = {definition: text for definition, text in typed.items() if text}
        for definition, text in changes.items():
            try:
                definition.parse(text)
            except Rejected as refusal:
                self.add_error(definition.field, str(refusal))
        return {**self.cleaned_data, "changes": {d.key: text for d, text in changes.items()}}


def _label(definition: Definition, given: str | None) -> str:
    name = definition.key.rpartition(".")[2].replace("-", " ").capitalize()
    return (
        f"{name}, now {definition.default} by default" if given is None else f"{name}, now {given}"
    )
