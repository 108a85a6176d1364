"""Requests about settings, with the bounds of each value; otherwise as in `shapes`."""

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
"""Django's own command may make a person with a name that invitations do not allow."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class AskedBand(Schema):
    """Like the `band` of a rule in an answer."""

    model_config = ConfigDict(extra="forbid")

    fire_above: Finite
    fire_after_s: Finite
    clear_below: Finite
    clear_after_s: Finite

    @property
    def band(self) -> Band:
        return Band(self.fire_above, self.fire_after_s, self.clear_below, self.clear_after_s)


class ChangingRule(Changing):
    """A name may contain blanks and slashes, so it is in the body, not in the address."""

    name: Text


class MakingRule(ChangingRule):
    """`pipeline` null: all."""

    watched: Watched
    pipeline: Name | None = None
    band: AskedBand


class ChangingBand(ChangingRule):
    band: AskedBand


class SwitchingRule(ChangingRule):
    is_on: bool


class MakingWebhook(Changing):
    """`pipeline` null: all."""

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
    """`expires_at` null: never; the field is required."""

    name: Text
    scope: TokenScope
    expires_at: Moment | None


class Keeping(Changing):
    """One of the offered choices, as an ISO 8601 duration."""

    keep: timedelta
