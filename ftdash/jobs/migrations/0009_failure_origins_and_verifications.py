import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0008_run_replayed_sources"),
    ]

    operations = [
        migrations.AddField(
            model_name="failure",
            name="operator",
            field=models.CharField(max_length=200, null=True),
        ),
        migrations.AddField(
            model_name="failure",
            name="origin",
            field=models.JSONField(null=True),
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
                ("duration_ms", models.FloatField()),
                (
                    "run",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, to="jobs.run"),
                ),
            ],
            options={
                "ordering": ("sequence",),
                "abstract": False,
                "constraints": [
                    models.UniqueConstraint(
                        fields=("run", "sequence"), name="pointsverification_of_journal"
                    )
                ],
            },
        ),
    ]
