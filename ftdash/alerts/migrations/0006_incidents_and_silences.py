"""Alerts follow their value and name their incident; silences hold messages back for a while."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0001_squashed_0005_failures_at_once"),
        ("incidents", "0001_initial"),
        ("jobs", "0001_squashed_0031_failure_kind"),
    ]

    operations = [
        migrations.AddField(
            model_name="alert", name="newest_at", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(
            model_name="alert", name="newest_value", field=models.FloatField(null=True)
        ),
        migrations.AddField(
            model_name="alert", name="is_sent", field=models.BooleanField(default=True)
        ),
        migrations.AddField(
            model_name="alert",
            name="incident",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="alerts",
                to="incidents.incident",
            ),
        ),
        migrations.CreateModel(
            name="Silence",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("until", models.DateTimeField()),
                ("reason", models.TextField()),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                ("ended_by", models.CharField(default="", max_length=150)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "pipeline",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="jobs.pipeline",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="alerts.alertrule",
                    ),
                ),
            ],
            options={"ordering": ("-pk",)},
        ),
        migrations.AddIndex(
            model_name="silence",
            index=models.Index(fields=["until"], name="silence_until"),
        ),
    ]
