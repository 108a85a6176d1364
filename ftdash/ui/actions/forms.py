"""The forms before an action: the reason always, the other fields by kind.

Fields only describe themselves: the services decide if a request can be granted, and their refusal
is shown in the form.
"""

from typing import Any

from django import forms

from ftdash.checkpoints.answers import RecoveryPoint
from ftdash.checkpoints.queries import checkpoints as checkpoint_queries
from ftdash.formats import size, utc
from ftdash.jobs.answers import PipelinePage
from ftdash.points.queries.recovery_points import point_choice
from pipelines.domain.accepted_text import LABEL_LENGTH_MAX
from pipelines.domain.status import ClaimMode, KillMoment, SavepointFormat
from pipelines.points.recommendation import Fitness

REASON_LENGTH_MAX = 500
MOMENTS = (
    (KillMoment.NOW.value, "now"),
    (KillMoment.ALIGNING.value, "the next time it holds an input back for a checkpoint"),
    (KillMoment.CUTTING.value, "the next time it has passed a barrier on and cut nothing yet"),
    (KillMoment.UPLOADING.value, "the next time its state is cut and nothing of it is written"),
    (KillMoment.UPLOADED.value, "the next time its state is durable and nobody knows"),
    (KillMoment.COMMITTING.value, "the next time it is told to commit and has not"),
    (KillMoment.COMMITTED.value, "the next time it has committed and has not said so"),
    (KillMoment.RESTORING.value, "now, and its replacement when that is told what to restore"),
    (KillMoment.OPENED.value, "now, and its replacement once that has its first state"),
    (KillMoment.RESTORED.value, "now, and its replacement once that has restored"),
)
CLAIM_MODES = (
    (ClaimMode.NO_CLAIM.value, "stays as it is"),
    (ClaimMode.CLAIM.value, "belongs to the new run, which deletes it when newer ones replace it"),
)
FORMATS = (
    (SavepointFormat.CANONICAL.value, "canonical: open files (Parquet)"),
    (SavepointFormat.NATIVE.value, "native: the files of its state backend"),
)
UNFIT = {Fitness.GONE: ", its files are gone", Fitness.REFUSED: ", it was refused"}
PLAIN_TEXT = {"autocomplete": "off", "autocapitalize": "off", "spellcheck": "false"}


class ActionForm(forms.Form):
    """The part that all actions share."""

    reason = forms.CharField(
        label="Why",
        max_length=REASON_LENGTH_MAX,
        help_text="Kept in the audit log, with your name and the time.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    field_order = (
        "path",
        "drain",
        "with_savepoint",
        "label",
        "savepoint_format",
        "parallelism",
        "claim_mode",
        "allow_non_restored_state",
        "is_allowed",
        "fault",
        "slot",
        "moment",
        "reason",
        "confirmation",
    )

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        self.page = page
        super().__init__(*args, **kwargs)

    @property
    def is_destructive(self) -> bool:
        return False

    @property
    def consequence(self) -> str:
        """In numbers that depend on the choices; empty: the action's own text is enough."""
        return ""


class LabelField(forms.CharField):
    """The service checks its content."""

    def __init__(self, **kwargs: Any) -> None:
        attributes = {"autocomplete": "off", "maxlength": str(LABEL_LENGTH_MAX)}
        super().__init__(
            label="Label",
            required=False,
            help_text="A name to find it by; may be left out, and changed afterwards.",
            widget=forms.TextInput(attrs=attributes),
            **kwargs,
        )


class FormatField(forms.ChoiceField):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            label="Format",
            choices=FORMATS,
            initial=SavepointFormat.CANONICAL.value,
            required=False,
            help_text="Canonical is for keeping: any state backend takes it, and any program reads"
            " it. Native is faster to write and to restore, and for the same backend first of all.",
            **kwargs,
        )


class SavepointForm(ActionForm):
    label = LabelField()
    savepoint_format = FormatField()


class ConfirmedForm(ActionForm):
    """For irreversible actions: the person has to type the name."""

    named = "pipeline"
    confirmation = forms.CharField(widget=forms.TextInput(attrs=PLAIN_TEXT))

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["confirmation"].label = f"Type the {self.named}'s name to confirm"
        self.fields["confirmation"].help_text = self.name_to_type

    @property
    def is_destructive(self) -> bool:
        return True

    @property
    def name_to_type(self) -> str:
        return self.page.name

    def clean_confirmation(self) -> str:
        typed: str = self.cleaned_data["confirmation"].strip()
        if typed != self.name_to_type:
            raise forms.ValidationError(f"The name of this {self.named} is {self.name_to_type}.")
        return typed


class AllowFaultsForm(ActionForm):
    is_allowed = forms.BooleanField(label="Faults on purpose are allowed", required=False)

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["is_allowed"].initial = page.allows_faults


class KillSlotForm(ConfirmedForm):
    slot = forms.TypedChoiceField(label="Slot", coerce=int)
    moment = forms.ChoiceField(label="When", choices=MOMENTS, initial=KillMoment.NOW.value)

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        slots = page.run.slots if page.run else []
        self.fields["slot"].choices = [  # type: ignore[attr-defined]
            (each.slot, f"slot {each.slot}, process {each.pid} on {each.host}") for each in slots
        ]


class ParallelismForm(forms.Form):
    # No bounds: the services refuse values out of range, in a sentence that names the maximum.
    parallelism = forms.IntegerField(label="Parallelism", widget=forms.NumberInput())


class StartForm(ParallelismForm, ActionForm):
    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        self.fields["parallelism"].initial = page.parallelism
        self.fields["parallelism"].help_text = f"1 to {page.max_parallelism}"


class RestoreForm(ParallelismForm, ConfirmedForm):
    path = forms.ChoiceField(label="Recovery point")
    claim_mode = forms.ChoiceField(
        label="Afterwards the point",
        choices=CLAIM_MODES,
        initial=ClaimMode.NO_CLAIM.value,
        required=False,
    )
    allow_non_restored_state = forms.BooleanField(
        label="Leave behind state of operators that the pipeline does not have any more",
        required=False,
    )

    def __init__(self, *args: Any, page: PipelinePage, **kwargs: Any) -> None:
        super().__init__(*args, page=page, **kwargs)
        choice = point_choice(page.name)
        found = choice.points if choice else []
        labels = {each.point.path: label_of(each.point, page.name, each.fitness) for each in found}
        given = (self.data or self.initial).get("path", "")
        other = checkpoint_queries.recovery_point(given) if given not in labels else None
        if other:
            # Another pipeline's point, or an old one: the preflight says if it fits.
            fitness = Fitness.UNREAD if other.is_present else Fitness.GONE
            labels[other.path] = label_of(other, page.name, fitness)
        self.fields["path"].choices = labels.items()  # type: ignore[attr-defined]
        if choice and choice.recommended:
            self.fields["path"].initial = choice.recommended.point.path
        self.fields["parallelism"].initial = page.parallelism
        self.fields["parallelism"].help_text = (
            f"1 to {page.max_parallelism}; another one than the point's rescales the pipeline: its"
            " state is dealt out anew."
        )


class ReplayForm(ActionForm):
    """From the newest point, so that nothing written since is set aside."""

    @property
    def consequence(self) -> str:
        return (
            "A new run starts from the newest point, and gives what is in quarantine there to its"
            " operators again, before what is new."
        )


def label_of(point: RecoveryPoint, pipeline: str, fitness: Fitness) -> str:
    """Marks points that cannot be chosen, for people who look no further."""
    newest = " (newest)" if point.is_newest else ""
    called = f"{point.label}: " if point.label else ""
    other = "" if point.pipeline == pipeline else f" of {point.pipeline}"
    return (
        f"{called}{point.kind.lower()} {point.checkpoint_id} of run {point.run_number}{other}"
        f"{newest}, "
        f"{utc(point.completed_at)}, {size(point.state_bytes)}, "
        f"parallelism {point.parallelism}{UNFIT.get(fitness, '')}"
    )
