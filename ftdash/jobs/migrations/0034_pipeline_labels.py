from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0033_run_gaps")]

    operations = [
        migrations.AddField(
            model_name="pipeline", name="labels", field=models.JSONField(default=list)
        ),
    ]
