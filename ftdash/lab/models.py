"""Rows of labs: what was asked for, its progress, and its final report.

The services write them, and so does the process that keeps a lab while it runs (`services.keep`).
"""

from django.db import models


class LabState(models.TextChoices):
    ASKED = "ASKED", "waiting for a worker"
    RUNNING = "RUNNING", "under way"
    ENDED = "ENDED", "ended"
    FAILED = "FAILED", "could not be run"


UNDER_WAY = (LabState.ASKED, LabState.RUNNING)


class Lab(models.Model):
    options = models.JSONField()  # LabOptions as JSON
    requested_by = models.CharField(max_length=150)
    reason = models.TextField()
    state = models.CharField(max_length=10, choices=LabState, default=LabState.ASKED)
    asked_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)  # when its keeper was started
    ended_at = models.DateTimeField(null=True)  # the report is as of then
    progress = models.TextField(default="")  # its last line
    keeper = models.JSONField(null=True)  # Owner as JSON: the process that keeps it
    report = models.JSONField(null=True)  # LabReport as JSON
    message = models.TextField(default="")  # why there is no report

    class Meta:
        ordering = ("-pk",)
        constraints = (
            # Two at once would compete for processors, and measure that.
            models.UniqueConstraint(
                models.Value(1), condition=models.Q(state__in=UNDER_WAY), name="one_lab_at_a_time"
            ),
        )
        indexes = (models.Index(fields=("asked_at", "id"), name="lab_at"),)
