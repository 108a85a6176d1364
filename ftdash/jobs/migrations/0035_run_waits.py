from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("jobs", "0034_pipeline_labels")]

    operations = [
        migrations.AddField(
            model_name="run", name="restart_at", field=models.DateTimeField(null=True)
        ),
        migrations.AddField(
            model_name="run", name="next_restart_delay_ms", field=models.FloatField(null=True)
        ),
    ]
