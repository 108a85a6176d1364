"""Indexes for the order in which the log of events is read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gameday", "0003_asked_under_an_id")]

    operations = [
        migrations.AddIndex(
            model_name="gameday",
            index=models.Index(fields=["asked_at", "id"], name="gameday_at"),
        ),
    ]
