from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("lab", "0002_log_indexes")]

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Lab",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("options", models.JSONField()),
                ("requested_by", models.CharField(max_length=150)),
                ("reason", models.TextField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("ASKED", "waiting for a worker"),
                            ("RUNNING", "under way"),
                            ("ENDED", "ended"),
                            ("FAILED", "could not be run"),
                        ],
                        default="ASKED",
                        max_length=10,
                    ),
                ),
                ("asked_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
                ("progress", models.TextField(default="")),
                ("keeper", models.JSONField(null=True)),
                ("report", models.JSONField(null=True)),
                ("message", models.TextField(default="")),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [models.Index(fields=["asked_at", "id"], name="lab_at")],
                "constraints": [
                    models.UniqueConstraint(
                        models.Value(1),
                        condition=models.Q(("state__in", ("ASKED", "RUNNING"))),
                        name="one_lab_at_a_time",
                    )
                ],
            },
        ),
    ]
