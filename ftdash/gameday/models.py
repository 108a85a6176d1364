"""Rows of game days: what was asked for, its progress, and the verdict.

Only the services write them. The rows of the run's journal hold what happened to the run meanwhile.
"""

from django.db import models

from ftdash.checkpoints.models import Audit
from ftdash.jobs.models import Pipeline, Run


class Fault(models.TextChoices):
    KILL_SLOT = "KILL_SLOT", "kill a slot"
    KILL_SLOT_ALIGNING = "KILL_SLOT_ALIGNING", "kill a slot while it aligns"
    KILL_SLOT_CUTTING = "KILL_SLOT_CUTTING", "kill a slot before it cuts its state"
    KILL_SLOT_UPLOADING = "KILL_SLOT_UPLOADING", "kill a slot before it uploads"
    KILL_SLOT_UPLOADED = "KILL_SLOT_UPLOADED", "kill a slot after its upload"
    KILL_SLOT_COMMITTING = "KILL_SLOT_COMMITTING", "kill a slot before it commits"
    KILL_SLOT_COMMITTED = "KILL_SLOT_COMMITTED", "kill a slot after it committed"
    KILL_SLOT_RESTORING = "KILL_SLOT_RESTORING", "kill a slot, and again before it restores"
    KILL_SLOT_OPENED = "KILL_SLOT_OPENED", "kill a slot, and again while it restores"
    KILL_SLOT_RESTORED = "KILL_SLOT_RESTORED", "kill a slot, and again after it restored"
    KILL_DRIVER = "KILL_DRIVER", "kill the driver"
    KILL_DRIVER_ACKNOWLEDGED = "KILL_DRIVER_ACKNOWLEDGED", "kill the driver before a manifest"
    KILL_DRIVER_PUBLISHED = "KILL_DRIVER_PUBLISHED", "kill the driver after a manifest"
    KILL_DRIVER_RESTARTING = "KILL_DRIVER_RESTARTING", "kill the driver as it restarts"
    KILL_DRIVER_REWINDING = "KILL_DRIVER_REWINDING", "kill the driver before a rewind"
    KILL_DRIVER_REWOUND = "KILL_DRIVER_REWOUND", "kill the driver after a rewind"
    KILL_WORKER = "KILL_WORKER", "kill the worker that watches"
    FREEZE_SLOT = "FREEZE_SLOT", "stop a slot, and continue it too late"
    SLOW_STORAGE = "SLOW_STORAGE", "the storage of a slot is slow"
    FULL_DISK = "FULL_DISK", "a slot can write no file"


class GameDayState(models.TextChoices):
    ASKED = "ASKED", "waiting for a worker"
    INJECTED = "INJECTED", "waiting for the fault to take effect"
    RECOVERING = "RECOVERING", "recovering"
    AUDITING = "AUDITING", "the output is being audited"
    ENDED = "ENDED", "ended"


class GameDayVerdict(models.TextChoices):
    PASSED = "PASSED", "passed"
    FAILED = "FAILED", "failed"
    UNPROVEN = "UNPROVEN", "not proven"
    NOT_HAPPENED = "NOT_HAPPENED", "did not happen"


UNDER_WAY = (
    GameDayState.ASKED,
    GameDayState.INJECTED,
    GameDayState.RECOVERING,
    GameDayState.AUDITING,
)


class GameDay(models.Model):
    pipeline = models.ForeignKey(Pipeline, on_delete=models.PROTECT, related_name="game_days")
    run = models.ForeignKey(Run, on_delete=models.PROTECT, related_name="game_days")
    fault = models.CharField(max_length=30, choices=Fault)
    slot = models.PositiveIntegerField(null=True)  # null: the fault hits no slot
    asked_id = models.CharField(max_length=80, null=True, unique=True)  # null: no id was given
    requester = models.CharField(max_length=150)
    reason = models.TextField()
    state = models.CharField(max_length=12, choices=GameDayState, default=GameDayState.ASKED)
    asked_at = models.DateTimeField()
    injected_at = models.DateTimeField(null=True)
    before_sequence = models.PositiveBigIntegerField(default=0)  # of the journal at that time
    before_attempt = models.PositiveIntegerField(default=0)
    request_id = models.CharField(max_length=80, default="")  # if the driver carries it out
    refusal = models.TextField(default="")  # why it could not be carried out
    held = models.JSONField(null=True)  # Owner as JSON: the process hit from outside
    release_at = models.DateTimeField(null=True)
    watched_at = models.DateTimeField(null=True)  # a worker watched again after the kill of one
    audit = models.ForeignKey(Audit, null=True, on_delete=models.SET_NULL, related_name="+")
    ended_at = models.DateTimeField(null=True)
    verdict = models.CharField(max_length=12, choices=GameDayVerdict, default="")
    why = models.TextField(default="")  # the verdict, in one sentence
    seen = models.JSONField(null=True)  # scoring.Seen as JSON: the basis of the verdict

    class Meta:
        ordering = ("-pk",)
        constraints = (
            # The effects of two at once could not be distinguished.
            models.UniqueConstraint(
                fields=("pipeline",),
                condition=models.Q(state__in=UNDER_WAY),
                name="one_game_day_at_a_time",
            ),
        )
        indexes = (models.Index(fields=("asked_at", "id"), name="gameday_at"),)

    def __str__(self) -> str:
        return f"game day {self.pk}"
