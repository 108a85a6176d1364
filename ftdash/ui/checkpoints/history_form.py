"""The filter of the checkpoint history, in the address.

An invalid value counts as not chosen, and the form says so next to the field.
"""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.http import QueryDict

from ftdash.checkpoints.queries.history import HistoryFilter, StatusChoice
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.status import CheckpointKind

CHECKPOINT_ID_MAX = 2**63 - 1
ANY = ("", "any")
KINDS = [(kind.value, kind.value.lower()) for kind in CheckpointKind]


def _id_field(label: str) -> forms.IntegerField:
    return forms.IntegerField(label=label, required=False, min_value=0, max_value=CHECKPOINT_ID_MAX)


class HistoryForm(forms.Form):
    status = forms.ChoiceField(required=False, choices=[ANY, *StatusChoice.choices])
    kind = forms.ChoiceField(required=False, choices=[ANY, *KINDS])
    reason = forms.ChoiceField(label="Failed because", required=False)
    from_id = _id_field("From checkpoint")
    to_id = _id_field("To checkpoint")

    def __init__(self, query: QueryDict, reasons: Iterable[CheckpointFailureReason]) -> None:
        super().__init__(query)
        named = [(each.name, each.value) for each in reasons]
        self.fields["reason"] = forms.ChoiceField(
            label="Failed because", required=False, choices=[ANY, *named]
        )
        self.is_valid()

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        least, most = cleaned.get("from_id"), cleaned.get("to_id")
        if least is not None and most is not None and least > most:
            self.add_error("to_id", f"Nothing lies from {least} to {most}; swap them.")
        return cleaned

    @property
    def chosen(self) -> HistoryFilter:
        given = self.cleaned_data
        return HistoryFilter(
            status=StatusChoice(given["status"]) if given.get("status") else None,
            kind=CheckpointKind(given["kind"]) if given.get("kind") else None,
            reason_name=given.get("reason") or "",
            from_id=given.get("from_id"),
            to_id=given.get("to_id"),
        )

    @property
    def is_chosen(self) -> bool:
        return self.chosen != HistoryFilter()
