"""Indexes for the order in which the log of events is read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_sent_forms")]

    operations = [
        migrations.AddIndex(
            model_name="adminaction",
            index=models.Index(fields=["at", "id"], name="adminaction_at"),
        ),
    ]
