"""Rows of how long history is kept, where an admin has changed it. `limits` is their writer."""

from django.db import models


class Kind(models.TextChoices):
    """What is deleted when it is old. Requests, the log, audits and ledgers are kept for good."""

    METRICS = "METRICS", "metrics"
    CHECKPOINTS = "CHECKPOINTS", "checkpoints"
    EVENTS = "EVENTS", "failures and events"
    ALERTS = "ALERTS", "alerts"
    LABS = "LABS", "labs"


class Limit(models.Model):
    kind = models.CharField(max_length=20, choices=Kind.choices, primary_key=True)
    keep_s = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.kind} {self.keep_s} s"
