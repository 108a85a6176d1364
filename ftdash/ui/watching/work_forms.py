"""Forms for work on a watched query's files: a savepoint, a rewind, a look into state.

They describe the choices in plain words; the services decide if they can grant them.
"""

from typing import Any

from django import forms

from ftdash.ui.actions.forms import PLAIN_TEXT, REASON_LENGTH_MAX
from ftdash.watching.queries import QueryDetail
from ftdash.watching.services.savepoints import KEEP_DAYS_MAX
from ftdash.watching.work_requests import (
    LABEL_LENGTH_MAX,
    LookAtState,
    Rewind,
    StatePlace,
    TakeSavepoint,
)
from pipelines.structured.fork import Boundaries
from pipelines.structured.preflight import CONTENT_BYTES_MAX, Output
from pipelines.structured.repartition import PARTITIONS_MAX

BATCH, SAVEPOINT = "batch", "savepoint"
BOUNDARIES = (
    (Boundaries.NEW.value, "What the sources offer then, by the limits of the new code"),
    (Boundaries.SAME.value, "Exactly the rows that it had; the batches after it are new"),
)
OUTPUTS = (
    (Output.NEW.value, "The fork writes to a new place"),
    (Output.REWOUND.value, "The file sink's output is copied as it was at the batch, with its log"),
    (Output.HANDLED.value, "It writes to the same place, and I handle the rows that are there"),
    (Output.SAME_FILES.value, "It writes to the same place of a file sink, which keeps its log"),
)


class ReasonedForm(forms.Form):
    reason = forms.CharField(
        label="Why",
        max_length=REASON_LENGTH_MAX,
        help_text="Kept in the audit log, with your name and the time.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )


class TakeForm(ReasonedForm):
    label = forms.CharField(
        label="Label",
        max_length=LABEL_LENGTH_MAX,
        help_text="Such as: before the upgrade.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    batch = forms.TypedChoiceField(label="Batch", coerce=int, empty_value=None, required=False)
    keeps_next = forms.BooleanField(
        label="Also keep the boundaries of the next batch",
        required=False,
        help_text="A fork can then run that batch again with exactly the rows that it had.",
    )
    keep_days = forms.FloatField(
        label="Days to keep it",
        required=False,
        min_value=0.001,
        max_value=KEEP_DAYS_MAX,
        help_text="Its files are deleted then. Empty: it is kept until you delete it.",
    )
    field_order = ("label", "batch", "keeps_next", "keep_days", "reason")

    def __init__(self, *args: Any, detail: QueryDetail, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["batch"].choices = [  # type: ignore[attr-defined]
            ("", "the newest that is complete"),
            *_batches(detail),
        ]

    def work_request(self) -> TakeSavepoint:
        given = self.cleaned_data
        return TakeSavepoint(
            label=given["label"],
            batch_id=given["batch"],
            keeps_next=given["keeps_next"],
            keep_days=given["keep_days"],
        )


class RewindForm(ReasonedForm):
    origin = forms.ChoiceField(label="Go back to")
    target = forms.CharField(
        label="New checkpoint directory",
        help_text="It must not exist yet, and must be below a directory of FTDASH_WATCH_ROOTS.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    boundaries = forms.ChoiceField(label="The next batch takes", choices=BOUNDARIES)
    output = forms.ChoiceField(
        label="The output after the batch",
        choices=OUTPUTS,
        help_text="A sink that checks batch ids, as Delta does by application id and version,"
        " drops what it has seen: give the fork another application id.",
    )
    output_target = forms.CharField(
        label="New place for the output",
        required=False,
        help_text="If the output is copied, or if Spark's file sink writes to a new place: it needs"
        " a log of the earlier batches, and ftdash writes an empty one there.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    partitions = forms.IntegerField(
        label="Number of state partitions",
        required=False,
        min_value=1,
        max_value=PARTITIONS_MAX,
        help_text="Empty: the present number. For another number, Spark repartitions the fork,"
        " which it calls experimental. It needs the RocksDB store, and a committed batch of a"
        " stopped query: the fork is one, and your query is never touched. ftdash compares every"
        " row before and after, and removes the fork if one differs.",
    )
    plan = forms.FileField(
        label="Plan of the new code",
        required=False,
        help_text="The file that explain of ftdash_listener wrote. Its operators and schemas are"
        " then compared with the checkpoint.",
    )
    field_order = (
        *("origin", "target", "boundaries", "output", "output_target", "partitions", "plan"),
        "reason",
    )

    def __init__(self, *args: Any, detail: QueryDetail, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["origin"].choices = origins(detail)  # type: ignore[attr-defined]

    def clean_plan(self) -> str:
        given = self.cleaned_data["plan"]
        if given is None:
            return ""
        if given.size > CONTENT_BYTES_MAX:
            raise forms.ValidationError(f"The plan may have {CONTENT_BYTES_MAX:,} bytes at most.")
        try:
            return str(given.read().decode())
        except UnicodeDecodeError as error:
            raise forms.ValidationError("The plan is no text in UTF-8.") from error

    def work_request(self) -> Rewind:
        given = self.cleaned_data
        batch_id, savepoint = parsed(given["origin"])
        return Rewind(
            batch_id=batch_id,
            savepoint=savepoint,
            target=given["target"].strip(),
            boundaries=Boundaries(given["boundaries"]),
            output=Output(given["output"]),
            output_target=given["output_target"].strip(),
            partitions=given["partitions"],
            explained=given["plan"],
        )


class StateForm(ReasonedForm):
    origin = forms.ChoiceField(label="State of")
    other = forms.ChoiceField(
        label="Compared with", required=False, help_text="Then only the differences are shown."
    )
    operator_id = forms.IntegerField(
        label="Operator", min_value=0, max_value=10_000, initial=0, help_text="Its number."
    )
    store = forms.CharField(
        label="Store",
        initial="default",
        max_length=200,
        help_text="A stream-stream join has four, such as left-keyToNumValues.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    key = forms.CharField(
        label="Part of the key",
        required=False,
        max_length=1_000,
        help_text='As JSON, such as "user":"ada". Empty: all keys.',
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    field_order = ("origin", "other", "operator_id", "store", "key", "reason")

    def __init__(self, *args: Any, detail: QueryDetail, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        found = origins(detail)
        self.fields["origin"].choices = found  # type: ignore[attr-defined]
        self.fields["other"].choices = [("", "nothing"), *found]  # type: ignore[attr-defined]

    def work_request(self) -> LookAtState:
        given = self.cleaned_data
        return LookAtState(
            place=_place(given["origin"]),
            other=_place(given["other"]) if given["other"] else None,
            operator_id=given["operator_id"],
            store=given["store"],
            key=given["key"],
        )


class KeepForm(ReasonedForm):
    days = forms.FloatField(
        label="Days to keep it from now",
        required=False,
        min_value=0.001,
        max_value=KEEP_DAYS_MAX,
        help_text="Empty: without end.",
    )
    field_order = ("days", "reason")


class DeleteForm(ReasonedForm):
    confirmation = forms.CharField(
        label="Type the savepoint's label to confirm", widget=forms.TextInput(attrs=PLAIN_TEXT)
    )
    field_order = ("confirmation", "reason")


def origins(detail: QueryDetail) -> list[tuple[str, str]]:
    """Returns savepoints first, then the complete batches, newest first."""
    kept = [each for each in detail.savepoints if each.deleted_at is None and not each.problems]
    return [
        *(
            (f"{SAVEPOINT}:{s.key}:{s.batch_id}", f"savepoint {s.label} (batch {s.batch_id})")
            for s in kept
        ),
        *((f"{BATCH}:{number}", words) for number, words in _batches(detail)),
    ]


def parsed(origin: str) -> tuple[int, int | None]:
    """Returns the batch, and the key of the savepoint if the origin is one."""
    kind, *numbers = origin.split(":")
    return int(numbers[-1]), int(numbers[0]) if kind == SAVEPOINT else None


def _place(origin: str) -> StatePlace:
    batch_id, savepoint = parsed(origin)
    return StatePlace(batch_id=batch_id, savepoint=savepoint)


def _batches(detail: QueryDetail) -> list[tuple[str, str]]:
    found = detail.found
    if found is None:
        return []
    newest = found.recommended.batch_id if found.recommended else None
    return [
        (str(p.batch_id), f"batch {p.batch_id}{' (recommended)' if p.batch_id == newest else ''}")
        for p in found.points
        if not p.problems
    ]
