"""Samples of running jobs, and signs of life of the projector and of reconcile."""

from django.db import models

from ftdash.jobs.models import Run


class Sample(models.Model):
    """One second of a run. Old ones are deleted, see SAMPLE_RETENTION_S."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="samples")
    sequence = models.PositiveBigIntegerField()
    attempt = models.PositiveIntegerField()
    at = models.DateTimeField()
    records_per_s = models.FloatField()
    queued_records = models.PositiveBigIntegerField()
    resident_bytes = models.JSONField(default=dict)  # slot to bytes
    subtasks = models.JSONField(default=list)  # SubtaskSample as JSON

    class Meta:
        ordering = ("sequence",)
        constraints = (
            models.UniqueConstraint(fields=("run", "sequence"), name="sample_of_journal"),
        )
        indexes = (models.Index(fields=("run", "at"), name="sample_time"),)


class HeartbeatName(models.TextChoices):
    PROJECTOR = "projector"  # folds the reports of runs into rows
    RECONCILE = "reconcile"  # the worker and beat: delivers requests, restarts drivers


class Heartbeat(models.Model):
    """The time at which one of our own processes last did its round."""

    name = models.CharField(max_length=20, choices=HeartbeatName.choices, primary_key=True)
    at = models.DateTimeField()
    pid = models.PositiveIntegerField()
    note = models.TextField(default="")  # the problem, if there is one
    unread_since = models.DateTimeField(null=True)
    """The time of the oldest event that the projector has not read; None if it has read all."""

    def __str__(self) -> str:
        return self.name
