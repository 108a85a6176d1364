"""Rows of watched Structured Streaming queries. `services` is their only writer."""

from django.db import models
from django.db.models import Q


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
    created_by = models.CharField(max_length=150)
    created_at = models.DateTimeField()
    removed_at = models.DateTimeField(null=True)  # then events are ignored, and rows are gone

    standing = models.JSONField(default=dict)  # a `standing.Standing`
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
    """What the newest look into a query's checkpoint directory has found."""

    query = models.OneToOneField(
        WatchedQuery, on_delete=models.CASCADE, related_name="directory_reading"
    )
    at = models.DateTimeField()
    took_ms = models.FloatField(default=0.0)
    problem = models.TextField(default="")  # why it could not be read; empty: it was
    found = models.JSONField(default=dict)  # a `reading.Found`

    def __str__(self) -> str:
        return f"reading of {self.query_id}"
