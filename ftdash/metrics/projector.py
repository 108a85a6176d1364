"""Folds samples into rows, and deletes samples that are too old to be shown.

Reads no journal and opens no transaction; `ftdash.projection.projector` hosts it.
"""

import msgspec
from django.conf import settings
from django.db.models import Q

from ftdash.history.limits import kept_for
from ftdash.history.models import Kind
from ftdash.jobs.models import Run
from ftdash.metrics.models import Sample
from ftdash.times import moment
from pipelines.domain.events import Envelope, MetricsSampled, RunStarted


class SampleFold:
    """One batch of one run. Nothing is written before `save`."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._samples: list[Sample] = []
        self._has_started = False

    def on(self, envelope: Envelope) -> None:
        event = envelope.event
        self._has_started = self._has_started or isinstance(event, RunStarted)
        if not isinstance(event, MetricsSampled):
            return
        self._samples.append(
            Sample(
                run=self._run,
                sequence=envelope.sequence,
                attempt=envelope.attempt,
                at=moment(envelope.at_ms),
                records_per_s=event.records_per_s,
                queued_records=sum(subtask.queued_records for subtask in event.subtasks),
                resident_bytes={str(slot.slot): slot.resident_bytes for slot in event.slots},
                subtasks=msgspec.to_builtins(event.subtasks),
            )
        )

    def save(self) -> None:
        if self._has_started:
            self._forget_old_runs()
        if not self._samples:
            return
        Sample.objects.bulk_create(self._samples)
        # Measured from the newest sample, not from now, so that folding again gives the same rows.
        oldest = self._samples[-1].at - kept_for(Kind.METRICS)
        Sample.objects.filter(run=self._run, at__lt=oldest).delete()

    def _forget_old_runs(self) -> None:
        """Ended runs keep half an hour of samples each, so the total would grow without end."""
        newest_forgotten = self._run.number - settings.SAMPLE_RETENTION_RUNS
        of_pipeline = Sample.objects.filter(run__pipeline=self._run.pipeline_id)
        of_pipeline.filter(run__number__lte=newest_forgotten).delete()


def forget(run: Run, rows: Q) -> None:
    """Deletes rows folded from these lines of the journal, so that they can be folded again."""
    Sample.objects.filter(rows, run=run).delete()
