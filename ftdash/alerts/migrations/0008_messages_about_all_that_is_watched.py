from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("alerts", "0007_messages_about_watched_queries"),
        ("watching", "0003_incidents_of_flink_clusters"),
    ]

    operations = [
        migrations.RenameField(
            model_name="delivery", old_name="query_incident", new_name="watched_incident"
        ),
    ]
