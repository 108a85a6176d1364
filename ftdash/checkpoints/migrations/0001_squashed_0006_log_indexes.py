import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("checkpoints", "0006_log_indexes")]

    dependencies = [
        ("jobs", "0001_squashed_0031_failure_kind"),
    ]

    operations = [
        migrations.CreateModel(
            name="Checkpoint",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("checkpoint_id", models.PositiveBigIntegerField(null=True)),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("kind", models.CharField(max_length=12)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("IN_PROGRESS", "in progress"),
                            ("COMPLETED", "completed"),
                            ("FAILED", "failed"),
                            ("DISCARDED", "discarded"),
                        ],
                        max_length=12,
                    ),
                ),
                ("trigger_at", models.DateTimeField()),
                ("completed_at", models.DateTimeField(null=True)),
                ("failed_at", models.DateTimeField(null=True)),
                ("committed_at", models.DateTimeField(null=True)),
                ("end_to_end_ms", models.FloatField(null=True)),
                ("state_bytes", models.PositiveBigIntegerField(null=True)),
                ("uploaded_bytes", models.PositiveBigIntegerField(null=True)),
                ("buffered_records", models.PositiveBigIntegerField(null=True)),
                ("buffered_bytes", models.PositiveBigIntegerField(null=True)),
                ("persisted_bytes", models.PositiveBigIntegerField(null=True)),
                ("alignment_ms", models.FloatField(null=True)),
                ("source_records", models.PositiveBigIntegerField(null=True)),
                ("acknowledged_count", models.PositiveIntegerField(default=0)),
                ("subtask_count", models.PositiveIntegerField(default=0)),
                ("reason_name", models.CharField(default="", max_length=60)),
                ("message", models.TextField(default="")),
                ("path", models.TextField(null=True)),
                ("verified_at", models.DateTimeField(null=True)),
                ("problem", models.TextField(default="")),
                ("watermark_ms", models.BigIntegerField(null=True)),
                ("counters", models.JSONField(default=dict)),
                ("request_id", models.CharField(max_length=80, null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="checkpoint_rows",
                        to="jobs.run",
                    ),
                ),
            ],
            options={
                "ordering": ("-sequence",),
                "indexes": [
                    models.Index(fields=["run", "status"], name="checkpoint_status"),
                    models.Index(fields=["trigger_at", "id"], name="checkpoint_at"),
                    models.Index(
                        condition=models.Q(
                            ("kind", "CHECKPOINT"),
                            models.Q(("status", "FAILED"), _negated=True),
                            _negated=True,
                        ),
                        fields=["trigger_at", "id"],
                        name="checkpoint_not_routine_at",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="checkpoint_of_journal"
                    ),
                    models.UniqueConstraint(
                        fields=("run", "checkpoint_id"), name="checkpoint_of_run"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="LedgerRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("checkpoint_id", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("records_read", models.PositiveBigIntegerField()),
                ("inputs", models.JSONField(default=list)),
                ("outputs", models.JSONField(default=list)),
                ("is_void", models.BooleanField(default=False)),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("-sequence",),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="ledger_row_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SubtaskPhase",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("vertex", models.CharField(max_length=200)),
                ("subtask", models.PositiveIntegerField()),
                ("start_delay_ms", models.FloatField()),
                ("alignment_ms", models.FloatField()),
                ("sync_ms", models.FloatField()),
                ("async_ms", models.FloatField()),
                ("acknowledged_ms", models.FloatField()),
                ("state_bytes", models.PositiveBigIntegerField()),
                ("uploaded_bytes", models.PositiveBigIntegerField()),
                ("is_unaligned", models.BooleanField(default=False)),
                ("persisted_bytes", models.PositiveBigIntegerField(default=0)),
                ("channels", models.JSONField(default=list)),
                (
                    "checkpoint",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="phases",
                        to="checkpoints.checkpoint",
                    ),
                ),
            ],
            options={
                "ordering": ("vertex", "subtask"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("checkpoint", "vertex", "subtask"), name="one_phase_per_subtask"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Audit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("requester", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("moved_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("step", models.TextField(default="")),
                ("report", models.JSONField(null=True)),
                ("sentences", models.JSONField(default=list)),
                ("problem", models.TextField(default="")),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="audits",
                        to="jobs.run",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [models.Index(fields=["created_at", "id"], name="audit_at")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("run",),
                        name="one_audit_at_a_time",
                    )
                ],
            },
        ),
    ]
