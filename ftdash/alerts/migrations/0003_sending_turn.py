"""The row that senders of messages take turns at."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("alerts", "0002_default_rules")]

    operations = [
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
    ]
