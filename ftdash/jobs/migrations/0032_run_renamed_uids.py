from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0001_squashed_0031_failure_kind")]

    operations = [
        migrations.AddField(
            model_name="run", name="renamed_uids", field=models.JSONField(default=dict)
        ),
    ]
