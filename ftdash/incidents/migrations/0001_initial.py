import django.db.models.deletion
from django.db import migrations, models
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.state import StateApps


def keep_places(apps: StateApps, editor: BaseDatabaseSchemaEditor) -> None:
    """What failed before incidents existed opens none, unless it still stands."""
    del editor
    places = apps.get_model("incidents", "JudgedFailures")
    for run in apps.get_model("jobs", "Run").objects.order_by("number"):
        places.objects.update_or_create(
            pipeline_id=run.pipeline_id,
            defaults={"run_number": run.number, "sequence": run.last_sequence},
        )


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("jobs", "0001_squashed_0031_failure_kind"),
    ]

    operations = [
        migrations.CreateModel(
            name="Incident",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("cause", models.CharField(max_length=30)),
                ("text", models.TextField()),
                ("opened_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("count", models.PositiveIntegerField(default=1)),
                ("closed_at", models.DateTimeField(null=True)),
                ("closed_because", models.TextField(default="")),
                (
                    "pipeline",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="incidents",
                        to="jobs.pipeline",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.SET_NULL, to="jobs.run"
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [
                    models.Index(fields=["closed_at"], name="incident_closed"),
                    models.Index(fields=["opened_at", "id"], name="incident_at"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("closed_at", None)),
                        fields=("pipeline", "cause"),
                        name="one_open_incident_each",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="IncidentNote",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("author", models.CharField(max_length=150)),
                ("at", models.DateTimeField()),
                ("text", models.TextField()),
                (
                    "incident",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notes",
                        to="incidents.incident",
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="JudgedFailures",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("run_number", models.PositiveIntegerField()),
                ("sequence", models.PositiveBigIntegerField()),
                (
                    "pipeline",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, to="jobs.pipeline"
                    ),
                ),
            ],
        ),
        migrations.RunPython(keep_places, migrations.RunPython.noop),
    ]
