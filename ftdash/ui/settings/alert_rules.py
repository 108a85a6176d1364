"""Admins' actions on alerts (rules, channels, acknowledgements, silences), with their forms.

The services decide which values are valid.
"""

from datetime import timedelta
from typing import Any

from django import forms
from django.http import Http404
from django.utils import timezone

from ftdash.alerts import queries, services
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Watched
from ftdash.flink_clusters import queries as flink_queries
from ftdash.formats import plural, utc
from ftdash.runs.queries.pipelines import pipeline_names
from ftdash.ui.actions.forms import PLAIN_TEXT
from ftdash.ui.settings.forms import (
    ConfirmedSettingsForm,
    Done,
    SettingsAction,
    SettingsForm,
    Values,
)
from ftdash.watching import queries as watched_queries

ALL = ("", "all pipelines")
_NUMBERS = {
    "fire_above": ("Fires above", "Seconds for times, bytes for data, else a count.", 60),
    "fire_after_s": (
        "Fires after this many seconds above",
        "0: at the first look.",
        10,
    ),
    "clear_below": (
        "Clears below",
        "Not above the first value; between them it stays.",
        30,
    ),
    "clear_after_s": ("Clears after this many seconds below", "", 30),
}


class BandForm(SettingsForm):
    """The two thresholds and how long each has to hold; initially those of an existing rule."""

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        rule = queries.rule(of) if of else None
        for name, (label, help_text, default) in _NUMBERS.items():
            self.fields[name] = forms.FloatField(
                label=label,
                help_text=help_text,
                initial=_plain(getattr(rule.band, name)) if rule else default,
            )
        self.order_fields(["name", "watched", "pipeline", *_NUMBERS, "reason"])

    def band(self) -> Band:
        return Band(**{name: self.cleaned_data[name] for name in _NUMBERS})

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if all(name in cleaned for name in _NUMBERS):
            cleaned["band"] = self.band()
        return cleaned


def _plain(number: float) -> float:
    """Gives `2`, not `2.0`."""
    return int(number) if number.is_integer() else number


def _pipelines() -> list[tuple[str, str]]:
    return [ALL, *((name, name) for name in pipeline_names())]


class PipelineField(forms.ChoiceField):
    """One pipeline, or None for all."""

    def __init__(self) -> None:
        super().__init__(label="Of", required=False, choices=_pipelines)

    def clean(self, value: Any) -> str | None:
        return super().clean(value) or None


QUERY, CLUSTER = "query:", "cluster:"
"""Prefixes of watched queries and Flink clusters; the name of a pipeline has no colon."""


def _places() -> list[tuple[str, Any]]:
    """Returns the choices in groups, without empty groups."""
    watched = [(f"{QUERY}{each.name}", each.name) for each in watched_queries.watched()]
    clusters = [(f"{CLUSTER}{each.name}", each.name) for each in flink_queries.clusters()]
    groups = (("Watched queries", watched), ("Flink clusters", clusters))
    return [*_pipelines(), *((label, members) for label, members in groups if members)]


class NewRuleForm(BandForm):
    name = forms.CharField(label="Name", max_length=80, widget=forms.TextInput(attrs=PLAIN_TEXT))
    watched = forms.ChoiceField(label="Watches", choices=Watched.choices)
    pipeline = PipelineField()


class ChannelForm(SettingsForm):
    name = forms.CharField(label="Name", widget=forms.TextInput(attrs=PLAIN_TEXT))
    address = forms.CharField(label="Address", widget=forms.TextInput(attrs=PLAIN_TEXT))
    pipeline = PipelineField()


class WebhookForm(ChannelForm):
    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        self.fields["address"].help_text = "https://..., which answers 200 to 299 to a POST"


class MailForm(ChannelForm):
    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        self.fields["address"].help_text = "One or more, separated by commas"


ALL_RULES = ("", "all rules")
SILENCE_HOURS = (
    *(("0.5", "30 minutes"), ("1", "1 hour"), ("4", "4 hours"), ("8", "8 hours")),
    *(("24", "1 day"), ("72", "3 days"), ("168", "7 days")),
)


def _rules() -> list[tuple[str, str]]:
    return [ALL_RULES, *((rule.name, rule.name) for rule in queries.rules())]


class SilenceForm(SettingsForm):
    """`of` is the alert, query or cluster whose page asks for it, or empty."""

    rule = forms.ChoiceField(label="Alerts of", required=False, choices=_rules)
    hours = forms.TypedChoiceField(
        label="For", choices=SILENCE_HOURS, initial="1", coerce=float, help_text="Then it ends."
    )

    def __init__(self, *args: Any, of: str, **kwargs: Any) -> None:
        super().__init__(*args, of=of, **kwargs)
        self.fields["pipeline"] = forms.ChoiceField(label="Of", required=False, choices=_places)
        if of.startswith((QUERY, CLUSTER)):
            self.fields["pipeline"].initial = of
        elif of:
            alert = _alert(of)
            self.fields["rule"].initial = alert.rule
            self.fields["pipeline"].initial = alert.pipeline
        self.order_fields(["rule", "pipeline", "hours", "reason"])


def make_silence(_: str, values: Values, who: str) -> Done:
    until = timezone.now() + timedelta(hours=values["hours"])
    services.make_silence(
        rule=values["rule"] or None,
        **_place(values["pipeline"]),
        until=until,
        requester=who,
        reason=values["reason"],
    )
    return Done(f"No message is sent until {utc(until)}; the alerts stay on the pages.")


def _place(given: str) -> dict[str, str | None]:
    if given.startswith(QUERY):
        return {"pipeline": None, "query": given.removeprefix(QUERY)}
    if given.startswith(CLUSTER):
        return {"pipeline": None, "flink_cluster": given.removeprefix(CLUSTER)}
    return {"pipeline": given or None}


def end_silence(of: str, values: Values, who: str) -> Done:
    services.end_silence(key=_silence(of).key, requester=who, reason=values["reason"])
    return Done("The silence is over.")


def _silence(of: str) -> queries.SilenceView:
    is_number = of.isdecimal() and len(of) < 19
    found = queries.silence(int(of)) if is_number else None
    if found is None:
        raise Http404(f"There is no silence {of!r}.")
    return found


def _silenced(of: str) -> str:
    found = _silence(of)
    return f"{found.what} for {found.place}"


def _before_silence(of: str) -> str:
    if of.startswith((QUERY, CLUSTER)):
        return (
            f"The channels get no message about the {_called(of)} until the silence ends. An"
            " incident that is still open then sends its message. Pages show it all the time."
        )
    of_alert = f"{_alert(of).sentence} " if of else ""
    return (
        f"{of_alert}The channels get no message until the silence ends. An alert that still fires"
        " then sends its message. Pages and API show the alerts all the time."
    )


def make_rule(_: str, values: Values, who: str) -> Done:
    services.make_rule(
        name=values["name"],
        watched=Watched(values["watched"]),
        pipeline=values["pipeline"],
        band=values["band"],
        requester=who,
        reason=values["reason"],
    )
    return Done(f"The rule {values['name']} is judged from now on.")


def change_rule(of: str, values: Values, who: str) -> Done:
    services.change_rule(name=of, band=values["band"], requester=who, reason=values["reason"])
    return Done(f"The rule {of} is changed.")


def switch_on(of: str, values: Values, who: str) -> Done:
    services.switch_rule(name=of, is_on=True, requester=who, reason=values["reason"])
    return Done(f"The rule {of} is on.")


def switch_off(of: str, values: Values, who: str) -> Done:
    services.switch_rule(name=of, is_on=False, requester=who, reason=values["reason"])
    return Done(f"The rule {of} is off.")


def delete_rule(of: str, values: Values, who: str) -> Done:
    services.delete_rule(name=of, requester=who, reason=values["reason"])
    return Done(f"The rule {of} is deleted.")


def acknowledge(of: str, values: Values, who: str) -> Done:
    alert = _alert(of)
    services.acknowledge(alert=alert.key, requester=who, reason=values["reason"])
    return Done(f"You have acknowledged {_called(of)}.")


def make_webhook(_: str, values: Values, who: str) -> Done:
    made = services.make_webhook(
        name=values["name"],
        address=values["address"],
        pipeline=values["pipeline"],
        requester=who,
        reason=values["reason"],
    )
    return Done(f"The key with which messages to {made.name} are signed", made.key)


def make_mail(_: str, values: Values, who: str) -> Done:
    services.make_mail(
        name=values["name"],
        addresses=values["address"],
        pipeline=values["pipeline"],
        requester=who,
        reason=values["reason"],
    )
    return Done(f"The channel {values['name']} receives alerts from now on; send it a test.")


def send_test(of: str, values: Values, who: str) -> Done:
    services.send_test(name=of, requester=who, reason=values["reason"])
    return Done(f"A test is on its way to {of}; the channel shows whether it arrived.")


def delete_channel(of: str, values: Values, who: str) -> Done:
    services.delete_channel(name=of, requester=who, reason=values["reason"])
    return Done(f"The channel {of} is deleted.")


def _rule(of: str) -> queries.RuleView:
    found = queries.rule(of)
    if found is None:
        raise Http404(f"There is no rule {of!r}.")
    return found


def _channel(of: str) -> queries.ChannelView:
    found = queries.channel(of)
    if found is None:
        raise Http404(f"There is no channel {of!r}.")
    return found


def _alert(of: str) -> queries.AlertView:
    is_number = of.isdecimal() and len(of) < 19
    found = queries.alert(int(of)) if is_number else None
    if found is None:
        raise Http404(f"There is no alert {of!r}.")
    return found


def _before_change(of: str) -> str:
    return f"It watches: {_rule(of).watched.label}. Alerts that fire now do so until they clear."


def _before_switching_on(of: str) -> str:
    return f"It is evaluated again: {_rule(of).watched.label}, above {_rule(of).fires_above}."


def _before_ending(of: str) -> str:
    firing = _rule(of).firing
    now = f"It fires for {', '.join(firing)}, and clears there." if firing else "It fires nowhere."
    return f"{now} It no longer raises alerts."


def _before_acknowledging(of: str) -> str:
    return (
        f"{_alert(of).sentence} Others see that you acknowledged it; it stays until it clears by"
        " itself."
    )


def _called(of: str) -> str:
    """Raises Http404 if there is no such alert, query or cluster."""
    for begin, kind, find in (
        (QUERY, "query", watched_queries.brief),
        (CLUSTER, "Flink cluster", flink_queries.cluster),
    ):
        if of.startswith(begin):
            name = of.removeprefix(begin)
            if find(name) is None:
                raise Http404(f"There is no watched {kind} named {name}.")
            return f"{kind} {name}"
    return f"{_alert(of).rule} of {_alert(of).pipeline}"


def _before_test(of: str) -> str:
    return f"One message goes to {_channel(of).address} now."


def _before_deleting_channel(of: str) -> str:
    waiting = _channel(of).waiting
    dropped = f" {plural(waiting, 'message')} that wait are dropped." if waiting else ""
    return f"It no longer receives alerts.{dropped}"


ACTIONS = {
    "make-rule": SettingsAction(
        title="Make an alert rule",
        button="Make rule",
        form=NewRuleForm,
        consequence=lambda _: (
            "It fires above one value and clears below a lower one; in between it stays as it is."
        ),
        carry_out=make_rule,
    ),
    "change-rule": SettingsAction(
        title="Change an alert rule",
        button="Change rule",
        form=BandForm,
        consequence=_before_change,
        carry_out=change_rule,
    ),
    "switch-on": SettingsAction(
        title="Switch a rule on",
        button="Switch on",
        form=SettingsForm,
        consequence=_before_switching_on,
        carry_out=switch_on,
    ),
    "switch-off": SettingsAction(
        title="Switch a rule off",
        button="Switch off",
        form=SettingsForm,
        consequence=_before_ending,
        carry_out=switch_off,
    ),
    "delete-rule": SettingsAction(
        title="Delete an alert rule",
        button="Delete rule",
        form=ConfirmedSettingsForm,
        consequence=_before_ending,
        carry_out=delete_rule,
    ),
    "make-webhook": SettingsAction(
        title="Send alerts to a webhook",
        button="Make webhook",
        form=WebhookForm,
        consequence=lambda _: (
            "Each alert is posted as JSON, signed with a key that you are shown once."
        ),
        carry_out=make_webhook,
        shows_secret=True,
    ),
    "make-mail": SettingsAction(
        title="Send alerts by mail",
        button="Make channel",
        form=MailForm,
        consequence=lambda _: (
            "Each alert is sent to these addresses, when it fires and when it clears."
        ),
        carry_out=make_mail,
    ),
    "test-channel": SettingsAction(
        title="Send a test",
        button="Send test",
        form=SettingsForm,
        consequence=_before_test,
        carry_out=send_test,
    ),
    "delete-channel": SettingsAction(
        title="Delete a channel",
        button="Delete channel",
        form=ConfirmedSettingsForm,
        consequence=_before_deleting_channel,
        carry_out=delete_channel,
    ),
    "acknowledge": SettingsAction(
        title="Acknowledge an alert",
        button="Acknowledge",
        form=SettingsForm,
        consequence=_before_acknowledging,
        carry_out=acknowledge,
        back="alerts",
        subject=_called,
    ),
    "silence": SettingsAction(
        title="Silence alerts",
        button="Silence",
        form=SilenceForm,
        consequence=_before_silence,
        carry_out=make_silence,
        back="alerts",
        subject=lambda of: _called(of) if of else "",
    ),
    "end-silence": SettingsAction(
        title="End a silence",
        button="End silence",
        form=SettingsForm,
        consequence=lambda of: (
            f"It ends by itself at {utc(_silence(of).until)}. Alerts that still fire send their"
            " messages."
        ),
        carry_out=end_silence,
        back="alerts",
        subject=_silenced,
    ),
}
