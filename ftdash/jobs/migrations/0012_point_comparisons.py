from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0011_savepoint_labels"),
    ]

    operations = [
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
    ]
