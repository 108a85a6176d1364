"""Rows of alerts: rules, their standing for each pipeline, alerts, silences, channels, messages.

`services` writes what admins decide, and `evaluation` writes standings and alerts. `delivery`
writes how far each message has come, and which worker sends.
"""

from django.db import models

from ftdash.alerts.hysteresis import Phase
from ftdash.flink_clusters.models import FlinkCluster
from ftdash.incidents.models import Incident
from ftdash.jobs.models import Pipeline
from ftdash.watching.models import WatchedIncident, WatchedQuery


class Watched(models.TextChoices):
    """The quantity that a rule watches: a number that is worse the larger it is."""

    FAILED_RUN = "FAILED_RUN", "runs that have failed"  # 1: the newest one
    DAMAGED_POINTS = "DAMAGED_POINTS", "damaged recovery points"
    SINCE_CHECKPOINT = "SINCE_CHECKPOINT", "time since the last completed checkpoint"
    SINCE_OUTPUT = "SINCE_OUTPUT", "time since the last committed output"
    COMMIT_WAIT = "COMMIT_WAIT", "time that output waits for its commit"
    FAILED_IN_ROW = "FAILED_IN_ROW", "checkpoints that failed in a row"
    FAILED_LATELY = "FAILED_LATELY", "checkpoints that failed within 10 min"
    RESTARTS_LATELY = "RESTARTS_LATELY", "restarts within 10 min"
    BUFFERED_BYTES = "BUFFERED_BYTES", "bytes waiting in channels"
    EVENT_TIME_LAG = "EVENT_TIME_LAG", "event time behind the clock"  # Flink's `watermarkLag`
    RECORDS_BEHIND = "RECORDS_BEHIND", "records that sources have not read yet"


class AlertRule(models.Model):
    name = models.CharField(max_length=80, unique=True)
    watched = models.CharField(max_length=20)  # Watched
    pipeline = models.ForeignKey(Pipeline, null=True, on_delete=models.CASCADE)  # null: all
    fire_above = models.FloatField()  # seconds, bytes or a count, depending on `watched`
    fire_after_s = models.FloatField()
    clear_below = models.FloatField()
    clear_after_s = models.FloatField()
    is_on = models.BooleanField(default=True)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class RuleStanding(models.Model):
    """`hysteresis.Standing` of a rule for one pipeline, as a row, so it outlives its evaluator."""

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="standings")
    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE)
    phase = models.CharField(max_length=10, choices=[(each.value, each.value) for each in Phase])
    since = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("rule", "pipeline"), name="one_standing_each"),
        )


class Evaluation(models.Model):
    """The one row that evaluators lock in turn: when readings were last judged."""

    at = models.DateTimeField()


class Alert(models.Model):
    """One firing of a rule for a pipeline. Keeps the rule as it was then.

    `newest_value` follows the value while the alert fires, and stays when it clears. `incident` is
    the one that explains it. `is_sent` means that the channels have a message about it; while a
    silence covers it, they get none.
    """

    rule = models.ForeignKey(AlertRule, null=True, on_delete=models.SET_NULL)
    rule_name = models.CharField(max_length=80)
    watched = models.CharField(max_length=20)  # Watched
    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="alerts")
    fire_above = models.FloatField()
    fired_at = models.DateTimeField()
    fired_value = models.FloatField()
    newest_value = models.FloatField(null=True)  # null: it was not read again yet
    newest_at = models.DateTimeField(null=True)
    incident = models.ForeignKey(
        Incident, null=True, on_delete=models.SET_NULL, related_name="alerts"
    )
    is_sent = models.BooleanField(default=True)
    cleared_at = models.DateTimeField(null=True)
    cleared_because = models.TextField(default="")
    acknowledged_by = models.CharField(max_length=150, default="")
    acknowledged_at = models.DateTimeField(null=True)
    acknowledged_reason = models.TextField(default="")

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("cleared_at",), name="alert_cleared"),
            models.Index(fields=("fired_at", "id"), name="alert_at"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("rule", "pipeline"),
                condition=models.Q(cleared_at=None),
                name="one_open_alert_each",
            ),
        )

    def __str__(self) -> str:
        return f"{self.rule_name} of {self.pipeline_id}"


class Silence(models.Model):
    """Holds back messages about alerts and watched incidents until a given time.

    The pages show both all the time. A silence is for one pipeline, query or cluster; if it names
    none, it is for all.
    """

    rule = models.ForeignKey(AlertRule, null=True, on_delete=models.CASCADE)  # null: all
    pipeline = models.ForeignKey(Pipeline, null=True, on_delete=models.CASCADE)
    query = models.ForeignKey(WatchedQuery, null=True, on_delete=models.CASCADE)
    flink_cluster = models.ForeignKey(FlinkCluster, null=True, on_delete=models.CASCADE)
    until = models.DateTimeField()
    reason = models.TextField()
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    ended_by = models.CharField(max_length=150, default="")  # a person ended it before its time
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)
        indexes = (models.Index(fields=("until",), name="silence_until"),)

    def __str__(self) -> str:
        return f"until {self.until}"


class ChannelKind(models.TextChoices):
    WEBHOOK = "WEBHOOK", "webhook"
    MAIL = "MAIL", "mail"


class Channel(models.Model):
    """A receiver of alerts, in addition to the pages."""

    name = models.SlugField(max_length=80, unique=True)
    kind = models.CharField(max_length=10, choices=ChannelKind.choices)
    address = models.TextField()  # a webhook's may hold a secret, so pages show only its host
    pipeline = models.ForeignKey(Pipeline, null=True, on_delete=models.CASCADE)  # null: all
    key_salt = models.CharField(max_length=64)  # see `delivery.key_of`
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class News(models.TextChoices):
    FIRED = "FIRED", "an alert fired"
    CLEARED = "CLEARED", "an alert cleared"
    TEST = "TEST", "a test"


class Delivery(models.Model):
    """One message to one channel, kept until it was accepted or given up."""

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="deliveries")
    alert = models.ForeignKey(Alert, null=True, on_delete=models.CASCADE)
    watched_incident = models.ForeignKey(  # a test has neither this nor an alert
        WatchedIncident, null=True, on_delete=models.CASCADE, related_name="deliveries"
    )
    news = models.CharField(max_length=10, choices=News.choices)
    created_at = models.DateTimeField()
    due_at = models.DateTimeField()  # no try before it; a try under way postpones it
    attempts = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    given_up_at = models.DateTimeField(null=True)
    problem = models.TextField(default="")  # of the newest try

    class Meta:
        ordering = ("-pk",)
        indexes = (models.Index(fields=("sent_at", "given_up_at"), name="delivery_open"),)

    def __str__(self) -> str:
        return f"{self.news} to {self.channel_id}"


class SendingTurn(models.Model):
    """The one row that message senders lock in turn."""

    holder = models.CharField(max_length=32, default="")  # known only to the holder
    until = models.DateTimeField()  # at the latest
