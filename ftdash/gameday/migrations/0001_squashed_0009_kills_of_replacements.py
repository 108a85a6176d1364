import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("gameday", "0009_kills_of_replacements")]

    dependencies = [
        ("checkpoints", "0001_squashed_0006_log_indexes"),
        ("jobs", "0001_squashed_0031_failure_kind"),
    ]

    operations = [
        migrations.CreateModel(
            name="GameDay",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "fault",
                    models.CharField(
                        choices=[
                            ("KILL_SLOT", "kill a slot"),
                            ("KILL_SLOT_ALIGNING", "kill a slot while it aligns"),
                            ("KILL_SLOT_CUTTING", "kill a slot before it cuts its state"),
                            ("KILL_SLOT_UPLOADING", "kill a slot before it uploads"),
                            ("KILL_SLOT_UPLOADED", "kill a slot after its upload"),
                            ("KILL_SLOT_COMMITTING", "kill a slot before it commits"),
                            ("KILL_SLOT_COMMITTED", "kill a slot after it committed"),
                            ("KILL_SLOT_RESTORING", "kill a slot, and again before it restores"),
                            ("KILL_SLOT_OPENED", "kill a slot, and again while it restores"),
                            ("KILL_SLOT_RESTORED", "kill a slot, and again after it restored"),
                            ("KILL_DRIVER", "kill the driver"),
                            ("KILL_DRIVER_ACKNOWLEDGED", "kill the driver before a manifest"),
                            ("KILL_DRIVER_PUBLISHED", "kill the driver after a manifest"),
                            ("KILL_DRIVER_RESTARTING", "kill the driver as it restarts"),
                            ("KILL_DRIVER_REWINDING", "kill the driver before a rewind"),
                            ("KILL_DRIVER_REWOUND", "kill the driver after a rewind"),
                            ("KILL_WORKER", "kill the worker that watches"),
                            ("FREEZE_SLOT", "stop a slot, and continue it too late"),
                            ("SLOW_STORAGE", "the storage of a slot is slow"),
                            ("FULL_DISK", "a slot can write no file"),
                        ],
                        max_length=30,
                    ),
                ),
                ("slot", models.PositiveIntegerField(null=True)),
                ("asked_id", models.CharField(max_length=80, null=True, unique=True)),
                ("requester", models.CharField(max_length=150)),
                ("reason", models.TextField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ASKED", "waiting for a worker"),
                            ("INJECTED", "waiting for the fault to take effect"),
                            ("RECOVERING", "recovering"),
                            ("AUDITING", "the output is being audited"),
                            ("ENDED", "ended"),
                        ],
                        default="ASKED",
                        max_length=12,
                    ),
                ),
                ("asked_at", models.DateTimeField()),
                ("injected_at", models.DateTimeField(null=True)),
                ("before_sequence", models.PositiveBigIntegerField(default=0)),
                ("before_attempt", models.PositiveIntegerField(default=0)),
                ("request_id", models.CharField(default="", max_length=80)),
                ("refusal", models.TextField(default="")),
                ("held", models.JSONField(null=True)),
                ("release_at", models.DateTimeField(null=True)),
                ("watched_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "verdict",
                    models.CharField(
                        choices=[
                            ("PASSED", "passed"),
                            ("FAILED", "failed"),
                            ("UNPROVEN", "not proven"),
                            ("NOT_HAPPENED", "did not happen"),
                        ],
                        default="",
                        max_length=12,
                    ),
                ),
                ("why", models.TextField(default="")),
                ("seen", models.JSONField(null=True)),
                (
                    "audit",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="checkpoints.audit",
                    ),
                ),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="game_days",
                        to="jobs.pipeline",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="game_days",
                        to="jobs.run",
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [models.Index(fields=["asked_at", "id"], name="gameday_at")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("state__in", ("ASKED", "INJECTED", "RECOVERING", "AUDITING"))
                        ),
                        fields=("pipeline",),
                        name="one_game_day_at_a_time",
                    )
                ],
            },
        ),
    ]
