"""Rows of incidents. `services` writes them: the judge in the projector, and notes of people."""

from django.db import models

from ftdash.jobs.models import Pipeline, Run


class Incident(models.Model):
    """One thing that is wrong with one pipeline, with its cause, as `machine.Open` has it."""

    pipeline = models.ForeignKey(Pipeline, on_delete=models.CASCADE, related_name="incidents")
    run = models.ForeignKey(Run, null=True, on_delete=models.SET_NULL)  # of its newest sign
    cause = models.CharField(max_length=30)  # causes.Cause
    text = models.TextField()
    opened_at = models.DateTimeField()
    last_at = models.DateTimeField()
    count = models.PositiveIntegerField(default=1)
    closed_at = models.DateTimeField(null=True)
    closed_because = models.TextField(default="")

    class Meta:
        ordering = ("-pk",)
        indexes = (
            models.Index(fields=("closed_at",), name="incident_closed"),
            models.Index(fields=("opened_at", "id"), name="incident_at"),
        )
        constraints = (
            models.UniqueConstraint(
                fields=("pipeline", "cause"),
                condition=models.Q(closed_at=None),
                name="one_open_incident_each",
            ),
        )

    def __str__(self) -> str:
        return f"{self.cause} of {self.pipeline_id}"


class IncidentNote(models.Model):
    """A person's note on an incident: that they look after it, or what they found or did."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="notes")
    author = models.CharField(max_length=150)
    at = models.DateTimeField()
    text = models.TextField()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"{self.author} at {self.at}"


class JudgedFailures(models.Model):
    """The place up to which a pipeline's failures were judged, so that each is counted once.

    It is a run's number and a line in its journal, because rows may be written again from a
    journal.
    """

    pipeline = models.OneToOneField(Pipeline, on_delete=models.CASCADE)
    run_number = models.PositiveIntegerField()
    sequence = models.PositiveBigIntegerField()

    def __str__(self) -> str:
        return f"{self.pipeline_id}: {self.run_number}.{self.sequence}"
