"""How many rows of a run were deleted when they were old."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("history", "0001_initial"), ("jobs", "0012_point_comparisons")]

    operations = [
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
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="jobs.run",
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
