"""Rows of checkpoints, of the subtasks' parts in them, of the ledger, and of audits.

Only the projector writes them, except audits, which `ftdash.audits.services` writes.

A savepoint is a checkpoint of kind SAVEPOINT: the same row, kept until a person disposes of it.
"""

from django.db import models

from ftdash.jobs.models import Run
from pipelines.domain.checkpoint_failures import CheckpointFailureReason
from pipelines.domain.status import CheckpointKind


class CheckpointStatus(models.TextChoices):
    IN_PROGRESS = "IN_PROGRESS", "in progress"
    COMPLETED = "COMPLETED", "completed"
    FAILED = "FAILED", "failed"
    DISCARDED = "DISCARDED", "discarded"  # completed, then deleted by retention


COMPLETE = (CheckpointStatus.COMPLETED, CheckpointStatus.DISCARDED)
ROUTINE = models.Q(kind=CheckpointKind.CHECKPOINT.value) & ~models.Q(status=CheckpointStatus.FAILED)
"""Periodic checkpoints that did not fail: nearly all of them. The log omits them by default."""


class Checkpoint(models.Model):
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoint_rows")
    checkpoint_id = models.PositiveBigIntegerField(null=True)  # null: refused before it got an id
    sequence = models.PositiveBigIntegerField()  # journal line that opened the row
    attempt = models.PositiveIntegerField()
    kind = models.CharField(max_length=12)  # domain.status.CheckpointKind
    status = models.CharField(max_length=12, choices=CheckpointStatus.choices)
    trigger_at = models.DateTimeField()
    completed_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    committed_at = models.DateTimeField(null=True)  # every sink has committed: output is visible
    end_to_end_ms = models.FloatField(null=True)
    state_bytes = models.PositiveBigIntegerField(null=True)
    uploaded_bytes = models.PositiveBigIntegerField(null=True)
    buffered_records = models.PositiveBigIntegerField(null=True)
    buffered_bytes = models.PositiveBigIntegerField(null=True)
    persisted_bytes = models.PositiveBigIntegerField(null=True)  # records in flight, kept in it
    alignment_ms = models.FloatField(null=True)  # the longest of the subtasks that acknowledged
    source_records = models.PositiveBigIntegerField(null=True)
    acknowledged_count = models.PositiveIntegerField(default=0)
    subtask_count = models.PositiveIntegerField(default=0)
    reason_name = models.CharField(max_length=60, default="")  # CheckpointFailureReason's name
    message = models.TextField(default="")  # empty if it says no more than the reason
    path = models.TextField(null=True)
    verified_at = models.DateTimeField(null=True)  # when its files were last found intact
    problem = models.TextField(default="")  # why it was refused at the last check
    watermark_ms = models.BigIntegerField(null=True)
    counters = models.JSONField(default=dict)
    request_id = models.CharField(max_length=80, null=True)

    class Meta:
        ordering = ("-sequence",)
        constraints = (
            models.UniqueConstraint(fields=("run", "sequence"), name="checkpoint_of_journal"),
            models.UniqueConstraint(fields=("run", "checkpoint_id"), name="checkpoint_of_run"),
        )
        indexes = (
            models.Index(fields=("run", "status"), name="checkpoint_status"),
            models.Index(fields=("trigger_at", "id"), name="checkpoint_at"),
            models.Index(
                fields=("trigger_at", "id"),
                condition=~ROUTINE,
                name="checkpoint_not_routine_at",
            ),
        )

    def __str__(self) -> str:
        return f"{self.run_id}/{self.checkpoint_id}"

    @property
    def reason_text(self) -> str:
        """Flink's sentence; empty unless it failed."""
        return CheckpointFailureReason[self.reason_name].value if self.reason_name else ""


class SubtaskPhase(models.Model):
    """domain.phases.SubtaskPhases, as a row."""

    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="phases")
    vertex = models.CharField(max_length=200)
    subtask = models.PositiveIntegerField()
    start_delay_ms = models.FloatField()
    alignment_ms = models.FloatField()
    sync_ms = models.FloatField()
    async_ms = models.FloatField()
    acknowledged_ms = models.FloatField()
    state_bytes = models.PositiveBigIntegerField()
    uploaded_bytes = models.PositiveBigIntegerField()
    is_unaligned = models.BooleanField(default=False)
    persisted_bytes = models.PositiveBigIntegerField(default=0)
    channels = models.JSONField(default=list)  # ChannelAlignment as JSON

    class Meta:
        ordering = ("vertex", "subtask")
        constraints = (
            models.UniqueConstraint(
                fields=("checkpoint", "vertex", "subtask"), name="one_phase_per_subtask"
            ),
        )


class LedgerRow(models.Model):
    """Input and output of one completed checkpoint, from the run's ledger; the newest ones."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE)
    sequence = models.PositiveBigIntegerField()
    checkpoint_id = models.PositiveBigIntegerField()
    attempt = models.PositiveIntegerField()
    at = models.DateTimeField()
    records_read = models.PositiveBigIntegerField()  # by all sources, since the first run
    inputs = models.JSONField(default=list)  # SourceInput as JSON; empty: not known
    outputs = models.JSONField(default=list)  # SinkOutput as JSON
    is_void = models.BooleanField(default=False)  # a recovery went back to before it

    class Meta:
        ordering = ("-sequence",)
        constraints = (
            models.UniqueConstraint(fields=("run", "sequence"), name="ledger_row_of_journal"),
        )

    def __str__(self) -> str:
        return f"{self.run_id}/{self.checkpoint_id}"


class Audit(models.Model):
    """One reading of a run's output, compared with its ledger: requester, progress, findings.

    `report` is `pipelines.audit.report.AuditReport` as JSON, null if there is a `problem`.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="audits")
    requester = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)  # by its own process
    moved_at = models.DateTimeField(null=True)  # its last sign of life
    ended_at = models.DateTimeField(null=True)
    step = models.TextField(default="")
    report = models.JSONField(null=True)
    sentences = models.JSONField(default=list)
    problem = models.TextField(default="")  # why it could not be carried out

    class Meta:
        ordering = ("-id",)
        constraints = (
            models.UniqueConstraint(
                fields=("run",), condition=models.Q(ended_at=None), name="one_audit_at_a_time"
            ),
        )
        indexes = (models.Index(fields=("created_at", "id"), name="audit_at"),)

    def __str__(self) -> str:
        return f"audit {self.pk} of {self.run_id}"
