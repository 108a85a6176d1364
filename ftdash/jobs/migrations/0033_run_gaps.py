from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0032_run_renamed_uids")]

    operations = [
        migrations.AddField(
            model_name="run", name="accepted_gaps", field=models.JSONField(default=list)
        ),
        migrations.AddField(
            model_name="run", name="input_gaps", field=models.JSONField(default=list)
        ),
    ]
