import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    replaces = [("history", "0002_pruned_counts")]

    dependencies = [
        ("jobs", "0001_squashed_0031_failure_kind"),
    ]

    operations = [
        migrations.CreateModel(
            name="Limit",
            fields=[
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("METRICS", "metrics"),
                            ("CHECKPOINTS", "checkpoints"),
                            ("EVENTS", "failures and events"),
                            ("ALERTS", "alerts"),
                            ("LABS", "labs"),
                        ],
                        max_length=20,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("keep_s", models.PositiveBigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="PrunedCount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "what",
                    models.CharField(
                        choices=[
                            ("FAILED", "failed checkpoints"),
                            ("DISCARDED", "discarded checkpoints"),
                            ("RESTORED", "recoveries from a checkpoint"),
                            ("REFUSED_ZOMBIE", "refused older attempts"),
                            ("REFUSED_POINT", "refused recovery points"),
                        ],
                        max_length=20,
                    ),
                ),
                ("reason_name", models.CharField(default="", max_length=60)),
                ("count", models.PositiveBigIntegerField(default=0)),
                ("newest_id", models.PositiveBigIntegerField(null=True)),
                ("newest_at", models.DateTimeField(null=True)),
                (
                    "run",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="+", to="jobs.run"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "what", "reason_name"), name="one_pruned_count_each"
                    )
                ],
            },
        ),
    ]
