"""Rows of watched Structured Streaming queries, and of all incidents of watched subjects.

`services` is their only writer.
"""

from django.db import models
from django.db.models import Q

from ftdash.flink_clusters.models import FlinkCluster, FlinkJob


class WatchedQuery(models.Model):
    """A query, known by its directory, its event log, its listener, or several of them.

    What the newest events say is kept here, so that the page of all queries reads one row each.
    """

    name = models.SlugField(max_length=80, unique=True)
    query_id = models.CharField(max_length=64, default="", blank=True)  # empty: not known yet
    directory = models.TextField(default="", blank=True)  # of the checkpoint; empty: not known
    output = models.TextField(default="", blank=True)  # of the file sink
    event_log = models.TextField(default="", blank=True)
    trigger_interval_ms = models.PositiveBigIntegerField(null=True)  # as a person gave it
    limits = models.JSONField(null=True)  # an `incident_signs.Limits`; null: as usual
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)  # from then on, events are ignored; rows are gone

    standing = models.JSONField(default=dict)  # a `query_status.QueryStatus`
    restart_count = models.PositiveIntegerField(default=0)
    version = models.PositiveBigIntegerField(default=0)  # grows with every change
    log_positions = models.JSONField(default=dict)  # {file: lines read} of the event log
    log_problem = models.TextField(default="")

    class Meta:
        ordering = ("name",)
        constraints = (
            models.UniqueConstraint(
                fields=("query_id",), condition=~Q(query_id=""), name="one_watched_query_id"
            ),
        )

    def __str__(self) -> str:
        return self.name


class WatchedBatch(models.Model):
    """One batch in one run of a query. Kept past Spark's own hundred."""

    query = models.ForeignKey(WatchedQuery, on_delete=models.CASCADE, related_name="batches")
    run_id = models.CharField(max_length=64)
    batch_id = models.PositiveBigIntegerField()
    at = models.DateTimeField()  # when its trigger started
    duration_ms = models.BigIntegerField(null=True)
    rows = models.PositiveBigIntegerField(null=True)
    figures = models.JSONField()  # a `progress.BatchFigures`

    class Meta:
        ordering = ("-at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=("query", "run_id", "batch_id"), name="one_watched_batch_each"
            ),
        )
        indexes = (
            models.Index(fields=("query", "at"), name="watchedbatch_query_at"),
            models.Index(fields=("at",), name="watchedbatch_at"),
        )

    def __str__(self) -> str:
        return f"batch {self.batch_id} of {self.query_id}"


class RunEventKind(models.TextChoices):
    STARTED = "STARTED", "started"
    STOPPED = "STOPPED", "stopped"
    FAILED = "FAILED", "failed"


class RunEvent(models.Model):
    """A start or an end of a run; with the exception, if it failed."""

    query = models.ForeignKey(WatchedQuery, on_delete=models.CASCADE, related_name="run_events")
    run_id = models.CharField(max_length=64)
    kind = models.CharField(max_length=10, choices=RunEventKind.choices)
    at = models.DateTimeField()
    error_class = models.CharField(max_length=500, default="")
    message = models.TextField(default="")

    class Meta:
        ordering = ("-at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=("query", "run_id", "kind"), name="one_watched_run_event_each"
            ),
        )
        indexes = (models.Index(fields=("at",), name="watchedrunevent_at"),)

    def __str__(self) -> str:
        return f"{self.kind} {self.run_id}"


class ListenerSeen(models.Model):
    """A listener in one driver process, and how many of a query's events it has dropped."""

    query = models.ForeignKey(WatchedQuery, on_delete=models.CASCADE, related_name="listeners")
    listener = models.CharField(max_length=64)
    version = models.CharField(max_length=40, default="")
    spark = models.CharField(max_length=40, default="")
    dropped = models.PositiveBigIntegerField(default=0)
    heard_at = models.DateTimeField()

    class Meta:
        ordering = ("-heard_at",)
        constraints = (
            models.UniqueConstraint(fields=("query", "listener"), name="one_watched_listener_each"),
        )

    def __str__(self) -> str:
        return f"{self.listener} of {self.query_id}"


class DirectoryReading(models.Model):
    """The result of the newest look into a query's checkpoint directory."""

    query = models.OneToOneField(
        WatchedQuery, on_delete=models.CASCADE, related_name="directory_reading"
    )
    at = models.DateTimeField()
    took_ms = models.FloatField(default=0.0)
    problem = models.TextField(default="")  # why it could not be read; empty: it was
    found = models.JSONField(default=dict)  # a `reading.Found`
    found_at = models.DateTimeField(null=True)  # of the look that gave `found`; None: as `at`

    def __str__(self) -> str:
        return f"reading of {self.query_id}"


class QuerySavepoint(models.Model):
    """One batch of a query, copied into a directory of its own below `FTDASH_WATCH_SAVEPOINTS`."""

    query = models.ForeignKey(WatchedQuery, on_delete=models.CASCADE, related_name="savepoints")
    label = models.CharField(max_length=80)
    location = models.TextField(unique=True)
    batch_id = models.PositiveBigIntegerField()
    keeps_next = models.BooleanField()  # with the boundaries of the next batch
    store = models.CharField(max_length=40)
    size_bytes = models.PositiveBigIntegerField()
    file_count = models.PositiveIntegerField()
    digest = models.CharField(max_length=160)  # of the manifest, which has those of the files
    taken_by = models.CharField(max_length=150)
    taken_at = models.DateTimeField()
    verified_at = models.DateTimeField(null=True)  # every byte, to the end
    problems = models.JSONField(default=list)  # sentences of that verification
    keep_until = models.DateTimeField(null=True)  # then its files are deleted; null: never
    deleted_at = models.DateTimeField(null=True)
    deleted_by = models.CharField(max_length=150, default="")

    class Meta:
        ordering = ("-taken_at", "-pk")

    def __str__(self) -> str:
        return self.label


class WorkKind(models.TextChoices):
    SAVEPOINT = "SAVEPOINT", "savepoint"
    VERIFICATION = "VERIFICATION", "verification of a savepoint"
    DELETION = "DELETION", "deletion of a savepoint"
    PREFLIGHT = "PREFLIGHT", "preflight of a rewind"
    FORK = "FORK", "rewind into a fork"
    STATE = "STATE", "look into state"


class WorkState(models.TextChoices):
    WAITING = "WAITING", "waits for a worker"
    RUNNING = "RUNNING", "runs"
    SUCCEEDED = "SUCCEEDED", "succeeded"
    FAILED = "FAILED", "failed"

    @property
    def is_over(self) -> bool:
        return self in (WorkState.SUCCEEDED, WorkState.FAILED)


class QueryWork(models.Model):
    """Long work on a query's files, in a process of its own; it ends once, in one of two states."""

    query = models.ForeignKey(WatchedQuery, on_delete=models.CASCADE, related_name="works")
    savepoint = models.ForeignKey(QuerySavepoint, null=True, on_delete=models.SET_NULL)
    kind = models.CharField(max_length=15, choices=WorkKind.choices)
    state = models.CharField(max_length=10, choices=WorkState.choices, default=WorkState.WAITING)
    asked = models.JSONField(default=dict)  # one of `work_requests`
    result = models.JSONField(default=dict)
    requester = models.CharField(max_length=150)
    reason = models.TextField(default="")
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    moved_at = models.DateTimeField(null=True)  # the newest sign of life of its process
    ended_at = models.DateTimeField(null=True)
    step = models.CharField(max_length=200, default="")
    done = models.PositiveBigIntegerField(default=0)  # files
    of = models.PositiveBigIntegerField(default=0)  # files; 0: not known yet
    writes_to = models.JSONField(default=list)  # new places, free before it began
    problem = models.TextField(default="")

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("ended_at",), name="querywork_ended"),
            models.Index(fields=("created_at", "id"), name="querywork_at"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("query", "kind"),
                condition=models.Q(ended_at=None),
                name="one_open_query_work_of_a_kind",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


class WatchedIncident(models.Model):
    """A problem of one cause with a watched subject, as `incidents.machine.Open` has it.

    It belongs to a query, to a Flink cluster, or to a job of one: to exactly one of them.
    """

    query = models.ForeignKey(
        WatchedQuery, null=True, on_delete=models.CASCADE, related_name="incidents"
    )
    flink_cluster = models.ForeignKey(
        FlinkCluster, null=True, on_delete=models.CASCADE, related_name="incidents"
    )
    flink_job = models.ForeignKey(
        FlinkJob, null=True, on_delete=models.CASCADE, related_name="incidents"
    )
    cause = models.CharField(max_length=30)  # incidents.causes.Cause
    text = models.TextField()
    opened_at = models.DateTimeField()
    last_at = models.DateTimeField()
    closed_at = models.DateTimeField(null=True)
    told_opened = models.BooleanField(default=False)  # the channels of alerts have a message
    told_closed = models.BooleanField(default=False)

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("closed_at",), name="watchedincident_closed"),
            models.Index(fields=("opened_at", "id"), name="watchedincident_at"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("query", "cause"),
                condition=models.Q(closed_at=None),
                name="one_open_query_incident_each",
            ),
            models.UniqueConstraint(
                fields=("flink_cluster", "cause"),
                condition=models.Q(closed_at=None),
                name="one_open_cluster_incident_each",
            ),
            models.UniqueConstraint(
                fields=("flink_job", "cause"),
                condition=models.Q(closed_at=None),
                name="one_open_flink_job_incident_each",
            ),
        )

    def __str__(self) -> str:
        return f"{self.cause} of {self.subject}"

    @property
    def subject(self) -> str:
        """The name of its subject, for people."""
        if self.query is not None:
            return self.query.name
        if self.flink_job is not None:
            return f"{self.flink_job.name} ({self.flink_job.cluster.name})"
        return self.flink_cluster.name if self.flink_cluster is not None else ""

    @property
    def subject_kind(self) -> str:
        if self.query is not None:
            return "query"
        return "Flink job" if self.flink_job is not None else "Flink cluster"

    @property
    def page(self) -> tuple[str, list[str]]:
        """The name of its page's address, and the arguments of that address."""
        if self.query is not None:
            return "watched-query", [self.query.name]
        if self.flink_job is not None:
            return "flink-job", [self.flink_job.cluster.name, self.flink_job.jid]
        return "flink-cluster", [self.flink_cluster.name if self.flink_cluster is not None else ""]
