from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ApiToken",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.SlugField(max_length=80, unique=True)),
                ("digest", models.CharField(max_length=64, unique=True)),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("read", "see everything"),
                            ("act", "see everything and act on pipelines"),
                        ],
                        max_length=10,
                    ),
                ),
                ("created_by", models.CharField(max_length=150)),
                ("created_at", models.DateTimeField()),
                ("last_used_at", models.DateTimeField(null=True)),
                ("revoked_by", models.CharField(default="", max_length=150)),
                ("revoked_at", models.DateTimeField(null=True)),
            ],
            options={"ordering": ("name",)},
        ),
    ]
