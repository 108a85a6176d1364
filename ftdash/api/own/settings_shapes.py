"""What may be asked of settings, with the bounds of each value; else as in `shapes`."""

from datetime import timedelta
from typing import Annotated

from ninja import Path, Schema
from pydantic import ConfigDict, Field

from ftdash.accounts.models import TokenScope
from ftdash.accounts.people import Role
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Watched
from ftdash.api.own.shapes import Changing, Moment, Name, Text

PersonInPath = Annotated[str, Path(pattern=r"^[^/\x00]{1,150}$")]
"""Whoever was made by Django's own command may have a name that nobody is invited under."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class AskedBand(Schema):
    """As `band` of a rule that is answered with."""

    model_config = ConfigDict(extra="forbid")

    fire_above: Finite
    fire_after_s: Finite
    clear_below: Finite
    clear_after_s: Finite

    @property
    def band(self) -> Band:
        return Band(self.fire_above, self.fire_after_s, self.clear_below, self.clear_after_s)


class ChangingRule(Changing):
    """A name may hold blanks and slashes, so it is in no address."""

    name: Text


class MakingRule(ChangingRule):
    """`pipeline` null: for all."""

    watched: Watched
    pipeline: Name | None = None
    band: AskedBand


class ChangingBand(ChangingRule):
    band: AskedBand


class SwitchingRule(ChangingRule):
    is_on: bool


class MakingWebhook(Changing):
    """`pipeline` null: of all."""

    name: Text
    address: Text
    pipeline: Name | None = None


class MakingMail(Changing):
    """`addresses` are separated by commas."""

    name: Text
    addresses: Text
    pipeline: Name | None = None


class Inviting(Changing):
    name: Text
    role: Role


class ChangingRole(Changing):
    role: Role


class MakingToken(Changing):
    """`expires_at` null: never; it has to be said."""

    name: Text
    scope: TokenScope
    expires_at: Moment | None


class Keeping(Changing):
    """One of the choices that are offered, as an ISO 8601 duration."""

    keep: timedelta
