"""Indexes for the order in which the log of events is read."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0013_what_is_waited_for")]

    operations = [
        migrations.AddIndex(
            model_name="failure",
            index=models.Index(fields=["at", "id"], name="failure_at"),
        ),
        migrations.AddIndex(
            model_name="pointlabel",
            index=models.Index(fields=["labelled_at", "id"], name="pointlabel_at"),
        ),
        migrations.AddIndex(
            model_name="pointsverification",
            index=models.Index(fields=["at", "id"], name="pointsverification_at"),
        ),
        migrations.AddIndex(
            model_name="quarantinedrecord",
            index=models.Index(fields=["at", "id"], name="quarantinedrecord_at"),
        ),
        migrations.AddIndex(
            model_name="recovery",
            index=models.Index(fields=["started_at", "id"], name="recovery_started_at"),
        ),
        migrations.AddIndex(
            model_name="request",
            index=models.Index(fields=["created_at", "id"], name="request_at"),
        ),
        migrations.AddIndex(
            model_name="restorerefusal",
            index=models.Index(fields=["at", "id"], name="restorerefusal_at"),
        ),
        migrations.AddIndex(
            model_name="statuschange",
            index=models.Index(fields=["at", "id"], name="statuschange_at"),
        ),
        migrations.AddIndex(
            model_name="supersededoutput",
            index=models.Index(fields=["at", "id"], name="supersededoutput_at"),
        ),
        migrations.AddIndex(
            model_name="zombierefusal",
            index=models.Index(fields=["at", "id"], name="zombierefusal_at"),
        ),
    ]
