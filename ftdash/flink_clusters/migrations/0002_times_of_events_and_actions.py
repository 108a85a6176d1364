from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("flink_clusters", "0001_watched_flink_clusters")]

    operations = [
        migrations.AddIndex(
            model_name="flinkevent",
            index=models.Index(fields=["at", "id"], name="flinkevent_at"),
        ),
        migrations.AddIndex(
            model_name="flinkaction",
            index=models.Index(fields=["created_at", "id"], name="flinkaction_at"),
        ),
    ]
