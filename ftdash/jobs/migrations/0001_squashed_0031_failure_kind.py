import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("jobs", "0031_failure_kind")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Pipeline",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("code", models.JSONField(null=True)),
                ("name", models.SlugField(max_length=80, unique=True)),
                ("flow", models.CharField(max_length=80)),
                ("parallelism", models.PositiveIntegerField(default=1)),
                ("max_parallelism", models.PositiveIntegerField(default=128)),
                ("parameters", models.JSONField(default=dict)),
                ("settings", models.JSONField(default=dict)),
                ("allows_faults", models.BooleanField(default=False)),
                ("created_at", models.DateTimeField()),
                ("version", models.PositiveBigIntegerField(default=0)),
            ],
            options={
                "ordering": ("name",),
                "permissions": (("operate", "May act on pipelines (admin role)"),),
            },
        ),
        migrations.CreateModel(
            name="PointInspection",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", models.TextField(unique=True)),
                ("files_read", models.PositiveIntegerField(default=0)),
                ("files", models.PositiveIntegerField(null=True)),
                ("bytes_read", models.PositiveBigIntegerField(default=0)),
                ("bytes", models.PositiveBigIntegerField(default=0)),
                ("problem", models.TextField(default="")),
                ("waiting_for", models.TextField(default="")),
                ("moved_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="PointComparison",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("left", models.TextField()),
                ("right", models.TextField()),
                ("requester", models.CharField(max_length=150)),
                ("parts_done", models.PositiveIntegerField(default=0)),
                ("parts", models.PositiveIntegerField(null=True)),
                ("found", models.JSONField(default=list)),
                ("problem", models.TextField(default="")),
                ("waiting_for", models.TextField(default="")),
                ("waiting_since", models.DateTimeField(null=True)),
                ("asked_at", models.DateTimeField()),
                ("moved_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("left", "right"), name="comparison_of_two_points"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PointLabel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", models.TextField(null=True, unique=True)),
                ("request_id", models.CharField(max_length=80, null=True, unique=True)),
                ("label", models.CharField(max_length=80)),
                ("labelled_by", models.CharField(max_length=150)),
                ("labelled_at", models.DateTimeField()),
            ],
            options={
                "indexes": [models.Index(fields=["labelled_at", "id"], name="pointlabel_at")],
            },
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("code", models.JSONField(null=True)),
                ("run_id", models.CharField(max_length=80, unique=True)),
                ("number", models.PositiveIntegerField()),
                (
                    "desired",
                    models.CharField(
                        choices=[("RUNNING", "Running"), ("STOPPED", "Stopped")],
                        default="RUNNING",
                        max_length=10,
                    ),
                ),
                ("parallelism", models.PositiveIntegerField()),
                ("max_parallelism", models.PositiveIntegerField()),
                ("master", models.CharField(max_length=200)),
                ("parameters", models.JSONField(default=dict)),
                ("settings", models.JSONField(default=dict)),
                ("restored_from", models.TextField(null=True)),
                ("claim_mode", models.CharField(default="NO_CLAIM", max_length=10)),
                ("allow_non_restored_state", models.BooleanField(default=False)),
                ("first_checkpoint_id", models.PositiveBigIntegerField(default=1)),
                ("replayed_sources", models.JSONField(default=list)),
                ("created_at", models.DateTimeField()),
                ("driver_start_count", models.PositiveIntegerField(default=0)),
                ("driver_starts_in_row", models.PositiveIntegerField(default=0)),
                ("driver_started_at", models.DateTimeField(null=True)),
                ("launched_pid", models.PositiveIntegerField(null=True)),
                ("launched_process_started_at", models.FloatField(null=True)),
                ("driver_note", models.TextField(default="")),
                ("driver_silence", models.TextField(default="")),
                ("stop_requested_at", models.DateTimeField(null=True)),
                ("journal_begins", models.PositiveBigIntegerField(default=0)),
                ("status", models.CharField(default="CREATED", max_length=20)),
                ("reason", models.TextField(default="")),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("guarantee", models.TextField(default="")),
                ("guarantee_reason", models.TextField(default="")),
                ("changed_settings", models.JSONField(null=True)),
                ("vertices", models.JSONField(default=list)),
                ("transaction_timeouts_ms", models.JSONField(default=dict)),
                ("slots", models.JSONField(default=dict)),
                ("driver_pid", models.PositiveIntegerField(null=True)),
                ("driver_lost_at", models.DateTimeField(null=True)),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("last_event_at", models.DateTimeField(null=True)),
                ("last_checkpoint_id", models.PositiveBigIntegerField(null=True)),
                ("last_completed_at", models.DateTimeField(null=True)),
                ("last_committed_at", models.DateTimeField(null=True)),
                ("records_per_s", models.FloatField(default=0.0)),
                ("reached_records", models.PositiveBigIntegerField(null=True)),
                ("restored_records", models.PositiveBigIntegerField(null=True)),
                ("restoring", models.JSONField(null=True)),
                ("watermark_ms", models.BigIntegerField(null=True)),
                ("counters", models.JSONField(default=dict)),
                ("restart_count", models.PositiveIntegerField(default=0)),
                ("journal_offset", models.PositiveBigIntegerField(default=0)),
                ("last_sequence", models.PositiveBigIntegerField(default=0)),
                ("projection_error", models.TextField(default="")),
                ("journal_gap", models.TextField(default="")),
                ("version", models.PositiveBigIntegerField(default=0)),
                (
                    "parent",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="forks",
                        to="jobs.run",
                    ),
                ),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="runs",
                        to="jobs.pipeline",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(fields=("pipeline", "number"), name="run_number"),
                    models.UniqueConstraint(
                        condition=models.Q(
                            ("status__in", ["FAILED", "CANCELED", "FINISHED"]), _negated=True
                        ),
                        fields=("pipeline",),
                        name="one_live_run_per_pipeline",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="RestoreRefusal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("path", models.TextField()),
                ("message", models.TextField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="restorerefusal_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="restorerefusal_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Request",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("request_id", models.CharField(max_length=80, unique=True)),
                ("kind", models.CharField(max_length=30)),
                ("command_json", models.JSONField()),
                ("requester", models.CharField(max_length=150)),
                ("reason", models.TextField(default="")),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("PENDING", "waiting for delivery"),
                            ("DELIVERED", "delivered to the driver"),
                            ("ACCEPTED", "under way"),
                            ("SUCCEEDED", "succeeded"),
                            ("FAILED", "failed"),
                            ("REJECTED", "rejected"),
                        ],
                        default="PENDING",
                        max_length=12,
                    ),
                ),
                ("message", models.TextField(default="")),
                ("path", models.TextField(null=True)),
                ("checkpoint_id", models.PositiveBigIntegerField(null=True)),
                ("created_at", models.DateTimeField()),
                ("delivered_at", models.DateTimeField(null=True)),
                ("accepted_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("deadline_at", models.DateTimeField()),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="requests",
                        to="jobs.pipeline",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="requests",
                        to="jobs.run",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["phase", "created_at"], name="request_phase"),
                    models.Index(fields=["created_at", "id"], name="request_at"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RepeatedOutput",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("sink", models.CharField(max_length=200)),
                ("target", models.TextField()),
                ("records", models.PositiveBigIntegerField(null=True)),
                ("is_at_most", models.BooleanField(default=False)),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="repeatedoutput_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="repeatedoutput_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Recovery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("phases", models.JSONField(default=list)),
                ("restored_checkpoint_id", models.PositiveBigIntegerField(null=True)),
                ("restored_path", models.TextField(null=True)),
                ("records_to_replay", models.PositiveBigIntegerField(null=True)),
                ("started_at", models.DateTimeField()),
                ("running_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["started_at", "id"], name="recovery_started_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "sequence"), name="recovery_of_journal"),
                ],
            },
        ),
        migrations.CreateModel(
            name="QuarantinedRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("source", models.CharField(max_length=200)),
                ("split", models.TextField()),
                ("offset", models.BigIntegerField()),
                ("operator", models.CharField(max_length=200)),
                ("error_type", models.TextField()),
                ("error", models.TextField()),
                ("directory", models.TextField()),
                ("limit", models.PositiveIntegerField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="quarantinedrecord_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="quarantinedrecord_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PointsVerification",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("whole", models.PositiveIntegerField()),
                ("damaged", models.PositiveIntegerField()),
                ("not_counted", models.PositiveIntegerField(default=0)),
                ("duration_ms", models.FloatField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="pointsverification_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="pointsverification_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Leftover",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("sink", models.CharField(max_length=200)),
                ("target", models.TextField()),
                ("what", models.TextField()),
                ("count", models.PositiveIntegerField()),
                ("size_bytes", models.PositiveBigIntegerField(null=True)),
                ("runs", models.JSONField(default=list)),
                ("run_count", models.PositiveIntegerField()),
                ("why_kept", models.TextField(default="")),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="leftover_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "sequence"), name="leftover_of_journal"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Failure",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("cause", models.TextField()),
                ("vertex", models.CharField(max_length=200, null=True)),
                ("subtask", models.PositiveIntegerField(null=True)),
                ("slot", models.PositiveIntegerField(null=True)),
                ("detail", models.TextField(default="")),
                ("operator", models.CharField(max_length=200, null=True)),
                ("origin", models.JSONField(null=True)),
                ("author_trace", models.TextField(default="")),
                ("record", models.TextField(default="")),
                ("kind", models.CharField(default="unknown", max_length=30)),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="failure_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("run", "sequence"), name="failure_of_journal"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DamageFinding",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("files", models.JSONField(default=list)),
                ("points", models.JSONField(default=list)),
                ("mended", models.JSONField(default=list)),
                ("remembered_count", models.PositiveIntegerField()),
                ("found_by", models.CharField(max_length=20)),
                ("message", models.TextField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="damagefinding_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="damagefinding_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="StatusChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("status", models.CharField(max_length=20)),
                ("reason", models.TextField(default="")),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="statuschange_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="statuschange_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="SupersededOutput",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("sink", models.CharField(max_length=200)),
                ("files", models.PositiveIntegerField()),
                ("moved_to", models.TextField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="supersededoutput_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="supersededoutput_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="TargetTakeover",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("sink", models.CharField(max_length=200)),
                ("target", models.TextField()),
                ("from_run", models.CharField(max_length=200)),
                ("from_installation", models.TextField()),
                ("epoch", models.PositiveBigIntegerField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="targettakeover_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="targettakeover_of_journal"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Upgrade",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("old_code", models.JSONField(null=True)),
                ("new_code", models.JSONField()),
                ("checkpoints", models.PositiveIntegerField()),
                ("timeout_ms", models.PositiveBigIntegerField()),
                (
                    "step",
                    models.CharField(
                        choices=[
                            ("CHECKING", "check the new code"),
                            ("STOPPING", "stop with a savepoint"),
                            ("STARTING", "start the new code"),
                            ("WATCHING", "watch its first checkpoints"),
                            ("CANCELING", "end the new code"),
                            ("RESTORING", "start the previous code"),
                            ("ENDED", "ended"),
                        ],
                        default="CHECKING",
                        max_length=12,
                    ),
                ),
                ("step_at", models.DateTimeField()),
                ("steps", models.JSONField(default=list)),
                ("check_tries", models.PositiveIntegerField(default=0)),
                ("checker", models.JSONField(null=True)),
                ("checked", models.JSONField(null=True)),
                ("stop_tries", models.PositiveIntegerField(default=0)),
                ("savepoint", models.TextField(null=True)),
                ("why_back", models.TextField(default="")),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "back_run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="jobs.run",
                    ),
                ),
                (
                    "new_run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="jobs.run",
                    ),
                ),
                (
                    "old_run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="+", to="jobs.run"
                    ),
                ),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="upgrades",
                        to="jobs.pipeline",
                    ),
                ),
                (
                    "request",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="upgrade",
                        to="jobs.request",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("ended_at", None)),
                        fields=("pipeline",),
                        name="one_upgrade_at_a_time",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ZombieRefusal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sequence", models.PositiveBigIntegerField()),
                ("attempt", models.PositiveIntegerField()),
                ("at", models.DateTimeField()),
                ("zombie_attempt", models.PositiveIntegerField()),
                ("what", models.TextField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "indexes": [
                    models.Index(fields=["at", "id"], name="zombierefusal_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="zombierefusal_of_journal"
                    ),
                ],
            },
        ),
    ]
