"""Rows of how long history is kept, if an admin has changed it, and of how many rows were deleted.

`limits` writes both.
"""

from django.db import models

from ftdash.jobs.models import Run


class Kind(models.TextChoices):
    """The kinds of rows that are deleted with age.

    Requests, the log, audits and ledgers are kept for good; journals are kept as long as
    `settings.JOURNAL_RETENTION_DAYS` says.
    """

    METRICS = "METRICS", "metrics"
    CHECKPOINTS = "CHECKPOINTS", "checkpoints"
    EVENTS = "EVENTS", "failures and events"
    ALERTS = "ALERTS", "alerts"
    LABS = "LABS", "labs"
    QUERIES = "QUERIES", "batches of watched queries"


class Limit(models.Model):
    kind = models.CharField(max_length=20, choices=Kind.choices, primary_key=True)
    keep_s = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.kind} {self.keep_s} s"


class Counted(models.TextChoices):
    """The rows for which we report how many there ever were."""

    FAILED = "FAILED", "failed checkpoints"  # this and the next as CheckpointStatus has them
    DISCARDED = "DISCARDED", "discarded checkpoints"
    RESTORED = "RESTORED", "recoveries from a checkpoint"
    REFUSED_ZOMBIE = "REFUSED_ZOMBIE", "refused older attempts"
    REFUSED_POINT = "REFUSED_POINT", "refused recovery points"


class PrunedCount(models.Model):
    """How many rows of a run were deleted for their age, so that no count goes down with them."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    what = models.CharField(max_length=20, choices=Counted.choices)
    reason_name = models.CharField(max_length=60, default="")  # CheckpointFailureReason's name
    count = models.PositiveBigIntegerField(default=0)
    newest_id = models.PositiveBigIntegerField(null=True)  # for checkpoints
    newest_at = models.DateTimeField(null=True)  # when the newest of them failed

    class Meta:
        constraints = (
            models.UniqueConstraint(
                fields=("run", "what", "reason_name"), name="one_pruned_count_each"
            ),
        )

    def __str__(self) -> str:
        return f"{self.count} {self.what} {self.reason_name} of {self.run_id}"
