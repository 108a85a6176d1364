"""A silence may be one of a watched query or of a Flink cluster."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0008_messages_about_all_that_is_watched"),
        ("flink_clusters", "0001_watched_flink_clusters"),
        ("watching", "0003_incidents_of_flink_clusters"),
    ]

    operations = [
        migrations.AddField(
            model_name="silence",
            name="query",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                to="watching.watchedquery",
            ),
        ),
        migrations.AddField(
            model_name="silence",
            name="flink_cluster",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                to="flink_clusters.flinkcluster",
            ),
        ),
    ]
