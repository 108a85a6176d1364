from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("jobs", "0004_changed_settings"),
    ]

    operations = [
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
                ("moved_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
            ],
        ),
    ]
