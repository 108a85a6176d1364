"""The tables of alerts, and the rules of a new installation.

The rules report on the pages only, until there is a channel.
"""

import django.db.models.deletion
from django.apps.registry import Apps
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor

RULES = [  # name, watched, fires above for seconds, clears below for seconds
    ("no checkpoint completes", "SINCE_CHECKPOINT", 300, 10, 120, 10),
    ("no output is committed", "SINCE_OUTPUT", 300, 10, 120, 10),
    ("checkpoints fail", "FAILED_IN_ROW", 2, 0, 1, 10),
    ("it restarts again and again", "RESTARTS_LATELY", 3, 0, 1, 60),
    ("a run has failed", "FAILED_RUN", 0.5, 0, 0.5, 0),
    ("a recovery point is damaged", "DAMAGED_POINTS", 0.5, 0, 0.5, 0),
]


def make(apps: Apps, _: BaseDatabaseSchemaEditor) -> None:
    rule = apps.get_model("alerts", "AlertRule")
    for name, watched, fire_above, fire_after_s, clear_below, clear_after_s in RULES:
        rule.objects.get_or_create(
            name=name,
            defaults={
                "watched": watched,
                "fire_above": fire_above,
                "fire_after_s": fire_after_s,
                "clear_below": clear_below,
                "clear_after_s": clear_after_s,
            },
        )


class Migration(migrations.Migration):
    initial = True

    replaces = [("alerts", "0005_failures_at_once")]

    dependencies = [
        ("jobs", "0001_squashed_0031_failure_kind"),
    ]

    operations = [
        migrations.CreateModel(
            name="Evaluation",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="SendingTurn",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("holder", models.CharField(default="", max_length=32)),
                ("until", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="AlertRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=80, unique=True)),
                ("watched", models.CharField(max_length=20)),
                ("fire_above", models.FloatField()),
                ("fire_after_s", models.FloatField()),
                ("clear_below", models.FloatField()),
                ("clear_after_s", models.FloatField()),
                ("is_on", models.BooleanField(default=True)),
                (
                    "pipeline",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="jobs.pipeline"
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Alert",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("rule_name", models.CharField(max_length=80)),
                ("watched", models.CharField(max_length=20)),
                ("fire_above", models.FloatField()),
                ("fired_at", models.DateTimeField()),
                ("fired_value", models.FloatField()),
                ("cleared_at", models.DateTimeField(null=True)),
                ("cleared_because", models.TextField(default="")),
                ("acknowledged_by", models.CharField(default="", max_length=150)),
                ("acknowledged_at", models.DateTimeField(null=True)),
                ("acknowledged_reason", models.TextField(default="")),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="alerts",
                        to="jobs.pipeline",
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="alerts.alertrule",
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [
                    models.Index(fields=["cleared_at"], name="alert_cleared"),
                    models.Index(fields=["fired_at", "id"], name="alert_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("cleared_at", None)),
                        fields=("rule", "pipeline"),
                        name="one_open_alert_each",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Channel",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.SlugField(max_length=80, unique=True)),
                (
                    "kind",
                    models.CharField(
                        choices=[("WEBHOOK", "webhook"), ("MAIL", "mail")], max_length=10
                    ),
                ),
                ("address", models.TextField()),
                ("key_salt", models.CharField(max_length=64)),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                (
                    "pipeline",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="jobs.pipeline"
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "news",
                    models.CharField(
                        choices=[
                            ("FIRED", "an alert fired"),
                            ("CLEARED", "an alert cleared"),
                            ("TEST", "a test"),
                        ],
                        max_length=10,
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("due_at", models.DateTimeField()),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("sent_at", models.DateTimeField(null=True)),
                ("given_up_at", models.DateTimeField(null=True)),
                ("problem", models.TextField(default="")),
                (
                    "alert",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="alerts.alert"
                    ),
                ),
                (
                    "channel",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="alerts.channel",
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [
                    models.Index(fields=["sent_at", "given_up_at"], name="delivery_open"),
                ],
            },
        ),
        migrations.CreateModel(
            name="RuleStanding",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "phase",
                    models.CharField(
                        choices=[
                            ("QUIET", "QUIET"),
                            ("RISING", "RISING"),
                            ("FIRING", "FIRING"),
                            ("FALLING", "FALLING"),
                        ],
                        max_length=10,
                    ),
                ),
                ("since", models.DateTimeField()),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="jobs.pipeline"
                    ),
                ),
                (
                    "rule",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="standings",
                        to="alerts.alertrule",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("rule", "pipeline"), name="one_standing_each"),
                ],
            },
        ),
        migrations.RunPython(make, migrations.RunPython.noop),
    ]
