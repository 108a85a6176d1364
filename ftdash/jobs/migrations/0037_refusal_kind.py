from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0036_undone_starts_and_driver_waits")]

    operations = [
        migrations.AddField(
            model_name="restorerefusal",
            name="kind",
            field=models.CharField(default="unknown", max_length=30),
        ),
    ]
