from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("watching", "0003_incidents_of_flink_clusters"),
    ]

    operations = [
        migrations.AddField(
            model_name="watchedquery",
            name="limits",
            field=models.JSONField(null=True),
        ),
    ]
