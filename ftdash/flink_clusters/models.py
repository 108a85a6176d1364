"""Rows of watched Flink clusters. Only `services` writes them.

They are kept without end, because Flink itself keeps only ten checkpoints of a job, and forgets all
of them when its JobManager dies.
"""

from django.db import models

NAME_LENGTH_MAX = 80


class FlinkCluster(models.Model):
    """A cluster, known by the address of its REST interface.

    One process at a time talks to it: the holder of its turn.
    """

    name = models.SlugField(max_length=NAME_LENGTH_MAX, unique=True)
    address = models.TextField()  # without a slash at its end
    header_name = models.CharField(max_length=100, default="", blank=True)
    header_value = models.TextField(default="", blank=True)  # a secret: never shown, never logged
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()

    flink_version = models.CharField(max_length=40, default="")
    heard_at = models.DateTimeField(null=True)  # its newest answer
    problem = models.TextField(default="")  # why it did not answer; empty: it did
    failed_looks = models.PositiveIntegerField(default=0)  # one after the other
    due_at = models.DateTimeField()  # when it is asked again
    turn_holder = models.CharField(max_length=32, default="")  # empty: no process talks to it
    turn_until = models.DateTimeField(null=True)  # after that, its holder counts as dead
    version = models.PositiveBigIntegerField(default=0)  # grows with every change

    class Meta:
        ordering = ("name",)
        indexes = (models.Index(fields=("due_at",), name="flinkcluster_due"),)

    def __str__(self) -> str:
        return self.name


class FlinkJob(models.Model):
    """A job, as the cluster described it last. Its row outlives the job and the cluster."""

    cluster = models.ForeignKey(FlinkCluster, on_delete=models.CASCADE, related_name="jobs")
    jid = models.CharField(max_length=32)
    name = models.TextField()
    state = models.CharField(max_length=20)  # Flink's JobStatus
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    listed_at = models.DateTimeField()  # when the cluster last listed it
    forgotten_at = models.DateTimeField(null=True)  # when the cluster first did not list it
    looked_at = models.DateTimeField(null=True)
    last_modification = models.BigIntegerField(default=-1)  # Flink's; what was read belongs to it
    takes_checkpoints = models.BooleanField(null=True)  # null: not known yet
    counts = models.JSONField(default=dict)  # a `bodies.Counts`
    settings = models.JSONField(default=dict)  # Flink's answer about its checkpoints
    vertices = models.JSONField(default=list)  # of `bodies.Vertex`
    restart_count = models.PositiveIntegerField(null=True)  # as Flink's metric has it
    pressure = models.JSONField(default=list)  # of `bodies.Pressure`
    pressure_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-started_at", "-pk")
        constraints = (
            models.UniqueConstraint(fields=("cluster", "jid"), name="one_flink_job_each"),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.jid})"


class FlinkCheckpointStatus(models.TextChoices):
    IN_PROGRESS = "IN_PROGRESS", "in progress"
    COMPLETED = "COMPLETED", "completed"
    FAILED = "FAILED", "failed"


class FlinkCheckpoint(models.Model):
    """A checkpoint or savepoint and its location; all rows together are the catalogue of points."""

    job = models.ForeignKey(FlinkJob, on_delete=models.CASCADE, related_name="checkpoints")
    checkpoint_id = models.BigIntegerField()
    status = models.CharField(max_length=12, choices=FlinkCheckpointStatus.choices)
    checkpoint_type = models.CharField(max_length=30, default="")  # in Flink's words
    is_savepoint = models.BooleanField(default=False)
    savepoint_format = models.CharField(max_length=20, default="")
    triggered_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    duration_ms = models.BigIntegerField(null=True)
    state_bytes = models.BigIntegerField(null=True)
    uploaded_bytes = models.BigIntegerField(null=True)
    processed_bytes = models.BigIntegerField(null=True)
    persisted_bytes = models.BigIntegerField(null=True)
    alignment_ms = models.BigIntegerField(null=True)  # of the subtask that aligned longest
    subtask_count = models.PositiveIntegerField(default=0)
    acknowledged_count = models.PositiveIntegerField(default=0)
    external_path = models.TextField(default="")
    is_discarded = models.BooleanField(default=False)  # its files are deleted, says Flink
    failure = models.TextField(default="")
    said_at = models.DateTimeField()  # when Flink last said all this
    has_subtasks = models.BooleanField(null=True)  # null: not asked for; false: Flink forgot them
    subtasks = models.JSONField(default=list)  # of `bodies.SubtaskPart`

    class Meta:
        ordering = ("-checkpoint_id",)
        constraints = (
            models.UniqueConstraint(
                fields=("job", "checkpoint_id"), name="one_flink_checkpoint_each"
            ),
        )
        indexes = (
            models.Index(fields=("job", "is_savepoint", "-checkpoint_id"), name="flinkpoints"),
        )

    def __str__(self) -> str:
        return f"checkpoint {self.checkpoint_id} of {self.job_id}"


class FlinkEventKind(models.TextChoices):
    EXCEPTION = "EXCEPTION", "exception"
    RESTORED = "RESTORED", "restored"
    STATE = "STATE", "state"


class FlinkEvent(models.Model):
    """Something that happened to a job: an exception, a restore, a new state."""

    job = models.ForeignKey(FlinkJob, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=10, choices=FlinkEventKind.choices)
    at = models.DateTimeField()
    title = models.CharField(max_length=500)
    text = models.TextField(default="")
    place = models.CharField(max_length=1_000, default="")  # task and TaskManager, if Flink says so

    class Meta:
        ordering = ("-at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=("job", "kind", "at", "title"), name="one_flink_event_each"
            ),
        )
        indexes = (models.Index(fields=("at", "id"), name="flinkevent_at"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.title}"


class FlinkActionKind(models.TextChoices):
    SAVEPOINT = "SAVEPOINT", "savepoint"
    STOP = "STOP", "stop with savepoint"
    CANCEL = "CANCEL", "cancel"
    CHECKPOINT = "CHECKPOINT", "checkpoint"


class FlinkActionState(models.TextChoices):
    WAITING = "WAITING", "waits to be sent"
    SENT = "SENT", "sent, not answered"
    ACCEPTED = "ACCEPTED", "under way"
    SUCCEEDED = "SUCCEEDED", "succeeded"
    FAILED = "FAILED", "failed"
    UNKNOWN = "UNKNOWN", "outcome not known"

    @property
    def is_over(self) -> bool:
        return self in (
            FlinkActionState.SUCCEEDED,
            FlinkActionState.FAILED,
            FlinkActionState.UNKNOWN,
        )


class FlinkAction(models.Model):
    """A person's request to a job; it ends once, in one of three states."""

    job = models.ForeignKey(FlinkJob, on_delete=models.CASCADE, related_name="actions")
    kind = models.CharField(max_length=12, choices=FlinkActionKind.choices)
    state = models.CharField(
        max_length=10, choices=FlinkActionState.choices, default=FlinkActionState.WAITING
    )
    asked = models.JSONField(default=dict)  # a `triggers.TriggerOptions`
    trigger_id = models.CharField(max_length=32, unique=True)  # ours: Flink takes it once
    requester = models.CharField(max_length=150)
    reason = models.TextField()
    created_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)  # the first time
    sent_count = models.PositiveIntegerField(default=0)
    answered_at = models.DateTimeField(null=True)  # when Flink last said something about it
    ended_at = models.DateTimeField(null=True)
    location = models.TextField(default="")  # of the savepoint
    checkpoint_id = models.BigIntegerField(null=True)
    note = models.TextField(default="")
    problem = models.TextField(default="")

    class Meta:
        ordering = ("-pk",)
        constraints = (
            models.UniqueConstraint(
                fields=("job", "kind"),
                condition=models.Q(ended_at=None),
                name="one_open_flink_action_of_a_kind",
            ),
        )
        indexes = (
            models.Index(fields=("ended_at",), name="flinkaction_ended"),
            models.Index(fields=("created_at", "id"), name="flinkaction_at"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
