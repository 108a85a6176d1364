"""Indexes for the order in which the log of events is read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("alerts", "0003_sending_turn")]

    operations = [
        migrations.AddIndex(
            model_name="alert",
            index=models.Index(fields=["fired_at", "id"], name="alert_at"),
        ),
    ]
