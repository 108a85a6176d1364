import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0007_messages_about_watched_queries"),  # a reference that the renaming follows
        (
            "contenttypes",
            "0002_remove_content_type_name",
        ),  # its rows are renamed, also on the way back
        ("flink_clusters", "0002_times_of_events_and_actions"),
        ("watching", "0002_savepoints_works_and_incidents"),
    ]

    operations = [
        migrations.RenameModel(old_name="QueryIncident", new_name="WatchedIncident"),
        migrations.RenameIndex(
            model_name="watchedincident",
            old_name="queryincident_closed",
            new_name="watchedincident_closed",
        ),
        migrations.RenameIndex(
            model_name="watchedincident",
            old_name="queryincident_at",
            new_name="watchedincident_at",
        ),
        migrations.AlterField(
            model_name="watchedincident",
            name="query",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="incidents",
                to="watching.watchedquery",
            ),
        ),
        migrations.AddField(
            model_name="watchedincident",
            name="flink_cluster",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="incidents",
                to="flink_clusters.flinkcluster",
            ),
        ),
        migrations.AddField(
            model_name="watchedincident",
            name="flink_job",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="incidents",
                to="flink_clusters.flinkjob",
            ),
        ),
        migrations.AddConstraint(
            model_name="watchedincident",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at", None)),
                fields=("flink_cluster", "cause"),
                name="one_open_cluster_incident_each",
            ),
        ),
        migrations.AddConstraint(
            model_name="watchedincident",
            constraint=models.UniqueConstraint(
                condition=models.Q(("closed_at", None)),
                fields=("flink_job", "cause"),
                name="one_open_flink_job_incident_each",
            ),
        ),
    ]
