"""Runs that give the records of a quarantine to the operators again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0007_quarantined_record")]

    operations = [
        migrations.AddField(
            model_name="run", name="replayed_sources", field=models.JSONField(default=list)
        )
    ]
