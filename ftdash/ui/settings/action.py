"""A change of settings: its words, its form, its consequence, and the function that does it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftdash.ui.settings.forms import ConfirmedSettingsForm, SettingsForm

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """The outcome; `secret` is shown once."""

    note: str
    secret: str = ""


@dataclass(frozen=True, slots=True)
class SettingsAction:
    """`consequence` is shown before the button, and raises Http404 if `of` names nothing.

    `shows_secret`: its answer may show one, so a form counts once (`ftdash.accounts.sent_forms`).
    """

    title: str
    button: str
    form: type[SettingsForm]
    consequence: Callable[[str], str]
    carry_out: Callable[[str, Values, str], Done]
    back: str = "settings"  # the page it belongs to
    shows_secret: bool = False
    subject: Callable[[str], str] = str  # people's name for what `of` names

    @property
    def is_destructive(self) -> bool:
        return issubclass(self.form, ConfirmedSettingsForm)
