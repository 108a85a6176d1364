"""A change of settings: its words, its form, its consequence, and the function that does it.

Every form asks for the reason, and for other fields by kind. Fields only describe themselves: the
services decide what is possible, and the form shows their refusal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.password_validation import password_validators_help_texts

from ftdash.accounts import queries
from ftdash.accounts.models import TokenScope
from ftdash.accounts.services import Role
from ftdash.ui.actions.forms import PLAIN_TEXT, REASON_LENGTH_MAX

ROLES = (
    (Role.OPERATOR.value, "operator: sees everything"),
    (Role.ADMIN.value, "admin: sees everything and acts"),
)
EXPIRY_DAYS = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"))
NEVER = ("", "never")


class SettingsForm(forms.Form):
    """`of` names what to change: a person, a token; empty if something is made."""

    reason = forms.CharField(
        label="Why",
        max_length=REASON_LENGTH_MAX,
        help_text="Kept in the audit log, with your name and the time.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.of = of
        self.order_fields([name for name in self.fields if name not in ("reason", "confirmation")])


class ConfirmedSettingsForm(SettingsForm):
    """A form for changes that take something away: the admin has to type the name."""

    confirmation = forms.CharField(
        label="Type the name to confirm", widget=forms.TextInput(attrs=PLAIN_TEXT)
    )

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        self.fields["confirmation"].help_text = of

    def clean_confirmation(self) -> str:
        typed: str = self.cleaned_data["confirmation"].strip()
        if typed != self.of:
            raise forms.ValidationError(f"The name is {self.of}.")
        return typed


class InviteForm(SettingsForm):
    name = forms.CharField(label="Name", widget=forms.TextInput(attrs=PLAIN_TEXT))
    role = forms.ChoiceField(label="Role", choices=ROLES, initial=Role.OPERATOR.value)


class RoleForm(SettingsForm):
    """Changes a person's role; offers the other one."""

    role = forms.ChoiceField(label="Role", choices=ROLES)

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        person = queries.person(of)
        others = [role for role, _ in ROLES if person is None or role != person.role.value]
        self.fields["role"].initial = others[0]


class TokenForm(SettingsForm):
    name = forms.CharField(
        label="Name",
        help_text="Who will use it; the audit log says this.",
        widget=forms.TextInput(attrs=PLAIN_TEXT),
    )
    scope = forms.ChoiceField(
        label="Scope",
        choices=[(scope.value, f"{scope.value}: {scope.label}") for scope in TokenScope],
        initial=TokenScope.READ.value,
    )
    days = forms.TypedChoiceField(
        label="Expires after",
        choices=(*EXPIRY_DAYS, NEVER),
        initial="90",
        coerce=int,
        empty_value=None,
        required=False,
    )


class OwnPasswordForm(PasswordChangeForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["new_password1"].help_text = " ".join(password_validators_help_texts())


Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome; `secret` is shown once."""

    note: str
    secret: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsAction:
    """`consequence` gives the text before the button; it raises Http404 if `of` names nothing.

    `shows_secret` means that the answer may show a secret, so a form counts only once
    (`ftdash.accounts.services`).
    """

    title: str
    button: str
    form: type[SettingsForm]
    consequence: Callable[[str], str]
    carry_out: Callable[[str, Values, str], Done]
    back: str = "settings"  # the page it belongs to
    shows_secret: bool = False
    subject: Callable[[str], str] = str  # the name by which people know `of`

    @property
    def is_destructive(self) -> bool:
        return issubclass(self.form, ConfirmedSettingsForm)
