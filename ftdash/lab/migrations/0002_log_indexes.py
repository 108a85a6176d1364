"""Indexes for the order in which the log of events is read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("lab", "0001_initial")]

    operations = [
        migrations.AddIndex(
            model_name="lab",
            index=models.Index(fields=["asked_at", "id"], name="lab_at"),
        ),
    ]
